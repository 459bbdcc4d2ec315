//! Clearing: everything that is pending is given up on purpose, and a new incarnation begins.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use super::Store;
use crate::{Clock, Depth, Entry, Error, Reason, ledger::Intent, rings::Rings, walk::Visit};

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Gives up everything, accounts for it, and begins a new incarnation.
    pub(crate) async fn clear(&mut self) -> Result<u32, Error<F::Error>> {
        self.ready().await?;
        let mut entries: Vec<(Entry, u32), 16> = Vec::new();
        for ring in Rings::<F, LANES>::numbers() {
            self.pass(ring, &mut |stored, _| {
                let entry = Entry::of(stored.key, Reason::Cleared);
                // Nothing stays pending, so an entry may cover what lies between two records.
                match entries.iter_mut().find(|(known, _)| known.is_of(entry.incarnation, entry.lane)) {
                    Some((known, records)) => {
                        *known = known.join(&entry);
                        *records += 1;
                    }
                    None => drop(entries.push((entry, 1))),
                }
                Visit::Keep
            })
            .await?;
        }
        // From here to the commit nothing is waited for: either all of it is given up, or nothing.
        for (entry, records) in &entries {
            self.books.give_up(*entry, *records);
        }
        self.carry_out(Intent::Clear).await?;
        Ok(self.books.ledger.incarnation)
    }

    pub(super) async fn finish_clear(&mut self) -> Result<(), Error<F::Error>> {
        for ring in Rings::<F, LANES>::numbers() {
            for page in 0..self.rings.ring(ring)?.pages.count {
                self.rings.erase(ring, page).await?;
            }
            self.mount(ring).await?;
        }
        let books = &mut self.books;
        books.leave_incarnation();
        for lane in &mut books.lanes {
            lane.stats.depth = Depth { records: 0, bytes: 0, is_exact: true };
            (lane.oldest, lane.appended) = (None, None);
        }
        for ledger in &mut books.ledger.lanes {
            ledger.attempts.clear();
        }
        books.ledger.late.clear();
        books.dead_youngest = None;
        books.ledger.intent = None;
        self.commit().await
    }
}
