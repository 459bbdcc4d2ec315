//! A small world from one seed: devices with the real library on simulated flash, a network that loses, repeats, delays and
//! forges, a server that restarts and is restored, in virtual time. At the end everybody must agree about every record.
//!
//! The world is generic over the server, so that the real receiver can take the model's place.

mod body;
mod claims;
mod plan;
mod reckoning;

use core::cell::{Cell, RefCell};
use core::fmt;
use core::ops::{AddAssign, Range};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use pillarbox::{DeviceId, Key, Reason};

use crate::link::{LinkFaults, Network, Outage};
use crate::server::ledger::Ledger;
use crate::server::{ModelServer, Received, Refusal, Server};
use crate::station::{Shared, network, secret_of};
use crate::virtual_time::VirtualTime;

use body::{Body, live};
pub use body::{Final, Posted};
use claims::Watched;
pub use plan::Plan;

const THREADS: usize = 2;
/// More failures tell nothing new.
const FAILURES_MAX: usize = 20;

/// A server whose memory can be looked into.
pub trait Witness: Server {
    /// Lets a device in.
    fn register(&mut self, device: DeviceId, secret: &pillarbox::wire::Secret);
    /// Every record that was stored, in the order of arrival.
    fn log(&self) -> Vec<Received>;
    /// Records that are kept aside: in quarantine, or in conflict with others.
    fn aside(&self) -> Vec<Received>;
    /// The incarnations and lanes of a device.
    fn lanes(&self, device: &DeviceId) -> Vec<(u32, u8)>;
    /// What the server says about one of them.
    fn ledger(&self, device: &DeviceId, incarnation: u32, lane: u8) -> Option<Ledger>;
    /// Why it thinks that a record will not come.
    fn reason(&self, device: &DeviceId, key: Key) -> Option<Reason>;
    /// What it would restore.
    fn back_up(&mut self);
    /// Goes back to the backup, under another name.
    fn restore(&mut self, epoch: u64);
    /// Its clock is wrong by so much.
    fn set_clock_offset(&mut self, ms: i64);
    /// Refuses some records for as long as the weather is bad, and some for ever.
    fn set_moods(&mut self, is_stormy: Arc<AtomicBool>);
}

/// The model with a backup.
pub struct Model {
    now: ModelServer,
    backup: Option<ModelServer>,
}

impl Model {
    /// An empty one.
    pub fn new() -> Self {
        Self { now: ModelServer::new(1), backup: None }
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Server for Model {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> crate::server::Reply {
        self.now.handle(now_ms, body)
    }
}

impl Witness for Model {
    fn register(&mut self, device: DeviceId, secret: &pillarbox::wire::Secret) {
        self.now.register(device, secret);
    }

    fn log(&self) -> Vec<Received> {
        self.now.log().to_vec()
    }

    fn aside(&self) -> Vec<Received> {
        self.now.quarantine().chain(self.now.conflicts()).cloned().collect()
    }

    fn lanes(&self, device: &DeviceId) -> Vec<(u32, u8)> {
        self.now.lanes(device).into_iter().collect()
    }

    fn ledger(&self, device: &DeviceId, incarnation: u32, lane: u8) -> Option<Ledger> {
        self.now.ledger(device, incarnation, lane)
    }

    fn reason(&self, device: &DeviceId, key: Key) -> Option<Reason> {
        self.now.lane(device, key.incarnation, key.lane)?.reason(key.counter)
    }

    fn back_up(&mut self) {
        self.backup = Some(self.now.snapshot());
    }

    fn restore(&mut self, epoch: u64) {
        if let Some(backup) = &self.backup {
            self.now.restore(backup, epoch);
        }
    }

    fn set_clock_offset(&mut self, ms: i64) {
        self.now.knobs.clock_offset_ms = ms;
    }

    fn set_moods(&mut self, is_stormy: Arc<AtomicBool>) {
        self.now.knobs.judge = Some(Arc::new(move |_, record| {
            let mood = record.key.counter % 41;
            match mood {
                7 | 8 if is_stormy.load(Ordering::Relaxed) => Some(Refusal::Retry),
                11 => Some(Refusal::Rejected),
                _ => None,
            }
        }));
    }
}

/// What happened in a number of worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Worlds.
    pub worlds: u64,
    /// Devices in them.
    pub devices: u64,
    /// Boots.
    pub boots: u64,
    /// Power cuts in the middle of a flash operation.
    pub cuts: u64,
    /// Records that were acknowledged.
    pub acknowledged: u64,
    /// Of those, records that the server has.
    pub stored: u64,
    /// Of those, records that are explained.
    pub explained: u64,
    /// Of those, records that are kept aside, in disputed worlds.
    pub aside: u64,
    /// Of those, records that are excused, in disputed worlds: younger than a flash or a database that was put back, or given
    /// up by a device whose account nobody believes any more.
    pub undone: u64,
    /// Counters that are uncertain.
    pub uncertain: u64,
    /// Requests that the network carried.
    pub requests: u64,
    /// Faults of the network.
    pub faults: u64,
    /// Worlds with a clone, a rollback, or a restored server.
    pub disputed: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.devices += other.devices;
        self.boots += other.boots;
        self.cuts += other.cuts;
        self.acknowledged += other.acknowledged;
        self.stored += other.stored;
        self.explained += other.explained;
        self.aside += other.aside;
        self.undone += other.undone;
        self.uncertain += other.uncertain;
        self.requests += other.requests;
        self.faults += other.faults;
        self.disputed += other.disputed;
    }
}

