//! The books of one incarnation and lane, in the space that SPEC.md gives them: what the receiver may keep for ever,
//! and all that it decides by. Plain code on decoded values, so that it can be read beside "The receiver's books".

use std::ops::Range;

use pillarbox::{Entry, Reason, wire::WINDOW};

use super::ranges::{Open, cut_out, minus, rank};

/// Open ranges that are kept at most.
pub const OPEN_MAX: usize = 32;
/// Ranges that one answer asks about at most.
pub const EXPLAIN_MAX: usize = 8;

/// What the head of a batch says about the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Every counter below is settled or accounted for.
    pub floor: u64,
    /// The next counter.
    pub issued: u64,
    /// The incarnation takes no more records.
    pub is_closing: bool,
}

/// What the books know about a counter whose record has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was never received.
    New,
    /// It was received.
    Duplicate,
    /// It was received, or explained by a range that is forgotten.
    Doubtful,
    /// The window does not reach so far.
    Beyond,
}

/// What changed in the books beyond what was said, for whoever keeps more than they do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What was explained, as it was taken: in this order, `lost` in the place of `uncertain` where that is due.
    pub taken: Vec<Open>,
    /// Open ranges that were forgotten since.
    pub forgotten: Vec<Open>,
}

/// What a batch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// What became of each record.
    pub seen: Vec<Seen>,
    /// Bit n: entry n is in the books.
    pub confirmed: u32,
    /// Counters that are neither received nor explained, below the batch's floor.
    pub explain: Vec<Range<u64>>,
}

/// The books. A counter was received if it is below the floor and in no open range (or in one that is forgotten), or
/// if its bit is set. It is explained if an open range covers it and its bit is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    floor: u64,
    /// Bit n % 1024 is counter n, from the floor on.
    window: [u64; WINDOW as usize / 64],
    issued: u64,
    /// Counters below that are uncertain no more when they are heard of for the first time. That is `issued`, but for
    /// uncertain counters for which there was no room: they are heard of again.
    handed_out: u64,
    /// The highest floor that a batch claimed.
    claimed: u64,
    is_closing: bool,
    /// In order, disjoint. Below the floor they cover nothing that was received.
    open: Vec<Open>,
    /// Counters in forgotten ranges, by reason.
    forgotten_counts: [u64; Reason::COUNT],
    /// Every forgotten counter is below.
    forgotten_end: u64,
}

impl Default for Books {
    fn default() -> Self {
        Self {
            floor: 0,
            window: [0; WINDOW as usize / 64],
            issued: 0,
            handed_out: 0,
            claimed: 0,
            is_closing: false,
            open: Vec::new(),
            forgotten_counts: [0; Reason::COUNT],
            forgotten_end: 0,
        }
    }
}

impl Books {
    /// Every counter below is received or explained.
    pub fn floor(&self) -> u64 {
        self.floor
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
        self.is_closing && self.floor >= self.issued
    }

    /// The open ranges, as they are kept.
    pub fn open(&self) -> &[Open] {
        &self.open
    }

    /// Whether this counter from the floor on was received.
    pub fn is_received_in_window(&self, counter: u64) -> bool {
        self.window_range().contains(&counter)
            && self.window[(counter % WINDOW) as usize / 64] & (1 << (counter % 64)) != 0
    }

