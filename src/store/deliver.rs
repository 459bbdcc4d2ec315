//! What the dispatcher asks of the storage: what to send, and what to do when an answer has come.

use embassy_sync::blocking_mutex::raw::RawMutex;
use heapless::Vec;

use super::{Books, Core, Task};
use crate::{
    Cause, Clock, Depth, Entry, Event, Key, Pick, Reason, Rejection, Stored, Timestamp, Window,
    ledger::{ATTEMPTS, Attempts, Count, DEAD_LETTERS},
    list::take_where,
    rings::{Look, Work},
    walk::{Here, Scope, Sight, Visit},
    wire::WINDOW,
};

/// Records that may be parked in a row before parking pauses: a wrong deployment must not empty a ring.
const BRAKE: u8 = 8;

/// Rejections handled in one pass; the rest come again.
const REJECTIONS: usize = 8;

/// Whether a record cannot be in one batch with the first.
fn is_beyond(first: Key, key: Key) -> bool {
    key.incarnation != first.incarnation || key.counter.saturating_sub(first.counter) >= WINDOW
}

/// How far a task of one walk has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    /// The lane's front was looked at.
    Front,
    Walking,
    Done,
}

/// Shows the oldest pending records of a lane, until no more are taken. What has grown too old goes to the dead letters
/// first, and a record that others have overtaken when nothing else is left in its window.
#[repr(C)]
pub(crate) struct Take<'t> {
    lane: u8,
    step: Step,
    /// The first is alone in its window.
    is_alone: bool,
    taken: u16,
    /// The first record's page and time.
    page: u16,
    /// Records that were passed, taken or not.
    passed: u32,
    bytes: u32,
    corrupt: u32,
    take: &'t mut dyn FnMut(&Stored<'_>) -> Pick,
    first: Option<Key>,
    last: Option<Key>,
    time: Option<Timestamp>,
    pub(crate) window: Option<Window>,
}

impl<'t> Take<'t> {
    pub(crate) fn new(lane: u8, take: &'t mut dyn FnMut(&Stored<'_>) -> Pick) -> Self {
        Self {
            lane,
            take,
            step: Step::Begin,
            is_alone: false,
            taken: 0,
            page: 0,
            passed: 0,
            bytes: 0,
            corrupt: 0,
            first: None,
            last: None,
            time: None,
            window: None,
        }
    }

    /// Why the lane's first record cannot stay there.
    fn cause<M: RawMutex, C: Clock, const LANES: usize>(
        &self,
        books: &mut Books<'_, M, C, LANES>,
    ) -> Option<Cause> {
        let max_age = books.lane(self.lane)?.config.max_age_ms.unwrap_or(u64::MAX);
        if self.time.as_ref().and_then(|time| books.age_ms(time)).is_some_and(|age| age > max_age) {
            return Some(Cause::Expired);
        }
        self.is_alone.then_some(Cause::Blocking)
    }

    fn end<M: RawMutex, C: Clock, const LANES: usize>(
        &self,
        core: &mut Core<'_, M, C, LANES>,
    ) -> Option<Window> {
        let (is_complete, books) = (core.desk.outcome.is_complete, &mut core.books);
        let lane = books.lane(self.lane)?;
        lane.oldest = self.time;
        if is_complete {
            lane.stats.depth = Depth { records: self.passed, bytes: self.bytes, is_exact: true };
        }
        let next = lane.next;
        let ledger = &books.ledger;
        let (incarnation, floor) =
            self.first.map_or((ledger.incarnation, next), |key| (key.incarnation, key.counter));
        let issued = if incarnation == ledger.incarnation {
            next
        } else {
            let former = ledger.former.iter().find(|former| former.incarnation == incarnation);
            let issued = former.and_then(|former| former.issued.get(usize::from(self.lane)).copied());
            issued.unwrap_or(self.last.map_or(0, |key| key.counter + 1))
        };
        let (lane, taken) = (self.lane, self.taken);
        Some(Window { incarnation, lane, floor, issued, taken, has_more: !is_complete })
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Take<'_> {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let lane = core.books.lane(self.lane)?;
        match self.step {
            Step::Begin => {
                let has_valve = lane.config.max_age_ms.is_some() || lane.overtaken.is_some();
                self.step = if has_valve { Step::Front } else { Step::Walking };
            }
            Step::Front => {
                let (cause, first) = (self.cause(&mut core.books), self.first.take());
                (self.step, self.is_alone, self.time) = (Step::Walking, false, None);
                if let (Some(cause), Some(key)) = (cause, first) {
                    core.books.park(self.lane, self.page, key, cause);
                    self.step = Step::Begin;
                    return None;
                }
            }
            Step::Walking => {
                self.window = self.end(core);
                self.step = Step::Done;
                return None;
            }
            Step::Done => return None,
        }
        Some(Work::Walk(self.lane, Scope::Pending, Look::Task))
    }

    fn visit(&mut self, books: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, here: &Here) -> Visit {
        let key = stored.key;
        let is_first = self.first.is_none();
        if is_first {
            (self.first, self.time, self.page) = (Some(key), Some(stored.time), here.page);
        }
        let start = self.first.unwrap_or(key);
        let is_beyond = is_beyond(start, key);
        if self.step == Step::Front {
            self.is_alone = is_beyond && key.incarnation == start.incarnation;
            let is_overtaken = books.lane(self.lane).is_some_and(|lane| lane.overtaken == Some(key));
            return if is_first && is_overtaken { Visit::Keep } else { Visit::Stop };
        }
        if is_beyond {
            return Visit::Stop;
        }
        // What could not be read lay between this record and the one before it.
        if let (Some(previous), true) = (self.last, here.corrupt > self.corrupt) {
            let first = previous.counter + 1;
            let len = key.counter.saturating_sub(first);
            books.fill(Entry { first, len, ..Entry::of(key, Reason::Corrupt) });
        }
        self.corrupt = here.corrupt;
        match (self.take)(stored) {
            Pick::Take => self.taken += 1,
            Pick::Skip => {}
            Pick::Stop => return Visit::Stop,
        }
        self.last = Some(key);
        self.passed += 1;
        self.bytes += here.span;
        Visit::Keep
    }
}

