//! Whatever somebody says who has got hold of a device's secret: taking it in never panics, its answer can be written and read, no key
//! is in the log twice, and what is refused changes nothing. Numbers at the ends of what a counter can be, boots and incarnations that jump, accounts
//! that claim everything, and envelopes with a few bytes bent under a tag that is right.
//!
//! Every life has a seed. `HOSTILE_SEED` lives one again.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use fastrand::Rng;
use pillarbox::wire::{Answer, BatchWriter, ENVELOPE_MAX, Head, Secret, TAG_LEN, TagKeys, WINDOW};
use pillarbox::{DeviceId, Entry, Key, Kind, Reason, Stored, Timestamp};
use pillarbox_receiver::intake::{AnswerTo, Post, SecretUsed};
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::store::sqlite::Core;
use pillarbox_receiver::store::{RecordQuery, Source};

const LIVES: u64 = 200;
const BATCHES: u64 = 60;
const SECRET: Secret = Secret::new([7; 32]);

/// What has come of all lives.
#[derive(Default, Debug)]
struct Tally {
    taken: u32,
    refused: u32,
    stored: usize,
    aside: usize,
}

#[test]
fn whatever_a_device_says() {
    let asked = std::env::var("HOSTILE_SEED").ok().map(|text| text.parse::<u64>().expect("it is a number"));
    let mut tally = Tally::default();
    for seed in asked.map_or(0..LIVES, |seed| seed..seed + 1) {
        if catch_unwind(AssertUnwindSafe(|| live(&mut Rng::with_seed(seed), &mut tally))).is_err() {
            panic!("seed {seed} fails; live it again with HOSTILE_SEED={seed}");
        }
    }
    println!("{tally:?}");
    assert!(
        tally.taken > 1000 && tally.refused > 1000 && tally.stored > 1000 && tally.aside > 100,
        "{tally:?}"
    );
}

fn live(rng: &mut Rng, tally: &mut Tally) {
    let device = DeviceId::new("meter-0042").expect("it is a name");
    let mut core = Core::in_memory().expect("there is memory");
    let id = core.add_device(&device, &SECRET).expect("it is new");
    let keys = TagKeys::new(&SECRET);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    for n in 0..BATCHES {
        let envelope = match rng.u8(..6) {
            // What was said before, again or bent.
            0 if !sent.is_empty() => sent[rng.usize(..sent.len())].clone(),
            _ => envelope(rng, &device, &keys),
        };
        let envelope = if rng.bool() { bent(rng, envelope, &keys) } else { envelope };
        let Some(tag) = keys.verify_batch(&envelope) else { panic!("it was tagged") };
        let Ok(post) =
            Post::decode(&Bytes::from(envelope.clone()), &Kinds::default(), n, SecretUsed::Current)
        else {
            tally.refused += 1;
            continue;
        };
        let concluded = core.take(id, &post).expect("whatever it says");
        let to = AnswerTo { keys: &keys, tag: &tag, now_ms: n, epoch: 1, retry_after_s: None };
        let answer = concluded.answer(&to).expect("there is room for every answer");
        let opened = keys.open_answer(&tag, &answer).expect("it is tagged");
        assert_eq!(opened.len() + TAG_LEN, answer.len());
        Answer::decode(opened).expect("a device can read it");
        tally.taken += 1;
        sent.push(envelope);
    }
    check(&core, id, tally);
}

