//! Whatever lies in the flash, opening it never panics and never loops, and ends in a working outbox or a clear
//! error that changed nothing.
//!
//! An input is a geometry, an image (blank, random, or one that was lived in), damage to it, and operations. Run it
//! with `RUSTC_BOOTSTRAP=1 cargo fuzz run open_image -- -timeout=10 -len_control=0 -max_len=1024`.

#![no_main]

use std::collections::BTreeSet;

use arbitrary::Arbitrary;
use crc::{Algorithm, Crc};
use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use libfuzzer_sys::fuzz_target;
use pillarbox::{
    Clock, Config, DeviceId, Drain, EncodedSize, EnqueueError, Entry, Geometry, Key, LaneConfig,
    OpenError, Outbox, Reason, Record, Resources, buffer_size,
    scan::{self, Image, Sight, State},
};
use serde::Serialize;

/// The simulated flash alone: the lives and models beside it take minutes to build with a sanitizer.
#[path = "../../host-tests/src"]
#[allow(dead_code, unused_imports)]
mod simulator {
    pub mod flash;
}

use simulator::flash::Chip;

const LANES: usize = 2;
const RECORD: usize = 40;
const BUFFER: usize = buffer_size(LANES, RECORD);
/// No operation on these small regions needs as many; what does, loops.
const FLASH_OPERATIONS_MAX: u64 = 200_000;

/// So much of everything in one input: more finds no more, but takes longer.
const MUCH: usize = 64;

#[derive(Arbitrary, Debug)]
struct Input {
    geometry: u8,
    start: Start,
    damage: Vec<Damage>,
    operations: Vec<Operation>,
}

#[derive(Arbitrary, Debug)]
enum Start {
    Blank,
    Random(u64),
    /// An outbox on which these operations were done.
    LivedIn(Vec<Operation>),
}

