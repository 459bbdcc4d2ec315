//! One life of an outbox: posts, deliveries, power cuts at random operations, and the reckoning at the end.

mod opened;
mod reading;
mod step;

pub use opened::Opened;
pub use reading::{Reading, VirtualClock, record_max};
pub use step::Step;

use core::cell::Cell;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use embassy_futures::block_on;
use embassy_futures::join::join;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use pillarbox::{
    Config, DeviceId, Drain, EnqueueError, Error, Key, LaneConfig, OpenError, Outbox, Record, Resources,
    Stored, Tag,
};

use crate::flash::{Chip, FaultClass, FlashError, MutatingOp, Tear};
use crate::model::{Model, Policy, Serial, check_disjoint};
use crate::soak::Tally;

/// Lane 0 refuses when it is full and gives nothing up; lane 1 evicts, expires and supersedes.
pub const LANES: usize = 2;
const LANE_PAGES: [u16; LANES] = [4, 3];
const DEAD_PAGES: u16 = 2;
const POLICIES: [Policy; LANES] =
    [Policy { evicts: false, gives_up: false }, Policy { evicts: true, gives_up: true }];
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Cuts of one life, before it is drained.
const CUTS: u64 = 12;
/// Between two cuts there are fewer mutating operations than this.
const OPS_BETWEEN_CUTS: u64 = 60;
/// No session and no drain needs as many steps; one that does has stopped making sense.
const STEPS_MAX: u32 = 20_000;

type Device<'r, const R: usize, const W: usize, const E: usize, const RECORD: usize> =
    Outbox<'r, &'r Chip<R, W, E>, LANES, RECORD, NoopRawMutex, VirtualClock<'r>>;
type Sender<'r, const R: usize, const W: usize, const E: usize, const RECORD: usize> =
    Drain<'r, &'r Chip<R, W, E>, LANES, RECORD, NoopRawMutex, VirtualClock<'r>>;

/// Why a session ended.
#[derive(Debug)]
enum End {
    PowerCut,
    /// The device was switched off after a clean stop.
    SwitchedOff,
    /// There are no more steps.
    OfScript,
    /// A promise was broken.
    Broken(String),
}

impl From<String> for End {
    fn from(what: String) -> Self {
        Self::Broken(what)
    }
}

/// How a script went.
#[derive(Debug, Clone, Copy)]
pub struct Played {
    /// Programs and erases, the last reckoning not included.
    pub mutating_ops: u64,
    /// The operation that the last cut hit.
    pub cut_op: Option<MutatingOp>,
    /// Cuts that happened.
    pub cuts: u64,
    /// Counts of what became of the records.
    pub tally: Tally,
}

/// Plays a script with power cuts: the first after so many mutating operations, each other one after so many since
/// the power came back. What a cut interrupts is not done again.
pub fn play<
    const R: usize,
    const W: usize,
    const E: usize,
    const N: usize,
    const RECORD: usize,
    const BUFFER: usize,
>(
    script: &[Step],
    cuts: &[(u64, Tear)],
) -> Result<Played, String> {
    let chip = chip::<R, W, E>(7);
    let clock = Cell::new(0);
    let mut life = Life::<N>::new(fastrand::Rng::with_seed(1));
    let mut cuts = cuts.iter();
    let mut arm = || {
        if let Some((after, tear)) = cuts.next() {
            chip.cut_after(*after, *tear);
        }
    };
    arm();
    let mut steps = script.iter().copied();
    let mut cut_op = None;
    loop {
        match life.session::<R, W, E, RECORD, BUFFER>(&chip, &clock, |_| steps.next()) {
            End::PowerCut => {
                life.tally.cuts += 1;
                cut_op = chip.last_op();
                clock.set(0);
                chip.power_on();
                arm();
            }
            End::SwitchedOff => {
                clock.set(0);
                chip.power_on();
            }
            End::OfScript => break,
            End::Broken(what) => return Err(what),
        }
    }
    chip.cancel_cut();
    let mutating_ops = chip.mutating_ops();
    life.end::<R, W, E, RECORD, BUFFER>(&chip, &clock)?;
    Ok(Played { mutating_ops, cut_op, cuts: life.tally.cuts, tally: life.tally })
}

fn chip<const R: usize, const W: usize, const E: usize>(seed: u64) -> Chip<R, W, E> {
    let metadata_pages = 2 * E.max(4096) / E;
    let rings = usize::from(DEAD_PAGES + LANE_PAGES.iter().sum::<u16>());
    Chip::new(metadata_pages + rings, seed)
}

