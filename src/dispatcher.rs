//! The dispatcher: decides when a flush is worth it, lets the uplink do it, and waits after what it says.

pub(crate) mod talk;

use core::ops::{Deref, DerefMut};

use embassy_futures::select::select;
use embassy_sync::blocking_mutex::raw::{CriticalSectionRawMutex, RawMutex};
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use self::talk::Conclusion;
use crate::{
    Clock, Drain, EmbassyClock, Entry, Errand, Error, Event, Failure, Key, LaneSet, Order, Pace, Policy,
    Sleep, Stored, Uplink, account::Account, event::Signals, ledger::FORMER, random::Random, store::Core,
};

/// Records that have to wait while others go on, at a time.
const HELD: usize = 8;
/// Books of different incarnations and lanes that are told in one flush.
const TOLD: usize = 8;
/// Confirmed entries that are remembered, should the receiver lose its memory.
const REMEMBERED: usize = 8;

/// Sends what is in the outbox, when it is worth it, over an [`Uplink`].
///
/// [`run`](Self::run) does everything. [`step`](Self::step) and [`next_wakeup`](Self::next_wakeup) are for those who have a loop of their
/// own. The other methods, and those of the [`Drain`] that it has, are what an uplink works with.
pub struct Dispatcher<
    'r,
    F,
    const LANES: usize,
    const RECORD: usize,
    M: RawMutex = CriticalSectionRawMutex,
    C = EmbassyClock,
> {
    drain: Drain<'r, F, LANES, RECORD, M, C>,
    signals: &'r Signals<M>,
    clock: C,
    random: Random,
    pace: Pace,
    lanes: [Plan; LANES],
    /// The lanes that the uplink of the moment serves.
    serves: LaneSet,
    wait: Option<Wait>,
    /// A trigger asked for a flush that has not begun.
    is_wanted: bool,
    /// Somebody has listened in this flush.
    is_heard: bool,
    /// Flushes that failed in a row.
    failures: u8,
    /// All that failed since boot.
    failed: u32,
    /// Since when there are books to tell.
    books_noticed: Option<u64>,
    told: Vec<(u32, u8), TOLD>,
    is_late_told: bool,
    /// Records that have to wait while others go on.
    held: Vec<Key, HELD>,
    /// The name of the database that confirmed what is remembered.
    epoch: Option<u64>,
    remembered: Vec<Entry, REMEMBERED>,
    /// Lanes of former incarnations whose books are closed.
    closed: Vec<(u32, u8), TOLD>,
}