#[derive(Arbitrary, Debug)]
enum Damage {
    Write {
        at: u16,
        bytes: [u8; 8],
    },
    Flip {
        at: u16,
        bit: u8,
    },
    Zero {
        at: u16,
        len: u8,
    },
    Erase {
        page: u16,
    },
    Noise {
        page: u16,
        seed: u64,
    },
    Copy {
        from: u16,
        to: u16,
    },
    /// Changes an item or a snapshot and makes its checksum good again.
    Forge {
        item: u8,
        at: u16,
        byte: u8,
    },
    OtherFormat,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Operation {
    Enqueue { lane: u8, len: u8 },
    EnqueueOnce { lane: u8, tag: u8 },
    Window { lane: u8, take: u8 },
    Settle { lane: u8, from: u8, count: u8 },
    Reject { lane: u8, from: u8, count: u8 },
    Retry { letter: u8 },
    Discard { letter: u8 },
    SettleLate,
    Explain { lane: u8, first: u8, len: u8 },
    Renew,
    Clear,
    Suspend,
    Reopen,
}

#[derive(Clone, Copy)]
struct Stopped;

impl Clock for Stopped {
    fn uptime_ms(&self) -> u64 {
        1_000
    }
}

#[derive(Serialize, EncodedSize, Record)]
#[record(kind = 7)]
struct Reading {
    bytes: heapless::Vec<u8, 32>,
}

/// What this run knows.
#[derive(Default)]
struct Model {
    /// Every key that was handed out.
    minted: BTreeSet<Key>,
    /// Enqueued with `Ok` and not settled: pending, a dead letter, or accounted for.
    owed: BTreeSet<Key>,
    opened: u64,
    /// Checksums were made good over nonsense: the outbox has to survive it, but may believe it.
    is_forged: bool,
}

impl Model {
    fn must(&self, holds: bool, claim: &str) {
        assert!(holds || self.is_forged, "{claim}");
    }
}

fuzz_target!(|input: Input| {
    match input.geometry % 4 {
        0 => run::<4, 4, 256>(&input),
        1 => run::<1, 1, 512>(&input),
        2 => run::<32, 32, 256>(&input),
        _ => run::<16, 8, 4096>(&input),
    }
});

fn config(origin: u32) -> Config<LANES> {
    let lanes = [
        LaneConfig::new(3).max_attempts(2),
        LaneConfig::new(2).evict_oldest(),
    ];
    Config::new(DeviceId::new("fuzz").unwrap(), lanes).at(origin)
}

fn run<const R: usize, const W: usize, const E: usize>(input: &Input) {
    let region = config(0).region_size(Geometry::of::<&Chip<R, W, E>>()) as usize;
    let chip = Chip::<R, W, E>::new(region / E, 1);
    let mut model = Model::default();
    match &input.start {
        Start::Blank => {}
        Start::Random(seed) => {
            let mut bytes = vec![0; region];
            fastrand::Rng::with_seed(*seed).fill(&mut bytes);
            chip.set_image(&bytes);
        }
        Start::LivedIn(operations) => {
            live(&chip, operations, &mut model);
            // What the damage takes is nobody's promise.
            model.owed.clear();
            model.minted.clear();
        }
    }
    if !input.damage.is_empty() {
        let mut image = chip.image();
        for damage in input.damage.iter().take(MUCH) {
            model.is_forged |= inflict(damage, &mut image, E);
        }
        chip.set_image(&image);
    }
    look(&chip);
    live(&chip, &input.operations, &mut model);
    assert_eq!(chip.violations(), 0, "the driver's units are kept to");
}

/// Reading alone has to stand every image too, and a survey shows all that the device would find, and every page once.
fn look<const R: usize, const W: usize, const E: usize>(chip: &Chip<R, W, E>) {
    let image = chip.image();
    let mut buffer = vec![0; scan::BUFFER];
    let mut flash = Image::new(&image);
    let geometry = Geometry::of::<&Chip<R, W, E>>();
    for page in (0..image.len()).step_by(E) {
        let mut pages = 0;
        let count = |sight: Sight| pages += u32::from(matches!(sight, Sight::Page(_)));
        let surveyed = flash.survey_page(page as u32, geometry, &mut buffer, count);
        assert!(surveyed.is_err() || pages == 1);
    }
    let Ok(found) = flash.metadata(0, &mut buffer) else { return };
    if let Ok(halves) = flash.halves(0, found.geometry, &mut buffer) {
        let newest = halves.iter().filter_map(|half| half.newest).max();
        assert!(newest >= Some(found.sequence), "the snapshot that was found is in one of the halves");
    }
    let mut items = Vec::new();
    let whole = flash.items(0, found.geometry, &found.layout, &mut buffer, |item| {
        if matches!(item.state, State::Pending | State::Removed) {
            items.push((item.address, item.record.map(|record| record.key)));
        }
    });
    let (mut surveyed, mut pages) = (Vec::new(), 0);
    let survey = flash.survey(0, found.geometry, &found.layout, &mut buffer, |sight| match sight {
        Sight::Item(item) => match item.state {
            State::Pending | State::Removed => {
                surveyed.push((item.address, item.record.map(|record| record.key)))
            }
            // Its removal was cut, or its append.
            State::Unfinished if items.contains(&(item.address, item.record.map(|record| record.key))) => {
                surveyed.push((item.address, item.record.map(|record| record.key)))
            }
            State::Unfinished | State::Void | State::Corrupt | State::Stray => {}
        },
        Sight::Page(_) | Sight::Missing { .. } => pages += 1,
    });
    let rings = found.layout.lanes.iter().chain([&found.layout.dead_letters]);
    if survey.is_ok() {
        assert_eq!(pages, rings.map(|ring| u32::from(ring.pages)).sum::<u32>());
    }
    if whole.is_ok() {
        assert_eq!(survey, Ok(()));
        assert_eq!(surveyed, items, "a survey sees what the device would");
    }
}

fn inflict(damage: &Damage, image: &mut [u8], page_size: usize) -> bool {
    let len = image.len();
    let place = |at: u16| usize::from(at) % len;
    let page = |number: u16| usize::from(number) % (len / page_size) * page_size;
    match *damage {
        Damage::Write { at, bytes } => image[place(at)..]
            .iter_mut()
            .zip(bytes)
            .for_each(|(cell, byte)| *cell = byte),
        Damage::Flip { at, bit } => image[place(at)] ^= 1 << (bit % 8),
        Damage::Zero { at, len } => image[place(at)..]
            .iter_mut()
            .take(len.into())
            .for_each(|cell| *cell = 0),
        Damage::Erase { page: number } => image[page(number)..][..page_size].fill(0xff),
        Damage::Noise { page: number, seed } => {
            fastrand::Rng::with_seed(seed).fill(&mut image[page(number)..][..page_size]);
        }
        Damage::Copy { from, to } => image.copy_within(page(from)..page(from) + page_size, page(to)),
        Damage::Forge { item, at, byte } => {
            let found = items(image);
            let Some(number) = usize::from(item).checked_rem(found.len()) else {
                return false;
            };
            forge(image, found[number], |data| {
                data[usize::from(at) % data.len()] = byte
            });
            return true;
        }
        Damage::OtherFormat => {
            for item in items(image)
                .into_iter()
                .filter(|&(_, data, _)| image[data] == 1)
                .collect::<Vec<_>>()
            {
                forge(image, item, |data| data[0] = 2);
            }
            return true;
        }
    }
    false
}

/// Every whole item and snapshot: where its header is, where its data are, and how many. They are looked for at
/// every 8 bytes, where they begin whatever the word; their data follow after a word of 8, 16 or 32.
fn items(image: &[u8]) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    for at in (0..image.len() - 40).step_by(8) {
        let len = [image[at + 4], image[at + 5]];
        if LENGTH.checksum(&len).to_le_bytes() != image[at + 6..at + 8] || len == [0, 0] {
            continue;
        }
        let len = usize::from(u16::from_le_bytes(len));
        for data in [at + 8, at + 16, at + 32] {
            if image
                .get(data..data + len)
                .is_some_and(|data| header(data) == image[at..at + 8])
            {
                found.push((at, data, len));
            }
        }
    }
    found
}