/// A broken promise, and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub what: String,
    /// In which world.
    pub seed: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nreplay: cargo xtask world --replay {}", self.what, self.seed)
    }
}

impl std::error::Error for Failure {}

/// What everybody in a world shares.
struct Ground<S> {
    time: VirtualTime,
    server: Shared<S>,
    network: Network,
    plan: Plan,
    /// No more faults: everybody goes home.
    is_calm: Cell<bool>,
    bodies: RefCell<Vec<Rc<Body>>>,
    /// Records that the server had, or knew the fate of, before it was restored.
    forgotten: RefCell<BTreeSet<(DeviceId, Key)>>,
    broken: Rc<RefCell<Option<String>>>,
}

/// Runs the world of this seed to its end. A failure of the library or of the harness, panics included, is a broken promise.
pub fn run<S: Witness + 'static>(seed: u64, server: impl FnOnce() -> S) -> Result<Tally, Failure> {
    let lived = catch_unwind(AssertUnwindSafe(|| world(seed, server())));
    let failure = |what| Failure { what, seed };
    match lived {
        Ok(result) => result.map_err(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(failure(format!("panicked: {}", text.unwrap_or_default())))
        }
    }
}

/// Runs the worlds of these seeds on two threads; tells how many are done, and gives up after a few failures.
pub fn run_all<S: Witness + 'static>(
    seeds: Range<u64>,
    server: impl Fn() -> S + Sync,
    progress: impl Fn(u64) + Sync,
) -> (Tally, Vec<Failure>) {
    let (next, done) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let (total, failures) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let lock_failures = || failures.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        while lock_failures().len() < FAILURES_MAX {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            match run(seed, &server) {
                Ok(tally) => *total.lock().unwrap_or_else(PoisonError::into_inner) += tally,
                Err(failure) => lock_failures().push(failure),
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let total = *total.lock().unwrap_or_else(PoisonError::into_inner);
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.seed);
    (total, failures)
}

fn world<S: Witness + 'static>(seed: u64, mut server: S) -> Result<Tally, String> {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::draw(&mut rng);
    let time = VirtualTime::new();
    let is_stormy = Arc::new(AtomicBool::new(true));
    if plan.has_moods {
        server.set_moods(is_stormy.clone());
    }
    let server = Rc::new(RefCell::new(server));
    let broken = Rc::new(RefCell::default());
    let network = if plan.is_disputed() {
        network(&time, rng.u64(..), &server)
    } else {
        let watched = Watched::new(server.clone(), broken.clone());
        network(&time, rng.u64(..), &Rc::new(RefCell::new(watched)))
    };
    let ground = Rc::new(Ground {
        time: time.clone(),
        server,
        network,
        plan: plan.clone(),
        is_calm: Cell::new(false),
        bodies: RefCell::default(),
        forgotten: RefCell::default(),
        broken,
    });
    for number in 0..plan.devices {
        let name = format!("meter-{number}");
        ground.server.borrow_mut().register(DeviceId::new(&name).unwrap(), &secret_of(&name));
        let body = Body::new(&ground, number, &name, None, rng.u64(..));
        time.spawn(live(ground.clone(), body));
    }
    time.spawn(weather(ground.clone(), Rng::with_seed(rng.u64(..))));
    time.run_until(plan.stormy_ms);
    calm(&ground, &is_stormy);
    let end = plan.stormy_ms + plan.calm_ms_max;
    while time.now_ms() < end && ground.broken.borrow().is_none() {
        if ground.bodies.borrow().iter().all(|body| body.last.borrow().is_some()) {
            break;
        }
        time.run_until(time.now_ms() + 60_000);
    }
    let broken = ground.broken.borrow().clone();
    let reckoned = broken.map_or_else(|| reckoning::reckon(&ground), Err);
    time.kill_all();
    reckoned
}

