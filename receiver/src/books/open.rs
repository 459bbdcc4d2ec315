//! The open ranges: what a device has explained and the receiver can still tell apart. A range may be longer than could
//! be walked over, so all work is on its ends.

use std::ops::Range;

use pillarbox::Reason;

use super::window::Window;

/// Counters that were explained and not received, but for those from the floor on that were received since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The first of them.
    pub first: u64,
    /// The counter after the last.
    pub end: u64,
    /// Why they will not arrive.
    pub reason: Reason,
}

impl Open {
    pub(super) fn new(counters: Range<u64>, reason: Reason) -> Self {
        Self { first: counters.start, end: counters.end, reason }
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.first..self.end
    }

    pub(super) fn len(&self) -> u64 {
        self.end.saturating_sub(self.first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    /// The part of it that lies in these counters; may be empty.
    pub(super) fn within(&self, counters: Range<u64>) -> Self {
        Self { first: self.first.max(counters.start), end: self.end.min(counters.end), ..*self }
    }
}

/// What to do about counters that no range covers yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gaps {
    Fill,
    Leave,
}

/// In order, disjoint, none empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenRanges {
    ranges: Vec<Open>,
}

impl OpenRanges {
    pub(super) fn as_slice(&self) -> &[Open] {
        &self.ranges
    }

    /// The first range that does not end at or before this counter: it covers the counter, or comes after it.
    pub(super) fn from(&self, counter: u64) -> Option<&Open> {
        self.ranges.get(self.position(counter))
    }

    pub(super) fn covering(&self, counter: u64) -> Option<&Open> {
        self.from(counter).filter(|open| open.first <= counter)
    }

    pub(super) fn is_any_in(&self, counters: Range<u64>) -> bool {
        self.from(counters.start).is_some_and(|open| open.first < counters.end)
    }

    /// Which of these counters no range covers.
    pub(super) fn gaps(&self, of: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = of.start;
        while at < of.end {
            let next = self.from(at);
            let gap = at..next.map_or(of.end, |open| open.first.min(of.end));
            if !gap.is_empty() {
                gaps.push(gap);
            }
            at = next.map_or(of.end, |open| open.end);
        }
        gaps
    }

    /// Adds a range behind the last; neighbours of one reason become one.
    pub(super) fn push(&mut self, new: Open) {
        match self.ranges.last_mut() {
            _ if new.is_empty() => {}
            Some(last) if last.end == new.first && last.reason == new.reason => last.end = new.end,
            _ => self.ranges.push(new),
        }
    }

    /// Gives every counter of `part` its reason, unless the one that it has stands over it.
    pub(super) fn lay(&mut self, part: Open, gaps: Gaps) {
        let old = std::mem::take(&mut self.ranges);
        self.ranges.reserve(old.len().saturating_add(2));
        let mut at = part.first;
        for open in old {
            self.push(open.within(0..part.first));
            if gaps == Gaps::Fill {
                self.push(part.within(at..open.first));
            }
            self.push(Open { reason: higher(open.reason, part.reason), ..open.within(part.range()) });
            self.push(open.within(part.end..u64::MAX));
            at = at.max(open.end.min(part.end));
        }
        if gaps == Gaps::Fill {
            self.push(part.within(at..u64::MAX));
        }
    }

    /// Takes one counter out of the range that covers it.
    pub(super) fn cut_out(&mut self, counter: u64) {
        let at = self.position(counter);
        let Some(open) = self.covering(counter).copied() else { return };
        let parts = [open.within(0..counter), open.within(counter.saturating_add(1)..u64::MAX)];
        self.ranges.splice(at..at.saturating_add(1), parts.into_iter().filter(|part| !part.is_empty()));
    }

    /// Takes all out that was received below `to`: the floor will move there, and the bits will be gone.
    pub(super) fn cut_received(&mut self, window: &Window, to: u64) {
        for open in std::mem::take(&mut self.ranges) {
            let mut rest = open;
            while let Some(received) = window.first_received(rest.first..rest.end.min(to)) {
                self.push(rest.within(0..received));
                rest.first = window.first_missing(received..rest.end).unwrap_or(rest.end);
            }
            self.push(rest);
        }
    }

    /// Whether a bit that was just set is at the end of a range, or fills what parts two of one reason.
    pub(super) fn is_untidy_at(&self, counter: u64, window: &Window) -> bool {
        let at = self.position(counter);
        let Some(next) = self.ranges.get(at) else { return false };
        if next.first <= counter {
            return next.first == counter || next.end.saturating_sub(1) == counter;
        }
        let last = at.checked_sub(1).and_then(|at| self.ranges.get(at));
        last.is_some_and(|last| is_one(last, next, window))
    }

    /// Brings them into the fewest that say the same, which is one form for one meaning.
    pub(super) fn tidy(&mut self, window: &Window) {
        for open in &mut self.ranges {
            open.first = window.first_missing(open.range()).unwrap_or(open.end);
            open.end = window.last_missing(open.range()).map_or(open.first, |last| last.saturating_add(1));
        }
        self.ranges.retain(|open| !open.is_empty());
        self.ranges.dedup_by(|next, last| {
            let is_one = is_one(last, next, window);
            if is_one {
                last.end = next.end;
            }
            is_one
        });
    }

    /// Takes out as many as there are above `most`, of those that lie wholly below the floor: the lowest first, but dead
    /// letters last, because they may still come.
    pub(super) fn forget(&mut self, most: usize, floor: u64, mut forgotten: impl FnMut(&Open)) {
        for is_parked_spared in [true, false] {
            let mut excess = self.ranges.len().saturating_sub(most);
            if excess == 0 {
                return;
            }
            self.ranges.retain(|open| {
                let is_spared = is_parked_spared && open.reason == Reason::Parked;
                let is_kept = excess == 0 || open.end > floor || is_spared;
                if !is_kept {
                    excess = excess.saturating_sub(1);
                    forgotten(open);
                }
                is_kept
            });
        }
    }

    fn position(&self, counter: u64) -> usize {
        self.ranges.partition_point(|open| open.end <= counter)
    }
}

/// Whether two ranges are to be one: nothing lies between them, or nothing but received counters of the window.
fn is_one(last: &Open, next: &Open, window: &Window) -> bool {
    last.reason == next.reason && window.first_missing(last.end..next.first).is_none()
}

/// Which of two reasons for one counter stands, whichever came first: so a batch that is late or comes twice changes
/// nothing.
fn higher(one: Reason, other: Reason) -> Reason {
    // What may turn out otherwise gives way to what is final.
    let rank = |reason: Reason| (!matches!(reason, Reason::Uncertain | Reason::Parked), reason as u8);
    if rank(one) > rank(other) { one } else { other }
}