/// Changes an item's data and makes its header good again.
fn forge(image: &mut [u8], (at, data, len): (usize, usize, usize), change: impl FnOnce(&mut [u8])) {
    change(&mut image[data..data + len]);
    let header = header(&image[data..data + len]);
    image[at..at + 8].copy_from_slice(&header);
}

// The two checksums of SPEC.md.
const DATA: Crc<u32> = Crc::<u32>::new(&Algorithm {
    width: 32,
    poly: 0x1edc_6f41,
    init: 0x7777_7777,
    refin: true,
    refout: true,
    xorout: 0xffff_ffff,
    check: 0,
    residue: 0,
});
const LENGTH: Crc<u16> = Crc::<u16>::new(&Algorithm {
    width: 16,
    poly: 0x7458,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0,
    residue: 0,
});

fn header(data: &[u8]) -> [u8; 8] {
    let crc = match DATA.checksum(data) {
        0 => 1,
        crc if matches!(crc & 0xff, 0 | 0xff) => crc ^ 1,
        crc => crc,
    };
    let len = (data.len() as u16).to_le_bytes();
    let len_crc = match LENGTH.checksum(&len) {
        0xffff => 0xfffe,
        crc => crc,
    };
    let mut header = [0; 8];
    header[..4].copy_from_slice(&crc.to_le_bytes());
    header[4..6].copy_from_slice(&len);
    header[6..].copy_from_slice(&len_crc.to_le_bytes());
    header
}

/// Does the operations, one boot after the other.
fn live<const R: usize, const W: usize, const E: usize>(
    chip: &Chip<R, W, E>,
    operations: &[Operation],
    model: &mut Model,
) {
    for session in
        operations[..operations.len().min(MUCH)].split(|operation| matches!(operation, Operation::Reopen))
    {
        if !block_on(boot(chip, session, model)) {
            return;
        }
    }
}

