//! How the outbox is doing, in numbers.

use crate::Reason;

/// How much is pending in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Depth {
    /// Pending records.
    pub records: u32,
    /// Bytes of flash that they take.
    pub bytes: u32,
    /// After an unclean boot the numbers are upper bounds, until a pass over the whole lane has counted.
    pub is_exact: bool,
}

/// A lane in numbers, counted since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LaneStats {
    /// What is pending.
    pub depth: Depth,
    /// Age of the oldest pending record, where it is known.
    pub oldest_ms: Option<u64>,
    /// Records enqueued.
    pub enqueued: u32,
    /// Records that the receiver has taken.
    pub delivered: u32,
    /// Rejections that were not final.
    pub retried: u32,
    /// Records given up, by [`Reason`].
    pub given_up: GivenUp,
}

/// Records given up since boot, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GivenUp([u32; Reason::COUNT]);

impl GivenUp {
    /// How many for this reason.
    pub fn of(&self, reason: Reason) -> u32 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, reason: Reason, records: u32) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count = count.saturating_add(records);
        }
    }
}

/// The outbox in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Stats<const LANES: usize> {
    /// The lanes, in order of priority.
    pub lanes: [LaneStats; LANES],
    /// Erases since boot, of all pages together.
    pub erases: u32,
    /// Corrupt items and pages found since boot.
    pub corrupt: u32,
    /// How often this region was opened.
    pub boot: u32,
}
