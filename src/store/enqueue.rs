//! Appending a record: a counter below the durable ceiling, a place in the ring, and what happens when there is
//! none.

use embassy_sync::blocking_mutex::raw::RawMutex;

use super::{Core, Task};
use crate::{
    Cause, Clock, EnqueueError, Error, Event, Key, Kind, Stored, Tag, WhenFull,
    ledger::{Act, Intent, Tagged},
    rings::{Look, Work},
    stored::assemble,
    walk::Scope,
};

/// Counters that one write of the metadata leases; after an unclean boot at most so many are uncertain.
pub(crate) const LEASE: u64 = 64;

/// Encodes a record's body into a buffer; `None` if it does not fit.
pub(crate) type Encode<'e> = dyn FnMut(&mut [u8]) -> Option<usize> + 'e;

/// Appends a record; durable when it is done and not refused.
pub(crate) struct Enqueue<'e> {
    lane: u8,
    kind: Kind,
    tag: Option<Tag>,
    encode: &'e mut Encode<'e>,
    step: Step,
    /// What it is called; once it is appended, that is what was asked for.
    key: Key,
    len: u32,
    refusal: Option<Refusal>,
}

/// Why a record was refused, though the flash did as it was told.
#[derive(Clone, Copy)]
enum Refusal {
    NoSuchLane,
    TooManyTags,
    Exhausted,
    TooLarge,
    Full,
}

#[derive(Clone, Copy)]
enum Step {
    Begin,
    /// Is the record of this live tag still there?
    TagSought(usize, Key),
    Append,
    Pushed,
    /// Pages at the front that hold nothing pending are gone.
    FrontCleared,
    /// Is the page behind the oldest one settled?
    Judged,
    /// The oldest page pins the ring: its records go to the dead letters, one by one.
    Pinned,
    Evicting,
    Done,
}

impl<'e> Enqueue<'e> {
    pub(crate) fn new(lane: u8, kind: Kind, tag: Option<Tag>, encode: &'e mut Encode<'e>) -> Self {
        let key = Key { incarnation: 0, lane, counter: 0 };
        Self { lane, kind, tag, encode, step: Step::Begin, key, len: 0, refusal: None }
    }

    /// What became of it.
    pub(crate) fn end<E>(self) -> Result<Key, EnqueueError<E>> {
        Err(match self.refusal {
            None if matches!(self.step, Step::Done) => return Ok(self.key),
            None => EnqueueError::Storage(Error::NotWritten),
            Some(Refusal::NoSuchLane) => EnqueueError::Storage(Error::NoSuchLane),
            Some(Refusal::TooManyTags) => EnqueueError::TooManyTags,
            Some(Refusal::Exhausted) => EnqueueError::Exhausted,
            Some(Refusal::TooLarge) => EnqueueError::TooLarge,
            Some(Refusal::Full) => EnqueueError::Full,
        })
    }

    #[inline(never)]
    fn refuse(&mut self, refusal: Refusal) -> Option<Work> {
        self.refusal = Some(refusal);
        self.step = Step::Done;
        None
    }