fn calm<S: Witness>(ground: &Ground<S>, is_stormy: &AtomicBool) {
    is_stormy.store(false, Ordering::Relaxed);
    ground.is_calm.set(true);
    ground.network.server_up();
    ground.server.borrow_mut().set_clock_offset(0);
    for body in ground.bodies.borrow().iter() {
        body.link.set_faults(LinkFaults::none());
        body.link.bring_up();
    }
}

/// What happens to everybody: links go down and up, the server restarts, its clock is wrong, it is restored from a backup.
async fn weather<S: Witness + 'static>(ground: Rc<Ground<S>>, mut rng: Rng) {
    let plan = &ground.plan;
    while !ground.is_calm.get() {
        ground.time.sleep(rng.u64(1_000..plan.weather_ms_max)).await;
        if ground.is_calm.get() {
            return;
        }
        let bodies = ground.bodies.borrow().clone();
        let body = &bodies[rng.usize(..bodies.len())];
        match rng.u8(..20) {
            0..6 => body.link.take_down(if rng.bool() { Outage::Reset } else { Outage::BlackHole }),
            6..13 => body.come_online(),
            13 | 14 => ground.network.server_restart(),
            15 => ground.network.server_down(),
            16 | 17 => ground.network.server_up(),
            18 => {
                let wrong = if rng.bool() { 0 } else { rng.i64(-400_000_000..400_000_000) };
                ground.server.borrow_mut().set_clock_offset(wrong);
            }
            _ => catastrophe(&ground, body, &mut rng),
        }
    }
}

/// What should not happen, and does: a backup is taken or restored, a flash is copied or put back.
fn catastrophe<S: Witness + 'static>(ground: &Rc<Ground<S>>, body: &Rc<Body>, rng: &mut Rng) {
    let plan = &ground.plan;
    if plan.has_restores {
        let mut server = ground.server.borrow_mut();
        if rng.bool() {
            return server.back_up();
        }
        let before = server.log();
        // What it knew of records that will not come is gone too, and the device may have forgotten since.
        let mut forgotten = ground.forgotten.borrow_mut();
        for body in ground.bodies.borrow().iter() {
            let posted = body.posted.borrow();
            let keys = posted.values().filter_map(|posted| posted.key);
            let explained = keys.filter(|key| server.reason(&body.device, *key).is_some());
            forgotten.extend(explained.map(|key| (body.device.clone(), key)));
        }
        let aside = server.aside().into_iter().map(|received| (received.device, received.key));
        forgotten.extend(aside);
        server.restore(rng.u64(..));
        let after: Vec<_> =
            server.log().into_iter().map(|received| (received.device, received.key)).collect();
        let lost = before.into_iter().map(|received| (received.device, received.key));
        forgotten.extend(lost.filter(|known| !after.contains(known)));
    } else if plan.has_rollbacks && !body.is_clone {
        body.save_or_put_back(rng);
    } else if plan.has_clones && ground.bodies.borrow().len() < usize::from(plan.devices) + 2 {
        let number = ground.bodies.borrow().len() as u8;
        let name = body.device.as_str().to_owned();
        let image = body.chip.image();
        let clone = Body::new(ground, number, &name, Some(&image), rng.u64(..));
        body.is_disputed.set(true);
        ground.time.spawn(live(ground.clone(), clone));
    }
}
