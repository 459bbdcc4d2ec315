//! The books of one incarnation and lane: what the receiver keeps for ever to tell a record that is new from one that
//! was sent again, and one that is late from one that will not come. "The receiver's books" in SPEC.md says what they do
//! and "Stored books" how they are kept; the model that they are proved against is in `host-tests`.

#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod ledger;
mod open;
mod stored;
mod window;

use std::ops::Range;

use pillarbox::wire::{ENTRIES_MAX, EXPLAIN_MAX};
use pillarbox::{Entry, Reason};

pub use self::ledger::Ledger;
pub use self::open::Open;
pub use self::stored::BooksError;

use self::open::{Gaps, OpenRanges};
use self::window::Window;

/// Open ranges that are kept at most.
pub const OPEN_MAX: usize = 32;

/// No counter reaches it.
const COUNTER_END: u64 = 1 << 63;

/// What the head of a batch says about its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Every counter below is settled or accounted for.
    pub floor: u64,
    /// The next counter.
    pub issued: u64,
    /// The incarnation takes no more records.
    pub is_closing: bool,
}

impl Said {
    /// The same where it is what an envelope may say: the books hold no numbers that none can.
    fn bounded(&self) -> Self {
        let issued = self.issued.min(COUNTER_END);
        Self { floor: self.floor.min(issued), issued, ..*self }
    }
}

/// What the books know about a counter whose record has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was never received.
    New,
    /// It was received.
    Duplicate,
    /// It was received, or explained by a range that is forgotten: the log knows which.
    Doubtful,
    /// The window does not reach so far.
    Beyond,
}

/// What the answer to a batch says about its lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// Bit n: entry n is in the books.
    pub confirmed: u32,
    /// First and number of counters that the device is done with and that are neither received nor explained.
    pub explain: Vec<(u64, u64)>,
}

/// Ranges that there was no room for: only how many counters they had is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Forgotten {
    /// By the number of the reason.
    counts: [u64; Reason::COUNT],
    /// Every forgotten counter is below.
    end: u64,
}

/// The books. A counter was received if its bit in the window is set, or if it is below the floor and neither in an open
/// range nor in one that is forgotten. It is explained if an open range covers it and its bit is not set.
///
/// Between two batches: floor <= claimed <= issued <= 2^63, nothing from `issued` on is received or explained, and the
/// open ranges are tidy and at most [`OPEN_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// With the floor.
    window: Window,
    /// The highest floor that a batch claimed.
    claimed: u64,
    issued: u64,
    /// Counters below were handed out for sure: heard of for the first time as uncertain they are lost.
    handed_out: u64,
    is_closing: bool,
    open: OpenRanges,
    forgotten: Forgotten,
}

impl Books {
    /// Every counter below is received or explained.
    pub fn floor(&self) -> u64 {
        self.window.floor()
    }

