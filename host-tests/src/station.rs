//! One device with all that it needs to deliver: an outbox on a simulated chip, a dispatcher, a batch uplink, a link to a
//! server, in virtual time. What most proofs about delivery need.

use core::cell::RefCell;
use std::rc::Rc;

use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::pubsub::WaitResult;
use pillarbox::wire::Secret;
use pillarbox::{
    BatchUplink, Clock, Config, DeviceId, Dispatcher, Drain, Entry, Event, Failure, Http, Key, LaneConfig,
    Outbox, Pace, Policy, Resources, Stats, Subscriber, Trigger, Uplink, buffer_size,
};

use crate::device::{Flash, Note, RECORD};
use crate::link::{Link, Network};
use crate::server::{ModelServer, Reply, Server};
use crate::virtual_time::{DeviceClock, VirtualTime};

/// Milliseconds from 1970 to the moment at which the world begins.
pub const BEGIN_MS: u64 = 1_790_000_000_000;
/// Where the stations send to.
pub const URL: &str = "http://receiver.test";
const BUFFER: usize = buffer_size(6, 64);

/// A station's parts.
pub type Post<'r, const LANES: usize> = Outbox<'r, &'r Flash, LANES, RECORD, NoopRawMutex, DeviceClock>;
/// A station's parts.
pub type Sender<'r, const LANES: usize> = Dispatcher<'r, &'r Flash, LANES, RECORD, NoopRawMutex, DeviceClock>;

/// The secret of a device in these tests.
pub fn secret_of(name: &str) -> Secret {
    let mut bytes = [0x5a; 32];
    for (byte, of_name) in bytes.iter_mut().zip(name.bytes()) {
        *byte = of_name;
    }
    Secret::new(bytes)
}

/// A server that many hold: what a test asks, and the network calls.
pub type Shared<S> = Rc<RefCell<S>>;

/// A network whose server lives in the time of 1970.
pub fn network<S: Server + 'static>(time: &VirtualTime, seed: u64, server: &Shared<S>) -> Network {
    let server = server.clone();
    let handle =
        move |now_ms: u64, body: &[u8]| -> Reply { server.borrow_mut().handle(BEGIN_MS + now_ms, body) };
    Network::new(time, seed, Rc::new(RefCell::new(handle)))
}

/// A model server that knows `meter-1`.
pub fn model() -> Shared<ModelServer> {
    let mut server = ModelServer::new(1);
    server.register(DeviceId::new("meter-1").unwrap(), &secret_of("meter-1"));
    Rc::new(RefCell::new(server))
}

/// A booted station with a dispatcher.
pub struct Station<const LANES: usize> {
    /// Its world's time.
    pub time: VirtualTime,
    /// Its link.
    pub link: Link,
    /// Its clock.
    pub clock: DeviceClock,
    /// What the application has.
    pub outbox: Post<'static, LANES>,
    /// What sends.
    pub dispatcher: Sender<'static, LANES>,
    /// What it sends over.
    pub uplink: BatchUplink<'static, Link, Link, DeviceClock>,
    events: Subscriber<'static, NoopRawMutex>,
}

impl<const LANES: usize> Station<LANES> {
    /// Boots the device of this configuration on a chip that lives for ever.
    pub fn boot(
        time: &VirtualTime,
        link: &Link,
        chip: &'static Flash,
        config: &Config<LANES>,
        entropy: u64,
    ) -> Self {
        let clock = DeviceClock::boot(time);
        let (outbox, drain) = open(time, chip, clock.clone(), config, entropy);
        let (dispatcher, events) = time.block_on(async {
            let events = outbox.subscribe().await.expect("nobody else listens");
            (Dispatcher::new(drain).await, events)
        });
        let uplink = uplink(link, clock.clone(), config.device.as_str(), 2048);
        Self { time: time.clone(), link: link.clone(), clock, outbox, dispatcher, uplink, events }
    }

    /// The same with policies and a pace.
    pub fn with(mut self, policies: [Policy; LANES], pace: Pace) -> Self {
        self.dispatcher = self.dispatcher.policies(policies).pace(pace);
        self
    }

    /// Posts a note.
    pub fn post(&self, lane: u8, number: u32) -> Key {
        self.time.block_on(self.outbox.enqueue_in(lane, &Note::new(number))).expect("there is room")
    }

