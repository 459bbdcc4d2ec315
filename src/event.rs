//! What an application may want to show or log while the outbox works.

use embassy_sync::{
    blocking_mutex::raw::RawMutex,
    pubsub::{self, PubSubChannel},
};

use crate::{Cause, Entry, Key, trigger::Bell};

/// Events that a slow subscriber may lag behind before it misses some.
pub(crate) const EVENTS: usize = 4;
/// Subscribers at a time.
pub(crate) const SUBSCRIBERS: usize = 2;

pub(crate) type Channel<M> = PubSubChannel<M, Event, EVENTS, SUBSCRIBERS, 0>;

/// How the outbox makes itself heard: by those who listen, and by the dispatcher.
pub(crate) struct Signals<M: RawMutex> {
    pub(crate) events: Channel<M>,
    pub(crate) bell: Bell<M>,
}

impl<M: RawMutex> Signals<M> {
    pub(crate) const fn new() -> Self {
        Self { events: PubSubChannel::new(), bell: Bell::new() }
    }
}

/// Receives [`Event`]s; says how many it missed if it was too slow.
pub type Subscriber<'r, M> = pubsub::Subscriber<'r, M, Event, EVENTS, SUBSCRIBERS, 0>;

/// Something that happened to a record or to the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Event {
    /// It is in flash: pending.
    Queued(Key),
    /// The receiver has it: sent.
    Delivered(Key),
    /// The receiver rejected it, this many times by now; it will be tried again.
    Retrying {
        /// Which record.
        key: Key,
        /// Rejections so far.
        attempts: u16,
    },
    /// It went to the dead letters: could not be sent.
    Parked {
        /// Which record.
        key: Key,
        /// Why.
        cause: Cause,
    },
    /// These will not be sent.
    Dropped(Entry),
    /// So many records were rejected in a row that parking pauses: is the right firmware talking to the right
    /// receiver?
    ParkingPaused {
        /// Which lane.
        lane: u8,
    },
    /// The lane has no room for another record.
    Full {
        /// Which lane.
        lane: u8,
    },
    /// Bytes in flash did not add up; they were passed over, and the ring goes on.
    Corruption {
        /// Which lane; `None` for the dead letters.
        lane: Option<u8>,
        /// How many items or pages.
        count: u32,
    },
    /// The receiver, or something in between, will not talk to this device, with this status. Everything is kept, and tried
    /// again after long pauses: is the secret right, and the address?
    Refused {
        /// The status of its answer.
        status: u16,
    },
    /// The receiver says that another device speaks under this name, or that this one has gone back in time: new records
    /// have a new incarnation.
    Renewed {
        /// The new incarnation.
        incarnation: u32,
    },
    /// The receiver has this key with other content. It has kept both.
    Conflict(Key),
    /// There was no readable metadata: the region was formatted and has a new incarnation.
    Formatted {
        /// The new incarnation.
        incarnation: u32,
    },
}