/// Runs one life.
pub fn run<
    const R: usize,
    const W: usize,
    const E: usize,
    const N: usize,
    const RECORD: usize,
    const BUFFER: usize,
>(
    class: FaultClass,
    seed: u64,
) -> Result<Tally, String> {
    run_watched::<R, W, E, N, RECORD, BUFFER>(class, seed, |_| Ok(()))
}

/// Runs one life, and shows what the flash holds after each cut.
pub fn run_watched<
    const R: usize,
    const W: usize,
    const E: usize,
    const N: usize,
    const RECORD: usize,
    const BUFFER: usize,
>(
    class: FaultClass,
    seed: u64,
    mut watch: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Tally, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let chip = chip::<R, W, E>(rng.u64(..));
    if rng.u8(..8) == 0 {
        chip.fill_random();
    }
    let clock = Cell::new(0);
    let mut life = Life::<N>::new(rng);
    while life.tally.cuts < CUTS {
        // Some cuts hit the recovery from the cut before.
        let ops = if life.rng.u8(..3) == 0 { 25 } else { OPS_BETWEEN_CUTS };
        let tear = class.tear(&mut life.rng);
        chip.cut_after(life.rng.u64(..ops), tear);
        match life.session::<R, W, E, RECORD, BUFFER>(&chip, &clock, |rng| Some(Step::draw(rng))) {
            End::PowerCut => {
                life.tally.cuts += 1;
                watch(&chip.image())?;
            }
            End::SwitchedOff => {}
            End::OfScript => return Err("a session did not come to its cut".into()),
            End::Broken(what) => return Err(what),
        }
        clock.set(0);
        chip.cancel_cut();
        chip.power_on();
    }
    life.end::<R, W, E, RECORD, BUFFER>(&chip, &clock)?;
    Ok(life.tally)
}

fn config() -> Config<LANES> {
    let [refusing, evicting] = LANE_PAGES.map(LaneConfig::new);
    let device = DeviceId::new("meter-0042").expect("it is a device id");
    Config::new(device, [refusing, evicting.evict_oldest().max_attempts(3).max_age(MAX_AGE)])
        .dead_letter_pages(DEAD_PAGES)
}

/// Polls a future a number of times, then drops it.
fn poll_a_few<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(value);
        }
    }
    None
}

/// The records' side of a life: what outlives the power.
struct Life<const N: usize> {
    model: Model,
    rng: fastrand::Rng,
    tally: Tally,
}

impl<const N: usize> Life<N> {
    fn new(rng: fastrand::Rng) -> Self {
        Self { model: Model::new(&POLICIES), rng, tally: Tally { lives: 1, ..Tally::default() } }
    }

    /// The reckoning at the end of a life.
    fn end<const R: usize, const W: usize, const E: usize, const RECORD: usize, const BUFFER: usize>(
        &mut self,
        chip: &Chip<R, W, E>,
        clock: &Cell<u64>,
    ) -> Result<(), String> {
        chip.cancel_failure();
        chip.set_yields(false);
        // A weak bit may hide a record from one pass, so the drain is done twice.
        for _ in 0..2 {
            self.reckon::<R, W, E, RECORD, BUFFER>(chip, clock)?;
        }
        if chip.violations() > 0 {
            return Err(format!("{} operations were not aligned or out of bounds", chip.violations()));
        }
        self.tally.acknowledged = self.model.acknowledged();
        self.tally.delivered = self.model.received();
        Ok(())
    }

    fn read(&self, stored: &Stored<'_>) -> Result<(Key, Serial), String> {
        let reading: Reading<N> =
            postcard::from_bytes(stored.body).map_err(|error| format!("{:?}: {error}", stored.key))?;
        if reading != Reading::new(reading.serial) || stored.kind != Reading::<N>::KIND {
            return Err(format!("{:?} has another content than record {}", stored.key, reading.serial));
        }
        Ok((stored.key, reading.serial))
    }

