//! What can happen in a life between two power cuts.

use pillarbox::Tag;

use super::LANES;

/// Something that happens in a life. What it leaves open is drawn from the life's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A record is posted in this lane.
    Post(u8),
    /// Two producers post at once.
    PostTogether,
    /// A record with this tag is posted in lane 1.
    PostOnce(Tag),
    /// Some of a lane's records are sent, and some answers arrive.
    Deliver(u8),
    /// The oldest records of lane 1 are rejected.
    Reject,
    /// The receiver is told the account.
    Tell,
    /// A dead letter is retried or discarded; the late ones are sent.
    DeadLetters,
    /// A clean stop that no sleep follows.
    Suspend,
    /// A clean stop, and the power goes.
    SwitchOff,
    /// An operation on this lane is begun and dropped.
    DropFuture(u8),
    /// The flash driver will fail once, soon.
    DriverError,
    /// Records grow too old.
    Age,
    /// Everything is given up.
    Clear,
    /// New records get a new incarnation.
    Renew,
}

impl Step {
    /// Draws what happens next: mostly posts and deliveries.
    pub(super) fn draw(rng: &mut fastrand::Rng) -> Self {
        let lane = rng.u8(..LANES as u8);
        match rng.u16(..800) {
            0..360 => Self::Post(lane),
            360..400 => Self::PostTogether,
            400..442 => Self::PostOnce(rng.u32(..4)),
            442..448 => Self::PostOnce(rng.u32(..24)),
            448..624 => Self::Deliver(lane),
            624..664 => Self::Reject,
            664..688 => Self::Tell,
            688..712 => Self::DeadLetters,
            712..724 => Self::Suspend,
            724..736 => Self::SwitchOff,
            736..764 => Self::DropFuture(lane),
            764..788 => Self::DriverError,
            788..796 => Self::Age,
            796..798 => Self::Clear,
            _ => Self::Renew,
        }
    }
}