/// Shows every pending record of a ring, oldest first.
pub(crate) struct Inspect<'t> {
    ring: Option<u8>,
    show: &'t mut dyn FnMut(&Stored<'_>),
}

impl<'t> Inspect<'t> {
    pub(crate) fn new(ring: u8, show: &'t mut dyn FnMut(&Stored<'_>)) -> Self {
        Self { ring: Some(ring), show }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Inspect<'_> {
    fn turn(&mut self, _: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        self.ring.take().map(|ring| Work::Walk(ring, Scope::Pending, Look::Task))
    }

    fn visit(&mut self, _: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, _: &Here) -> Visit {
        (self.show)(stored);
        Visit::Keep
    }
}

/// Removes records that the receiver has, in one pass.
#[repr(C)]
pub(crate) struct Settle<'k> {
    ring: u8,
    step: Step,
    /// How many there are, and which.
    count: usize,
    is_delivered: &'k dyn Fn(&Key) -> bool,
    found: usize,
    pub(crate) removed: u32,
    oldest: Option<Key>,
    time: Option<Timestamp>,
}

impl<'k> Settle<'k> {
    pub(crate) fn new(ring: u8, count: usize, is_delivered: &'k dyn Fn(&Key) -> bool) -> Self {
        Self { ring, step: Step::Begin, count, is_delivered, found: 0, removed: 0, oldest: None, time: None }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Settle<'_> {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let books = &mut core.books;
        match self.step {
            Step::Begin if self.count == 0 => return None,
            Step::Begin => {
                self.step = Step::Front;
                if books.lane(self.ring).is_some_and(|lane| lane.is_counted) {
                    return Some(Work::Commit);
                }
            }
            Step::Front => {}
            Step::Walking | Step::Done => {
                // Of a record that cannot be removed nobody knows whether it is there; all were.
                if let Some(lane) = books.lane(self.ring) {
                    lane.oldest = self.time;
                    lane.stats.depth.is_exact |= core::mem::take(&mut lane.was_exact);
                }
                return None;
            }
        }
        self.step = Step::Walking;
        for ledger in &mut books.ledger.lanes {
            take_where(&mut ledger.attempts, |attempts| (self.is_delivered)(&attempts.key));
        }
        if let Some(lane) = books.lane(self.ring) {
            lane.was_exact = core::mem::take(&mut lane.stats.depth.is_exact);
        }
        Some(Work::Walk(self.ring, Scope::Pending, Look::Task))
    }