    /// Powers the device up and uses it until something ends it.
    fn session<const R: usize, const W: usize, const E: usize, const RECORD: usize, const BUFFER: usize>(
        &mut self,
        chip: &Chip<R, W, E>,
        clock: &Cell<u64>,
        mut next: impl FnMut(&mut fastrand::Rng) -> Option<Step>,
    ) -> End {
        let mut resources = Resources::<_, LANES, RECORD, BUFFER, NoopRawMutex, VirtualClock<'_>>::new();
        let entropy = self.rng.u64(..);
        let opened = block_on(pillarbox::new(&mut resources, chip, VirtualClock(clock), entropy, config()));
        let (outbox, mut drain) = match opened {
            Ok(opened) => opened,
            Err(OpenError::Storage(Error::Flash(FlashError::PowerCut))) => {
                self.tally.cuts_in_recovery += 1;
                return End::PowerCut;
            }
            // The driver failed on request; a device would be reset.
            Err(OpenError::Storage(Error::Flash(FlashError::Io))) => return End::SwitchedOff,
            Err(error) => return End::Broken(format!("wedged: opening failed: {error}")),
        };
        for _ in 0..STEPS_MAX {
            clock.set(clock.get() + self.rng.u64(..2_000));
            let Some(step) = next(&mut self.rng) else {
                return End::OfScript;
            };
            if let Err(end) = self.step(step, chip, clock, outbox, &mut drain) {
                return end;
            }
        }
        End::OfScript
    }

