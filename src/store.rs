//! Everything durable, behind one lock: what the flash holds, what is known of it, and the order in which they change.
//!
//! What takes several steps is written down as an [`Intent`] before the first. `ready` begins every operation: it
//! finishes what an earlier one left unfinished, because the flash failed, its future was dropped, or the power
//! went.

mod books;
mod clear;
mod deliver;
mod enqueue;
mod open;
mod park;

pub use open::wipe;

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use self::books::{Books, Lane};
use crate::{
    Clock, Depth, Entry, Error, Geometry, Key, LaneStats, Reason, Stats, Stored,
    ledger::{Count, DEAD_LETTERS, Intent},
    rings::Rings,
    walk::{Here, Scope, Sight, Visit, Walked},
};

/// The whole outbox, for one caller at a time.
pub(crate) struct Store<'r, F, M: RawMutex, C, const LANES: usize> {
    rings: Rings<'r, F, LANES>,
    pub(crate) books: Books<'r, M, C, LANES>,
}

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    const GEOMETRY: Geometry = Geometry::of::<F>();

    pub(crate) fn device(&self) -> &crate::DeviceId {
        &self.books.layout.device
    }

    /// The incarnation of new records, the number of this boot and its nonce.
    pub(crate) fn identity(&self) -> (u32, u32, u32) {
        (self.books.ledger.incarnation, self.books.ledger.boot, self.books.boot_nonce)
    }

    pub(crate) fn account(&self) -> &[Entry] {
        self.books.ledger.account.entries()
    }

    fn lane(&mut self, lane: u8) -> Result<&mut Lane, Error<F::Error>> {
        self.books.lane(lane).ok_or(Error::NoSuchLane)
    }

    /// Someone trustworthy said what time it is.
    pub(crate) fn learn_time(&mut self, wall_ms: u64) {
        self.books.wall.learn(wall_ms, self.books.clock.uptime_ms());
    }

    pub(crate) fn stats(&self) -> Stats<LANES> {
        let books = &self.books;
        let mut lanes = [LaneStats::default(); LANES];
        for (stats, lane) in lanes.iter_mut().zip(&books.lanes) {
            *stats = lane.stats;
            stats.oldest_ms = lane.oldest.and_then(|time| books.age_ms(&time));
        }
        Stats { lanes, erases: self.rings.erases(), corrupt: books.corrupt, boot: books.ledger.boot }
    }

    /// Begins every operation: what an earlier one left unfinished is finished first.
    pub(crate) async fn ready(&mut self) -> Result<(), Error<F::Error>> {
        for ring in Rings::<F, LANES>::numbers() {
            if !self.rings.ring(ring)?.is_trusted {
                self.mount(ring).await?;
            }
        }
        (self.books.is_opening, self.books.is_growing) = (false, false);
        if self.books.must_commit || self.books.ledger.intent.is_some() {
            self.commit().await?;
        }
        self.finish().await?;
        for lane in 0..LANES as u8 {
            self.adopt(lane).await?;
        }
        Ok(())
    }

    /// A ring's boot check, and what follows from it.
    async fn mount(&mut self, ring: u8) -> Result<(), Error<F::Error>> {
        let (youngest, disordered) = self.rings.mount(ring).await?;
        if !self.books.is_growing {
            self.books.note_corruption(ring, disordered);
        }
        let at_most = self.depth_at_most(ring)?;
        self.books.mounted(ring, youngest, at_most);
        Ok(())
    }

    /// No more can lie in the pages of a ring.
    fn depth_at_most(&mut self, ring: u8) -> Result<Depth, Error<F::Error>> {
        let geometry = Self::GEOMETRY;
        let room = geometry.end_mark() - geometry.first_item();
        let ring = self.rings.ring(ring)?;
        let is_exact = ring.is_blank();
        let pages = if is_exact { 0 } else { u32::from(ring.pages.count) };
        let records = pages * (room / geometry.item_span(Stored::LEN_MIN));
        Ok(Depth { records, bytes: pages * room, is_exact })
    }

    /// Writes the ledger down. What it says is durable when this returns.
    async fn commit(&mut self) -> Result<(), Error<F::Error>> {
        let books = &mut self.books;
        books.must_commit = true;
        for (lane, ledger) in books.lanes.iter_mut().zip(&mut books.ledger.lanes) {
            // A ceiling that goes down holds from here on, one that goes up only once it is written.
            lane.ceiling = lane.ceiling.min(ledger.ceiling);
            ledger.next = lane.next;
            lane.is_counted = ledger.count.is_some();
        }
        self.rings.write(&books.layout, &mut books.ledger).await?;
        for (lane, ledger) in books.lanes.iter_mut().zip(&mut books.ledger.lanes) {
            lane.ceiling = ledger.ceiling;
            ledger.count = None;
        }
        books.must_commit = false;
        Ok(())
    }

    /// Writes an intent down together with what the ledger already says, and does it.
    async fn carry_out(&mut self, intent: Intent) -> Result<(), Error<F::Error>> {
        self.books.ledger.intent = Some(intent);
        self.commit().await?;
        self.finish().await
    }

    /// Does what the written intent says, or what is left of it.
    async fn finish(&mut self) -> Result<(), Error<F::Error>> {
        match self.books.ledger.intent {
            None => return Ok(()),
            Some(Intent::Clear) => self.finish_clear().await?,
            Some(Intent::Evict { ring, page, last }) => self.finish_eviction(ring, page, last).await?,
            Some(Intent::Remove { ring, page, key }) => self.remove(ring, page, key).await?,
            Some(Intent::Park { lane, page, key, cause }) => {
                self.finish_parking(lane, page, key, cause).await?;
            }
        }
        self.books.ledger.intent = None;
        Ok(())
    }

    /// A clean stop: nothing is uncertain after it, and the depth is known at the next boot. The leases are given
    /// up, so the next record costs a write.
    pub(crate) async fn suspend(&mut self) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        let books = &mut self.books;
        for (lane, ledger) in books.lanes.iter_mut().zip(&mut books.ledger.lanes) {
            lane.ceiling = lane.next;
            ledger.ceiling = lane.next;
            let Depth { records, bytes, is_exact } = lane.stats.depth;
            ledger.count = is_exact.then_some(Count { records, bytes });
        }
        self.commit().await
    }

    /// One pass over what is pending in a ring, oldest first.
    async fn pass(
        &mut self,
        ring: u8,
        visit: &mut dyn FnMut(&Stored<'_>, Here) -> Visit,
    ) -> Result<Walked, Error<F::Error>> {
        let walked = self.rings.walk(ring, Scope::Pending, visit).await?;
        self.books.note_corruption(ring, walked.corrupt);
        Ok(walked)
    }

    /// Looks for a pending record on a page; its bytes are in the record's memory then. Gives its length.
    async fn find(&mut self, ring: u8, page: u16, key: Key) -> Result<Option<u32>, Error<F::Error>> {
        let mut found = None;
        let visit = &mut |stored: &Stored<'_>, here: Here| {
            if here.sight != Sight::Pending || stored.key != key {
                return Visit::Keep;
            }
            found = Some(here.span - Self::GEOMETRY.word());
            Visit::Stop
        };
        self.rings.walk(ring, Scope::Page(page), visit).await?;
        Ok(found)
    }

    /// Removes a record, if it still is where it was. One that seems to be gone is removed again: a removal that was
    /// cut may have left it weak.
    async fn remove(&mut self, ring: u8, page: u16, key: Key) -> Result<(), Error<F::Error>> {
        let mut removed = None;
        let visit = &mut |stored: &Stored<'_>, here: Here| {
            if stored.key != key {
                return Visit::Keep;
            }
            if here.sight == Sight::Pending {
                removed = Some(here.span);
            }
            Visit::RemoveAndStop
        };
        self.rings.walk(ring, Scope::Page(page), visit).await?;
        if let Some(span) = removed {
            self.books.note_removed(ring, 1, span);
        }
        Ok(())
    }

    /// Explains what a ring's page holds before it is given up. Says which record is the last on it, by which the
    /// page is known again.
    async fn explain_page(
        &mut self,
        ring: u8,
        page: u16,
        reason: fn(&Stored<'_>) -> Reason,
    ) -> Result<Option<Key>, Error<F::Error>> {
        let (mut last, mut run) = (None, None::<(Entry, u32)>);
        let (mut records, mut bytes) = (0, 0);
        let books = &mut self.books;
        let visit = &mut |stored: &Stored<'_>, here: Here| {
            last = Some(stored.key);
            if here.sight != Sight::Pending {
                return Visit::Keep;
            }
            records += 1;
            bytes += here.span;
            let entry = Entry::of(stored.key, reason(stored));
            match &mut run {
                // Dead letters are not in the order of their counters, and what lies between may be pending.
                Some((known, records)) if ring != DEAD_LETTERS && known.is_continued_by(&entry) => {
                    known.len = entry.first - known.first + 1;
                    *records += 1;
                }
                _ => {
                    if let Some((entry, records)) = run.replace((entry, 1)) {
                        books.give_up(entry, records);
                    }
                }
            }
            Visit::Keep
        };
        self.rings.walk(ring, Scope::Page(page), visit).await?;
        if let Some((entry, records)) = run {
            books.give_up(entry, records);
        }
        books.note_removed(ring, records, bytes);
        Ok(last)
    }

    /// Erases a page whose records were explained, unless it holds others by now.
    async fn finish_eviction(&mut self, ring: u8, page: u16, last: Key) -> Result<(), Error<F::Error>> {
        let mut found = None;
        let visit = &mut |stored: &Stored<'_>, _: Here| {
            found = Some(stored.key);
            Visit::Keep
        };
        self.rings.walk(ring, Scope::Page(page), visit).await?;
        if found == Some(last) {
            self.rings.erase(ring, page).await?;
            if !self.rings.ring(ring)?.is_trusted {
                self.mount(ring).await?;
            }
        }
        Ok(())
    }
}
