//! What the outbox knows without looking at the flash: the ledger, the counters, the numbers it shows, the time.

use embassy_sync::blocking_mutex::raw::RawMutex;
use heapless::Vec;

use crate::{
    Cause, Clock, Depth, Entry, Event, Key, LaneConfig, LaneStats, Layout, Reason, Timestamp,
    clock::WallClock,
    event::Signals,
    io::Cells,
    ledger::{Act, DEAD_LETTERS, Former, Intent, LaneLedger, Ledger, Tagged},
    list::{take_at, take_where},
    metadata::{Metadata, Write},
    rings::Youngest,
};

/// What is known of a lane only until the power goes.
#[repr(C)]
pub(crate) struct Lane {
    /// The next counter.
    pub(super) next: u64,
    /// The ceiling that is durable: counters below it may be handed out.
    pub(super) ceiling: u64,
    /// Records parked since something was last delivered.
    pub(super) parked_in_a_row: u8,
    /// The depth was known before records were removed, and is again when all of them are.
    pub(super) was_exact: bool,
    /// The newest snapshot says how many records there are: it has to be replaced before one is removed.
    pub(super) is_counted: bool,
    /// A counter that was taken for a record whose append has begun and has not returned.
    pub(super) minting: Option<u64>,
    pub(super) config: LaneConfig,
    /// A record that is in the ring with a tag that is not taken up yet.
    pub(super) appended: Option<Tagged>,
    pub(super) oldest: Option<Timestamp>,
    /// The oldest record, when younger ones were settled before it.
    pub(super) overtaken: Option<Key>,
    pub(super) stats: LaneStats,
}

impl Lane {
    pub(super) fn new(config: LaneConfig) -> Self {
        Self {
            config,
            next: 0,
            ceiling: 0,
            minting: None,
            appended: None,
            parked_in_a_row: 0,
            stats: LaneStats::default(),
            oldest: None,
            overtaken: None,
            was_exact: false,
            is_counted: false,
        }
    }
}

/// The outbox's memory of itself.
#[repr(C)]
pub(crate) struct Books<'r, M: RawMutex, C, const LANES: usize> {
    /// The ledger holds something that has to be durable before anything else happens.
    pub(super) must_commit: bool,
    /// There is a ledger: rings can be checked against it.
    pub(super) is_loaded: bool,
    /// The rings are checked for the first time.
    pub(super) is_opening: bool,
    /// A ring has just got pages in the middle of its order.
    pub(super) is_growing: bool,
    /// Somebody has subscribed.
    is_heard: bool,
    pub(super) corrupt: u32,
    /// Tells this boot from another with the same number.
    pub(super) boot_nonce: u32,
    pub(crate) signals: &'r Signals<M>,
    pub(crate) clock: C,
    /// The youngest dead letter, by which an unfinished move knows that its copy has been made.
    pub(super) dead_youngest: Option<Key>,
    entropy: u64,
    pub(super) wall: WallClock,
    pub(super) lanes: [Lane; LANES],
    pub(super) ledger: Ledger<LANES>,
    pub(super) layout: Layout,
    /// What happened before anybody listened.
    unheard: Vec<Event, 2>,
}

impl<'r, M: RawMutex, C: Clock, const LANES: usize> Books<'r, M, C, LANES> {
    #[inline(never)]
    pub(super) fn new(
        signals: &'r Signals<M>,
        clock: C,
        layout: Layout,
        lanes: [LaneConfig; LANES],
        entropy: u64,
    ) -> Self {
        let mut books = Self {
            signals,
            clock,
            wall: WallClock::unknown(),
            layout,
            boot_nonce: 0,
            ledger: Ledger::fresh(0),
            entropy,
            must_commit: false,
            lanes: lanes.map(Lane::new),
            is_loaded: false,
            is_opening: true,
            is_growing: false,
            is_heard: false,
            unheard: Vec::new(),
            dead_youngest: None,
            corrupt: 0,
        };
        (books.boot_nonce, books.ledger.incarnation) = (books.draw(), books.draw());
        books
    }

    /// A number that was not drawn before in this boot, and as random as the chip's entropy.
    fn draw(&mut self) -> u32 {
        self.entropy = self.entropy.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (self.entropy >> 32) as u32 ^ self.entropy as u32
    }

    /// What random numbers that need not be secret may begin with: another one in every boot.
    pub(crate) fn seed(&self) -> u64 {
        self.entropy.rotate_left(32) ^ u64::from(self.boot_nonce)
    }