    /// The highest next counter that was heard of.
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// The highest floor that a batch claimed.
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    /// The device said that there is no more to come, and nothing is missing.
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.floor() >= self.issued
    }

    /// The open ranges in order, as they are kept: from the floor on they may cover counters that were received.
    pub fn open(&self) -> &[Open] {
        self.open.as_slice()
    }

    /// Why a counter will not come. `None` when it was received, is still to come, or its reason is forgotten.
    pub fn reason(&self, counter: u64) -> Option<Reason> {
        let open = self.open.covering(counter)?;
        (!self.window.is_received(counter)).then_some(open.reason)
    }

    /// Steps 1 to 3: takes the entries, and moves the floor.
    pub fn begin(&mut self, said: &Said, entries: &[Entry]) {
        let said = said.bounded();
        self.move_floor(said.floor);
        let mut sorted: Vec<&Entry> = entries.iter().take(ENTRIES_MAX).collect();
        // What is known of a counter for sure comes before what is only feared.
        sorted.sort_by_key(|entry| (entry.reason == Reason::Uncertain, entry.first));
        let mut next_handed_out = said.issued;
        for entry in sorted {
            let end = entry.end().min(said.issued);
            // A part on either side of the batch's floor: the lower one always finds room, because the floor moves over
            // it and then it may be forgotten.
            let middle = said.floor.clamp(entry.first.min(end), end);
            let parts = [entry.first..middle, middle..end];
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                if entry.reason != Reason::Uncertain {
                    self.take(Open::new(part, entry.reason), said.floor);
                } else if let Some(waiting) = self.take_uncertain(part, said.floor) {
                    next_handed_out = next_handed_out.min(waiting);
                }
            }
        }
        self.issued = self.issued.max(said.issued);
        self.handed_out = self.handed_out.max(next_handed_out);
        self.claimed = self.claimed.max(said.floor);
        self.is_closing |= said.is_closing;
    }

    /// Step 4: what the books know about a counter.
    pub fn seen(&self, counter: u64) -> Seen {
        if counter >= self.window.end().min(COUNTER_END) {
            Seen::Beyond
        } else if counter >= self.floor() {
            if self.window.is_received(counter) { Seen::Duplicate } else { Seen::New }
        } else if self.open.covering(counter).is_some() {
            Seen::New
        } else if counter < self.forgotten.end {
            Seen::Doubtful
        } else {
            Seen::Duplicate
        }
    }

    /// Step 4: a record was stored. Does nothing if its counter is not new.
    pub fn store(&mut self, counter: u64) {
        if self.seen(counter) != Seen::New {
            return;
        }
        self.issued = self.issued.max(counter.saturating_add(1));
        if counter < self.floor() {
            self.open.cut_out(counter);
            self.tidy();
            return;
        }
        self.window.receive(counter);
        if self.open.is_untidy_at(counter, &self.window) {
            self.open.tidy(&self.window);
        }
    }

    /// Step 6, after all records and with what [`begin`](Self::begin) was given: moves the floor over what they filled,
    /// and says what is still missing.
    pub fn finish(&mut self, said: &Said, entries: &[Entry]) -> Closing {
        let said = said.bounded();
        self.move_floor(said.floor);
        self.claimed = self.claimed.max(self.floor());
        let mut closing = Closing::default();
        for (n, entry) in entries.iter().take(ENTRIES_MAX).enumerate() {
            let is_in_the_books = self.next_unknown(entry.first..entry.end().min(said.issued)).is_none();
            closing.confirmed |= u32::from(is_in_the_books) << n;
        }
        let mut at = self.floor();
        while closing.explain.len() < EXPLAIN_MAX
            && let Some(missing) = self.next_unknown(at..said.floor)
        {
            at = missing.end;
            closing.explain.push((missing.start, missing.end.saturating_sub(missing.start)));
        }
        closing
    }

    /// The first of these counters from the floor on that are neither received nor explained, up to the next that is.
    fn next_unknown(&self, of: Range<u64>) -> Option<Range<u64>> {
        let mut at = of.start.max(self.floor());
        loop {
            at = self.window.first_missing(at..of.end)?;
            let next = self.open.from(at);
            match next {
                Some(open) if open.first <= at => at = open.end,
                _ => {
                    let end = next.map_or(of.end, |open| open.first.min(of.end));
                    return Some(at..self.window.first_received(at..end).unwrap_or(end));
                }
            }
        }
    }

    /// Step 3: moves the floor over what is received or explained, as far as the batch's.
    fn move_floor(&mut self, batch_floor: u64) {
        let from = self.floor();
        let to = self.next_unknown(from..batch_floor).map_or(batch_floor, |missing| missing.start);
        if to <= from {
            return;
        }
        let is_over_ranges = self.open.is_any_in(from..to);
        if is_over_ranges {
            self.open.cut_received(&self.window, to);
        }
        self.window.move_floor(to);
        if is_over_ranges {
            self.tidy();
        }
    }

    /// Steps 1 and 2 for a part of an uncertain entry that lies wholly below the batch's floor or wholly from it on. Gives
    /// the first counter that has to wait.
    fn take_uncertain(&mut self, part: Range<u64>, batch_floor: u64) -> Option<u64> {
        let known_end = part.end.min(self.handed_out);
        if part.start < batch_floor {
            // Heard of again they are in an open range, and stay what they are.
            for lost in self.open.gaps(part.start..known_end) {
                self.take(Open::new(lost, Reason::Lost), batch_floor);
            }
        }
        let rest = Open::new(part.start.max(self.handed_out)..part.end, Reason::Uncertain);
        let has_room = self.take(rest, batch_floor);
        if part.start >= batch_floor && part.start < known_end {
            // Perhaps pending: they are judged when the floor has passed them.
            return Some(part.start);
        }
        (!has_room).then_some(rest.first)
    }

    /// Step 2 for a part of an entry that lies wholly below the batch's floor or wholly from it on. Says whether there was
    /// room for it; if not it was not taken, and comes again.
    fn take(&mut self, part: Open, batch_floor: u64) -> bool {
        // Below the floor nothing becomes explained that was not.
        let below = part.within(0..self.floor());
        if !below.is_empty() && self.open.is_any_in(below.range()) {
            self.open.lay(below, Gaps::Leave);
            self.tidy();
        }
        let above = part.within(self.floor()..u64::MAX);
        if above.is_empty() {
            return true;
        }
        let before = self.clone();
        self.open.lay(above, Gaps::Fill);
        self.move_floor(batch_floor);
        self.tidy();
        let has_room = self.open().len() <= OPEN_MAX;
        if !has_room {
            *self = before;
        }
        has_room
    }

    /// Brings the open ranges into the fewest that say the same, then forgets as many as there are too many.
    fn tidy(&mut self) {
        self.open.tidy(&self.window);
        let Forgotten { counts, end } = &mut self.forgotten;
        self.open.forget(OPEN_MAX, self.window.floor(), |open| {
            if let Some(count) = counts.get_mut(open.reason as usize) {
                *count = count.saturating_add(open.len());
            }
            *end = (*end).max(open.end);
        });
    }
}
