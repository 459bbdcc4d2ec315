//! Clearing: everything that is pending is given up on purpose, and a new incarnation begins.

use embassy_sync::blocking_mutex::raw::RawMutex;
use heapless::Vec;

use super::{Books, Core, Task};
use crate::{
    Clock, Entry, Reason, Stored,
    ledger::Intent,
    rings::{Look, Rings, Work},
    walk::{Here, Scope, Visit},
};

/// Gives up everything, accounts for it, and begins a new incarnation.
#[derive(Default)]
pub(crate) struct Clear {
    /// Rings that were looked at.
    rings: u8,
    entries: Vec<(Entry, u32), 16>,
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Clear {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        self.rings += 1;
        let next = Rings::<LANES>::numbers().nth(usize::from(self.rings) - 1);
        if next.is_none() && usize::from(self.rings) == LANES + 2 {
            // Either all of it is given up, or nothing.
            for (entry, records) in &self.entries {
                core.books.give_up(*entry, *records);
            }
            core.books.intend(Intent::clear());
        }
        next.map(|ring| Work::Walk(ring, Scope::Pending, Look::Task))
    }

    fn visit(&mut self, _: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, _: &Here) -> Visit {
        let entry = Entry::of(stored.key, Reason::Cleared);
        // Nothing stays pending, so an entry may cover what lies between two records.
        match self.entries.iter_mut().find(|(known, _)| known.is_of(entry.incarnation, entry.lane)) {
            Some((known, records)) => {
                *known = known.join(&entry);
                *records += 1;
            }
            None => drop(self.entries.push((entry, 1))),
        }
        Visit::Keep
    }
}
