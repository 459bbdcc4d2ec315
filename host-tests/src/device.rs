//! A device with an outbox, as most proofs need it: opened on a simulated chip, with a clock that stands still
//! until the test moves it, and every operation finished when the call returns.
//!
//! A reboot is dropping the device and booting another one on the same chip.

use core::cell::Cell;
use core::fmt::Debug;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Waker};
use std::rc::Rc;

use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::pubsub::WaitResult;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use pillarbox::{
    Cause, Clock, Config, Depth, DeviceId, Drain, EncodedSize, EnqueueError, Entry, Event, Key, LaneConfig,
    OpenError, Outbox, Reason, Record, Rejection, Resources, Stats, Stored, Subscriber, Tag, Timestamp,
    Window, buffer_size,
};
use serde::{Deserialize, Serialize};

use crate::flash::{Chip, EraseTear, ProgramTear, Tear};

/// Small pages: about ten records fill one, so that a test can fill and wrap a ring in no time.
pub type Flash = Chip<4, 4, PAGE>;
/// Bytes of a page.
pub const PAGE: usize = 512;
/// Bytes before the rings on this flash: two halves of metadata.
pub const METADATA: usize = 2 * 4096;
/// Room for the largest [`Note`].
pub const RECORD: usize = 40;
/// Enough for every number of lanes, so that `Device` can leave it open.
const BUFFER: usize = buffer_size(6, 64);

/// What most tests open.
pub type Meter<'c, const LANES: usize = 1> = Device<'c, &'c Flash, LANES, RECORD>;

/// A blank chip with room for every configuration here.
pub fn chip() -> Flash {
    Chip::new(96, 1)
}

/// The outbox of `meter-1`, at the chip's start.
pub fn config<const LANES: usize>(lanes: [LaneConfig; LANES]) -> Config<LANES> {
    Config::new(DeviceId::new("meter-1").unwrap(), lanes)
}

/// Boots a device, whatever the chip holds.
pub fn boot<'c, const LANES: usize>(chip: &'c Flash, config: &Config<LANES>) -> Meter<'c, LANES> {
    Device::open(chip, config).unwrap()
}

/// Boots a device and lets it count, so that its depths are exact.
pub fn boot_counted<'c, const LANES: usize>(chip: &'c Flash, config: &Config<LANES>) -> Meter<'c, LANES> {
    let mut meter = boot(chip, config);
    for lane in 0..LANES as u8 {
        meter.window(lane);
    }
    meter
}

/// Milliseconds since boot, as the test wants them.
#[derive(Clone, Debug, Default)]
pub struct Uptime(Rc<Cell<u64>>);

impl Uptime {
    /// Lets time pass.
    pub fn advance(&self, ms: u64) {
        self.0.set(self.0.get() + ms);
    }
}

impl Clock for Uptime {
    fn uptime_ms(&self) -> u64 {
        self.0.get()
    }
}

/// The record of these tests: its payload follows from its number, so that a torn or mixed body shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, EncodedSize, Record)]
#[record(kind = 1)]
pub struct Note {
    /// Which one it is.
    pub number: u32,
    /// Follows from the number.
    pub payload: heapless::Vec<u8, 20>,
}

impl Note {
    /// The note with this number.
    pub fn new(number: u32) -> Self {
        let pattern = number.wrapping_mul(0x9e37_79b9).to_le_bytes();
        Self { number, payload: pattern.into_iter().cycle().take(20).collect() }
    }
}

/// A stored note, with its bytes copied out of the outbox's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub key: Key,
    /// Which note it is.
    pub number: u32,
    /// When it was posted.
    pub time: Timestamp,
    /// What it is about.
    pub tag: Option<Tag>,
    /// Why it is a dead letter.
    pub cause: Option<Cause>,
}

impl Kept {
    /// # Panics
    /// If it is not a whole note.
    pub fn read(stored: &Stored<'_>) -> Self {
        let note: Note = postcard::from_bytes(stored.body).expect("a body that is no note");
        assert_eq!(note, Note::new(note.number), "the body is not what was posted");
        Self { key: stored.key, number: note.number, time: stored.time, tag: stored.tag, cause: stored.cause }
    }
}

/// The numbers of some notes, in their order.
pub fn numbers(kept: &[Kept]) -> Vec<u32> {
    kept.iter().map(|kept| kept.number).collect()
}

/// The keys of some notes, in their order.
pub fn keys(kept: &[Kept]) -> Vec<Key> {
    kept.iter().map(|kept| kept.key).collect()
}

