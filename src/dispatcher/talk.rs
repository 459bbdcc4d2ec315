//! What an uplink of batches asks of the books and tells them, everything that belongs together at once: every wait for the storage is
//! code, and with a wait for each question the uplink would be some 3 KB larger.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use super::Dispatcher;
use crate::{
    Clock, DeviceId, Entry, Errand, Event, Key, LaneSet, Reason, Window, account::Account, list::take_where,
};

/// What a batch begins with.
pub(crate) struct Opening {
    pub(crate) errand: Errand,
    /// The incarnation of new records, the number of this boot, and its nonce.
    pub(crate) identity: (u32, u32, u32),
    pub(crate) wall_ms: Option<u64>,
    /// Entries of the account, whoever they are about.
    pub(crate) entries: usize,
}

/// What a batch says besides its records.
pub(crate) struct Statement {
    pub(crate) device: DeviceId,
    /// Floor and issued; `None` if nothing can be said about these counters now.
    pub(crate) span: Option<(u64, u64)>,
    pub(crate) entries: Vec<Entry, { Account::MAX }>,
    /// The lane in numbers, in the order of SPEC.md.
    pub(crate) report: [u32; 8],
}

/// What an answer says besides its verdicts on records.
#[derive(Default)]
pub(crate) struct Conclusion<'c> {
    /// Dead letters that the receiver has after all, and that are removed.
    pub(crate) arrived_late: &'c [Key],
    /// Dead letters that the receiver does not want.
    pub(crate) refused_late: &'c [Key],
    /// Keys that the receiver has with other content.
    pub(crate) conflicts: &'c [Key],
    /// The oldest record of its lane, which the receiver has seen and not taken.
    pub(crate) stuck: Option<Key>,
    /// Entries that are in the receiver's books.
    pub(crate) confirmed: &'c [Entry],
    /// The lane of a former incarnation of which all is said.
    pub(crate) closed: Option<(u32, u8)>,
}

impl<F, M, C, const LANES: usize, const RECORD: usize> Dispatcher<'_, F, LANES, RECORD, M, C>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// The next errand, and what a batch about it begins with.
    pub(crate) async fn open_batch(&mut self, books_of: LaneSet) -> Option<Opening> {
        let shared = self.drain.shared;
        let store = shared.lock().await;
        let core = &store.core;
        let errand = self.choose(core, books_of)?;
        let (identity, wall_ms) = (core.identity(), core.books.timestamp().wall_ms);
        Some(Opening { errand, identity, wall_ms, entries: core.books.account().len() })
    }

    /// What there is to say about an incarnation of a lane, of which the records of `window` are sent or none.
    pub(crate) async fn state(&mut self, incarnation: u32, window: &Window) -> Statement {
        let store = self.drain.shared.lock().await;
        let (core, lane) = (&store.core, window.lane);
        let account = core.books.account();
        let of_this = |is_uncertain: bool| {
            let is_it = move |entry: &&Entry| {
                entry.is_of(incarnation, lane) && (entry.reason == Reason::Uncertain) == is_uncertain
            };
            account.iter().filter(is_it).copied()
        };
        let stats = core.stats();
        let of_lane = stats.lanes.get(usize::from(lane)).copied().unwrap_or_default();
        Statement {
            device: core.device().clone(),
            span: core.books.span_of(incarnation, window),
            // A receiver that hears how many were issued, and not which of them are uncertain, takes those for lost.
            entries: of_this(true).chain(of_this(false)).collect(),
            report: [
                of_lane.depth.records,
                of_lane.depth.bytes,
                stats.erases,
                stats.corrupt,
                of_lane.enqueued,
                of_lane.delivered,
                of_lane.retried,
                self.failed,
            ],
        }
    }

    /// The receiver says what time it is, and which database it has. If that was another one before, it was restored or lost: what it has
    /// confirmed is told again.
    pub(crate) async fn learn(&mut self, wall_ms: u64, epoch: Option<u64>) {
        let mut store = self.drain.shared.lock().await;
        let books = &mut store.core.books;
        books.learn_time(wall_ms);
        if epoch.is_some() && self.epoch != epoch {
            if self.epoch.is_some() {
                core::mem::take(&mut self.remembered).into_iter().for_each(|entry| books.retell(entry));
            }
            self.epoch = epoch;
        }
    }

    /// Does what an answer says besides its verdicts on records.
    pub(crate) async fn conclude(&mut self, conclusion: &Conclusion<'_>) {
        let mut store = self.drain.shared.lock().await;
        let books = &mut store.core.books;
        books.arrived_late(conclusion.arrived_late);
        // What is remembered of them is not true any more.
        let has_arrived = |entry: &Entry| {
            conclusion.arrived_late.iter().any(|key| entry.covers(key.incarnation, key.lane, key.counter))
        };
        take_where(&mut self.remembered, has_arrived);
        books.refused_late(conclusion.refused_late);
        conclusion.conflicts.iter().for_each(|key| books.publish(Event::Conflict(*key)));
        if let Some(key) = conclusion.stuck {
            books.note_stuck(key);
        }
        books.confirm(conclusion.confirmed);
        for entry in conclusion.confirmed {
            push(&mut self.remembered, *entry);
        }
        if let Some((incarnation, lane)) = conclusion.closed {
            if !self.closed.contains(&(incarnation, lane)) {
                push(&mut self.closed, (incarnation, lane));
            }
            let is_open = |lane: u8| {
                books.issued_formerly(incarnation, lane).is_some_and(|issued| issued > 0)
                    && !self.closed.contains(&(incarnation, lane))
            };
            if !(0..LANES as u8).any(is_open) {
                books.close_former(incarnation);
                take_where(&mut self.closed, |(closed, _)| *closed == incarnation);
            }
        }
    }
}

/// The oldest makes room for the youngest.
fn push<T, const N: usize>(list: &mut Vec<T, N>, element: T) {
    if list.is_full() {
        list.remove(0);
    }
    let _ = list.push(element);
}