type Handles<'r, const R: usize, const W: usize, const E: usize> = (
    Outbox<'r, &'r Chip<R, W, E>, LANES, RECORD, NoopRawMutex, Stopped>,
    Drain<'r, &'r Chip<R, W, E>, LANES, RECORD, NoopRawMutex, Stopped>,
);

async fn boot<const R: usize, const W: usize, const E: usize>(
    chip: &Chip<R, W, E>,
    operations: &[Operation],
    model: &mut Model,
) -> bool {
    let mut memory = Resources::<_, LANES, RECORD, BUFFER, NoopRawMutex, Stopped>::new();
    let before = chip.image();
    chip.reset_counts();
    model.opened += 1;
    let mut handles = match pillarbox::new(&mut memory, chip, Stopped, model.opened, config(0)).await {
        Ok(handles) => handles,
        Err(OpenError::OtherOwner(_) | OpenError::OtherLayout(_) | OpenError::OtherFormat(_)) => {
            assert!(chip.image() == before, "a region that is not ours is left alone");
            model.must(model.owed.is_empty(), "an outbox that was open opens again");
            return false;
        }
        Err(error) => {
            model.must(false, &format!("a healthy flash opens: {error}"));
            return false;
        }
    };
    bound(chip);
    check(&mut handles, model).await;
    for operation in operations {
        chip.reset_counts();
        perform(*operation, &mut handles, model).await;
        bound(chip);
    }
    chip.reset_counts();
    check(&mut handles, model).await;
    bound(chip);
    true
}

fn bound<const R: usize, const W: usize, const E: usize>(chip: &Chip<R, W, E>) {
    let counts = chip.counts();
    let operations = counts.reads + counts.programs + counts.erases;
    assert!(operations < FLASH_OPERATIONS_MAX, "{counts:?}");
}

async fn perform<const R: usize, const W: usize, const E: usize>(
    operation: Operation,
    (outbox, drain): &mut Handles<'_, R, W, E>,
    model: &mut Model,
) {
    let lane_of = |lane: u8| lane % LANES as u8;
    match operation {
        Operation::Enqueue { lane, len } => {
            let lane = lane_of(lane);
            let reading = reading(len);
            let result = outbox.enqueue_in(lane, &reading).await;
            enqueued(result, lane, model);
        }
        Operation::EnqueueOnce { lane, tag } => {
            let lane = lane_of(lane);
            let reading = reading(tag);
            let result = outbox.enqueue_once_in(lane, u32::from(tag % 20), &reading).await;
            enqueued(result, lane, model);
        }
        Operation::Window { lane, take } => {
            let mut left = take;
            let window = drain
                .window(lane_of(lane), |_| {
                    left = left.saturating_sub(1);
                    left > 0
                })
                .await;
            model.must(window.is_ok(), "a window can be read");
        }
        Operation::Settle { lane, from, count } => {
            let keys = some(pending(outbox, lane_of(lane), model).await, from, count);
            let settled = drain.settle(lane_of(lane), &keys).await;
            model.must(settled == Ok(keys.len() as u32), "what is pending can be settled");
            model.owed.retain(|key| !keys.contains(key));
        }
        Operation::Reject { lane, from, count } => {
            let keys = some(pending(outbox, lane_of(lane), model).await, from, count);
            let rejected = drain.reject(lane_of(lane), &keys).await;
            model.must(rejected.is_ok(), "what is pending can be rejected");
        }
        Operation::Retry { letter } => {
            if let Some(key) = some(dead(outbox, model).await, letter, 1).first() {
                model.must(
                    outbox.dead_letters().retry(*key).await.is_ok(),
                    "a letter can be retried",
                );
            }
        }
        Operation::Discard { letter } => {
            if let Some(key) = some(dead(outbox, model).await, letter, 1).first() {
                let discarded = outbox.dead_letters().discard(*key).await;
                model.must(discarded == Ok(true), "a letter can be discarded");
            }
        }
        Operation::SettleLate => {
            let mut keys = Vec::new();
            let late = drain.late(|letter| {
                keys.push(letter.key);
                true
            });
            model.must(late.await.is_ok(), "late letters can be read");
            model.must(
                drain.settle_late(&keys).await.is_ok(),
                "late letters can be settled",
            );
            model.owed.retain(|key| !keys.contains(key));
        }
        Operation::Explain { lane, first, len } => {
            let (incarnation, ..) = drain.identity().await;
            let asked = Entry {
                incarnation,
                lane: lane_of(lane),
                reason: Reason::Lost,
                first: first.into(),
                len: len.into(),
            };
            model.must(
                drain.explain(asked).await.is_ok(),
                "counters can be explained",
            );
        }
        Operation::Renew => model.must(
            drain.renew_incarnation().await.is_ok(),
            "an incarnation can be left",
        ),
        Operation::Clear => model.must(outbox.clear().await.is_ok(), "an outbox can be cleared"),
        Operation::Suspend => model.must(outbox.suspend().await.is_ok(), "an outbox can be suspended"),
        Operation::Reopen => {}
    }
}