/// A booted device.
pub struct Device<'c, F, const LANES: usize, const RECORD: usize> {
    /// What the application has.
    pub outbox: Outbox<'c, F, LANES, RECORD, NoopRawMutex, Uptime>,
    /// What the sender has.
    pub drain: Drain<'c, F, LANES, RECORD, NoopRawMutex, Uptime>,
    /// Its clock.
    pub uptime: Uptime,
    events: Subscriber<'c, NoopRawMutex>,
}

impl<'c, F, const LANES: usize, const RECORD: usize> Device<'c, F, LANES, RECORD>
where
    F: MultiwriteNorFlash + 'c,
    F::Error: Debug + PartialEq,
{
    /// Boots.
    pub fn open(flash: F, config: &Config<LANES>) -> Result<Self, OpenError<F::Error>> {
        // An outbox borrows its memory for as long as it lives, so the memory cannot stand beside it in a
        // struct. It is small; a test may leak it.
        let resources: &'c mut _ =
            Box::leak(Box::new(Resources::<F, LANES, RECORD, BUFFER, NoopRawMutex, Uptime>::new()));
        let uptime = Uptime::default();
        let (outbox, drain) =
            block_on(pillarbox::new(resources, flash, uptime.clone(), entropy(), config.clone()))?;
        let events = block_on(outbox.subscribe()).expect("nobody else listens");
        Ok(Self { outbox, drain, uptime, events })
    }

    /// Posts a note in lane 0.
    pub fn post(&self, number: u32) -> Key {
        self.try_post(number).unwrap()
    }

    /// Posts notes in lane 0.
    pub fn post_all(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<Key> {
        numbers.into_iter().map(|number| self.post(number)).collect()
    }

    /// Posts a note in lane 0, if there is room and the flash does its work.
    pub fn try_post(&self, number: u32) -> Result<Key, EnqueueError<F::Error>> {
        self.try_post_in(0, number)
    }

    /// Posts a note in a lane.
    pub fn try_post_in(&self, lane: u8, number: u32) -> Result<Key, EnqueueError<F::Error>> {
        block_on(self.outbox.enqueue_in(lane, &Note::new(number)))
    }

    /// Posts a note in lane 0 that takes the place of a pending one with this tag.
    pub fn try_post_once(&self, tag: Tag, number: u32) -> Result<Key, EnqueueError<F::Error>> {
        block_on(self.outbox.enqueue_once(tag, &Note::new(number)))
    }

    /// Posts notes in lane 0 until it refuses; gives what it took, numbered from `first` on.
    pub fn fill(&self, first: u32) -> Vec<u32> {
        let mut posted = Vec::new();
        for number in first.. {
            match self.try_post(number) {
                Ok(_) => posted.push(number),
                Err(EnqueueError::Full) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        posted
    }

    /// Everything pending in a lane, oldest first.
    pub fn pending(&self, lane: u8) -> Vec<Kept> {
        let mut pending = Vec::new();
        block_on(self.outbox.inspect(lane, |stored| pending.push(Kept::read(stored)))).unwrap();
        pending
    }

    /// What the sender would send of a lane if it had room for everything.
    pub fn window(&mut self, lane: u8) -> (Window, Vec<Kept>) {
        let mut shown = Vec::new();
        let window = block_on(self.drain.window(lane, |stored| {
            shown.push(Kept::read(stored));
            true
        }))
        .unwrap();
        (window, shown)
    }

    /// The receiver has these.
    pub fn settle(&mut self, lane: u8, keys: &[Key]) -> u32 {
        block_on(self.drain.settle(lane, keys)).unwrap()
    }

    /// The receiver has the oldest `count` of lane 0; gives their numbers.
    pub fn deliver(&mut self, count: usize) -> Vec<u32> {
        let mut sent = self.pending(0);
        sent.truncate(count);
        assert_eq!(self.settle(0, &keys(&sent)) as usize, sent.len());
        numbers(&sent)
    }

    /// The receiver rejects these.
    pub fn reject(&mut self, lane: u8, keys: &[Key]) -> Rejection {
        block_on(self.drain.reject(lane, keys)).unwrap()
    }

    /// The dead letters, the longest dead first.
    pub fn dead_letters(&self) -> Vec<Kept> {
        let mut dead = Vec::new();
        block_on(self.outbox.dead_letters().list(|stored| dead.push(Kept::read(stored)))).unwrap();
        dead
    }

    /// Sends a dead letter again.
    pub fn retry(&self, key: Key) -> bool {
        block_on(self.outbox.dead_letters().retry(key)).unwrap()
    }

    /// Gives a dead letter up.
    pub fn discard(&self, key: Key) -> bool {
        block_on(self.outbox.dead_letters().discard(key)).unwrap()
    }

    /// The dead letters that are to be sent again.
    pub fn late(&mut self) -> Vec<Kept> {
        let mut late = Vec::new();
        block_on(self.drain.late(|stored| {
            late.push(Kept::read(stored));
            true
        }))
        .unwrap();
        late
    }

    /// The open entries of the account.
    pub fn account(&mut self) -> Vec<Entry> {
        block_on(self.drain.account()).to_vec()
    }

    /// Why the account says that this record will not arrive.
    pub fn explanation(&mut self, key: Key) -> Option<Reason> {
        let covers = |entry: &Entry| entry.covers(key.incarnation, key.lane, key.counter);
        self.account().into_iter().find(covers).map(|entry| entry.reason)
    }

    /// The entries of the account that give this reason.
    pub fn explained_as(&mut self, reason: Reason) -> Vec<Entry> {
        let mut entries = self.account();
        entries.retain(|entry| entry.reason == reason);
        entries
    }

    /// The outbox in numbers.
    pub fn stats(&self) -> Stats<LANES> {
        block_on(self.outbox.stats())
    }

    /// What a lane says about how much is pending.
    pub fn depth(&self, lane: usize) -> Depth {
        self.stats().lanes[lane].depth
    }

    /// An authenticated answer said what time it is.
    pub fn learn_time(&mut self, wall_ms: u64) {
        block_on(self.drain.learn_time(wall_ms));
    }

    /// Makes the stop clean.
    pub fn suspend(&self) {
        block_on(self.outbox.suspend()).unwrap();
    }

    /// Events since the last call. The channel holds eight: a test that wants them all asks often.
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

/// Each boot draws another number, and a test that is run again draws the same ones.
fn entropy() -> u64 {
    thread_local!(static DRAWN: Cell<u64> = const { Cell::new(0x5eed) });
    DRAWN.with(|drawn| {
        drawn.set(drawn.get() + 1);
        drawn.get()
    })
}

/// Polls a future at most so many times and then drops it.
pub fn poll_times<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if let core::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
    }
    None
}

/// The ways in which [`for_every_cut`] tears the operation that loses power.
const TEARS: [Tear; 3] = [
    Tear::BEFORE,
    Tear::AFTER,
    Tear { program: ProgramTear::RandomBits, erase: EraseTear::RandomBits, weak: Some(0.3) },
];

/// Lets `act` run on copies of a chip, with a power cut at its first mutating operation, then at its second, and so
/// on until nothing is left to cut; and `check` what it left, with the power on again.
pub fn for_every_cut(before: &Flash, mut act: impl FnMut(&Flash), mut check: impl FnMut(&Flash)) {
    for tear in TEARS {
        for operation in 0.. {
            let chip = before.clone();
            chip.cut_after(operation, tear);
            act(&chip);
            let was_cut = !chip.is_powered();
            chip.cancel_cut();
            chip.power_on();
            check(&chip);
            if !was_cut {
                assert!(operation > 0, "there was nothing to cut");
                break;
            }
        }
    }
}

/// Runs `act` on copies of a chip for n = 0, 1, 2 and so on, until it says that nothing failed. It boots, arms a
/// driver error with `fail_after(n)` before what is to fail, and goes on with the same device: unlike a cut, an error
/// leaves everything in RAM as it was.
pub fn for_every_failure(before: &Flash, mut act: impl FnMut(&Flash, u64) -> bool) {
    for operation in 0.. {
        let chip = before.clone();
        if !act(&chip, operation) {
            assert!(operation > 0, "there was nothing to fail");
            return;
        }
    }
}

/// Inverts a bit of the note's payload wherever it lies on the chip.
///
/// # Panics
/// If it lies nowhere.
pub fn corrupt(chip: &Flash, number: u32) {
    let payload = Note::new(number).payload;
    let image = chip.image();
    let places: Vec<usize> =
        (0..image.len() - payload.len()).filter(|&at| image[at..].starts_with(&payload)).collect();
    assert!(!places.is_empty(), "note {number} is not on the chip");
    for at in places {
        chip.flip_bit(at as u32, 0);
    }
}
