//! Both stores do the same with the same posts, whatever they are: nothing of what is decided depends on the database, nor on which batches
//! happen to share a transaction.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use fastrand::Rng;
use pillarbox::{Entry, Reason};
use pillarbox_receiver::intake::{Arrival, Concluded, Post};
use pillarbox_receiver::store::{Change, Result, Row, Source};

use super::{Device, Fresh, NOW, everything, record};

const SEEDS: u64 = 12;
const ROUNDS: usize = 25;
/// Posts that may share a transaction.
const TOGETHER: usize = 6;
const NAMES: [&str; 3] = ["meter", "pump", "valve"];

fn any_record(rng: &mut Rng, incarnation: u32, lane: u8, counter: u64) -> Arrival {
    let mut record = record(incarnation, lane, counter);
    if rng.u8(..12) == 0 {
        record.body = Bytes::from(vec![rng.u8(..2)]);
    }
    if rng.bool() {
        record.time.wall_ms = None;
    }
    record.time.boot = rng.u32(1..4);
    record.is_unreadable = rng.u8(..10) == 0;
    record
}

fn any_entries(rng: &mut Rng, incarnation: u32, lane: u8, issued: u64) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut next = rng.u64(..10);
    for _ in 0..rng.usize(..4) {
        let (first, len) = (next + rng.u64(..20), rng.u64(1..6));
        next = first + len;
        if next <= issued {
            let reason = rng.choice(Reason::ALL).expect("there are some");
            entries.push(Entry { incarnation, lane, reason, first, len });
        }
    }
    entries
}

/// Something that a device, or its clone, might send.
fn any_post(rng: &mut Rng, device: &Device, now_ms: u64) -> Post {
    let (incarnation, lane) = (rng.u32(1..3), rng.u8(..2));
    let floor = rng.u64(..60);
    let records: BTreeSet<u64> = (0..rng.usize(..12)).map(|_| floor + rng.u64(..24)).collect();
    let mut post = device.batch([]);
    post.records = records.iter().map(|counter| any_record(rng, incarnation, lane, *counter)).collect();
    let head = &mut post.head;
    (head.incarnation, head.lane, head.floor) = (incarnation, lane, floor);
    head.issued = records.last().map_or(floor, |last| last + 1) + rng.u64(..3);
    (head.is_closing, head.is_in_order) = (rng.u8(..20) == 0, rng.bool());
    head.boot = if rng.u8(..8) == 0 { rng.u32(1..3) } else { 3 };
    head.boot_nonce = if rng.u8(..20) == 0 { 9 } else { head.boot };
    head.uptime_ms = rng.u64(..10_000);
    head.wall_ms = rng.bool().then(|| now_ms + rng.u64(..10_000));
    post.entries = any_entries(rng, incarnation, lane, head.issued);
    for _ in 0..rng.usize(..3).saturating_sub(1) {
        let counter = if rng.u8(..6) == 0 { 5000 } else { rng.u64(..80) };
        let (incarnation, lane) = (rng.u32(1..4), rng.u8(..2));
        post.late.push(any_record(rng, incarnation, lane, counter));
    }
    if rng.bool() {
        post.report = (0..rng.usize(..9)).map(|_| rng.u32(..)).collect();
    }
    post.now_ms = now_ms;
    post
}

