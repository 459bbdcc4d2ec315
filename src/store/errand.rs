//! What there is to tell the receiver at the moment, the most urgent first.

use embassy_sync::blocking_mutex::raw::RawMutex;

use super::Books;
use crate::{Clock, Entry, LaneSet, Window};

/// Something that is worth an exchange with the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Errand {
    /// A lane has pending records.
    Records {
        /// Which lane.
        lane: u8,
    },
    /// A lane has no records to send, but something is to be said about its counters.
    Books {
        /// Whose counters.
        incarnation: u32,
        /// Which lane.
        lane: u8,
    },
}

impl<M: RawMutex, C: Clock, const LANES: usize> Books<'_, M, C, LANES> {
    /// The first of these lanes that has pending records.
    pub(crate) fn records_errand(&self, lanes: LaneSet) -> Option<Errand> {
        let mut of_lanes = (0..).zip(&self.lanes).filter(|(lane, _)| lanes.contains(*lane));
        let (lane, _) = of_lanes.find(|(_, lane)| lane.stats.depth.records > 0)?;
        Some(Errand::Records { lane })
    }

    /// Books of these lanes that are open, other than those that were `told` already, and dead letters of the lanes `late_of` that
    /// are to be sent again.
    pub(crate) fn books_errand(
        &self,
        lanes: LaneSet,
        is_told: &dyn Fn(u32, u8) -> bool,
        late_of: LaneSet,
    ) -> Option<Errand> {
        let is_new = |(incarnation, lane): &(u32, u8)| lanes.contains(*lane) && !is_told(*incarnation, *lane);
        let ledger = &self.ledger;
        let mut of_account = ledger.account.entries().iter().map(|entry| (entry.incarnation, entry.lane));
        let mut of_late = ledger
            .late
            .iter()
            .filter(|late| late_of.contains(late.lane))
            .map(|_| (ledger.incarnation, lanes.first()));
        let mut of_formers = ledger.former.iter().flat_map(|former| {
            let issued = (0..).zip(&former.issued).filter(|(_, issued)| **issued > 0);
            issued.map(|(lane, _)| (former.incarnation, lane))
        });
        let found = of_account.find(is_new).or_else(|| of_late.next()).or_else(|| of_formers.find(is_new));
        found.map(|(incarnation, lane)| Errand::Books { incarnation, lane })
    }

    /// How far an incarnation's counters came in a lane, if it takes no more.
    pub(crate) fn issued_formerly(&self, incarnation: u32, lane: u8) -> Option<u64> {
        let former = self.ledger.former.iter().find(|former| former.incarnation == incarnation)?;
        former.issued.get(usize::from(lane)).copied()
    }

    /// Whether records of `later` come behind those of `incarnation` in a ring.
    pub(crate) fn is_before(&self, incarnation: u32, later: u32) -> bool {
        // An incarnation that is not known any more is older than all that are.
        let age = |incarnation: u32| match self
            .ledger
            .former
            .iter()
            .position(|former| former.incarnation == incarnation)
        {
            Some(at) => at + 1,
            None if incarnation == self.ledger.incarnation => usize::MAX,
            None => 0,
        };
        age(incarnation) < age(later)
    }

    /// Floor and issued of an incarnation in a lane: those of its window, or of nothing that is pending. `None` if records of an
    /// earlier one still come before it.
    pub(crate) fn span_of(&self, incarnation: u32, window: &Window) -> Option<(u64, u64)> {
        if window.incarnation == incarnation {
            return Some((window.floor, window.issued));
        }
        if self.is_before(window.incarnation, incarnation) {
            return None;
        }
        let mut entries = self.account().iter().filter(|entry| entry.is_of(incarnation, window.lane));
        let issued = self.issued_formerly(incarnation, window.lane);
        let issued = issued.or_else(|| entries.by_ref().map(Entry::end).max())?;
        Some((issued, issued))
    }

    /// Dead letters that are not to be sent again for now: the receiver does not want them.
    pub(crate) fn refused_late(&mut self, keys: &[crate::Key]) {
        crate::list::take_where(&mut self.ledger.late, |late| keys.contains(late));
    }
}
