//! The account: what the device gave up, and why, until the receiver has confirmed it.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use crate::{
    Key,
    codec::Walk,
    list::{take_at, take_where},
};

/// Why a counter will not arrive. Of two reasons that have to share an entry, the later in this list stands, but
/// `Uncertain` and `Parked`, which may turn out otherwise, give way to every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Reason {
    /// A newer record with the same tag took its place.
    Superseded,
    /// Leased but perhaps never used, because power was lost: at most this many records.
    Uncertain,
    /// In the dead letters; may still come.
    Parked,
    /// Its enqueue failed or was given up, and the caller knows.
    Aborted,
    /// The application cleared the outbox.
    Cleared,
    /// The receiver rejected it.
    Rejected,
    /// It grew too old.
    Expired,
    /// It made room for newer ones.
    Evicted,
    /// Its bytes in flash do not add up.
    Corrupt,
    /// The device cannot say.
    Lost,
}

impl Reason {
    /// Every reason, by its number.
    pub const ALL: [Self; 10] = [
        Self::Superseded,
        Self::Uncertain,
        Self::Parked,
        Self::Aborted,
        Self::Cleared,
        Self::Rejected,
        Self::Expired,
        Self::Evicted,
        Self::Corrupt,
        Self::Lost,
    ];

    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// The one that stands when two have to share an entry.
    fn over(self, other: Self) -> Self {
        if self.rank() > other.rank() { self } else { other }
    }

    /// The higher stands; a provisional reason is below every other.
    fn rank(self) -> u8 {
        let number = self as u8;
        if matches!(self, Self::Uncertain | Self::Parked) { number } else { number + Self::COUNT as u8 }
    }
}

/// One line of the account: these counters of this lane will not arrive, for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Entry {
    /// Whose counters.
    pub incarnation: u32,
    /// Which lane's counters.
    pub lane: u8,
    /// Why they will not arrive.
    pub reason: Reason,
    /// The first of them.
    pub first: u64,
    /// How many.
    pub len: u64,
}

impl Entry {
    /// The entry that explains this one record.
    pub(crate) fn of(key: Key, reason: Reason) -> Self {
        Self { incarnation: key.incarnation, lane: key.lane, reason, first: key.counter, len: 1 }
    }

    /// The counter after the last.
    #[inline(never)]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.len)
    }

    /// Whether it explains this counter.
    pub fn covers(&self, incarnation: u32, lane: u8, counter: u64) -> bool {
        self.is_of(incarnation, lane) && (self.first..self.end()).contains(&counter)
    }

    /// Whether `other` is about a later record of the same kind.
    #[cfg(feature = "outbox")]
    pub(crate) fn is_continued_by(&self, other: &Self) -> bool {
        self.is_like(other) && self.first <= other.first
    }

    /// Whether `other` is of the same lane and reason.
    fn is_like(&self, other: &Self) -> bool {
        self.reason == other.reason && self.is_of(other.incarnation, other.lane)
    }

    #[inline(never)]
    pub(crate) fn is_of(&self, incarnation: u32, lane: u8) -> bool {
        self.incarnation == incarnation && self.lane == lane
    }

    /// One entry for both and for what lies between them.
    pub(crate) fn join(&self, other: &Self) -> Self {
        let first = self.first.min(other.first);
        Self {
            first,
            len: self.end().max(other.end()) - first,
            reason: self.reason.over(other.reason),
            ..*self
        }
    }

    /// Whether `other` is of the same lane and lies behind it.
    #[inline(never)]
    fn precedes(&self, other: &Self) -> bool {
        self.is_of(other.incarnation, other.lane) && self.end() <= other.first
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.is_of(other.incarnation, other.lane) && !self.precedes(other) && !other.precedes(self)
    }

    /// Cuts a hole that overlaps with it: it keeps what lies before the hole. Gives what lies behind.
    fn cut(&mut self, hole: &Self) -> Self {
        let len = self.end().saturating_sub(hole.end());
        let rest = Self { first: self.end() - len, len, ..*self };
        self.len = hole.first.saturating_sub(self.first);
        rest
    }
}

/// The open entries: disjoint, and bounded by joining neighbours when there are too many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account(Vec<Entry, { Account::MAX + 1 }>);

