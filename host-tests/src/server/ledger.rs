//! What the receiver can say about a lane, and the proof that it may: beside the books, which forget, stand notes of
//! every single counter, which do not. After every batch the two must agree.

use std::collections::BTreeSet;
use std::ops::Range;

use pillarbox::{Entry, Reason, wire::WINDOW};

use super::{
    books::{Applied, Books, Changes, Said, Seen},
    ranges::{Open, cut_out, minus, rank},
};

/// What became of the counters of one incarnation and lane. Every issued counter is in exactly one of `received`,
/// `pending`, `unexplained` and `explained`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Counters that were handed out, as far as the receiver has heard.
    pub issued: u64,
    /// Records that were stored.
    pub received: u64,
    /// Still to come.
    pub pending: u64,
    /// The device says that it is done with them, and has not said why.
    pub unexplained: u64,
    /// Will not come, by the number of the reason.
    pub explained: [u64; Reason::COUNT],
    /// The device takes no more records under this incarnation, and nothing is missing.
    pub is_closed: bool,
}

impl Ledger {
    /// Will not come, for this reason.
    pub fn explained_as(&self, reason: Reason) -> u64 {
        self.explained[reason as usize]
    }

    /// At most so many records were handed out and lost before the receiver heard of them.
    pub fn uncertain(&self) -> u64 {
        self.explained_as(Reason::Uncertain)
    }

    /// Gone, and the device cannot say why: the alarm.
    pub fn lost(&self) -> u64 {
        self.explained_as(Reason::Lost)
    }
}

/// Everything about every counter: what the books must agree with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Notes {
    received: BTreeSet<u64>,
    /// In order and disjoint; nothing in them was received.
    explained: Vec<Open>,
    /// The same, but the books have forgotten them.
    forgotten: Vec<Open>,
}

impl Notes {
    fn keep(&mut self, changes: &Changes) {
        for taken in &changes.taken {
            self.explain(*taken);
        }
        for gone in &changes.forgotten {
            let (inside, outside) = split(&self.explained, gone.range());
            assert_eq!(joined(inside), vec![*gone], "what was forgotten is not what was explained");
            self.explained = outside;
            self.forgotten.push(*gone);
        }
    }

    fn explain(&mut self, taken: Open) {
        let (inside, mut outside) = split(&self.explained, taken.range());
        // What was explained keeps the reason that stands; the rest is new, where nothing was received.
        let mut new: Vec<Open> = minus(taken.range(), &inside)
            .into_iter()
            .map(|range| Open::new(range, taken.reason))
            .chain(inside.iter().map(|open| match rank(open.reason) < rank(taken.reason) {
                true => Open { reason: taken.reason, ..*open },
                false => *open,
            }))
            .collect();
        for counter in self.received.range(taken.range()) {
            cut_out(&mut new, *counter);
        }
        outside.append(&mut new);
        outside.sort_by_key(|open| open.first);
        self.explained = joined(outside);
    }

    fn receive(&mut self, counter: u64) {
        assert!(self.received.insert(counter), "counter {counter} was stored twice");
        cut_out(&mut self.explained, counter);
        self.forgotten.iter().for_each(|gone| assert!(!gone.covers(counter), "{counter} was forgotten"));
    }

    fn is_forgotten(&self, counter: u64) -> bool {
        self.forgotten.iter().any(|gone| gone.covers(counter))
    }

    fn counts(&self) -> [u64; Reason::COUNT] {
        let mut counts = [0; Reason::COUNT];
        for open in self.explained.iter().chain(&self.forgotten) {
            counts[open.reason as usize] += open.len();
        }
        counts
    }
}

/// The books of a lane, watched by the notes. Panics when they disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    books: Books,
    notes: Notes,
}

impl Lane {
    /// The books alone.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Every counter that was received, from the notes.
    pub fn received(&self) -> &BTreeSet<u64> {
        &self.notes.received
    }

    /// Why a counter will not come, from the notes.
    pub fn reason(&self, counter: u64) -> Option<Reason> {
        let mut explained = self.notes.explained.iter().chain(&self.notes.forgotten);
        explained.find(|open| open.covers(counter)).map(|open| open.reason)
    }

    /// See [`Books::begin`].
    pub fn begin(&mut self, said: &Said, entries: &[Entry]) {
        let changes = self.books.begin(said, entries);
        self.notes.keep(&changes);
        self.check();
    }

