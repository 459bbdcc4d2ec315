//! Everything durable, behind one lock: the metadata and the rings, and the order in which they change.
//!
//! What takes several steps is written down as an [`Intent`] before the first. `ready` begins every operation: it
//! finishes what an earlier one left unfinished, because the flash failed, its future was dropped, or the power
//! went.

mod clear;
mod deliver;
mod enqueue;
mod open;
mod park;

pub use open::wipe;

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use crate::{
    Clock, Depth, Entry, Error, Event, Geometry, Key, LaneConfig, LaneStats, Layout, Reason, Stats, Stored,
    Tag, Timestamp,
    clock::WallClock,
    event::Channel,
    ledger::{Count, DEAD_LETTERS, Intent, Ledger},
    metadata::Metadata,
    ring::{Here, Pass, Ring, RingCache, Visit, cold_cache},
    settle::Settled,
};

/// A lane's ring, and what is known of it only until the power goes.
pub(crate) struct Lane<const PAGES: usize> {
    config: LaneConfig,
    ring: Ring<PAGES>,
    cache: RingCache<PAGES>,
    /// The next counter.
    next: u64,
    /// The ceiling that is durable: counters below it may be handed out.
    ceiling: u64,
    /// A counter that was taken for a record whose append has begun and has not returned.
    minting: Option<u64>,
    /// Records parked since something was last delivered.
    parked_in_a_row: u8,
    stats: LaneStats,
    oldest: Option<Timestamp>,
    /// The oldest record, when younger ones were settled before it.
    overtaken: Option<Key>,
    /// The newest snapshot says how many records there are: it has to be replaced before one is removed.
    is_counted: bool,
}

impl<const PAGES: usize> Lane<PAGES> {
    fn new(config: LaneConfig, ring: Ring<PAGES>) -> Self {
        Self {
            config,
            ring,
            cache: cold_cache(),
            next: 0,
            ceiling: 0,
            minting: None,
            parked_in_a_row: 0,
            stats: LaneStats::default(),
            oldest: None,
            overtaken: None,
            is_counted: false,
        }
    }
}

/// The whole outbox, for one caller at a time.
pub(crate) struct Store<'r, F, M: RawMutex, C, const LANES: usize, const PAGES: usize> {
    flash: F,
    buffer: &'r mut [u8],
    pub(crate) events: &'r Channel<M>,
    clock: C,
    pub(crate) wall: WallClock,
    layout: Layout,
    random: fastrand::Rng,
    /// Tells this boot from another with the same number.
    pub(crate) boot_nonce: u32,
    metadata: Metadata,
    ledger: Ledger<LANES>,
    /// The ledger holds something that has to be durable before anything else happens.
    must_commit: bool,
    lanes: Vec<Lane<PAGES>, LANES>,
    /// A record that is in its ring although its append never returned; its tag is not taken up yet.
    appended: Option<Youngest>,
    /// A ring has just got pages in the middle of its order.
    is_growing: bool,
    /// Somebody has subscribed.
    is_heard: bool,
    /// What happened before anybody listened.
    unheard: Vec<Event, 2>,
    dead: Ring<PAGES>,
    /// The youngest dead letter, by which an unfinished move knows that its copy has been made.
    dead_youngest: Option<Key>,
    corrupt: u32,
}