    fn visit(&mut self, books: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, here: &Here) -> Visit {
        let key = stored.key;
        if here.sight != Sight::Removed {
            if !(self.is_delivered)(&key) {
                if self.oldest.is_none() {
                    (self.oldest, self.time) = (Some(key), Some(stored.time));
                }
                return Visit::Keep;
            }
            self.found += 1;
            return if self.found == self.count { Visit::RemoveAndStop } else { Visit::Remove };
        }
        self.removed += 1;
        books.note_removed(self.ring, 1, here.span);
        books.forget_tag(key);
        if let Some(lane) = books.lane(key.lane) {
            lane.stats.delivered += 1;
        }
        if let Some(lane) = books.lane(self.ring) {
            lane.parked_in_a_row = 0;
            lane.overtaken = self.oldest;
        }
        books.publish(Event::Delivered(key));
        Visit::Keep
    }
}

/// Counts rejections; records that were rejected too often, or for good, go to the dead letters.
pub(crate) struct Reject<'k> {
    lane: u8,
    keys: &'k [Key],
    /// What their death is called.
    cause: Cause,
    /// There is no next attempt.
    is_final: bool,
    step: Step,
    found: Vec<(Key, u16), REJECTIONS>,
    /// Records whose rejections are counted, and that are still there.
    alive: Vec<Key, ATTEMPTS>,
    last: Option<Key>,
    pub(crate) rejection: Rejection,
}

impl<'k> Reject<'k> {
    /// They will be tried again, unless that was too often.
    pub(crate) fn counted(lane: u8, keys: &'k [Key]) -> Self {
        Self {
            lane,
            keys,
            cause: Cause::Rejected,
            is_final: false,
            step: Step::Begin,
            found: Vec::new(),
            alive: Vec::new(),
            last: None,
            rejection: Rejection::default(),
        }
    }

    /// They will not be tried again.
    pub(crate) fn for_good(lane: u8, keys: &'k [Key], cause: Cause) -> Self {
        Self { cause, is_final: true, ..Self::counted(lane, keys) }
    }

    /// How often a record was rejected, this time included; `None` if too many others are being counted.
    fn count<M: RawMutex, C: Clock, const LANES: usize>(
        books: &mut Books<'_, M, C, LANES>,
        key: Key,
    ) -> Option<u16> {
        let attempts = &mut books.kept(key.lane)?.attempts;
        if let Some(known) = attempts.iter_mut().find(|known| known.key == key) {
            known.count = known.count.saturating_add(1);
            return Some(known.count);
        }
        attempts.push(Attempts { key, count: 1 }).ok().map(|()| 1)
    }

    /// Decides about one rejected record.
    fn judge<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        books: &mut Books<'_, M, C, LANES>,
        key: Key,
        page: u16,
    ) {
        // What is final needs no counting, and so no place where it is counted.
        let Some(attempts) = (if self.is_final { Some(u16::MAX) } else { Self::count(books, key) }) else {
            return;
        };
        let Some(lane) = books.lane(self.lane) else { return };
        let is_braked = self.cause == Cause::Rejected && lane.parked_in_a_row >= BRAKE;
        if attempts < lane.config.max_attempts {
            lane.stats.retried += 1;
            self.rejection.retrying += 1;
            // Written at 1, 2, 4, 8, ...: few writes, and a reboot forgets less than half.
            books.must_commit |= attempts.is_power_of_two();
            books.publish(Event::Retrying { key, attempts });
        } else if is_braked {
            lane.stats.retried += 1;
            self.rejection.retrying += 1;
            self.rejection.is_paused = true;
        } else {
            lane.parked_in_a_row = lane.parked_in_a_row.saturating_add(1);
            books.park(self.lane, page, key, self.cause);
            self.rejection.parked += 1;
        }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Reject<'_> {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        match self.step {
            Step::Begin => {
                self.step = Step::Front;
                return Some(Work::Walk(self.lane, Scope::Pending, Look::Task));
            }
            Step::Front => {
                self.step = Step::Walking;
                self.found.reverse();
                // Records that are gone, delivered or evicted perhaps before the last boot, make room for others.
                let is_complete = core.desk.outcome.is_complete;
                let is_gone = |key: &Key| {
                    let last = self.last.filter(|last| last.incarnation == key.incarnation);
                    let is_passed = last.is_some_and(|last| last.counter >= key.counter);
                    (is_passed || is_complete) && !self.alive.contains(key)
                };
                take_where(&mut core.books.kept(self.lane)?.attempts, |attempts| is_gone(&attempts.key));
            }
            Step::Walking | Step::Done => {}
        }
        // One after the other: each may have to be parked before the next.
        while let Some((key, page)) = self.found.pop() {
            self.judge(&mut core.books, key, page);
            if core.books.ledger.intent.is_some() {
                return None;
            }
        }
        if self.rejection.is_paused && self.step == Step::Walking {
            core.books.publish(Event::ParkingPaused { lane: self.lane });
        }
        self.step = Step::Done;
        None
    }

    fn visit(&mut self, books: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, here: &Here) -> Visit {
        let key = stored.key;
        self.last = Some(key);
        let is_counted = |attempts: &Attempts| attempts.key == key;
        if books.kept(self.lane).is_some_and(|ledger| ledger.attempts.iter().any(is_counted)) {
            let _ = self.alive.push(key);
        }
        let is_rejected = self.keys.contains(&key);
        let is_too_many = is_rejected && self.found.push((key, here.page)).is_err();
        if is_too_many || self.found.len() == self.keys.len() { Visit::Stop } else { Visit::Keep }
    }
}

