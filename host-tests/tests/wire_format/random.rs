//! Random batches and answers that keep the rules, small numbers and large ones alike.

use fastrand::Rng;

use crate::plain::{PlainAnswer, PlainBatch, PlainEntry, PlainRecord};

/// Prints the seed of a case that fails.
pub(crate) struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it failed with SEED={}", self.0);
        }
    }
}

/// So many cases, or the one that `SEED` names.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = (Guard, Rng)> {
    let only: Option<u64> = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let seeds = only.map_or(0..count, |seed| seed..seed + 1);
    seeds.map(|seed| (Guard(seed), Rng::with_seed(seed)))
}

/// A number of so many bits at most, of every length alike.
fn number(random: &mut Rng, bits: u32) -> u64 {
    match random.u32(..=bits) {
        0 => 0,
        bits => random.u64(..) >> (64 - bits),
    }
}

/// All differences of times below 2^62 can be told.
fn time(random: &mut Rng) -> u64 {
    number(random, 62)
}

fn wall(random: &mut Rng) -> Option<u64> {
    random.bool().then(|| time(random))
}

pub(crate) fn head(random: &mut Rng) -> PlainBatch {
    let floor = number(random, 63);
    let letters = b"ABCXYZabcxyz019_-";
    PlainBatch {
        device: (0..random.usize(1..=32))
            .map(|_| char::from(letters[random.usize(..letters.len())]))
            .collect(),
        incarnation: random.u32(..),
        lane: random.u8(..),
        closing: random.bool(),
        in_order: random.bool(),
        floor,
        issued: floor + number(random, 63).min((1 << 63) - floor),
        boot: number(random, 32) as u32,
        boot_nonce: random.u32(..),
        attempt_nonce: random.u64(..),
        uptime_ms: time(random),
        wall_ms: wall(random),
        ..Default::default()
    }
}

pub(crate) fn batch(random: &mut Rng) -> PlainBatch {
    let mut batch = head(random);
    let mut first = number(random, 62);
    for _ in 0..number(random, 5) {
        let len = 1 + number(random, 56);
        batch.account.push(PlainEntry { reason: random.u8(..10), first, len });
        first += len + number(random, 40);
    }
    random.shuffle(&mut batch.account);
    batch.report = (0..number(random, 5)).map(|_| number(random, 32) as u32).collect();

    let mut last = PlainRecord {
        boot: batch.boot,
        uptime_ms: batch.uptime_ms,
        wall_ms: batch.wall_ms,
        ..Default::default()
    };
    let end = batch.issued.min(batch.floor.saturating_add(1024));
    let mut next = batch.floor;
    let (count, gaps) = (number(random, 10), random.u32(..5));
    for _ in 0..count {
        let counter = next + if random.u32(..5) < gaps { number(random, 8) } else { 0 };
        if counter >= end {
            break;
        }
        next = counter + 1;
        last = PlainRecord { counter, ..like(&last, random) };
        batch.records.push(last.clone());
    }
    for _ in 0..number(random, 4) {
        let (incarnation, lane) = (Some(random.u32(..)), Some(random.u8(..)));
        last = PlainRecord { incarnation, lane, counter: number(random, 63), ..like(&last, random) };
        batch.late.push(last.clone());
    }
    batch
}

/// A record that has some things in common with the one before, as they have in life.
fn like(last: &PlainRecord, random: &mut Rng) -> PlainRecord {
    let mut record = PlainRecord { incarnation: None, lane: None, ..last.clone() };
    if random.u8(..4) == 0 {
        record.kind = number(random, 16) as u16;
    }
    if random.u8(..8) == 0 {
        record.boot = number(random, 32) as u32;
    }
    let step = number(random, 24);
    let uptime_ms = match random.u8(..8) {
        0 => time(random),
        1 => record.uptime_ms.saturating_sub(step),
        _ => record.uptime_ms + step,
    };
    let rise = uptime_ms.wrapping_sub(record.uptime_ms);
    record.uptime_ms = uptime_ms;
    record.wall_ms = match random.u8(..8) {
        0 | 1 => wall(random),
        // As an exact clock goes on.
        _ => record.wall_ms.map(|wall_ms| wall_ms.wrapping_add(rise)),
    };
    // Sums of many steps may come out beyond what can be told.
    record.uptime_ms = record.uptime_ms.min(1 << 62);
    record.wall_ms = record.wall_ms.map(|wall_ms| wall_ms.min(1 << 62));
    let len = if random.u8(..4) == 0 { number(random, 6) as usize } else { record.body.len() };
    record.body = (0..len).map(|_| random.u8(..)).collect();
    record
}

pub(crate) fn answer(random: &mut Rng) -> PlainAnswer {
    let mut bitmap = |bytes| -> Vec<u8> {
        let mut bits: Vec<u8> = (0..random.usize(..=bytes)).map(|_| random.u8(..)).collect();
        // Bits that are clear at the end are left out.
        bits.truncate(bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        bits
    };
    let (settled, late_settled) = (bitmap(128), bitmap(2));
    PlainAnswer {
        renew: random.bool(),
        stale: random.bool(),
        closed: random.bool(),
        server_time_ms: number(random, 64),
        epoch: random.u64(..),
        confirmed: number(random, 32) as u32,
        settled,
        late_settled,
        verdicts: (0..number(random, 6)).map(|_| (number(random, 16) as u16, random.u8(..4))).collect(),
        explain: (0..number(random, 3)).map(|_| (number(random, 62), number(random, 62))).collect(),
        retry_after_s: random.bool().then(|| number(random, 32) as u32),
        preferred_size: random.bool().then(|| number(random, 32) as u32),
    }
}
