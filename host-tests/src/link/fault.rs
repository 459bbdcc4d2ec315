//! What a network does to a device, by name, and how often.

use fastrand::Rng;

/// One thing that goes wrong. At most one is drawn per lookup, per connection and per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The name is not found, although it exists.
    DnsFailure,
    /// Nobody listens, or so somebody says.
    ConnectionRefused,
    /// The request vanishes before the server sees it, and the connection falls silent.
    RequestLost,
    /// The server handles the request; the answer vanishes, and the connection falls silent.
    AnswerLost,
    /// The connection is reset before the request is complete: the server sees nothing.
    ResetInRequest,
    /// The server handles the request; the device sees a part of the answer, then a reset or the end.
    ResetInAnswer,
    /// The server handles the request twice, the second time at once or minutes later.
    RequestDuplicated,
    /// The request is handled many minutes later, whether or not the device still waits.
    RequestLate,
    /// A request of anybody that somebody recorded is sent once more, around this one.
    OldRequestReplayed,
    /// The server handles the request; bits of its answer are inverted.
    AnswerAltered,
    /// The device gets a 200 with a body that somebody made up. The server may have handled the request.
    AnswerForged,
    /// The server handles the request; the device gets an earlier answer, its own or another device's.
    OldAnswer,
    /// The device gets a login page with status 200; the server sees nothing.
    CaptivePortal,
    /// Something on the way answers with a status code and no more. The server may have handled the request.
    PlainStatus,
    /// The answer comes byte by byte.
    AnswerDribbled,
    /// The server closes the connection with the answer or soon after, announced or not.
    KeepAliveClosed,
}

/// When a fault can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A name is looked up.
    Lookup,
    /// A connection is opened.
    Connect,
    /// A request is sent.
    Request,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 16] = [
        Fault::DnsFailure,
        Fault::ConnectionRefused,
        Fault::RequestLost,
        Fault::AnswerLost,
        Fault::ResetInRequest,
        Fault::ResetInAnswer,
        Fault::RequestDuplicated,
        Fault::RequestLate,
        Fault::OldRequestReplayed,
        Fault::AnswerAltered,
        Fault::AnswerForged,
        Fault::OldAnswer,
        Fault::CaptivePortal,
        Fault::PlainStatus,
        Fault::AnswerDribbled,
        Fault::KeepAliveClosed,
    ];

    /// When it can happen.
    pub fn stage(self) -> Stage {
        match self {
            Fault::DnsFailure => Stage::Lookup,
            Fault::ConnectionRefused => Stage::Connect,
            _ => Stage::Request,
        }
    }
}

/// What [`Fault::PlainStatus`] answers with.
pub const PLAIN_STATUSES: [u16; 13] = [400, 401, 403, 404, 405, 408, 413, 425, 429, 500, 502, 503, 504];

/// How probable each fault is, and how long the long ones take.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkFaults {
    probability: [f64; Fault::ALL.len()],
    /// The longest delay of [`Fault::RequestLate`], and of the second copy of [`Fault::RequestDuplicated`].
    pub late_ms_max: u64,
    /// The slowest pace of [`Fault::AnswerDribbled`]: so long for each byte.
    pub dribble_ms_max: u64,
}

impl LinkFaults {
    /// A network without faults.
    pub const fn none() -> Self {
        Self { probability: [0.0; Fault::ALL.len()], late_ms_max: 10 * 60 * 1000, dribble_ms_max: 500 }
    }

    /// Each fault with the same probability at each of its opportunities.
    pub fn each(probability: f64) -> Self {
        Fault::ALL.into_iter().fold(Self::none(), |faults, fault| faults.with(fault, probability))
    }

    /// The same with another probability of one fault.
    ///
    /// # Panics
    /// If the faults of a stage are then more probable than certain.
    pub fn with(mut self, fault: Fault, probability: f64) -> Self {
        self.probability[fault as usize] = probability;
        let rivals = Fault::ALL.into_iter().filter(|rival| rival.stage() == fault.stage());
        let sum: f64 = rivals.map(|rival| self.probability[rival as usize]).sum();
        assert!((0.0..=1.0).contains(&probability) && sum <= 1.0 + 1e-9, "{fault:?}: {probability} of {sum}");
        self
    }

    pub(super) fn draw(&self, stage: Stage, rng: &mut Rng) -> Option<Fault> {
        let mut left = rng.f64();
        Fault::ALL.into_iter().filter(|fault| fault.stage() == stage).find(|fault| {
            left -= self.probability[*fault as usize];
            left < 0.0
        })
    }
}

impl Default for LinkFaults {
    fn default() -> Self {
        Self::none()
    }
}