impl Account {
    pub(crate) const MAX: usize = 16;

    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    // On its own for the same reason as the other parts of the ledger.
    #[inline(never)]
    pub(crate) fn walk(&mut self, walk: &mut Walk<'_>) {
        let blank = Entry { incarnation: 0, lane: 0, reason: Reason::Superseded, first: 0, len: 0 };
        walk.list(&mut self.0, blank, |entry, walk| {
            walk.u32(&mut entry.incarnation);
            walk.byte(&mut entry.lane);
            let reason = walk.choice(entry.reason as u8, Reason::COUNT as u8);
            entry.reason = Reason::ALL.get(usize::from(reason)).copied().unwrap_or(Reason::Lost);
            walk.number(&mut entry.first);
            walk.number(&mut entry.len);
        });
        if self.0.len() > Self::MAX {
            walk.fail();
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Explains counters. What is explained already stays as it is, unless the new reason stands over it: two entries
    /// that were joined may cover a record that was still pending then.
    pub(crate) fn explain(&mut self, entry: Entry) {
        let rest = self.carve(&entry, |known, new| known.rank() < new.rank());
        self.fill(entry);
        self.fill(rest);
    }

    /// Explains those of the counters that nothing explains yet. Says whether there were any.
    pub(crate) fn fill(&mut self, mut entry: Entry) -> bool {
        self.add(&mut entry)
    }

    /// Fills in an entry that is of no use afterwards: it is cut and joined in its place.
    fn add(&mut self, entry: &mut Entry) -> bool {
        if entry.len == 0 {
            return false;
        }
        match self.0.iter().find(|known| known.overlaps(entry)) {
            Some(known) => {
                let mut after = entry.cut(known);
                self.add(entry) | self.add(&mut after)
            }
            None => {
                self.insert(entry);
                true
            }
        }
    }

    /// Forgets a record that came after all.
    pub(crate) fn forget(&mut self, key: Key) {
        let rest = self.carve(&Entry::of(key, Reason::Lost), |_, _| true);
        self.fill(rest);
    }

    /// Forgets what the receiver has confirmed.
    pub(crate) fn confirm(&mut self, confirmed: &[Entry]) {
        for done in confirmed {
            let rest = self.carve(done, |known, done| known == done);
            self.fill(rest);
        }
    }

    /// Cuts a hole into those entries that `which` names by their reason and the hole's. If it is in the middle of one,
    /// what lay behind it is to be filled in again.
    fn carve(&mut self, hole: &Entry, which: fn(Reason, Reason) -> bool) -> Entry {
        let mut rest = Entry { len: 0, ..*hole };
        let mut at = 0;
        while let Some(known) = self.0.get_mut(at) {
            if !known.overlaps(hole) || !which(known.reason, hole.reason) {
                at += 1;
                continue;
            }
            let after = known.cut(hole);
            if known.len > 0 {
                rest = after;
            } else {
                *known = after;
            }
            if known.len == 0 {
                take_at(&mut self.0, at);
            }
        }
        rest
    }

    fn insert(&mut self, entry: &mut Entry) {
        loop {
            let mut at = 0;
            while let Some(known) = self.0.get(at) {
                at += 1;
                let joined = known.join(entry);
                // If it is as long as both, nothing lies between them: one entry says the same.
                if known.is_like(entry) && joined.len == known.len.wrapping_add(entry.len) {
                    *entry = joined;
                    take_at(&mut self.0, at - 1);
                    at = 0;
                }
            }
            // There is always a place: what would be one too many is joined at once.
            let _ = self.0.push(*entry);
            if self.0.len() <= Self::MAX {
                return;
            }
            let Some((one, next)) = self.nearest() else { break };
            *entry = one.join(next);
            take_where(&mut self.0, |known| known.overlaps(entry));
        }
        // Every entry is of another incarnation or lane. The oldest incarnation's books are closed by an operator
        // then.
        let other = self.0.iter().position(|known| known.incarnation != entry.incarnation);
        take_at(&mut self.0, other.unwrap_or(0));
    }

    /// The two neighbours with the least between them, of one reason if there are such. What lies between was settled,
    /// or is still pending: the receiver lets a record that it has, or that still comes, win over its entry.
    fn nearest(&self) -> Option<(&Entry, &Entry)> {
        let mut best = None;
        let mut least = u64::MAX;
        for one in &self.0 {
            let mut next: Option<&Entry> = None;
            for other in &self.0 {
                if one.precedes(other) && next.is_none_or(|next| other.first < next.first) {
                    next = Some(other);
                }
            }
            if let Some(next) = next {
                // One number tells both: no counter has the highest bit.
                let other_reason = if one.reason == next.reason { 0 } else { Key::COUNTER_LIMIT };
                let cost = (next.first - one.end()) | other_reason;
                if cost < least {
                    least = cost;
                    best = Some((one, next));
                }
            }
        }
        best
    }
}
