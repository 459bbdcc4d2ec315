//! Finishing what was begun, one piece of work at a time: checks of rings, writes of the ledger, intents, tags.

use embassy_sync::blocking_mutex::raw::RawMutex;

use super::{Books, Core};
use crate::{
    Cause, Clock, Entry, Event, Key, Reason, Stored,
    ledger::{Act, DEAD_LETTERS, Intent, Tagged},
    list::take_where,
    rings::{Look, Outcome, Rings, Work},
    stored::add_cause,
    walk::{Here, Scope, Sight, Visit},
};

/// What the work of the moment has found. It begins anew with every task.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Desk {
    /// The last piece of work did what it should; a push may find no room.
    pub(super) is_done: bool,
    /// How far the intent, or the taking up of a tag, has come.
    step: Step,
    pub(super) span: u32,
    /// The record that the last walk was looking for, or came to last, and the bytes of flash that it takes.
    pub(super) key: Option<Key>,
    /// The record that a walk is looking for.
    sought: Option<Key>,
    records: u32,
    bytes: u32,
    /// What is being given up: the entry that grows, and how many records and bytes it stands for.
    run: Option<(Entry, u32)>,
    /// What the last piece of work has found out.
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Begin,
    Looked,
    Copied,
    Removed,
    /// The dead letters are full.
    RoomSought,
    RoomExplained,
    RoomFree,
    RoomMade,
    /// Erasing everything: this page of this ring comes next.
    Clear(u8, u16),
}

impl Desk {
    /// Another task begins: what the last one left half done is begun anew.
    pub(super) fn clear(&mut self) {
        self.step = Step::Begin;
        self.run = None;
        (self.records, self.bytes) = (0, 0);
    }

    /// Makes ready for a walk.
    #[inline(never)]
    pub(super) fn look(&mut self, ring: u8, scope: Scope, look: Look) -> Option<Work> {
        (self.key, self.span) = (None, 0);
        Some(Work::Walk(ring, scope, look))
    }

    /// Makes ready for a walk that seeks a record on a page.
    #[inline(never)]
    pub(super) fn seek(&mut self, intent: &Intent, look: Look) -> Option<Work> {
        self.sought = Some(intent.key);
        self.look(intent.ring, Scope::Page(intent.page), look)
    }

    pub(super) fn visit<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        books: &mut Books<'_, M, C, LANES>,
        ring: u8,
        look: Look,
        stored: &Stored<'_>,
        here: &Here,
    ) -> Visit {
        let is_pending = here.sight == Sight::Pending;
        let (is_it, then) = match look {
            Look::Find | Look::Remove if self.sought != Some(stored.key) => return Visit::Keep,
            Look::Find => (is_pending, Visit::Stop),
            Look::Remove if !is_pending => return Visit::RemoveAndStop,
            Look::Remove => (true, Visit::RemoveAndStop),
            Look::First => (is_pending, Visit::Stop),
            Look::Settled => (true, if is_pending { Visit::Stop } else { Visit::Keep }),
            Look::Last => (true, Visit::Keep),
            Look::GiveUp => {
                self.give_up(books, ring, stored, here);
                (true, Visit::Keep)
            }
            Look::Task => return Visit::Keep,
        };
        if !is_it {
            return Visit::Keep;
        }
        (self.key, self.span) = (Some(stored.key), here.span);
        then
    }

    /// Explains a record whose page is going to be erased.
    fn give_up<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        books: &mut Books<'_, M, C, LANES>,
        ring: u8,
        stored: &Stored<'_>,
        here: &Here,
    ) {
        if here.sight != Sight::Pending {
            return;
        }
        self.records += 1;
        self.bytes += here.span;
        let entry = Entry::of(stored.key, final_reason(stored));
        match &mut self.run {
            // Dead letters are not in the order of their counters, and what lies between may be pending.
            Some((known, records)) if ring != DEAD_LETTERS && known.is_continued_by(&entry) => {
                known.len = entry.first - known.first + 1;
                *records += 1;
            }
            run => {
                if let Some((entry, records)) = run.replace((entry, 1)) {
                    books.give_up(entry, records);
                }
            }
        }
    }

    /// All of a page is explained.
    pub(super) fn given_up<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        books: &mut Books<'_, M, C, LANES>,
        ring: u8,
    ) {
        if let Some((entry, records)) = self.run.take() {
            books.give_up(entry, records);
        }
        books.note_removed(ring, self.records, self.bytes);
        (self.records, self.bytes) = (0, 0);
    }
}