/// The receiver has no explanation for these counters: whatever is not pending is given one, "lost" if there is no
/// better.
pub(crate) struct Explain {
    asked: Entry,
    from: u64,
    step: Step,
}

impl Explain {
    pub(crate) fn new(asked: Entry) -> Self {
        Self { asked: Entry { reason: Reason::Lost, ..asked }, from: asked.first, step: Step::Begin }
    }

    fn explain_until<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        books: &mut Books<'_, M, C, LANES>,
        until: u64,
    ) {
        let len = until.min(self.asked.end()).saturating_sub(self.from);
        books.fill(Entry { first: self.from, len, ..self.asked });
        self.from = until.saturating_add(1);
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Explain {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let next = core.books.lane(self.asked.lane)?.next;
        match self.step {
            Step::Begin => {
                if self.asked.incarnation == core.books.ledger.incarnation {
                    self.asked.len = self.asked.end().min(next).saturating_sub(self.asked.first);
                }
                // What is not pending may be a dead letter: the receiver was told so, and has lost its memory since.
                self.step = Step::Front;
                return Some(Work::Walk(DEAD_LETTERS, Scope::Pending, Look::Task));
            }
            Step::Front => {
                self.step = Step::Walking;
                return Some(Work::Walk(self.asked.lane, Scope::Pending, Look::Task));
            }
            Step::Walking => {
                self.step = Step::Done;
                self.explain_until(&mut core.books, u64::MAX);
            }
            Step::Done => {}
        }
        None
    }

    fn visit(&mut self, books: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, _: &Here) -> Visit {
        let Key { incarnation, lane, counter } = stored.key;
        if self.step == Step::Front {
            if self.asked.covers(incarnation, lane, counter) {
                books.fill(Entry::of(stored.key, Reason::Parked));
            }
            return Visit::Keep;
        }
        if incarnation != self.asked.incarnation || counter < self.from {
            return Visit::Keep;
        }
        self.explain_until(books, counter);
        if counter >= self.asked.end() { Visit::Stop } else { Visit::Keep }
    }
}

/// Takes a new incarnation for new records; those that are pending keep theirs.
#[derive(Default)]
pub(crate) struct Renew {
    is_done: bool,
    /// The new one.
    pub(crate) incarnation: u32,
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Renew {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        if !core::mem::replace(&mut self.is_done, true) {
            core.books.leave_incarnation();
            core.books.must_commit = true;
            let incarnation = core.books.ledger.incarnation;
            self.incarnation = incarnation;
            core.books.publish(Event::Renewed { incarnation });
        }
        None
    }
}

/// A clean stop: nothing is uncertain after it, and the depth is known at the next boot. The leases are given up, so the
/// next record costs a write.
#[derive(Default)]
pub(crate) struct Suspend {
    is_done: bool,
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Suspend {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        if core::mem::replace(&mut self.is_done, true) {
            return None;
        }
        let books = &mut core.books;
        for (lane, ledger) in books.lanes.iter_mut().zip(&mut books.ledger.lanes) {
            lane.ceiling = lane.next;
            ledger.ceiling = lane.next;
            let Depth { records, bytes, is_exact } = lane.stats.depth;
            ledger.count = is_exact.then_some(Count { records, bytes });
        }
        Some(Work::Commit)
    }
}
