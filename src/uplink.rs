//! What carries records to where they are wanted: the contract between the dispatcher and the network.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use crate::{Clock, Dispatcher, Error};

/// Some of an outbox's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LaneSet(u8);

impl LaneSet {
    /// Every lane.
    pub const ALL: Self = Self(u8::MAX);
    /// No lane.
    pub const NONE: Self = Self(0);

    /// These lanes.
    pub const fn of(lanes: &[u8]) -> Self {
        let (mut set, mut rest) = (0, lanes);
        while let [lane, others @ ..] = rest {
            assert!(*lane < 8, "an outbox has at most 6 lanes");
            set |= 1 << *lane;
            rest = others;
        }
        Self(set)
    }

    /// Whether a lane is among them.
    pub const fn contains(self, lane: u8) -> bool {
        lane < 8 && self.0 & (1 << lane) != 0
    }

    /// The lanes that are in both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The lanes that are in one of them.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// All lanes but these.
    pub const fn others(self) -> Self {
        Self(!self.0)
    }

    /// The most urgent of them; 0 if there is none.
    pub(crate) const fn first(self) -> u8 {
        let first = self.0.trailing_zeros();
        if first < 8 { first as u8 } else { 0 }
    }
}

/// Why a flush ended before all was said. Nothing is lost by it: what was not settled is sent again, with the same keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Failure {
    /// Nobody was reached, or no answer that can be believed came back in time. Back-off.
    Network,
    /// Somebody between here and the receiver asks to come back later: 408, 425, 429, 5xx. Back-off, no shorter than asked.
    Busy {
        /// Seconds that were asked for.
        retry_after_s: Option<u32>,
    },
    /// The receiver itself asks to come back later. Only the application may cut this wait short.
    Asked {
        /// Seconds that were asked for.
        retry_after_s: u32,
    },
    /// Nobody there wants to hear this device, with this status. A long pause, and an event.
    Refused {
        /// The status.
        status: u16,
    },
    /// The receiver understood, and nothing has changed by it. Back-off.
    NoProgress,
    /// The flash failed. Back-off.
    Storage,
}

impl<E> From<Error<E>> for Failure {
    fn from(_: Error<E>) -> Self {
        Self::Storage
    }
}

/// Carries records to a receiver.
///
/// The dispatcher calls [`flush`](Self::flush) when there is something to say and no reason to wait. The uplink then asks the dispatcher for
/// errands until there are none, sends, and tells the dispatcher what became of each record by its key. It must not settle, reject or
/// confirm anything but on the word of the one it is meant for. The storage is locked only inside the dispatcher's
/// methods, so an uplink that waits for the network holds up nobody.
#[allow(async_fn_in_trait, reason = "executors of one thread need no Send")]
pub trait Uplink {
    /// The lanes whose receiver wants to be told what will not arrive.
    fn books(&self) -> LaneSet;

    /// Sends what there is to send. May be cancelled: what was not settled is sent again.
    async fn flush<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock;
}

/// Two uplinks: some lanes go over the first, the others over the second.
pub struct Split<A, B> {
    lanes: LaneSet,
    first: A,
    second: B,
}

impl<A: Uplink, B: Uplink> Split<A, B> {
    /// These lanes go over `first`, all others over `second`.
    pub const fn new(lanes: LaneSet, first: A, second: B) -> Self {
        Self { lanes, first, second }
    }
}

impl<A: Uplink, B: Uplink> Uplink for Split<A, B> {
    fn books(&self) -> LaneSet {
        self.first.books().and(self.lanes).or(self.second.books().and(self.lanes.others()))
    }

    async fn flush<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let all = mail.serve_only(self.lanes);
        let first = self.first.flush(mail).await;
        mail.serve(all);
        mail.serve_only(self.lanes.others());
        // One receiver that is down does not keep the other waiting.
        let second = self.second.flush(mail).await;
        mail.serve(all);
        first.and(second)
    }
}