    /// See [`Books::seen`].
    pub fn seen(&self, counter: u64) -> Seen {
        let seen = self.books.seen(counter);
        let is_received = self.notes.received.contains(&counter);
        let is_right = match seen {
            Seen::New => !is_received,
            Seen::Duplicate => is_received,
            Seen::Doubtful => is_received || self.notes.is_forgotten(counter),
            Seen::Beyond => !is_received && counter >= self.books.floor() + WINDOW,
        };
        assert!(is_right, "counter {counter} is taken for {seen:?}; received: {is_received}");
        seen
    }

    /// See [`Books::store`].
    pub fn store(&mut self, counter: u64) {
        let changes = self.books.store(counter);
        self.notes.receive(counter);
        self.notes.keep(&changes);
    }

    /// See [`Books::finish`].
    pub fn finish(&mut self, said: &Said, entries: &[Entry]) -> (u32, Vec<Range<u64>>) {
        let (confirmed, explain, changes) = self.books.finish(said, entries);
        self.notes.keep(&changes);
        self.check();
        (confirmed, explain)
    }

    /// See [`Books::apply`].
    pub fn apply(
        &mut self,
        said: &Said,
        entries: &[Entry],
        records: &[u64],
        refuse: impl Fn(u64) -> bool,
    ) -> Applied {
        self.begin(said, entries);
        let mut seen = Vec::new();
        for counter in records {
            seen.push(self.seen(*counter));
            if seen.last() == Some(&Seen::New) && !refuse(*counter) {
                self.store(*counter);
            }
        }
        let (confirmed, explain) = self.finish(said, entries);
        Applied { seen, confirmed, explain }
    }

    /// What the books say about the lane.
    pub fn ledger(&self) -> Ledger {
        let books = &self.books;
        let size = |ranges: Vec<Range<u64>>| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let claimed = books.claimed().max(books.floor());
        let pending = size(books.unexplained(claimed..books.issued()));
        let unexplained = size(books.unexplained(books.floor()..claimed));
        let explained = books.explained();
        let explained_sum: u64 = explained.iter().sum();
        Ledger {
            issued: books.issued(),
            received: books.issued() - pending - unexplained - explained_sum,
            pending,
            unexplained,
            explained,
            is_closed: books.is_closed(),
        }
    }

    /// Whether the books say what the notes say.
    pub fn check(&self) {
        let (books, notes) = (&self.books, &self.notes);
        let in_window: Vec<u64> = books.received_in_window().collect();
        let from_floor: Vec<u64> = notes.received.range(books.floor()..).copied().collect();
        assert_eq!(in_window, from_floor, "received from the floor on");
        assert_eq!(joined(books.explained_exactly()), joined(notes.explained.clone()), "explained");
        assert_eq!(books.explained(), notes.counts(), "explained, by reason");
        let ledger = self.ledger();
        assert_eq!(ledger.received, notes.received.len() as u64, "received");
        // With what is below the floor the two make up all there is below it: nothing was passed over.
        let below = |open: &Open| Open::new(open.first..open.end.min(books.floor()), open.reason).len();
        let explained_below: u64 = notes.explained.iter().chain(&notes.forgotten).map(below).sum();
        let received_below = (notes.received.len() - from_floor.len()) as u64;
        assert_eq!(explained_below + received_below, books.floor(), "the floor passed over a counter");
    }
}

/// What of the ranges lies inside of these counters, and what outside.
fn split(ranges: &[Open], counters: Range<u64>) -> (Vec<Open>, Vec<Open>) {
    let hole = [Open::new(counters.clone(), Reason::Lost)];
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for open in ranges {
        let both = open.first.max(counters.start)..open.end.min(counters.end);
        inside.push(Open::new(both, open.reason));
        outside.extend(minus(open.range(), &hole).into_iter().map(|range| Open::new(range, open.reason)));
    }
    inside.retain(|open| !open.is_empty());
    (inside, outside)
}

/// The same ranges, neighbours of one reason made one.
fn joined(ranges: Vec<Open>) -> Vec<Open> {
    let mut joined: Vec<Open> = Vec::new();
    for open in ranges {
        match joined.last_mut() {
            Some(last) if last.end == open.first && last.reason == open.reason => last.end = open.end,
            _ => joined.push(open),
        }
    }
    joined
}
