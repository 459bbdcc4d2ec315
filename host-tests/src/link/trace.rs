//! What happened on the network: counted per link, and remembered in order, so that two runs can be compared and a
//! failed one understood.

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;

use super::fault::Fault;

/// Events that a trace shows; of older ones only the digest knows.
const SHOWN: usize = 4096;

/// What a link has carried and suffered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes that the device wrote.
    pub sent_bytes: u64,
    /// Bytes that arrived at the device, read or not.
    pub received_bytes: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests that the device finished writing.
    pub requests: u64,
    /// Answers that arrived whole, whoever made them.
    pub answers: u64,
    /// Times that the server handled something that came, or once came, over this link.
    pub handled: u64,
    faults: [u64; Fault::ALL.len()],
}

impl LinkCounts {
    /// How often a fault was drawn.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// How often any fault was drawn.
    pub fn all_faults(&self) -> u64 {
        self.faults.iter().sum()
    }

    pub(super) fn count_fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// When.
    pub at_ms: u64,
    /// On which link; the server's own events have none.
    pub link: Option<u16>,
    /// What.
    pub what: What,
}

/// See [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum What {
    LinkUp,
    LinkDown,
    ServerUp,
    ServerDown,
    ServerRestarted,
    NameFound,
    Connected,
    Suffered(Fault),
    RequestSent { bytes: usize },
    Handled { request_bytes: usize, status: u16 },
    AnswerArrived { bytes: usize },
    ConnectionReset,
    ConnectionClosed,
    DeviceHungUp,
}

/// The events of a network, in their order.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    latest: VecDeque<Event>,
    count: u64,
    digest: u64,
}

impl Trace {
    /// The latest events, the oldest of them first.
    pub fn latest(&self) -> impl Iterator<Item = &Event> {
        self.latest.iter()
    }

    /// How many events there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Follows from all events and their order; two runs with the same digest have done the same.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn push(&mut self, event: Event) {
        // Its keys are fixed, unlike those of a `HashMap`.
        let mut hasher = DefaultHasher::new();
        self.digest.hash(&mut hasher);
        event.hash(&mut hasher);
        self.digest = hasher.finish();
        self.count += 1;
        if self.latest.len() == SHOWN {
            self.latest.pop_front();
        }
        self.latest.push_back(event);
    }
}