/// A batch of numbers that no honest device has, as far as the format lets them be said.
fn envelope(rng: &mut Rng, device: &DeviceId, keys: &TagKeys) -> Vec<u8> {
    let mut buffer = vec![0; 2 * ENVELOPE_MAX];
    for _ in 0..50 {
        // Most of them of one boot: of a boot that is over nothing is believed anyway.
        let is_odd = rng.u8(..12) == 0;
        let boot = if is_odd { [0, 2, 3, u32::MAX][rng.usize(..4)] } else { 1 };
        let wall_ms = rng.bool().then(|| edge(rng));
        let mut writer = BatchWriter::new(&mut buffer, boot, edge(rng), wall_ms, 32);
        let floor = edge(rng);
        writer.set_floor(floor);
        let incarnation = rng.u32(..3);
        let mut next = floor;
        for _ in 0..rng.usize(..12) {
            next = next.saturating_add(if rng.bool() { 0 } else { rng.u64(..WINDOW) });
            let key = Key { incarnation, lane: 0, counter: next };
            let mut body = [0; 8];
            rng.fill(&mut body);
            let time = Timestamp {
                boot: rng.u32(..4),
                uptime_ms: edge(rng),
                wall_ms: rng.bool().then(|| edge(rng)),
            };
            let body = &body[..rng.usize(..2)];
            let record = Stored { key, kind: Kind(7), time, tag: None, cause: None, body };
            if next >= floor.saturating_add(WINDOW) || !writer.record(&record, ENVELOPE_MAX) {
                break;
            }
            next += 1;
        }
        for _ in 0..rng.usize(..3) {
            let key = Key { incarnation: rng.u32(..4), lane: rng.u8(..3), counter: edge(rng) };
            let time = Timestamp { boot: 0, uptime_ms: edge(rng), wall_ms: None };
            let record = Stored { key, kind: Kind(9), time, tag: None, cause: None, body: &[1] };
            writer.late(&record, ENVELOPE_MAX);
        }
        let issued = next.saturating_add(if rng.bool() { 0 } else { edge(rng) }).min(1 << 63);
        let mut head = Head {
            device: device.clone(),
            incarnation,
            lane: 0,
            is_closing: rng.u8(..8) == 0,
            is_in_order: rng.bool(),
            floor,
            issued,
            boot,
            boot_nonce: u32::from(is_odd),
            attempt_nonce: rng.u64(..),
            uptime_ms: 0,
            wall_ms: None,
        };
        let account = account(rng, incarnation);
        if let Ok((place, _)) = writer.finish(&mut head, &account, &[1, 2, u32::MAX], keys) {
            return buffer[place].to_vec();
        }
    }
    panic!("nothing of it can be said");
}

/// A number at one of the ends, or a small one.
fn edge(rng: &mut Rng) -> u64 {
    let near = rng.u64(..2 * WINDOW);
    match rng.u8(..8) {
        0 => (1 << 63) - 1 - near,
        1 => (1 << 32) + near,
        2 => rng.u64(..1 << 62),
        _ => near,
    }
}

fn account(rng: &mut Rng, incarnation: u32) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..rng.usize(..20) {
        let reason = Reason::ALL[rng.usize(..Reason::ALL.len())];
        let entry = Entry { incarnation, lane: 0, reason, first: edge(rng), len: edge(rng).max(1) };
        let is_apart = |known: &Entry| known.end() <= entry.first || entry.end() <= known.first;
        if entry.end() <= 1 << 63 && entries.iter().all(is_apart) {
            entries.push(entry);
        }
    }
    entries
}

fn bent(rng: &mut Rng, mut envelope: Vec<u8>, keys: &TagKeys) -> Vec<u8> {
    let end = envelope.len() - TAG_LEN;
    for _ in 0..rng.usize(1..4) {
        // Behind the device's name, or nobody would know whose it is.
        let at = rng.usize(12.min(end - 1)..end);
        envelope[at] = match rng.bool() {
            true => envelope[at] ^ 1 << rng.u8(..8),
            false => [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
        };
    }
    let tag = keys.batch_tag(&envelope[..end]);
    envelope[end..].copy_from_slice(&tag);
    envelope
}

/// The log holds every key once, and the books know of every row of it.
fn check(core: &Core, device: i64, tally: &mut Tally) {
    let all = || RecordQuery { limit: 1_000_000, ..RecordQuery::default() };
    let mut stored = BTreeSet::new();
    for row in core.log(&all()).expect("it is sound") {
        let Source::Device { key, .. } = row.source else { panic!("only a device has sent") };
        assert!(stored.insert(key.clone()), "{key} is in the log twice");
    }
    for lane in core.lanes(device).expect("it is sound") {
        let is_of = |key: &&pillarbox::DeviceKey| {
            (key.key.incarnation, key.key.lane) == (lane.incarnation, lane.lane)
        };
        let rows = stored.iter().filter(is_of).count() as u64;
        assert_eq!(lane.state.books.ledger().received, rows, "{lane:?}");
    }
    tally.stored += stored.len();
    tally.aside += core.asides(&all()).expect("it is sound").len();
}