/// What is planned for a lane.
#[derive(Clone, Copy, Default)]
struct Plan {
    policy: Policy,
    /// Until then so many of its records cannot be sent.
    until: u64,
    stuck: u32,
    failures: u8,
    /// Since when it has pending records, where they themselves do not tell.
    noticed: Option<u64>,
    /// It takes part in this flush.
    is_open: bool,
    /// It has nothing more for this flush.
    is_done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Wait {
    until: u64,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The link came up, or the device booted: others' did too.
    Spread,
    /// Something failed.
    Backoff,
    /// The receiver asked for it.
    Asked,
}

impl<'r, F, M, C, const LANES: usize, const RECORD: usize> Dispatcher<'r, F, LANES, RECORD, M, C>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Sends every record at once, at the default pace. The first attempt comes after some jitter: others may have booted at the
    /// same moment.
    pub async fn new(drain: Drain<'r, F, LANES, RECORD, M, C>) -> Self {
        let store = drain.shared.lock().await;
        let books = &store.core.books;
        let (signals, clock) = (books.signals, books.clock.clone());
        let mut random = Random::new(books.seed());
        drop(store);
        let pace = Pace::new();
        let until = clock.uptime_ms().saturating_add(pace.first(&mut random));
        Self {
            drain,
            signals,
            clock,
            random,
            pace,
            lanes: [Plan::default(); LANES],
            serves: LaneSet::ALL,
            wait: Some(Wait { until, why: Why::Spread }),
            is_wanted: true,
            is_heard: false,
            failures: 0,
            failed: 0,
            books_noticed: None,
            told: Vec::new(),
            is_late_told: false,
            held: Vec::new(),
            epoch: None,
            remembered: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// When the lanes' records are worth a flush, lane by lane. Without this, at once.
    pub fn policies(mut self, policies: [Policy; LANES]) -> Self {
        for (plan, policy) in self.lanes.iter_mut().zip(policies) {
            plan.policy = policy;
        }
        self
    }

    /// How long to wait after what.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        let until = self.clock.uptime_ms().saturating_add(pace.first(&mut self.random));
        self.wait = Some(Wait { until, why: Why::Spread });
        self
    }

    /// Sends for ever. May be cancelled.
    pub async fn run<U: Uplink>(&mut self, uplink: &mut U) -> !
    where
        C: Sleep,
    {
        loop {
            self.step(uplink).await;
            match self.next_wakeup(uplink).await {
                Some(until) => {
                    select(self.signals.bell.wait(), self.clock.sleep_until(until)).await;
                }
                None => self.signals.bell.wait().await,
            }
        }
    }

    /// Flushes, if a flush is due now; `None` if not. Everything that rang since the last step makes one flush.
    pub async fn step<U: Uplink>(&mut self, uplink: &mut U) -> Option<Result<(), Failure>> {
        self.answer_the_bell();
        let due = self.due_at(uplink.books()).await?;
        if due > self.clock.uptime_ms() {
            return None;
        }
        self.begin();
        let flushed = uplink.flush(self).await;
        self.end(flushed);
        Some(flushed)
    }

    /// Until when the device may sleep: the uptime in milliseconds at which a flush is due. `None` while there is nothing to send;
    /// whatever is enqueued later makes [`run`](Self::run) wake by itself.
    pub async fn next_wakeup<U: Uplink>(&mut self, uplink: &U) -> Option<u64> {
        self.answer_the_bell();
        self.due_at(uplink.books()).await
    }

    /// Triggers cut waits short: after failures always, but what the receiver itself has asked for only if the application
    /// insists.
    fn answer_the_bell(&mut self) {
        let rings = self.signals.bell.answer();
        if rings.is_demanded() {
            (self.is_wanted, self.wait) = (true, None);
            self.lanes.iter_mut().for_each(|plan| plan.until = 0);
        } else if rings.is_connected() {
            self.is_wanted = true;
            if self.wait.is_none_or(|wait| wait.why == Why::Backoff) {
                let until = self.clock.uptime_ms().saturating_add(self.pace.first(&mut self.random));
                // A wait that is nearly over is not begun anew.
                let until = self.wait.map_or(until, |wait| wait.until.min(until));
                self.wait = Some(Wait { until, why: Why::Spread });
                self.lanes.iter_mut().for_each(|plan| plan.until = plan.until.min(until));
            }
        }
    }

    /// When a flush is due.
    async fn due_at(&mut self, books_of: LaneSet) -> Option<u64> {
        let now = self.clock.uptime_ms();
        let store = self.drain.shared.lock().await;
        let stats = store.core.stats();
        let has_books = store.core.books.books_errand(books_of, &|_, _| false, LaneSet::ALL).is_some();
        drop(store);
        let mut due = None;
        let mut sooner = |at: u64| due = Some(due.map_or(at, |due: u64| due.min(at)));
        let mut longest_wait = 0;
        for (plan, lane) in self.lanes.iter_mut().zip(&stats.lanes) {
            longest_wait = plan.policy.max_wait_ms.max(longest_wait);
            let depth = lane.depth;
            if depth.records == 0 {
                plan.noticed = None;
                continue;
            }
            let open_at = if depth.records > plan.stuck { 0 } else { plan.until };
            let noticed = *plan.noticed.get_or_insert(now);
            let since = lane.oldest_ms.map_or(noticed, |age| now.saturating_sub(age));
            let is_enough = depth.bytes >= plan.policy.min_bytes || self.is_wanted;
            let worth_at = if is_enough { now } else { since.saturating_add(plan.policy.max_wait_ms) };
            sooner(worth_at.max(open_at));
        }
        if has_books {
            let noticed = *self.books_noticed.get_or_insert(now);
            sooner(if self.is_wanted { now } else { noticed.saturating_add(longest_wait) });
        } else {
            self.books_noticed = None;
        }
        // A flush that was asked for and finds nothing is over.
        self.is_wanted &= due.is_some();
        due.map(|due| self.wait.map_or(due, |wait| wait.until.max(due)))
    }

    fn begin(&mut self) {
        let now = self.clock.uptime_ms();
        (self.is_wanted, self.wait, self.is_late_told, self.is_heard) = (false, None, false, false);
        self.told.clear();
        for plan in &mut self.lanes {
            (plan.is_open, plan.is_done) = (false, false);
            if plan.until <= now {
                (plan.until, plan.stuck) = (0, 0);
            }
        }
        // A flush for the sake of new records does not try those again whose pause is not over.
        let is_waiting = |lane: u8| self.lanes.get(usize::from(lane)).is_some_and(|plan| plan.until > now);
        self.held.retain(|key| is_waiting(key.lane));
    }

    fn end(&mut self, flushed: Result<(), Failure>) {
        let now = self.clock.uptime_ms();
        if flushed.is_ok() && self.is_heard {
            self.failures = 0;
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let backoff = self.pace.after_failures(self.failures, &mut self.random);
        let Err(failure) = flushed else {
            // Nothing could be said, of the books perhaps because older records come first: no use to try again at once.
            self.books_noticed = Some(now.saturating_add(backoff));
            return;
        };
        self.failed = self.failed.saturating_add(1);
        let (pause, why) = match failure {
            Failure::Network | Failure::NoProgress | Failure::Storage => (backoff, Why::Backoff),
            Failure::Busy { retry_after_s } => {
                let asked = retry_after_s.map_or(0, |seconds| self.pace.asked(seconds, &mut self.random));
                (backoff.max(asked), Why::Backoff)
            }
            Failure::Asked { retry_after_s } => {
                (self.pace.asked(retry_after_s, &mut self.random), Why::Asked)
            }
            Failure::Refused { status } => {
                self.signals.events.immediate_publisher().publish_immediate(Event::Refused { status });
                (self.pace.after_refusal(&mut self.random), Why::Backoff)
            }
        };
        warning!("flush failed, next in {} ms", pause);
        self.wait = Some(Wait { until: now.saturating_add(pause), why });
    }

    /// What to send next. `None` ends the flush.
    pub async fn next_errand(&mut self, books_of: LaneSet) -> Option<Errand> {
        let shared = self.drain.shared;
        let store = shared.lock().await;
        self.choose(&store.core, books_of)
    }

    fn choose(&mut self, core: &Core<'_, M, C, LANES>, books_of: LaneSet) -> Option<Errand> {
        let now = self.clock.uptime_ms();
        let mut open = LaneSet::NONE;
        for ((lane, plan), stats) in (0..).zip(&mut self.lanes).zip(&core.stats().lanes) {
            // Once it is open it is until it is done: what was stuck may have been parked meanwhile.
            plan.is_open |= now >= plan.until || stats.depth.records > plan.stuck;
            if !plan.is_done && plan.is_open {
                open = open.or(LaneSet::of(&[lane]));
            }
        }
        if let Some(errand) = core.books.records_errand(open.and(self.serves)) {
            return Some(errand);
        }
        let is_told = |incarnation, lane| {
            self.told.contains(&(incarnation, lane)) || self.closed.contains(&(incarnation, lane))
        };
        let lanes = books_of.and(self.serves);
        let late_of = if self.is_late_told { LaneSet::NONE } else { lanes };
        let errand = core.books.books_errand(lanes, &is_told, late_of)?;
        self.is_late_told = true;
        if let Errand::Books { incarnation, lane } = errand {
            // With more books than are told in one flush, the rest is told in the next.
            self.told.push((incarnation, lane)).ok()?;
        }
        Some(errand)
    }

    /// Something arrived: the receiver is there.
    pub fn succeeded(&mut self) {
        self.is_heard = true;
        self.failures = 0;
    }

    /// A lane has nothing more that could be sent in this flush. What is left waits.
    pub async fn leave(&mut self, lane: u8) {
        let stats = self.drain.shared.lock().await.core.stats();
        let (Some(plan), Some(stats)) =
            (self.lanes.get_mut(usize::from(lane)), stats.lanes.get(usize::from(lane)))
        else {
            return;
        };
        plan.is_done = true;
        plan.stuck = plan.stuck.max(stats.depth.records);
        // New records do not put off those that wait already.
        if stats.depth.records > 0 && plan.until <= self.clock.uptime_ms() {
            plan.failures = plan.failures.saturating_add(1);
            let pause = self.pace.after_failures(plan.failures, &mut self.random);
            plan.until = self.clock.uptime_ms().saturating_add(pause);
        }
    }

    /// A record has to wait, no shorter than asked. Whether others of its lane go on depends on the lane's [`Order`].
    pub fn hold(&mut self, key: Key, retry_after_s: Option<u32>) {
        let Some(plan) = self.lanes.get_mut(usize::from(key.lane)) else { return };
        let asked = retry_after_s.map_or(0, |seconds| self.pace.asked(seconds, &mut self.random));
        if plan.policy.order == Order::Any && (self.held.contains(&key) || self.held.push(key).is_ok()) {
            plan.until = plan.until.max(self.clock.uptime_ms().saturating_add(asked));
            return;
        }
        plan.failures = plan.failures.saturating_add(1);
        let pause = self.pace.after_failures(plan.failures, &mut self.random).max(asked);
        (plan.is_done, plan.stuck) = (true, u32::MAX);
        plan.until = self.clock.uptime_ms().saturating_add(pause);
    }

    /// Whether a lane's records may overtake each other.
    pub fn order(&self, lane: u8) -> Order {
        self.lanes.get(usize::from(lane)).map_or(Order::Strict, |plan| plan.policy.order)
    }

    /// Records that are not to be sent again in this flush.
    pub fn held(&self) -> Vec<Key, HELD> {
        self.held.clone()
    }

    /// A random number, of the kind that need not be secret.
    pub fn random(&mut self) -> u64 {
        self.random.number()
    }

    /// Milliseconds since boot.
    pub fn uptime_ms(&self) -> u64 {
        self.clock.uptime_ms()
    }

    /// Flushes that failed since boot.
    pub fn failed_flushes(&self) -> u32 {
        self.failed
    }

    /// Hands out errands of these lanes only, of those that were served. Gives back what was.
    pub(crate) fn serve_only(&mut self, lanes: LaneSet) -> LaneSet {
        let all = self.serves;
        self.serves = all.and(lanes);
        all
    }

    pub(crate) fn serve(&mut self, lanes: LaneSet) {
        self.serves = lanes;
    }

    /// The lanes that the uplink of the moment serves.
    pub fn serves(&self) -> LaneSet {
        self.serves
    }

    /// The receiver has these.
    pub async fn settle(&mut self, lane: u8, delivered: &[Key]) -> Result<u32, Error<F::Error>> {
        self.settle_where(lane, delivered.len(), &|key: &Key| delivered.contains(key)).await
    }

    /// The receiver has so many: those of which `is_delivered` is true.
    pub async fn settle_where(
        &mut self,
        lane: u8,
        count: usize,
        is_delivered: &dyn Fn(&Key) -> bool,
    ) -> Result<u32, Error<F::Error>> {
        let removed = self.drain.settle_where(lane, count, is_delivered).await?;
        if let Some(plan) = self.lanes.get_mut(usize::from(lane)).filter(|_| removed > 0) {
            plan.failures = 0;
        }
        Ok(removed)
    }

    /// Shows the dead letters of the lanes that are served, if they are to be sent again.
    pub async fn late(&mut self, mut take: impl FnMut(&Stored<'_>) -> bool) -> Result<(), Error<F::Error>> {
        let serves = self.serves;
        self.drain.late(|stored| !serves.contains(stored.key.lane) || take(stored)).await
    }

    /// The receiver has these dead letters after all.
    pub async fn settle_late(&mut self, delivered: &[Key]) -> Result<u32, Error<F::Error>> {
        let removed = self.drain.remove_late(delivered).await?;
        self.conclude(&Conclusion { arrived_late: delivered, ..Conclusion::default() }).await;
        Ok(removed)
    }

    /// Nobody keeps books of the lanes that are served: what there is to tell about them is forgotten.
    pub async fn drop_books(&mut self) {
        let serves = self.serves;
        let mut store = self.drain.shared.lock().await;
        let books = &mut store.core.books;
        let is_served = |entry: &&Entry| serves.contains(entry.lane);
        let entries: Vec<Entry, { Account::MAX }> =
            books.account().iter().filter(is_served).copied().collect();
        books.confirm(&entries);
        let formers: Vec<u32, FORMER> = books.formers().map(|(incarnation, _)| incarnation).collect();
        drop(store);
        for incarnation in formers {
            for lane in (0..LANES as u8).filter(|lane| serves.contains(*lane)) {
                self.conclude(&Conclusion { closed: Some((incarnation, lane)), ..Conclusion::default() })
                    .await;
            }
        }
    }
}

impl<'r, F, M: RawMutex, C, const LANES: usize, const RECORD: usize> Deref
    for Dispatcher<'r, F, LANES, RECORD, M, C>
{
    type Target = Drain<'r, F, LANES, RECORD, M, C>;

    fn deref(&self) -> &Self::Target {
        &self.drain
    }
}

impl<F, M: RawMutex, C, const LANES: usize, const RECORD: usize> DerefMut
    for Dispatcher<'_, F, LANES, RECORD, M, C>
{
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.drain
    }
}