/// Asks for all of them before the first is answered, in their order.
async fn take_together(devices: &[Device], posts: &[(usize, Arc<Post>)]) -> Vec<Result<Concluded>> {
    let store = devices[0].store.clone();
    let mut asked: Vec<_> =
        posts.iter().map(|(n, post)| (store.take(devices[*n].id, post.clone()), None)).collect();
    poll_fn(|context| {
        for (asked, answer) in asked.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(given) = asked.as_mut().poll(context) {
                *answer = Some(given);
            }
        }
        if asked.iter().all(|(_, answer)| answer.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    asked.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// Rows of one device without their places: in how many shards a log is, is the store's affair.
fn of_device(rows: &[Row], name: &str) -> Vec<Row> {
    let is_its =
        |row: &&Row| matches!(&row.source, Source::Device { key, .. } if key.device.as_str() == name);
    rows.iter().filter(is_its).map(|row| Row { position: None, arrival: 0, ..row.clone() }).collect()
}

/// Everything that can be asked about a device, in words.
async fn told(fresh: &Fresh, device: &Device, log: &[Row], asides: &[Row]) -> Vec<String> {
    let store = &fresh.store;
    let name = device.name.as_str();
    let mut row = store.device(&device.name).await.expect("it is sound").expect("it was added");
    row.id = 0;
    let lanes = store.lanes(device.id).await.expect("it is sound");
    let mut told = vec![
        format!("{row:?}"),
        format!("{:?}", store.incarnations(device.id).await.expect("it is sound")),
        format!("{lanes:?}"),
    ];
    for lane in &lanes {
        let count = store.count(device.id, lane.incarnation, lane.lane).await.expect("it is sound");
        told.push(format!("{count} in {:08x}/{}", lane.incarnation, lane.lane));
    }
    told.extend(of_device(log, name).iter().map(|row| format!("{row:?}")));
    told.extend(of_device(asides, name).iter().map(|row| format!("aside: {row:?}")));
    told
}

async fn devices_of(fresh: &Fresh) -> Vec<Device> {
    let mut devices = Vec::new();
    for name in NAMES {
        devices.push(fresh.device(name).await);
    }
    devices
}

async fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let stores = [Fresh::sqlite().await, Fresh::postgres().await];
    let devices = [devices_of(&stores[0]).await, devices_of(&stores[1]).await];
    for round in 0..ROUNDS {
        let now_ms = NOW + 1000 * round as u64 + rng.u64(..3000);
        let mut posts: Vec<(usize, Arc<Post>)> = Vec::new();
        for _ in 0..rng.usize(1..=TOGETHER) {
            let n = rng.usize(..NAMES.len());
            let repeated = posts.last().filter(|(last, _)| *last == n && rng.bool()).cloned();
            posts.push(repeated.unwrap_or_else(|| (n, Arc::new(any_post(&mut rng, &devices[0][n], now_ms)))));
        }
        let mut concluded = Vec::new();
        for devices in &devices {
            let taken = take_together(devices, &posts).await;
            concluded.push(taken.into_iter().map(|taken| taken.expect("there is room")).collect::<Vec<_>>());
        }
        for ((sqlite, postgres), (n, post)) in concluded[0].iter().zip(&concluded[1]).zip(&posts) {
            assert_eq!(sqlite, postgres, "seed {seed}, round {round}, {}: {post:?}", NAMES[*n]);
        }
        if rng.u8(..10) == 0 {
            let (device, incarnation) = (devices[0][0].name.clone(), rng.u32(1..3));
            let change = match rng.u8(..8) {
                0 => Change::Fence(device, incarnation),
                _ => Change::GiveUp(device, incarnation),
            };
            for fresh in &stores {
                // It may not have been heard of yet.
                drop(fresh.store.change(change.clone(), now_ms).await);
            }
        }
    }
    let logs = [stores[0].log().await, stores[1].log().await];
    let asides = [stores[0].asides().await, stores[1].asides().await];
    for n in 0..NAMES.len() {
        let sqlite = told(&stores[0], &devices[0][n], &logs[0], &asides[0]).await;
        let postgres = told(&stores[1], &devices[1][n], &logs[1], &asides[1]).await;
        for (sqlite, postgres) in sqlite.iter().zip(&postgres) {
            assert_eq!(sqlite, postgres, "seed {seed}, {}", NAMES[n]);
        }
        assert_eq!(sqlite.len(), postgres.len(), "seed {seed}, {}", NAMES[n]);
    }
    let fleets = [stores[0].store.fleet().await, stores[1].store.fleet().await];
    assert_eq!(
        fleets[0].as_ref().expect("it is sound"),
        fleets[1].as_ref().expect("it is sound"),
        "seed {seed}"
    );
    assert!(logs[0].len() > 20 && asides[0].len() > 5, "seed {seed}: too little happened");
    let query = everything();
    assert_eq!(stores[1].store.log(query).await.expect("it is sound").len(), logs[0].len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_posts_come_to_the_same_on_both() {
    for seed in 0..SEEDS {
        run(seed).await;
    }
}
