//! Clearing: everything that is pending is given up on purpose, and a new incarnation begins.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use super::Store;
use crate::{
    Clock, Entry, Error, Reason,
    ledger::{DEAD_LETTERS, Intent},
    ring::Visit,
};

impl<'r, F, M, C, const LANES: usize, const PAGES: usize> Store<'r, F, M, C, LANES, PAGES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Gives up everything, accounts for it, and begins a new incarnation.
    pub(crate) async fn clear(&mut self) -> Result<u32, Error<F::Error>> {
        self.ready().await?;
        let mut entries: Vec<(Entry, u32), 16> = Vec::new();
        for ring in (0..LANES as u8).chain([DEAD_LETTERS]) {
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
            self.ledger.account.explain(*entry);
            self.note_given_up(entry, *records);
        }
        self.carry_out(Intent::Clear).await?;
        Ok(self.ledger.incarnation)
    }

    pub(super) async fn finish_clear(&mut self) -> Result<(), Error<F::Error>> {
        for ring in (0..LANES as u8).chain([DEAD_LETTERS]) {
            let (this, _, flash, _) = self.parts(ring)?;
            let pages = 0..this.pages_count();
            this.erase(flash, pages).await?;
            self.mount(ring).await?;
        }
        self.leave_incarnation();
        for lane in &mut self.lanes {
            lane.stats.depth = crate::Depth { records: 0, bytes: 0, is_exact: true };
            lane.oldest = None;
        }
        for ledger in &mut self.ledger.lanes {
            ledger.attempts.clear();
        }
        self.ledger.late.clear();
        self.dead_youngest = None;
        self.ledger.intent = None;
        self.commit().await
    }
}
