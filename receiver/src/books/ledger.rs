//! What the books add up to: the numbers that an operator asks a lane for.

use std::ops::Range;

use pillarbox::Reason;
use serde::Serialize;

use super::Books;

/// What became of the counters of one incarnation and lane. Every issued counter is in exactly one of `received`,
/// `pending`, `unexplained` and `explained`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
        self.explained.get(reason as usize).copied().unwrap_or(0)
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

impl Books {
    /// What the books say about the lane.
    pub fn ledger(&self) -> Ledger {
        let pending = self.unknown_count(self.claimed..self.issued);
        let unexplained = self.unknown_count(self.floor()..self.claimed);
        let mut explained = self.forgotten.counts;
        for open in self.open() {
            let count = open.len().saturating_sub(self.window.count(open.range()));
            if let Some(sum) = explained.get_mut(open.reason as usize) {
                *sum = sum.saturating_add(count);
            }
        }
        let others =
            explained.iter().fold(pending.saturating_add(unexplained), |sum, n| sum.saturating_add(*n));
        Ledger {
            issued: self.issued,
            received: self.issued.saturating_sub(others),
            pending,
            unexplained,
            explained,
            is_closed: self.is_closed(),
        }
    }

    /// How many of these counters from the floor on are neither received nor explained.
    fn unknown_count(&self, of: Range<u64>) -> u64 {
        let explained = self.open().iter().map(|open| {
            let open = open.within(of.clone());
            open.len().saturating_sub(self.window.count(open.range()))
        });
        let known = explained.fold(self.window.count(of.clone()), u64::saturating_add);
        of.end.saturating_sub(of.start).saturating_sub(known)
    }
}