/// Why a record is given up for good when its page makes room.
pub(super) fn final_reason(stored: &Stored<'_>) -> Reason {
    match stored.cause {
        Some(Cause::Rejected) => Reason::Rejected,
        Some(Cause::Expired) => Reason::Expired,
        Some(Cause::Blocking) | None => Reason::Evicted,
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Core<'_, M, C, LANES> {
    /// The next piece of what has to be finished before anything else is done.
    pub(super) fn tidy(&mut self) -> Option<Work> {
        if !self.books.is_loaded {
            return None;
        }
        loop {
            // A ring is not worth a check while it is being erased.
            if !matches!(self.desk.step, Step::Clear(..)) {
                let doubtful = |ring: &u8| !self.rings.get(*ring).is_trusted;
                if let Some(ring) = Rings::<LANES>::numbers().find(doubtful) {
                    return Some(Work::Mount(ring));
                }
                (self.books.is_opening, self.books.is_growing) = (false, false);
            }
            if self.books.must_commit {
                return Some(Work::Commit);
            }
            let work = match self.books.ledger.intent {
                Some(intent) => self.carry_on(&intent),
                None => return self.adopt(),
            };
            if work.is_some() {
                return work;
            }
            self.books.ledger.intent = None;
            self.desk.step = Step::Begin;
        }
    }

    /// The next piece of an intent; `None` when it is carried out. Everything may be done twice.
    fn carry_on(&mut self, intent: &Intent) -> Option<Work> {
        let step = self.desk.step;
        match intent.act {
            Act::Clear => self.carry_on_clearing(),
            Act::Evict => {
                self.desk.step = if step == Step::Begin { Step::Looked } else { Step::Removed };
                match step {
                    Step::Begin => self.desk.look(intent.ring, Scope::Page(intent.page), Look::Last),
                    // Unless the page holds others by now.
                    Step::Looked if self.desk.key == Some(intent.key) => {
                        Some(Work::Erase(intent.ring, intent.page))
                    }
                    _ => None,
                }
            }
            Act::Remove => self.remove(intent),
            Act::Park => self.carry_on_parking(intent),
        }
    }

    fn remove(&mut self, intent: &Intent) -> Option<Work> {
        if self.desk.step != Step::Removed {
            self.desk.step = Step::Removed;
            return self.desk.seek(intent, Look::Remove);
        }
        if self.desk.key.is_some() {
            self.books.note_removed(intent.ring, 1, self.desk.span);
        }
        None
    }

    /// Copies a record to the dead letters, unless that was done already, and removes it from its lane.
    fn carry_on_parking(&mut self, intent: &Intent) -> Option<Work> {
        let Intent { key, cause, .. } = *intent;
        let (next, work) = match self.desk.step {
            Step::RoomSought if !self.rings.dead.has_open_page() => {
                let oldest = Scope::Page(self.rings.dead.head.0);
                (Step::RoomExplained, self.desk.look(DEAD_LETTERS, oldest, Look::GiveUp))
            }
            Step::Begin | Step::RoomSought | Step::RoomMade => {
                (Step::Looked, self.desk.seek(intent, Look::Find))
            }
            Step::Looked => {
                let is_new = self.desk.key.is_some() && self.books.dead_youngest != Some(key);
                let len = self.desk.span.saturating_sub(self.geometry.word());
                match add_cause(self.cells.record, len, cause, self.geometry).filter(|_| is_new) {
                    Some(len) => (Step::Copied, Some(Work::Push(DEAD_LETTERS, len))),
                    None => return self.remove(intent),
                }
            }
            Step::Copied if self.desk.is_done => {
                self.books.dead_youngest = Some(key);
                return self.remove(intent);
            }
            Step::Copied => (Step::RoomSought, self.desk.look(DEAD_LETTERS, Scope::Pending, Look::First)),
            Step::RoomExplained => {
                self.desk.given_up(&mut self.books, DEAD_LETTERS);
                (Step::RoomFree, Some(Work::Commit))
            }
            Step::RoomFree => (Step::RoomMade, Some(Work::Erase(DEAD_LETTERS, self.rings.dead.head.0))),
            Step::Removed | Step::Clear(..) => {
                let _ = self.remove(intent);
                self.books.note_given_up(&Entry::of(key, Reason::Parked), 1);
                self.books.publish(Event::Parked { key, cause });
                return None;
            }
        };
        self.desk.step = next;
        work
    }

    /// Erases every page of every ring, and begins a new incarnation.
    fn carry_on_clearing(&mut self) -> Option<Work> {
        let (mut ring, mut page) = match self.desk.step {
            Step::Clear(ring, page) => (ring, page),
            _ => (0, 0),
        };
        if page >= self.rings.get(ring).pages.count {
            (ring, page) = (if ring < LANES as u8 { ring + 1 } else { DEAD_LETTERS }, 0);
        }
        if ring <= LANES as u8 {
            self.desk.step = Step::Clear(ring, page + 1);
            return Some(Work::Erase(ring, page));
        }
        for ring in Rings::<LANES>::numbers() {
            self.rings.begin(ring);
        }
        self.books.leave_incarnation();
        for lane in &mut self.books.lanes {
            (lane.oldest, lane.appended) = (None, None);
        }
        for ledger in &mut self.books.ledger.lanes {
            ledger.attempts.clear();
        }
        self.books.ledger.late.clear();
        self.books.must_commit = true;
        None
    }

    /// Takes up the tags of records that were appended: each becomes the newest of its tag, and the one that was is
    /// removed.
    fn adopt(&mut self) -> Option<Work> {
        for at in 0..LANES as u8 {
            let Some(new) = self.books.lane(at)?.appended else { continue };
            let old = self.books.kept(at)?.tags.iter().find(|tagged| tagged.tag == new.tag).copied();
            if old.is_some_and(|old| old.counter < new.counter) && self.desk.step == Step::Begin {
                let Tagged { counter, page, .. } = old?;
                self.desk.step = Step::Looked;
                let sought = Intent::new(Act::Remove, at, page, self.books.key(at, counter));
                return self.desk.seek(&sought, Look::Find);
            }
            let removed = self.desk.key.filter(|_| self.desk.step == Step::Looked);
            self.desk.step = Step::Begin;
            self.books.lane(at)?.appended = None;
            if old.is_some_and(|old| old.counter >= new.counter) {
                continue;
            }
            let tags = &mut self.books.kept(at)?.tags;
            take_where(tags, |tagged| tagged.tag == new.tag);
            // There is a place for it: it was reserved, or its predecessor's.
            let _ = tags.push(new);
            self.books.must_commit = true;
            if let (Some(key), Some(old)) = (removed, old) {
                self.books.give_up(Entry::of(key, Reason::Superseded), 1);
                self.books.intend(Intent::new(Act::Remove, at, old.page, key));
            }
            return Some(Work::Commit);
        }
        None
    }
}