    /// Counters from the floor on that were received.
    pub fn received_in_window(&self) -> impl Iterator<Item = u64> + '_ {
        self.window_range().filter(|counter| self.is_received_in_window(*counter))
    }

    /// Steps 1 to 3: takes the entries, and moves the floor.
    pub fn begin(&mut self, said: &Said, entries: &[Entry]) -> Changes {
        let mut changes = Changes::default();
        let mut entries: Vec<&Entry> = entries.iter().collect();
        // What is known of a counter for sure comes before what is only feared.
        entries.sort_by_key(|entry| (entry.reason == Reason::Uncertain, entry.first));
        let (handed_out, mut next_handed_out) = (self.handed_out, said.issued);
        self.move_floor(said.floor, &mut changes);
        for entry in entries {
            // A part on either side of the batch's floor: the lower one always finds room in the end, because the floor moves
            // over it and then it may be forgotten.
            let end = entry.end().min(said.issued);
            let middle = said.floor.clamp(entry.first.min(end), end);
            for part in [entry.first..middle, middle..end].into_iter().filter(|part| !part.is_empty()) {
                let mut part = Open::new(part, entry.reason);
                if entry.reason == Reason::Uncertain && part.first >= said.floor && part.first < handed_out {
                    // Perhaps pending: it is judged when the floor has passed it.
                    next_handed_out = next_handed_out.min(part.first);
                    part.first = part.end.min(handed_out);
                }
                for part in self.dated(part, handed_out) {
                    let is_taken = self.take(part, said.floor, &mut changes);
                    if !is_taken && part.reason == Reason::Uncertain {
                        next_handed_out = next_handed_out.min(part.first);
                    }
                }
            }
        }
        self.issued = self.issued.max(said.issued);
        self.handed_out = self.handed_out.max(next_handed_out);
        self.claimed = self.claimed.max(said.floor);
        self.is_closing |= said.is_closing;
        changes
    }

    /// Step 4: what the books know about a counter.
    pub fn seen(&self, counter: u64) -> Seen {
        let is_covered = self.open.iter().any(|open| open.covers(counter));
        if counter >= self.floor + WINDOW {
            Seen::Beyond
        } else if counter >= self.floor {
            if self.is_received_in_window(counter) { Seen::Duplicate } else { Seen::New }
        } else if is_covered {
            Seen::New
        } else if counter < self.forgotten_end {
            Seen::Doubtful
        } else {
            Seen::Duplicate
        }
    }

    /// Step 4: a new record was stored.
    pub fn store(&mut self, counter: u64) -> Changes {
        assert_eq!(self.seen(counter), Seen::New, "counter {counter} is not new");
        let mut changes = Changes::default();
        if counter >= self.floor {
            self.window[(counter % WINDOW) as usize / 64] |= 1 << (counter % 64);
        } else {
            cut_out(&mut self.open, counter);
        }
        self.issued = self.issued.max(counter + 1);
        self.tidy(&mut changes);
        changes
    }

    /// Step 6, after all records: moves the floor over late ones too, and says what is still missing.
    pub fn finish(&mut self, said: &Said, entries: &[Entry]) -> (u32, Vec<Range<u64>>, Changes) {
        let mut changes = Changes::default();
        self.move_floor(said.floor, &mut changes);
        let mut confirmed = 0;
        for (n, entry) in entries.iter().enumerate() {
            let from = entry.first.max(self.floor);
            if self.unexplained(from..entry.end().min(said.issued)).is_empty() {
                confirmed |= 1 << n;
            }
        }
        let mut explain = self.unexplained(self.floor..said.floor);
        explain.truncate(EXPLAIN_MAX);
        (confirmed, explain, changes)
    }

    /// A whole batch without late records. Records that `refuse` names are not stored, whatever the books say.
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
        let (confirmed, explain, _) = self.finish(said, entries);
        Applied { seen, confirmed, explain }
    }

    /// How many counters are explained and were not received, by reason: those in open ranges and forgotten ones.
    pub fn explained(&self) -> [u64; Reason::COUNT] {
        let mut counts = self.forgotten_counts;
        for open in self.explained_exactly() {
            counts[open.reason as usize] += open.len();
        }
        counts
    }

    /// The open ranges without what they cover of received counters.
    pub fn explained_exactly(&self) -> Vec<Open> {
        let mut open = self.open.clone();
        for counter in self.received_in_window() {
            cut_out(&mut open, counter);
        }
        open
    }

    /// Counters that are neither received nor explained, of those from the floor on.
    pub fn unexplained(&self, of: Range<u64>) -> Vec<Range<u64>> {
        let of = of.start.max(self.floor)..of.end;
        let mut missing = Vec::new();
        for gap in minus(of, &self.open) {
            let mut start = gap.start;
            for counter in gap.start..gap.end.min(self.window_range().end) {
                if self.is_received_in_window(counter) {
                    missing.push(start..counter);
                    start = counter + 1;
                }
            }
            missing.push(start..gap.end);
        }
        missing.retain(|range| range.start < range.end);
        missing
    }

    /// Bytes that the books take where they are kept: numbers as varints, the window as its bits.
    pub fn stored_len(&self) -> usize {
        let varint = |number: u64| (64 - number.leading_zeros() as usize).max(1).div_ceil(7);
        let numbers = [self.floor, self.issued, self.handed_out, self.claimed, self.forgotten_end];
        let mut len = 128 + 2;
        len += numbers.iter().chain(&self.forgotten_counts).map(|number| varint(*number)).sum::<usize>();
        let mut last = 0;
        for open in &self.open {
            len += 1 + varint(open.first - last) + varint(open.len());
            last = open.end;
        }
        len
    }

    fn window_range(&self) -> Range<u64> {
        self.floor..self.floor + WINDOW
    }

    /// Step 1: `lost` takes the place of `uncertain` for counters that were handed out for sure, when they are heard
    /// of for the first time. Heard of again they are below `issued` because the device has gone on from there.
    fn dated(&self, part: Open, handed_out: u64) -> Vec<Open> {
        if part.reason != Reason::Uncertain {
            return vec![part];
        }
        let below = part.first..part.end.min(handed_out);
        let new = minus(below, &self.open).into_iter().map(|new| Open::new(new, Reason::Lost));
        let rest = Open::new(part.first.max(handed_out)..part.end, Reason::Uncertain);
        new.chain([rest]).collect()
    }

    /// Step 2 for a part of an entry that lies wholly below the batch's floor or wholly from it on. Says whether there
    /// was room.
    fn take(&mut self, part: Open, batch_floor: u64, changes: &mut Changes) -> bool {
        // Below the floor nothing becomes explained that was not.
        let below = Open::new(part.first..part.end.min(self.floor), part.reason);
        for open in self.open.clone() {
            let both = open.first.max(below.first)..open.end.min(below.end);
            self.cover(Open::new(both, part.reason), changes);
        }
        self.tidy(changes);
        let before = (self.clone(), changes.clone());
        self.cover(Open::new(part.first.max(self.floor)..part.end, part.reason), changes);
        self.move_floor(batch_floor, changes);
        let has_room = self.open.len() <= OPEN_MAX;
        if !has_room {
            // The entry stays unconfirmed and comes again.
            (*self, *changes) = before;
        }
        has_room
    }

    /// Explains every counter of a part, unless what explains it already stands over its reason.
    fn cover(&mut self, part: Open, changes: &mut Changes) {
        if part.is_empty() {
            return;
        }
        changes.taken.push(part);
        let (over, under): (Vec<Open>, Vec<Open>) =
            self.open.iter().partition(|open| rank(open.reason) >= rank(part.reason));
        let new = minus(part.range(), &over).into_iter().map(|range| Open::new(range, part.reason));
        let rest = under.iter().flat_map(|open| {
            minus(open.range(), &[part]).into_iter().map(|range| Open::new(range, open.reason))
        });
        let mut open: Vec<Open> = over.iter().copied().chain(new).chain(rest).collect();
        open.sort_by_key(|open| open.first);
        self.open = open;
    }

    /// Step 3: moves the floor over what is received or explained, as far as the batch's.
    fn move_floor(&mut self, batch_floor: u64, changes: &mut Changes) {
        let missing = self.unexplained(self.floor..batch_floor);
        let to = missing.first().map_or(batch_floor, |missing| missing.start).max(self.floor);
        for counter in self.floor..to.min(self.window_range().end) {
            if self.is_received_in_window(counter) {
                // Its bit goes, so no range may cover it any more.
                cut_out(&mut self.open, counter);
                self.window[(counter % WINDOW) as usize / 64] &= !(1 << (counter % 64));
            }
        }
        self.floor = to;
        self.tidy(changes);
    }

    /// Brings the open ranges into the fewest that say the same, then forgets as many as there are too many.
    fn tidy(&mut self, changes: &mut Changes) {
        let mut tidied: Vec<Open> = Vec::new();
        for mut open in std::mem::take(&mut self.open) {
            while open.first < open.end && self.is_received_in_window(open.first) {
                open.first += 1;
            }
            while open.first < open.end && self.is_received_in_window(open.end - 1) {
                open.end -= 1;
            }
            match tidied.last_mut() {
                _ if open.is_empty() => {}
                Some(last) if last.reason == open.reason && self.is_all_received(last.end..open.first) => {
                    last.end = open.end;
                }
                _ => tidied.push(open),
            }
        }
        self.open = tidied;
        while self.open.len() > OPEN_MAX {
            let mut below = (0..self.open.len()).filter(|at| self.open[*at].end <= self.floor);
            let lowest = below.clone().next();
            let is_parked = |at: &usize| self.open[*at].reason == Reason::Parked;
            let Some(at) = below.find(|at| !is_parked(at)).or(lowest) else { break };
            let gone = self.open.remove(at);
            self.forgotten_counts[gone.reason as usize] += gone.len();
            self.forgotten_end = self.forgotten_end.max(gone.end);
            changes.forgotten.push(gone);
        }
    }

    /// Whether every bit of these counters is set; there may be none.
    fn is_all_received(&self, between: Range<u64>) -> bool {
        let is_in_window =
            between.is_empty() || (between.start >= self.floor && between.end <= self.window_range().end);
        is_in_window && between.into_iter().all(|counter| self.is_received_in_window(counter))
    }
}