    /// Sees to it that there is a place for the tag in the lane's index, and that the next counter is below the durable
    /// ceiling.
    fn begin<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        core: &mut Core<'_, M, C, LANES>,
        at: usize,
    ) -> Option<Work> {
        let books = &mut core.books;
        let (Some(lane), Some(ledger)) =
            (books.lanes.get(usize::from(self.lane)), books.ledger.lanes.get_mut(usize::from(self.lane)))
        else {
            return self.refuse(Refusal::NoSuchLane);
        };
        if let Some(tag) = self.tag
            && ledger.tags.is_full()
            && ledger.tags.iter().all(|tagged| tagged.tag != tag)
        {
            // Some may have been delivered before the last boot.
            let Some(Tagged { counter, page, .. }) = ledger.tags.get(at).copied() else {
                return self.refuse(Refusal::TooManyTags);
            };
            let key = books.key(self.lane, counter);
            self.step = Step::TagSought(at, key);
            let sought = Intent::new(Act::Remove, self.lane, page, key);
            return core.desk.seek(&sought, Look::Find);
        }
        if lane.next >= Key::COUNTER_LIMIT - LEASE {
            return self.refuse(Refusal::Exhausted);
        }
        self.step = Step::Append;
        if lane.next < lane.ceiling {
            return self.append(core);
        }
        ledger.ceiling = lane.next + LEASE;
        Some(Work::Commit)
    }

    /// Takes the next counter and puts the record together.
    fn append<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        core: &mut Core<'_, M, C, LANES>,
    ) -> Option<Work> {
        let counter = core.books.lane(self.lane)?.next;
        self.key = core.books.key(self.lane, counter);
        let (key, time) = (self.key, core.books.timestamp());
        let mut stored = Stored { key, kind: self.kind, time, tag: self.tag, cause: None, body: &[] };
        let record = &mut *core.cells.record;
        let body_len = record.get_mut(Stored::HEAD_MAX..).and_then(|body| (self.encode)(body));
        let len = body_len.and_then(|len| assemble(record, &mut stored, len, core.geometry));
        match len.filter(|len| *len <= u32::from(core.books.layout.record_max)) {
            Some(len) => {
                self.len = len;
                self.step = Step::Pushed;
                core.books.lane(self.lane)?.minting = Some(counter);
                Some(Work::Push(self.lane, len))
            }
            None => self.refuse(Refusal::TooLarge),
        }
    }

    /// The ring is as it was, but for what was found out: finds room in the way that costs least.
    fn make_room<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        core: &mut Core<'_, M, C, LANES>,
    ) -> Option<Work> {
        let ring = core.rings.get(self.lane);
        let (oldest, next) = (ring.head.0, ring.pages.next(ring.head.0));
        if ring.has_open_page() {
            return self.append(core);
        }
        let desk = &mut core.desk;
        let (step, page, look) = match self.step {
            Step::FrontCleared => (Step::Judged, next, Look::Settled),
            Step::Judged if desk.outcome.is_complete && desk.key.is_some() => {
                (Step::Pinned, oldest, Look::First)
            }
            Step::Judged => {
                core.books.publish(Event::Full { lane: self.lane });
                if core.books.lane(self.lane)?.config.when_full == WhenFull::Refuse {
                    return self.refuse(Refusal::Full);
                }
                (Step::Evicting, oldest, Look::GiveUp)
            }
            step => {
                self.step = Step::FrontCleared;
                let is_pinned = matches!(step, Step::Pinned);
                if !is_pinned {
                    desk.given_up(&mut core.books, self.lane);
                }
                match desk.key.take() {
                    // A few records that nobody takes, while all behind them is gone.
                    Some(key) if is_pinned => core.books.park(self.lane, oldest, key, Cause::Blocking),
                    Some(last) => core.books.intend(Intent::new(Act::Evict, self.lane, oldest, last)),
                    // Nothing is left there, or what was a moment ago was a removal that had been cut.
                    None => return desk.look(self.lane, Scope::Pending, Look::First),
                }
                return None;
            }
        };
        self.step = step;
        desk.look(self.lane, Scope::Page(page), look)
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Enqueue<'_> {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        match self.step {
            Step::Begin => self.begin(core, 0),
            Step::TagSought(at, key) => {
                if core.desk.key.is_none() {
                    core.books.forget_tag(key);
                }
                self.begin(core, at + 1)
            }
            Step::Append => self.append(core),
            Step::Pushed if core.desk.is_done => {
                self.step = Step::Done;
                let (tag, counter, page) = (self.tag, self.key.counter, core.rings.get(self.lane).tail);
                let lane = core.books.lane(self.lane)?;
                lane.minting = None;
                lane.next = counter + 1;
                // Should the rest fail or be dropped, the next task takes it up.
                lane.appended = tag.map(|tag| Tagged { tag, counter, page });
                core.books.note_queued(self.key, core.geometry.item_span(self.len));
                None
            }
            Step::Pushed => {
                // Nothing was written: the counter is still free.
                core.books.lane(self.lane)?.minting = None;
                self.step = Step::FrontCleared;
                core.desk.look(self.lane, Scope::Pending, Look::First)
            }
            Step::Done => None,
            _ => self.make_room(core),
        }
    }
}