impl<'r, F, M, C, const LANES: usize, const PAGES: usize> Store<'r, F, M, C, LANES, PAGES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    const GEOMETRY: Geometry = Geometry::of::<F>();

    pub(crate) fn device(&self) -> &crate::DeviceId {
        &self.layout.device
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.ledger.incarnation
    }

    pub(crate) fn boot(&self) -> u32 {
        self.ledger.boot
    }

    pub(crate) fn account(&self) -> &[Entry] {
        self.ledger.account.entries()
    }

    fn lane(&self, lane: u8) -> Result<&Lane<PAGES>, Error<F::Error>> {
        self.lanes.get(usize::from(lane)).ok_or(Error::NoSuchLane)
    }

    fn lane_mut(&mut self, lane: u8) -> Result<&mut Lane<PAGES>, Error<F::Error>> {
        self.lanes.get_mut(usize::from(lane)).ok_or(Error::NoSuchLane)
    }

    fn publish(&mut self, event: Event) {
        let is_about_the_region = matches!(event, Event::Formatted { .. } | Event::Corruption { .. });
        if is_about_the_region && !self.is_heard {
            // If there are more, the statistics tell.
            let _ = self.unheard.push(event);
        }
        self.events.immediate_publisher().publish_immediate(event);
    }

    /// Tells the first who listens what happened at boot.
    pub(crate) fn catch_up(&mut self) {
        self.is_heard = true;
        for event in core::mem::take(&mut self.unheard) {
            self.publish(event);
        }
    }

    fn timestamp(&self) -> Timestamp {
        let uptime_ms = self.clock.uptime_ms();
        Timestamp { boot: self.ledger.boot, uptime_ms, wall_ms: self.wall.now(uptime_ms) }
    }

    fn age_ms(&self, time: &Timestamp) -> Option<u64> {
        self.wall.age_ms(time, self.ledger.boot, self.clock.uptime_ms())
    }

    /// Someone trustworthy said what time it is.
    pub(crate) fn learn_time(&mut self, wall_ms: u64) {
        self.wall.learn(wall_ms, self.clock.uptime_ms());
    }

    pub(crate) fn stats(&self) -> Stats<LANES> {
        let mut lanes = [LaneStats::default(); LANES];
        for (stats, lane) in lanes.iter_mut().zip(&self.lanes) {
            *stats = lane.stats;
            stats.oldest_ms = lane.oldest.and_then(|time| self.age_ms(&time));
        }
        let rings = self.lanes.iter().map(|lane| lane.ring.erases).sum::<u32>();
        let erases = rings + self.dead.erases + self.metadata.erases;
        Stats { lanes, erases, corrupt: self.corrupt, boot: self.ledger.boot }
    }

    /// Begins every operation: what an earlier one left unfinished is finished first.
    pub(crate) async fn ready(&mut self) -> Result<(), Error<F::Error>> {
        if !self.dead.is_trusted() {
            self.dead_youngest = self.mount(DEAD_LETTERS).await?.map(|youngest| youngest.key);
        }
        for lane in 0..LANES as u8 {
            if !self.lane(lane)?.ring.is_trusted() {
                self.remount(lane).await?;
            }
        }
        if self.must_commit || self.ledger.intent.is_some() {
            self.commit().await?;
        }
        self.finish().await?;
        if let Some(youngest) = self.appended {
            self.adopt(&youngest).await?;
            self.appended = None;
        }
        Ok(())
    }

    /// A ring's boot check.
    async fn mount(&mut self, ring: u8) -> Result<Option<Youngest>, Error<F::Error>> {
        let (this, cache, flash, buffer) = self.parts(ring)?;
        let settled = this.mount(flash, cache, buffer).await?;
        let youngest = settled.youngest.and_then(|len| Youngest::read(&settled, buffer.get(..len)?));
        if !self.is_growing {
            self.note_corruption(ring, settled.disordered);
        }
        Ok(youngest)
    }

    /// Checks a lane after something went wrong while the power was on, and finds out what became of the record
    /// that was being appended.
    async fn remount(&mut self, lane: u8) -> Result<(), Error<F::Error>> {
        let youngest = self.mount(lane).await?;
        let incarnation = self.ledger.incarnation;
        let this = self.lane_mut(lane)?;
        this.stats.depth.is_exact = false;
        let Some(counter) = this.minting.take() else {
            return Ok(());
        };
        let key = Key { incarnation, lane, counter };
        this.next = counter + 1;
        match youngest.filter(|youngest| youngest.key == key && youngest.is_pending) {
            Some(youngest) => {
                self.note_queued(key, youngest.len);
                self.appended = Some(youngest);
            }
            None => {
                let entry = Entry::of(key, Reason::Aborted);
                self.ledger.account.explain(entry);
                self.must_commit = true;
                self.note_given_up(&entry, 1);
            }
        }
        Ok(())
    }

    /// Writes the ledger down. What it says is durable when this returns.
    async fn commit(&mut self) -> Result<(), Error<F::Error>> {
        self.must_commit = true;
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            // A ceiling that goes down holds from here on, one that goes up only once it is written.
            lane.ceiling = lane.ceiling.min(ledger.ceiling);
            ledger.next = lane.next;
            lane.is_counted = ledger.count.is_some();
        }
        self.metadata.write(&mut self.flash, self.buffer, &self.layout, &mut self.ledger).await?;
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            lane.ceiling = ledger.ceiling;
            ledger.count = None;
        }
        self.must_commit = false;
        Ok(())
    }

    /// Writes an intent down together with what the ledger already says, and does it.
    async fn carry_out(&mut self, intent: Intent) -> Result<(), Error<F::Error>> {
        self.ledger.intent = Some(intent);
        self.commit().await?;
        self.finish().await
    }

    /// Does what the written intent says, or what is left of it.
    async fn finish(&mut self) -> Result<(), Error<F::Error>> {
        match self.ledger.intent {
            None => return Ok(()),
            Some(Intent::Clear) => self.finish_clear().await?,
            Some(Intent::Evict { ring, page, last }) => self.finish_eviction(ring, page, last).await?,
            Some(Intent::Remove { ring, page, key }) => self.remove(ring, page, key).await?,
            Some(Intent::Park { lane, page, key, cause }) => {
                self.finish_parking(lane, page, key, cause).await?
            }
        }
        self.ledger.intent = None;
        Ok(())
    }

    /// A clean stop: nothing is uncertain after it, and the depth is known at the next boot. The leases are given
    /// up, so the next record costs a write.
    pub(crate) async fn suspend(&mut self) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            lane.ceiling = lane.next;
            ledger.ceiling = lane.next;
            let Depth { records, bytes, is_exact } = lane.stats.depth;
            ledger.count = is_exact.then_some(Count { records, bytes });
        }
        self.commit().await
    }

    /// A ring with everything that is needed to work on it.
    #[allow(clippy::type_complexity)]
    fn parts(
        &mut self,
        ring: u8,
    ) -> Result<(&mut Ring<PAGES>, Option<&mut RingCache<PAGES>>, &mut F, &mut [u8]), Error<F::Error>> {
        if ring == DEAD_LETTERS {
            return Ok((&mut self.dead, None, &mut self.flash, self.buffer));
        }
        let lane = self.lanes.get_mut(usize::from(ring)).ok_or(Error::NoSuchLane)?;
        Ok((&mut lane.ring, Some(&mut lane.cache), &mut self.flash, self.buffer))
    }

    /// One pass over a ring's records, oldest first. Items that are no records of this ring are removed.
    async fn pass(
        &mut self,
        ring: u8,
        visit: &mut dyn FnMut(&Stored<'_>, Here) -> Visit,
    ) -> Result<Pass, Error<F::Error>> {
        let lanes = LANES as u8;
        let mut foreign = 0;
        let mut decode = |bytes: &[u8], here: Here| {
            let belongs = |stored: &Stored<'_>| {
                if ring == DEAD_LETTERS { stored.key.lane < lanes } else { stored.key.lane == ring }
            };
            match Stored::decode(bytes).filter(belongs) {
                Some(stored) => visit(&stored, here),
                None => {
                    foreign += 1;
                    Visit::Remove
                }
            }
        };
        let (this, cache, flash, buffer) = self.parts(ring)?;
        let pass = this.visit(flash, cache, buffer, &mut decode).await?;
        self.note_corruption(ring, pass.corrupt + foreign);
        Ok(pass)
    }

    /// Removes a record, if it still is where it was.
    async fn remove(&mut self, ring: u8, page: u16, key: Key) -> Result<(), Error<F::Error>> {
        let (this, _, flash, buffer) = self.parts(ring)?;
        if let Some(item) = this.find(flash, page, key, buffer).await? {
            let span = Self::GEOMETRY.item_span(item.header.len.into());
            this.remove(flash, page, &item).await?;
            self.note_removed(ring, 1, span);
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
        let mut last = None;
        let mut explained = 0;
        loop {
            // Dead letters need an entry each, so a page may take several rounds.
            let mut entries: Vec<(Entry, u32), 4> = Vec::new();
            let (mut seen, mut bytes) = (0, 0);
            let mut note = |data: &[u8], pending: bool| {
                let Some(stored) = Stored::decode(data) else {
                    return true;
                };
                last = Some(stored.key);
                seen += u32::from(pending);
                if !pending || seen <= explained {
                    return true;
                }
                let entry = Entry::of(stored.key, reason(&stored));
                match entries.last_mut() {
                    // Dead letters are not in the order of their counters, and what lies between may be pending.
                    Some((known, records)) if ring != DEAD_LETTERS && known.is_continued_by(&entry) => {
                        known.len = entry.first - known.first + 1;
                        *records += 1;
                    }
                    _ => {
                        if entries.push((entry, 1)).is_err() {
                            return false;
                        }
                    }
                }
                bytes += Self::GEOMETRY.item_span(data.len() as u32);
                true
            };
            let (this, _, flash, buffer) = self.parts(ring)?;
            let rest = this.walk(flash, page, buffer, &mut note).await?;
            for (entry, records) in &entries {
                self.ledger.account.explain(*entry);
                self.note_given_up(entry, *records);
                explained += records;
                self.note_removed(ring, *records, 0);
            }
            self.note_removed(ring, 0, bytes);
            if rest.is_none() {
                return Ok(last);
            }
        }
    }

    /// Erases a page whose records were explained, unless it holds others by now.
    async fn finish_eviction(&mut self, ring: u8, page: u16, last: Key) -> Result<(), Error<F::Error>> {
        let mut found = None;
        let mut note = |data: &[u8], _: bool| {
            found = Stored::decode(data).map(|stored| stored.key).or(found);
            true
        };
        let (this, _, flash, buffer) = self.parts(ring)?;
        this.walk(flash, page, buffer, &mut note).await?;
        if found == Some(last) {
            this.erase(flash, page..page + 1).await?;
            // The queue's cache still knows the page as it was.
            self.mount(ring).await?;
        }
        Ok(())
    }

    fn note_queued(&mut self, key: Key, len: usize) {
        let time = self.timestamp();
        if let Ok(lane) = self.lane_mut(key.lane) {
            let depth = &mut lane.stats.depth;
            if depth.records == 0 {
                lane.oldest = Some(time);
            }
            depth.records += 1;
            depth.bytes += Self::GEOMETRY.item_span(len as u32);
            lane.stats.enqueued += 1;
        }
        self.publish(Event::Queued(key));
    }

    fn note_removed(&mut self, ring: u8, records: u32, bytes: u32) {
        if let Ok(lane) = self.lane_mut(ring) {
            let depth = &mut lane.stats.depth;
            depth.records = depth.records.saturating_sub(records);
            depth.bytes = depth.bytes.saturating_sub(bytes);
            // It may have been the oldest; the next pass tells.
            lane.oldest = None;
        }
    }

    fn note_given_up(&mut self, entry: &Entry, records: u32) {
        if let Ok(lane) = self.lane_mut(entry.lane) {
            lane.stats.given_up.add(entry.reason, records);
        }
        if entry.reason != Reason::Parked {
            self.publish(Event::Dropped(*entry));
        }
    }

    fn note_corruption(&mut self, ring: u8, count: u32) {
        if count > 0 {
            warning!("corruption found in ring {}: {} items or pages", ring, count);
            self.corrupt += count;
            self.publish(Event::Corruption { lane: (ring != DEAD_LETTERS).then_some(ring), count });
        }
    }
}

/// The record that was appended last, as the boot check found it.
#[derive(Clone, Copy)]
struct Youngest {
    key: Key,
    page: u16,
    len: usize,
    tag: Option<Tag>,
    is_pending: bool,
}

impl Youngest {
    fn read(settled: &Settled, bytes: &[u8]) -> Option<Self> {
        let stored = Stored::decode(bytes)?;
        Some(Self {
            key: stored.key,
            page: settled.page,
            len: bytes.len(),
            tag: stored.tag,
            is_pending: settled.pending,
        })
    }
}
