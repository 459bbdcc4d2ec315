//! Which counters from the floor on were received. Works on whole words of bits, because the floor moves by batches
//! and not by counters.

use std::ops::Range;

use pillarbox::wire::WINDOW;

const WORDS: usize = WINDOW as usize / 64;

/// A bit for each of the 1024 counters from the floor on, which is at most 2^63. Counters outside of them are not
/// received as far as this knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    floor: u64,
    /// Bit n % 1024 is counter n: nothing has to be shifted when the floor moves.
    words: [u64; WORDS],
}

/// Some bits of one word.
struct Part {
    /// The counter of the word's lowest bit.
    base: u64,
    mask: u64,
}

impl Window {
    pub(super) fn new(floor: u64) -> Self {
        Self { floor, words: [0; WORDS] }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The first counter beyond it.
    pub(super) fn end(&self) -> u64 {
        self.floor.saturating_add(WINDOW)
    }

    pub(super) fn is_received(&self, counter: u64) -> bool {
        self.covers(counter) && self.word(counter) & bit(counter) != 0
    }

    /// Sets the bit of a counter of the window.
    pub(super) fn receive(&mut self, counter: u64) {
        if self.covers(counter)
            && let Some(word) = self.words.get_mut(index(counter))
        {
            *word |= bit(counter);
        }
    }

    /// How many of these were received.
    pub(super) fn count(&self, of: Range<u64>) -> u64 {
        parts(self.clip(of)).map(|part| u64::from((self.word(part.base) & part.mask).count_ones())).sum()
    }

    pub(super) fn first_received(&self, of: Range<u64>) -> Option<u64> {
        parts(self.clip(of)).find_map(|part| lowest(part.base, self.word(part.base) & part.mask))
    }

    /// The first of these whose bit is not set, or that has none.
    pub(super) fn first_missing(&self, of: Range<u64>) -> Option<u64> {
        if of.start < self.floor {
            return (of.start < of.end).then_some(of.start);
        }
        let inside = self.clip(of.clone());
        let found = parts(inside).find_map(|part| lowest(part.base, !self.word(part.base) & part.mask));
        let beyond = of.start.max(self.end());
        found.or((beyond < of.end).then_some(beyond))
    }

    /// The last of these whose bit is not set, or that has none.
    pub(super) fn last_missing(&self, of: Range<u64>) -> Option<u64> {
        let last = of.end.checked_sub(1).filter(|last| *last >= of.start)?;
        if last >= self.end() {
            return Some(last);
        }
        let inside = self.clip(of.clone());
        let mut backwards = parts(inside).rev();
        let found = backwards.find_map(|part| highest(part.base, !self.word(part.base) & part.mask));
        found.or((of.start < self.floor).then(|| last.min(self.floor.saturating_sub(1))))
    }

    /// Moves the floor up. The bits that it passes are free for the counters that come into sight.
    pub(super) fn move_floor(&mut self, to: u64) {
        for part in parts(self.clip(self.floor..to)) {
            if let Some(word) = self.words.get_mut(index(part.base)) {
                *word &= !part.mask;
            }
        }
        self.floor = self.floor.max(to);
    }

    fn covers(&self, counter: u64) -> bool {
        counter >= self.floor && counter < self.end()
    }

    fn word(&self, counter: u64) -> u64 {
        self.words.get(index(counter)).copied().unwrap_or(0)
    }

    /// What of these lies in the window.
    fn clip(&self, of: Range<u64>) -> Range<u64> {
        let start = of.start.clamp(self.floor, self.end());
        start..of.end.clamp(start, self.end())
    }
}

fn index(counter: u64) -> usize {
    (counter % WINDOW) as usize / 64
}

fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

/// The words that these counters lie in. Counters of the same word that are a window apart come in two parts.
fn parts(of: Range<u64>) -> impl DoubleEndedIterator<Item = Part> {
    let words = of.start / 64..of.end.div_ceil(64);
    words.map(move |word| {
        let base = word.saturating_mul(64);
        let from = of.start.saturating_sub(base);
        let to = of.end.saturating_sub(base);
        Part { base, mask: ones(to) & !ones(from) }
    })
}

/// So many low bits, at most 64.
fn ones(count: u64) -> u64 {
    if count < 64 { !(u64::MAX << count) } else { u64::MAX }
}

fn lowest(base: u64, bits: u64) -> Option<u64> {
    (bits != 0).then(|| base.saturating_add(u64::from(bits.trailing_zeros())))
}

fn highest(base: u64, bits: u64) -> Option<u64> {
    (bits != 0).then(|| base.saturating_add(u64::from(bits.ilog2())))
}