    fn step<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        step: Step,
        chip: &Chip<R, W, E>,
        clock: &Cell<u64>,
        outbox: Device<'_, R, W, E, RECORD>,
        drain: &mut Sender<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        match step {
            Step::Post(lane) => self.post(outbox, lane, None),
            Step::PostTogether => self.post_together(chip, outbox),
            Step::PostOnce(tag) => self.post(outbox, 1, Some(tag)),
            Step::Deliver(lane) => self.deliver(drain, lane),
            Step::Reject => self.reject(drain),
            Step::Tell => self.tell(drain),
            Step::DeadLetters => self.tend_dead_letters(outbox, drain),
            Step::Suspend => self.done(block_on(outbox.suspend())).map(drop),
            Step::SwitchOff => {
                if self.done(block_on(outbox.suspend()))?.is_some() {
                    chip.power_off();
                    return Err(End::SwitchedOff);
                }
                Ok(())
            }
            Step::DropFuture(lane) => self.drop_a_future(chip, outbox, drain, lane),
            Step::DriverError => {
                chip.fail_after(self.rng.u64(..60));
                self.tally.driver_errors += 1;
                Ok(())
            }
            Step::Age => {
                clock.set(clock.get() + 2 * MAX_AGE.as_millis() as u64);
                Ok(())
            }
            Step::Clear => {
                // The account has room for a few incarnations only.
                self.tell(drain)?;
                self.model.cleared();
                self.done(block_on(outbox.clear())).map(drop)
            }
            Step::Renew => {
                self.tell(drain)?;
                self.done(block_on(drain.renew_incarnation())).map(drop)
            }
        }
    }

    /// Sorts out an error: the power went, or the driver failed on request.
    fn done<T>(&mut self, result: Result<T, Error<FlashError>>) -> Result<Option<T>, End> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Flash(FlashError::PowerCut)) => Err(End::PowerCut),
            Err(Error::Flash(FlashError::Io)) => Ok(None),
            Err(error) => Err(End::Broken(format!("wedged: {error}"))),
        }
    }

    fn posted(&mut self, serial: Serial, result: Result<Key, EnqueueError<FlashError>>) -> Result<bool, End> {
        match result {
            Ok(key) => {
                self.model.acknowledge(serial, key)?;
                Ok(true)
            }
            Err(EnqueueError::Full | EnqueueError::TooManyTags) => Ok(false),
            Err(EnqueueError::Storage(error)) => self.done::<()>(Err(error)).map(|_| true),
            Err(error) => Err(End::Broken(format!("wedged: {error}"))),
        }
    }

    fn post<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        outbox: Device<'_, R, W, E, RECORD>,
        lane: u8,
        tag: Option<Tag>,
    ) -> Result<(), End> {
        let serial = self.model.post(lane, tag);
        let reading = Reading::<N>::new(serial);
        let result = match tag {
            Some(tag) => block_on(outbox.enqueue_once_in(lane, tag, &reading)),
            None => block_on(outbox.enqueue_in(lane, &reading)),
        };
        if !self.posted(serial, result)? {
            let mut pending = 0;
            let result = block_on(outbox.inspect(lane, |_| pending += 1));
            if self.done(result)?.is_some() && pending == 0 {
                return Err(End::Broken(format!("wedged: lane {lane} is full and empty")));
            }
        }
        Ok(())
    }

    /// Two producers at once.
    fn post_together<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        chip: &Chip<R, W, E>,
        outbox: Device<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        let lanes = [0, self.rng.u8(..LANES as u8)];
        let serials = lanes.map(|lane| self.model.post(lane, None));
        let [first, second] = serials.map(Reading::<N>::new);
        chip.set_yields(true);
        let (one, other) =
            block_on(join(outbox.enqueue_in(lanes[0], &first), outbox.enqueue_in(lanes[1], &second)));
        chip.set_yields(false);
        let one = self.posted(serials[0], one);
        let other = self.posted(serials[1], other);
        one.and(other).map(drop)
    }

    fn window<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        drain: &mut Sender<'_, R, W, E, RECORD>,
        lane: u8,
        most: usize,
    ) -> Result<Vec<Key>, End> {
        let mut shown = Vec::new();
        let taken = |stored: &Stored<'_>| {
            if shown.len() < most {
                shown.push(self.read(stored));
                true
            } else {
                false
            }
        };
        let result = block_on(drain.window(lane, taken));
        let Some(window) = self.done(result)? else {
            return Ok(Vec::new());
        };
        let records = shown.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.model.see_in_order(&records)?;
        self.model.issued(window.incarnation, lane, window.issued);
        let keys: Vec<Key> = records.into_iter().map(|(key, _)| key).collect();
        if keys.iter().any(|key| key.counter < window.floor || key.counter >= window.issued) {
            return Err(End::Broken(format!("{keys:?} are not in {window:?}")));
        }
        Ok(keys)
    }

    /// The receiver stores some, and the answer about some of those arrives.
    fn deliver<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        drain: &mut Sender<'_, R, W, E, RECORD>,
        lane: u8,
    ) -> Result<(), End> {
        let most = self.rng.usize(1..12);
        let mut keys = self.window(drain, lane, most)?;
        if self.rng.u8(..4) == 0 {
            keys.retain(|_| self.rng.bool());
        }
        for key in &keys {
            if !self.model.receive(*key) {
                self.tally.redelivered += 1;
            }
        }
        if self.rng.u8(..6) == 0 {
            keys.retain(|_| self.rng.bool());
        }
        self.rng.shuffle(&mut keys);
        let result = block_on(drain.settle(lane, &keys));
        if self.done(result)?.is_some() {
            self.model.settled(&keys);
        }
        Ok(())
    }

    fn reject<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        drain: &mut Sender<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        let keys = self.window(drain, 1, 3)?;
        let result = block_on(drain.reject(1, &keys));
        self.done(result).map(drop)
    }

    /// The receiver is told the account, and confirms it.
    fn tell<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        drain: &mut Sender<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        let account = block_on(drain.account());
        check_disjoint(&account)?;
        self.model.confirm(&account);
        block_on(drain.confirm(&account));
        Ok(())
    }

    fn tend_dead_letters<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        outbox: Device<'_, R, W, E, RECORD>,
        drain: &mut Sender<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        let dead = self.dead_letters(outbox)?;
        if let Some(&key) = dead.get(self.rng.usize(..dead.len().max(1))) {
            if self.rng.u8(..4) == 0 {
                self.model.discarded(key);
                let result = block_on(outbox.dead_letters().discard(key));
                self.done(result)?;
            } else {
                let result = block_on(outbox.dead_letters().retry(key));
                self.done(result)?;
            }
        }
        self.deliver_late(drain)
    }

    fn dead_letters<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        outbox: Device<'_, R, W, E, RECORD>,
    ) -> Result<Vec<Key>, End> {
        let mut shown = Vec::new();
        let result = block_on(outbox.dead_letters().list(|stored| shown.push(self.read(stored))));
        self.done(result)?;
        let mut keys = Vec::new();
        for record in shown {
            let (key, serial) = record?;
            self.model.see(key, serial)?;
            keys.push(key);
        }
        Ok(keys)
    }

    fn deliver_late<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        drain: &mut Sender<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        let mut keys = Vec::new();
        let result = block_on(drain.late(|stored| {
            keys.push(stored.key);
            true
        }));
        self.done(result)?;
        for key in &keys {
            self.model.receive(*key);
        }
        let result = block_on(drain.settle_late(&keys));
        self.done(result).map(drop)
    }

    /// Begins something and does not wait for its end.
    fn drop_a_future<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        chip: &Chip<R, W, E>,
        outbox: Device<'_, R, W, E, RECORD>,
        drain: &mut Sender<'_, R, W, E, RECORD>,
        lane: u8,
    ) -> Result<(), End> {
        self.tally.dropped_futures += 1;
        let polls = self.rng.u32(1..30);
        chip.set_yields(true);
        let ended = match self.rng.u8(..4) {
            0 => {
                let keys = {
                    chip.set_yields(false);
                    let keys = self.window(drain, lane, 4)?;
                    chip.set_yields(true);
                    keys
                };
                for key in &keys {
                    self.model.receive(*key);
                }
                poll_a_few(drain.settle(lane, &keys), polls).map(|result| result.map(drop))
            }
            1 => poll_a_few(outbox.suspend(), polls),
            _ => {
                let tag = (lane == 1 && self.rng.bool()).then(|| self.rng.u32(..4));
                let serial = self.model.post(lane, tag);
                let reading = Reading::<N>::new(serial);
                let result = match tag {
                    Some(tag) => poll_a_few(outbox.enqueue_once_in(lane, tag, &reading), polls),
                    None => poll_a_few(outbox.enqueue_in(lane, &reading), polls),
                };
                chip.set_yields(false);
                if let Some(result) = result {
                    self.posted(serial, result)?;
                }
                None
            }
        };
        chip.set_yields(false);
        match ended {
            Some(result) => self.done(result).map(drop),
            None => Ok(()),
        }
    }

    /// Powers the device up for the last time, delivers all that is there, and compares.
    fn reckon<const R: usize, const W: usize, const E: usize, const RECORD: usize, const BUFFER: usize>(
        &mut self,
        chip: &Chip<R, W, E>,
        clock: &Cell<u64>,
    ) -> Result<(), String> {
        let mut resources = Resources::<_, LANES, RECORD, BUFFER, NoopRawMutex, VirtualClock<'_>>::new();
        let entropy = self.rng.u64(..);
        let opened = block_on(pillarbox::new(&mut resources, chip, VirtualClock(clock), entropy, config()));
        let (outbox, mut drain) = opened.map_err(|error| format!("wedged: opening failed: {error}"))?;
        let end = self.drain(outbox, &mut drain);
        end.map_err(|end| match end {
            End::Broken(what) => what,
            end => format!("{end:?} without a cut"),
        })
    }

    fn drain<const R: usize, const W: usize, const E: usize, const RECORD: usize>(
        &mut self,
        outbox: Device<'_, R, W, E, RECORD>,
        drain: &mut Sender<'_, R, W, E, RECORD>,
    ) -> Result<(), End> {
        for lane in 0..LANES as u8 {
            // Every lane takes another record, however it was treated.
            let serial = self.model.post(lane, None);
            let mut result = block_on(outbox.enqueue_in(lane, &Reading::<N>::new(serial)));
            for _ in 0..STEPS_MAX {
                let keys = self.window(drain, lane, 8)?;
                for key in &keys {
                    self.model.receive(*key);
                }
                let settled = block_on(drain.settle(lane, &keys));
                self.done(settled)?;
                self.model.settled(&keys);
                if keys.is_empty() {
                    break;
                }
                if matches!(result, Err(EnqueueError::Full)) {
                    result = block_on(outbox.enqueue_in(lane, &Reading::<N>::new(serial)));
                }
            }
            if !self.posted(serial, result)? {
                return Err(End::Broken(format!("wedged: lane {lane} takes no record")));
            }
            let keys = self.window(drain, lane, 8)?;
            if !keys.is_empty() {
                return Err(End::Broken(format!("wedged: lane {lane} still shows {keys:?}")));
            }
        }
        for _ in 0..STEPS_MAX {
            let dead = self.dead_letters(outbox)?;
            if dead.is_empty() {
                break;
            }
            for key in dead {
                let retried = block_on(outbox.dead_letters().retry(key));
                self.done(retried)?;
            }
            self.deliver_late(drain)?;
        }
        let mut formers = Vec::new();
        block_on(
            drain.former_incarnations(|incarnation, issued| formers.push((incarnation, issued.to_vec()))),
        );
        for (incarnation, issued) in formers {
            (0..).zip(issued).for_each(|(lane, issued)| self.model.issued(incarnation, lane, issued));
        }
        let account = block_on(drain.account());
        check_disjoint(&account)?;
        self.tally.accounted = self.model.check(&account)?;
        Ok(())
    }
}
