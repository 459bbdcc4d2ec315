//! Ranges of counters that a reason explains. An entry may cover more counters than could be walked over, so everything
//! about them is done by their ends.

use std::ops::Range;

use pillarbox::Reason;

/// Counters that were explained and not received.
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
    /// These counters, for this reason.
    pub fn new(counters: Range<u64>, reason: Reason) -> Self {
        Self { first: counters.start, end: counters.end, reason }
    }

    /// Its counters.
    pub fn range(&self) -> Range<u64> {
        self.first..self.end
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.first)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    /// Whether this is one of them.
    pub fn covers(&self, counter: u64) -> bool {
        self.range().contains(&counter)
    }
}

/// Which of two reasons for one counter stands: the higher, whichever came first. So a batch that is late or comes
/// twice changes nothing.
pub fn rank(reason: Reason) -> usize {
    match reason {
        Reason::Uncertain => 0,
        Reason::Parked => 1,
        other => 2 + other as usize,
    }
}

/// What is left of the counters without those that `holes`, in order, cover.
pub fn minus(counters: Range<u64>, holes: &[Open]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut start = counters.start;
    for hole in holes.iter().filter(|hole| hole.end > counters.start && hole.first < counters.end) {
        left.push(start..hole.first);
        start = start.max(hole.end);
    }
    left.push(start..counters.end);
    left.retain(|range| range.start < range.end);
    left
}

/// Takes one counter out of the range that covers it, if one does.
pub fn cut_out(open: &mut Vec<Open>, counter: u64) {
    let Some(at) = open.iter().position(|open| open.covers(counter)) else { return };
    let hit = open.remove(at);
    let parts = [hit.first..counter, counter + 1..hit.end];
    let parts = parts.into_iter().filter(|part| !part.is_empty()).map(|part| Open::new(part, hit.reason));
    open.splice(at..at, parts);
}
