//! Devices as they will be in the field, as many as a test wants: the real library on a simulated flash, over real TCP, in real
//! time, with power that goes away. What they know afterwards, a receiver has to know too.

mod device;
mod diary;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;
use pillarbox::DeviceId;
use pillarbox::wire::Secret;
use tokio::sync::watch;
use tokio::time::Instant;

use self::device::Device;
use self::diary::Diary;
pub use self::diary::{Sent, State};

/// Between two looks at how far the devices are.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// No device posts more: the numbers of its notes are told from others' by their millions.
pub(crate) const NOTES_MAX: u32 = 1_000_000;

/// A device of the fleet, as a receiver has to know it.
#[derive(Clone, Debug)]
pub struct Member {
    /// `meter-1`, `meter-2` and so on.
    pub device: DeviceId,
    /// What it shares with its receiver.
    pub secret: [u8; 32],
}

impl Member {
    fn new(number: usize, seed: u64) -> Self {
        let device = DeviceId::new(&format!("meter-{number}")).expect("it is a device id");
        let mut rng = Rng::with_seed(seed ^ (number as u64) << 32);
        Self { device, secret: std::array::from_fn(|_| rng.u8(..)) }
    }

    /// The same for the library.
    pub fn secret(&self) -> Secret {
        Secret::new(self.secret)
    }
}

/// How the devices behave.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Milliseconds between two rounds of a device, in each of which it posts up to three notes and flushes.
    pub pause_ms: Range<u64>,
    /// Of a hundred rounds so many lose power, half of them at a flash operation, half while a request is under way.
    pub cuts_percent: u8,
    /// A device that has posted so many notes only flushes.
    pub notes_max: u32,
    /// No exchange takes longer; then a device gives up and tries again.
    pub patience: Duration,
}

impl Default for Habits {
    fn default() -> Self {
        Self { pause_ms: 10..60, cuts_percent: 3, notes_max: NOTES_MAX, patience: Duration::from_secs(5) }
    }
}

/// What the devices are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Post,
    Drain,
    Stop,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every device has nothing more to say.
    All,
    /// The time was over before.
    Not {
        /// Devices that still have something to say.
        devices: usize,
        /// Records that are still in flash.
        records: usize,
    },
}

/// Devices that post, flush, and lose power. They have a thread of their own, so that a test may wait however it likes. Dropping
/// the fleet takes the power from all of them.
pub struct Fleet {
    members: Vec<Member>,
    diary: Arc<Mutex<Diary>>,
    orders: watch::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Whom a receiver has to let in before so many devices start with this seed.
    pub fn members_of(devices: usize, seed: u64) -> Vec<Member> {
        (1..=devices).map(|number| Member::new(number, seed)).collect()
    }

    /// Starts so many devices that send to the receiver at this address, `http://host:port`.
    pub fn start(devices: usize, seed: u64, url: &str) -> Self {
        Self::start_with(devices, seed, url, Habits::default())
    }

    /// The same with other habits.
    pub fn start_with(devices: usize, seed: u64, url: &str, habits: Habits) -> Self {
        assert!(habits.notes_max <= NOTES_MAX, "a device posts at most {NOTES_MAX} notes");
        let members = Self::members_of(devices, seed);
        let diary = Arc::new(Mutex::new(Diary::default()));
        let (orders, ordered) = watch::channel(Order::Post);
        let (lives, url, written) = (members.clone(), url.to_owned(), diary.clone());
        let live = move || {
            let lives = lives.into_iter().enumerate().map(|(number, member)| {
                let rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number as u64);
                Device::new(number as u32, member, &url, habits.clone(), rng, written.clone())
            });
            run(lives.collect(), ordered);
        };
        let thread = std::thread::Builder::new().name("fleet".into()).spawn(live);
        Self { members, diary, orders, thread: Some(thread.expect("a thread can be started")) }
    }

    /// The devices.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Every record that a device has in flash or had there, in no order that means anything.
    pub fn posted(&self) -> Vec<Sent> {
        self.diary().all()
    }

    /// Those that the receiver has taken off a device's hands: a device has read an answer that said so. A receiver that does not
    /// have one of them has lost it.
    pub fn settled(&self) -> Vec<Sent> {
        let mut all = self.posted();
        all.retain(|sent| sent.state == State::Settled);
        all
    }

    /// How often a device has lost power.
    pub fn cuts(&self) -> u64 {
        self.diary().cuts
    }

    /// Flushes that went well, and flushes that did not.
    pub fn flushes(&self) -> (u64, u64) {
        let diary = self.diary();
        (diary.flushes, diary.failures)
    }

    /// No device posts or loses power any more; each flushes until it has nothing more to say. Waits for that, so long.
    ///
    /// May be cancelled: the devices go on draining.
    pub async fn drain(&self, within: Duration) -> Drained {
        self.orders.send_replace(Order::Drain);
        let deadline = Instant::now() + within;
        loop {
            let (devices, records) = {
                let diary = self.diary();
                (self.members.len() - diary.drained.len(), diary.open())
            };
            if devices == 0 {
                return Drained::All;
            }
            if Instant::now() >= deadline || self.is_over() {
                return Drained::Not { devices, records };
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Takes the power from all devices. What they know stays to be asked for.
    ///
    /// # Panics
    /// If a device has broken: its thread has said why.
    pub fn stop(&mut self) {
        self.orders.send_replace(Order::Stop);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the library is sound");
        }
    }

    /// A fleet whose thread has ended has panicked: its message is in the test's output.
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn diary(&self) -> std::sync::MutexGuard<'_, Diary> {
        self.diary.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.orders.send_replace(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic has been told already.
            let _ = thread.join();
        }
    }
}

/// All devices take turns in one thread: a flash is not for two.
fn run(devices: Vec<Device>, mut ordered: watch::Receiver<Order>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async {
        let tasks = tokio::task::LocalSet::new();
        let mut living = tokio::task::JoinSet::new();
        for device in devices {
            living.spawn_local_on(device.live(ordered.clone()), &tasks);
        }
        let all = tasks.run_until(async move {
            while let Some(lived) = living.join_next().await {
                lived.expect("the library is sound");
            }
        });
        tokio::select! {
            () = all => {}
            _ = ordered.wait_for(|order| *order == Order::Stop) => {}
        }
    });
}
