//! What the newest snapshot says, for those who only read it.

use heapless::Vec;

use super::Ring;
pub use crate::ledger::{Attempts, Count as Backlog, Tagged};
use crate::{
    Cause, Entry, Geometry, Key, Layout,
    account::Account,
    layout::LANES_MAX,
    ledger::{ATTEMPTS, Act, DEAD_LETTERS, FORMER, Intent, LATE, LaneLedger, Ledger, TAGS, read_head},
};

/// What the newest whole snapshot of a region says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The sizes that the region was written with.
    pub geometry: Geometry,
    /// Whose region it is, and where its rings lie.
    pub layout: Layout,
    /// The snapshot's number; one is written whenever something of this changes.
    pub sequence: u32,
    /// The incarnation of new records.
    pub incarnation: u32,
    /// How often the region was opened.
    pub boot: u32,
    /// Something of several steps has begun. The next boot finishes it, or finds that it is finished.
    pub unfinished: Option<Unfinished>,
    /// What is kept of each lane.
    pub lanes: Vec<Lane, LANES_MAX>,
    /// What will not arrive, and why.
    pub account: Vec<Entry, { Account::MAX }>,
    /// Dead letters that are to be sent again.
    pub late: Vec<Key, LATE>,
    /// Incarnations that take no more records, and whose books may still be open.
    pub former: Vec<Former, FORMER>,
}

/// What is kept of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// How far its counters came.
    pub counters: Counters,
    /// What was pending, if the device was stopped cleanly.
    pub at_stop: Option<Backlog>,
    /// The newest record of each tag.
    pub tags: Vec<Tagged, TAGS>,
    /// Records that were rejected and not given up.
    pub attempts: Vec<Attempts, ATTEMPTS>,
}

/// How far a lane's counters came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// No counter from here on was ever handed out.
    pub ceiling: u64,
    /// Every counter below was handed out, or will never be; the truth lies between this and the ceiling.
    pub next: u64,
}

/// An incarnation that takes no more records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// Its number.
    pub incarnation: u32,
    /// For each lane, the counter after its last.
    pub issued: Vec<u64, LANES_MAX>,
}

/// Something of several steps that has begun. Where it was carried out already it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Every ring is erased, and new records take a new incarnation.
    Clear,
    /// A page is erased, if the last record on it still is this one.
    Evict {
        /// The page's ring.
        ring: Ring,
        /// The page.
        page: u16,
        /// The last record on it.
        last: Key,
    },
    /// A record is removed.
    Remove {
        /// The ring that it lies in.
        ring: Ring,
        /// The page that it lies on.
        page: u16,
        /// The record.
        key: Key,
    },
    /// A record is moved to the dead letters.
    Park {
        /// The ring that it lies in.
        ring: Ring,
        /// The page that it lies on.
        page: u16,
        /// The record.
        key: Key,
        /// Why it is moved.
        cause: Cause,
    },
}

impl Metadata {
    /// What a snapshot says; `None` if it says nothing that makes sense.
    pub(super) fn decode(geometry: Geometry, snapshot: &[u8]) -> Option<Self> {
        let mut layout = Layout::blank();
        let (sequence, ledger) = read_head(snapshot, &mut layout)?;
        let ledger = Ledger::<LANES_MAX>::decode(ledger)?;
        let lanes = layout.lanes.len();
        let former = ledger.former.iter().map(|former| Former {
            incarnation: former.incarnation,
            issued: former.issued.iter().take(lanes).copied().collect(),
        });
        Some(Self {
            geometry,
            sequence,
            incarnation: ledger.incarnation,
            boot: ledger.boot,
            unfinished: ledger.intent.map(Unfinished::from),
            former: former.collect(),
            lanes: ledger.lanes.into_iter().take(lanes).map(Lane::from).collect(),
            account: ledger.account.entries().iter().copied().collect(),
            late: ledger.late,
            layout,
        })
    }
}

impl From<LaneLedger> for Lane {
    fn from(ledger: LaneLedger) -> Self {
        Self {
            counters: Counters { ceiling: ledger.ceiling, next: ledger.next },
            at_stop: ledger.count,
            tags: ledger.tags,
            attempts: ledger.attempts,
        }
    }
}

impl From<Intent> for Unfinished {
    fn from(intent: Intent) -> Self {
        let Intent { page, key, cause, .. } = intent;
        let ring = if intent.ring == DEAD_LETTERS { Ring::DeadLetters } else { Ring::Lane(intent.ring) };
        match intent.act {
            Act::Clear => Self::Clear,
            Act::Evict => Self::Evict { ring, page, last: key },
            Act::Remove => Self::Remove { ring, page, key },
            Act::Park => Self::Park { ring, page, key, cause },
        }
    }
}