fn reading(len: u8) -> Reading {
    Reading {
        bytes: (0..len % 33).collect(),
    }
}

fn enqueued<E: std::fmt::Debug>(result: Result<Key, EnqueueError<E>>, lane: u8, model: &mut Model) {
    match result {
        Ok(key) => {
            let is_new = model.minted.insert(key);
            model.must(is_new, "no key is used twice");
            model.owed.insert(key);
        }
        Err(EnqueueError::Full) => model.must(lane == 0, "a lane that evicts is never full"),
        Err(EnqueueError::TooManyTags) => {}
        Err(error) => model.must(false, &format!("a healthy flash takes records: {error}")),
    }
}

async fn pending<const R: usize, const W: usize, const E: usize>(
    outbox: &Outbox<'_, &Chip<R, W, E>, LANES, RECORD, NoopRawMutex, Stopped>,
    lane: u8,
    model: &Model,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let shown = outbox.inspect(lane, |record| keys.push(record.key)).await;
    model.must(shown.is_ok(), "a lane can be inspected");
    keys
}

async fn dead<const R: usize, const W: usize, const E: usize>(
    outbox: &Outbox<'_, &Chip<R, W, E>, LANES, RECORD, NoopRawMutex, Stopped>,
    model: &Model,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let shown = outbox.dead_letters().list(|letter| keys.push(letter.key)).await;
    model.must(shown.is_ok(), "the dead letters can be listed");
    keys
}

/// A few different ones of these keys.
fn some(mut keys: Vec<Key>, from: u8, count: u8) -> Vec<Key> {
    keys.sort();
    keys.dedup();
    let from = usize::from(from) % keys.len().max(1);
    keys.into_iter().skip(from).take(usize::from(count % 8)).collect()
}

/// Whatever was enqueued is pending, a dead letter, or accounted for.
async fn check<const R: usize, const W: usize, const E: usize>(
    (outbox, drain): &mut Handles<'_, R, W, E>,
    model: &mut Model,
) {
    let mut found: BTreeSet<Key> = dead(outbox, model).await.into_iter().collect();
    for lane in 0..LANES as u8 {
        found.extend(pending(outbox, lane, model).await);
    }
    let account = drain.account().await;
    for key in &model.owed {
        let explained = account.iter().any(|entry| {
            let told = !matches!(entry.reason, Reason::Uncertain | Reason::Parked | Reason::Lost);
            told && entry.covers(key.incarnation, key.lane, key.counter)
        });
        model.must(
            found.contains(key) || explained,
            &format!("{key:?} is neither found nor explained: {account:?}"),
        );
    }
}