    pub(super) fn lane(&mut self, lane: u8) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(lane))
    }

    /// A lane's part of the ledger.
    pub(super) fn kept(&mut self, lane: u8) -> Option<&mut LaneLedger> {
        self.ledger.lanes.get_mut(usize::from(lane))
    }

    pub(super) fn key(&self, lane: u8, counter: u64) -> Key {
        Key { incarnation: self.ledger.incarnation, lane, counter }
    }

    #[inline(never)]
    pub(crate) fn publish(&mut self, event: Event) {
        let is_about_the_region = matches!(event, Event::Formatted { .. } | Event::Corruption { .. });
        if is_about_the_region && !self.is_heard {
            // If there are more, the statistics tell.
            let _ = self.unheard.push(event);
        }
        self.signals.events.immediate_publisher().publish_immediate(event);
        self.signals.bell.ring_work();
    }

    /// Tells the first who listens what happened at boot.
    pub(crate) fn catch_up(&mut self) {
        self.is_heard = true;
        for event in core::mem::take(&mut self.unheard) {
            self.publish(event);
        }
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        let uptime_ms = self.clock.uptime_ms();
        Timestamp { boot: self.ledger.boot, uptime_ms, wall_ms: self.wall.now(uptime_ms) }
    }

    /// How old a record is, where that is known beyond doubt.
    pub(crate) fn age_ms(&self, time: &Timestamp) -> Option<u64> {
        self.wall.age_ms(time, self.ledger.boot, self.clock.uptime_ms())
    }

    /// Puts the next snapshot together. What it says is durable when it is `written`.
    pub(super) fn write<'m>(&mut self, metadata: &'m mut Metadata, cells: &mut Cells<'_>) -> Write<'m> {
        self.must_commit = true;
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            // A ceiling that goes down holds from here on, one that goes up only once it is written.
            lane.ceiling = lane.ceiling.min(ledger.ceiling);
            ledger.next = lane.next;
            lane.is_counted = ledger.count.is_some();
        }
        metadata.write(cells, &mut self.layout, &mut self.ledger)
    }

    pub(super) fn written(&mut self) {
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            lane.ceiling = ledger.ceiling;
            ledger.count = None;
        }
        self.must_commit = false;
    }

    /// Something of several steps begins: it is written down before the first.
    pub(super) fn intend(&mut self, intent: Intent) {
        self.ledger.intent = Some(intent);
        self.must_commit = true;
    }

    /// Moves a record to the dead letters.
    pub(super) fn park(&mut self, lane: u8, page: u16, key: Key, cause: Cause) {
        self.ledger.account.explain(Entry::of(key, Reason::Parked));
        if let Some(ledger) = self.kept(lane) {
            take_where(&mut ledger.attempts, |attempts| attempts.key == key);
        }
        self.intend(Intent { cause, ..Intent::new(Act::Park, lane, page, key) });
    }

    /// A ring was checked. Continues a lane where the last boot left it; later, finds out what became of the record
    /// that was being appended when something went wrong.
    pub(super) fn mounted(&mut self, ring: u8, youngest: Option<Youngest>, at_most: Depth) {
        if ring == DEAD_LETTERS {
            self.dead_youngest = youngest.map(|youngest| youngest.key);
            return;
        }
        let incarnation = self.ledger.incarnation;
        let of_this = youngest.filter(|youngest| youngest.key.incarnation == incarnation);
        if self.is_opening {
            self.take_up(ring, of_this.map_or(0, |youngest| youngest.key.counter + 1), at_most);
        }
        let is_opening = self.is_opening;
        let Some(lane) = self.lane(ring) else { return };
        let minted = lane.minting.take();
        let pending = of_this
            .filter(|youngest| youngest.is_pending && (is_opening || Some(youngest.key.counter) == minted));
        // A cut may have come between the append of a tagged record and the removal of the one it supersedes.
        if let Some(Youngest { key, page, tag: Some(tag), .. }) = pending {
            lane.appended = Some(Tagged { tag, counter: key.counter, page });
        }
        if is_opening {
            return;
        }
        lane.stats.depth.is_exact = false;
        if at_most.is_exact {
            lane.stats.depth = at_most;
        }
        let Some(counter) = minted else { return };
        lane.next = counter + 1;
        match pending {
            Some(youngest) => self.note_queued(youngest.key, youngest.span),
            None => {
                self.give_up(Entry::of(self.key(ring, counter), Reason::Aborted), 1);
                self.must_commit = true;
            }
        }
    }

    /// Continues a lane: `seen` is the counter after the youngest in its ring.
    fn take_up(&mut self, lane: u8, seen: u64, at_most: Depth) {
        let incarnation = self.ledger.incarnation;
        let Some(ledger) = self.kept(lane) else { return };
        let known = ledger.next.max(seen);
        // The ring comes after the ceiling; should it ever not, no counter may repeat.
        ledger.ceiling = ledger.ceiling.max(known);
        let (ceiling, count) = (ledger.ceiling, ledger.count.take());
        let len = ceiling - known;
        self.ledger.account.fill(Entry { incarnation, lane, reason: Reason::Uncertain, first: known, len });
        let Some(this) = self.lane(lane) else { return };
        (this.next, this.ceiling) = (ceiling, ceiling);
        this.stats.depth = match count {
            Some(count) if len == 0 && !at_most.is_exact => {
                Depth { records: count.records, bytes: count.bytes, is_exact: true }
            }
            _ => at_most,
        };
        this.stats.given_up.add(Reason::Uncertain, u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Explains counters that will not arrive: so many records.
    pub(super) fn give_up(&mut self, entry: Entry, records: u32) {
        self.ledger.account.explain(entry);
        self.note_given_up(&entry, records);
    }

    /// Explains those of the counters that nothing explains yet.
    pub(super) fn fill(&mut self, gap: Entry) {
        if self.ledger.account.fill(gap) {
            self.note_given_up(&gap, u32::try_from(gap.len).unwrap_or(u32::MAX));
            self.must_commit = true;
        }
    }

    pub(super) fn note_queued(&mut self, key: Key, span: u32) {
        let time = self.timestamp();
        if let Some(lane) = self.lane(key.lane) {
            let depth = &mut lane.stats.depth;
            if depth.records == 0 {
                lane.oldest = Some(time);
            }
            depth.records += 1;
            depth.bytes += span;
            lane.stats.enqueued += 1;
        }
        self.publish(Event::Queued(key));
    }

    #[inline(never)]
    pub(super) fn note_removed(&mut self, ring: u8, records: u32, bytes: u32) {
        if let Some(lane) = self.lane(ring) {
            let depth = &mut lane.stats.depth;
            depth.records = depth.records.saturating_sub(records);
            depth.bytes = depth.bytes.saturating_sub(bytes);
            // It may have been the oldest; the next pass tells.
            lane.oldest = None;
        }
    }

    pub(super) fn note_given_up(&mut self, entry: &Entry, records: u32) {
        if let Some(lane) = self.lane(entry.lane) {
            lane.stats.given_up.add(entry.reason, records);
        }
        if entry.reason != Reason::Parked {
            self.publish(Event::Dropped(*entry));
        }
    }

    pub(super) fn note_corruption(&mut self, ring: u8, count: u32) {
        if count > 0 {
            warning!("corruption found in ring {}: {} items or pages", ring, count);
            self.corrupt += count;
            self.publish(Event::Corruption { lane: (ring != DEAD_LETTERS).then_some(ring), count });
        }
    }

    /// The record is gone: its tag is free, unless a younger record has it.
    pub(super) fn forget_tag(&mut self, key: Key) {
        let is_of_this = key.incarnation == self.ledger.incarnation;
        if let Some(ledger) = self.kept(key.lane).filter(|_| is_of_this)
            && let Some(at) = ledger.tags.iter().position(|tagged| tagged.counter == key.counter)
        {
            take_at(&mut ledger.tags, at);
        }
    }

    /// The counters start anew under another incarnation; the books of this one stay open.
    pub(super) fn leave_incarnation(&mut self) {
        // Should its books be open longer than those of two others, an operator closes them.
        if let [oldest, newest] = self.ledger.former.as_mut_slice() {
            *oldest = *newest;
            self.ledger.former.pop();
        }
        let issued = self.lanes.each_ref().map(|lane| lane.next);
        let _ = self.ledger.former.push(Former { incarnation: self.ledger.incarnation, issued });
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            (lane.next, lane.ceiling) = (0, 0);
            (ledger.next, ledger.ceiling, ledger.count) = (0, 0, None);
            ledger.tags.clear();
        }
        self.ledger.incarnation = self.draw();
    }

    /// The receiver has not taken the oldest record of a lane. Whether it blocks its lane is seen when the lane is read.
    pub(crate) fn note_stuck(&mut self, key: Key) {
        if let Some(lane) = self.lane(key.lane) {
            lane.overtaken = Some(key);
        }
    }

    /// Parking goes on, whatever was rejected before.
    pub(crate) fn resume_parking(&mut self) {
        for lane in &mut self.lanes {
            lane.parked_in_a_row = 0;
        }
    }

    /// The receiver has these dead letters after all.
    pub(crate) fn arrived_late(&mut self, keys: &[Key]) {
        for key in keys {
            self.ledger.account.forget(*key);
            take_where(&mut self.ledger.late, |late| late == key);
        }
    }

    pub(crate) fn account(&self) -> &[Entry] {
        self.ledger.account.entries()
    }

    /// The receiver knows of these entries now.
    pub(crate) fn confirm(&mut self, entries: &[Entry]) {
        self.ledger.account.confirm(entries);
    }

    /// The receiver has forgotten this entry.
    pub(crate) fn retell(&mut self, entry: Entry) {
        self.must_commit |= self.ledger.account.fill(entry);
    }

    /// Earlier incarnations whose books are open.
    pub(crate) fn formers(&self) -> impl Iterator<Item = (u32, &[u64])> {
        self.ledger.former.iter().map(|former| (former.incarnation, former.issued.as_slice()))
    }

    /// The receiver has closed the books of an earlier incarnation.
    pub(crate) fn close_former(&mut self, incarnation: u32) {
        take_where(&mut self.ledger.former, |former| former.incarnation == incarnation);
    }

    /// Someone trustworthy said what time it is.
    pub(crate) fn learn_time(&mut self, wall_ms: u64) {
        self.wall.learn(wall_ms, self.clock.uptime_ms());
    }
}