    /// Posts notes in lane 0.
    pub fn post_all(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<Key> {
        numbers.into_iter().map(|number| self.post(0, number)).collect()
    }

    /// One step of the dispatcher.
    pub fn step(&mut self) -> Option<Result<(), Failure>> {
        let Self { dispatcher, uplink, time, .. } = self;
        time.block_on(dispatcher.step(uplink))
    }

    /// Steps until a flush has happened or so many milliseconds have passed; when the flush was.
    pub fn flush_within(&mut self, ms: u64) -> Option<Result<(), Failure>> {
        let end = self.time.now_ms() + ms;
        loop {
            if let Some(flushed) = self.step() {
                return Some(flushed);
            }
            let wakeup = self.next_wakeup()?;
            let at = self.time.now_ms() + wakeup.saturating_sub(self.clock.uptime_ms());
            if at > end {
                return None;
            }
            self.time.run_until(at);
        }
    }

    /// The uptime of the next flush.
    pub fn next_wakeup(&mut self) -> Option<u64> {
        let Self { dispatcher, uplink, time, .. } = self;
        time.block_on(dispatcher.next_wakeup(uplink))
    }

    /// Runs the dispatcher as a firmware does, for so many milliseconds.
    pub fn run_for(&mut self, ms: u64) {
        let Self { dispatcher, uplink, time, .. } = self;
        run_for(time, dispatcher, uplink, ms);
    }

    /// Tells the dispatcher that now is a good moment.
    pub fn trigger(&self) -> Trigger<'static, NoopRawMutex> {
        self.time.block_on(self.outbox.trigger())
    }

    /// Keys that are pending in a lane.
    pub fn pending(&self, lane: u8) -> Vec<Key> {
        let mut keys = Vec::new();
        self.time
            .block_on(self.outbox.inspect(lane, |stored| keys.push(stored.key)))
            .expect("the flash is sound");
        keys
    }

    /// Keys of the dead letters.
    pub fn dead_letters(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        let listed = self.outbox.dead_letters();
        self.time.block_on(listed.list(|stored| keys.push(stored.key))).expect("the flash is sound");
        keys
    }

    /// The open entries of the account.
    pub fn account(&mut self) -> Vec<Entry> {
        let Self { dispatcher, time, .. } = self;
        time.block_on(dispatcher.account()).to_vec()
    }

    /// The outbox in numbers.
    pub fn stats(&self) -> Stats<LANES> {
        self.time.block_on(self.outbox.stats())
    }

    /// How long until the next flush is due, in milliseconds.
    pub fn pause(&mut self) -> Option<u64> {
        let uptime = self.clock.uptime_ms();
        self.next_wakeup().map(|at| at.saturating_sub(uptime))
    }

    /// Makes the stop clean.
    pub fn suspend(&self) {
        self.time.block_on(self.outbox.suspend()).expect("the flash is sound");
    }

    /// Events since the last call; the channel holds four, so ask often.
    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(message) = self.events.try_next_message() {
            if let WaitResult::Message(event) = message {
                events.push(event);
            }
        }
        events
    }
}

/// Runs a dispatcher for so many milliseconds, and drops its future then.
pub fn run_for<U: Uplink, const LANES: usize>(
    time: &VirtualTime,
    dispatcher: &mut Sender<'static, LANES>,
    uplink: &mut U,
    ms: u64,
) {
    let end = time.now_ms() + ms;
    time.block_on(async {
        embassy_futures::select::select(dispatcher.run(uplink), time.sleep_until(end)).await;
    });
}

/// Opens an outbox whose memory lives for ever; a test may leak it.
pub fn open<const LANES: usize>(
    time: &VirtualTime,
    chip: &'static Flash,
    clock: DeviceClock,
    config: &Config<LANES>,
    entropy: u64,
) -> (Post<'static, LANES>, Drain<'static, &'static Flash, LANES, RECORD, NoopRawMutex, DeviceClock>) {
    let resources: &'static mut _ =
        Box::leak(Box::new(Resources::<&Flash, LANES, RECORD, BUFFER, NoopRawMutex, DeviceClock>::new()));
    time.block_on(pillarbox::new(resources, chip, clock, entropy, config.clone()))
        .expect("the flash is sound")
}

/// An uplink with buffers that live for ever, over a link that does too.
pub fn uplink(
    link: &Link,
    clock: DeviceClock,
    device: &str,
    tx: usize,
) -> BatchUplink<'static, Link, Link, DeviceClock> {
    let link: &'static Link = Box::leak(Box::new(link.clone()));
    let http = Http::new(link, link, clock, URL);
    BatchUplink::new(http, &secret_of(device), vec![0; tx].leak(), vec![0; 2048].leak())
        .expect("it is an address")
}

/// A chip that lives for ever.
pub fn chip() -> &'static Flash {
    Box::leak(Box::new(crate::device::chip()))
}

/// The station of most tests: `meter-1`, one lane of 16 pages, a model server, no jitter before the first attempt.
pub fn station() -> (Station<1>, Shared<ModelServer>, Network) {
    let time = VirtualTime::new();
    let server = model();
    let network = network(&time, 1, &server);
    let config = crate::device::config([LaneConfig::new(16)]);
    let station = Station::boot(&time, &network.link(), chip(), &config, 7);
    (station.with([Policy::urgent()], quick()), server, network)
}

/// No jitter before the first attempt; back-off from one second to a minute.
pub fn quick() -> Pace {
    use core::time::Duration;
    Pace::new()
        .spread(Duration::ZERO)
        .backoff(Duration::from_secs(1), Duration::from_secs(60))
        .long(Duration::from_secs(3600))
}
