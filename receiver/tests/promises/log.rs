//! The log: a reader who goes by a cursor sees every record, in the order of commits, however busy the writers are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pillarbox_receiver::store::{Position, RecordQuery, Source, Store, shard_of};

use super::{Device, Fresh, everything, on_both};

const DEVICES: usize = 12;
const BATCHES: u64 = 25;
const RECORDS: u64 = 5;

/// Follows a shard until there is nothing more and nobody writes, and gives the places it has seen.
async fn follow(store: Arc<dyn Store>, shard: u16, is_over: Arc<AtomicBool>) -> Vec<Position> {
    let mut seen: Vec<Position> = Vec::new();
    loop {
        let was_over = is_over.load(Ordering::Acquire);
        let after = seen.last().copied();
        let query = RecordQuery { shard: Some(shard), after, limit: 7, ..RecordQuery::default() };
        let page = store.log(query).await.expect("it is sound");
        seen.extend(page.iter().filter_map(|row| row.position));
        if page.is_empty() && was_over {
            return seen;
        }
        tokio::task::yield_now().await;
    }
}

async fn write(device: Device, stores: Vec<Arc<dyn Store>>) {
    for n in 0..BATCHES {
        let store = &stores[n as usize % stores.len()];
        let post = Arc::new(device.batch(n * RECORDS..(n + 1) * RECORDS));
        store.take(device.id, post).await.expect("there is room");
    }
}

on_both! {
    whoever_follows_a_shard_misses_nothing,
    the_log_is_asked_by_device_tenant_kind_and_place,
}

async fn whoever_follows_a_shard_misses_nothing(fresh: Fresh) {
    let stores = vec![fresh.store.clone(), fresh.another().await, fresh.another().await];
    let mut devices = Vec::new();
    for n in 0..DEVICES {
        devices.push(fresh.device(&format!("meter-{n}")).await);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let shards = fresh.store.shards();
    let mut followed: Vec<u16> =
        devices.iter().map(|device| shard_of(device.name.as_str(), shards)).collect();
    followed.sort_unstable();
    followed.dedup();
    let readers: Vec<_> = followed
        .iter()
        .map(|shard| tokio::spawn(follow(fresh.store.clone(), *shard, is_over.clone())))
        .collect();
    let writers: Vec<_> =
        devices.iter().map(|device| tokio::spawn(write(device.clone(), stores.clone()))).collect();
    for writer in writers {
        writer.await.expect("it does not panic");
    }
    is_over.store(true, Ordering::Release);
    let heads = fresh.store.heads().await.expect("it is sound");
    assert_eq!(heads.len(), usize::from(shards));
    for (shard, reader) in followed.iter().zip(readers) {
        let seen = reader.await.expect("it does not panic");
        let head = heads[usize::from(*shard)];
        let all: Vec<Position> = (1..=head.n()).map(|n| Position::new(*shard, n)).collect();
        assert_eq!(seen, all, "shard {shard}");
    }
    let mut of_device: BTreeMap<String, u64> = BTreeMap::new();
    for row in fresh.log().await {
        let Source::Device { key, .. } = row.source else { panic!("only devices send here") };
        let next = of_device.entry(key.device.to_string()).or_default();
        assert_eq!(key.key.counter, *next, "the records of {} are in order", key.device);
        *next += 1;
    }
    assert_eq!(of_device.len(), DEVICES);
    assert!(of_device.values().all(|count| *count == BATCHES * RECORDS));
}

async fn the_log_is_asked_by_device_tenant_kind_and_place(fresh: Fresh) {
    let meter = fresh.device("meter").await;
    let pump = Device::add(fresh.store.clone(), "pump", "acme").await;
    let mut post = meter.batch(0..10);
    post.records[3].kind = 65_535;
    meter.take(&post).await;
    pump.take(&pump.batch(0..4)).await;
    let ask = |query: RecordQuery| {
        let store = fresh.store.clone();
        async move { store.log(query).await.expect("it is sound").len() }
    };
    assert_eq!(ask(everything()).await, 14);
    assert_eq!(ask(RecordQuery { device: Some("meter".into()), ..everything() }).await, 10);
    assert_eq!(ask(RecordQuery { device: Some("nobody".into()), ..everything() }).await, 0);
    assert_eq!(ask(RecordQuery { tenant: Some("acme".into()), ..everything() }).await, 4);
    assert_eq!(ask(RecordQuery { kind: Some(65_535), ..everything() }).await, 1);
    assert_eq!(ask(RecordQuery { limit: 3, ..everything() }).await, 3);
    let meters = shard_of("meter", fresh.store.shards());
    let behind = RecordQuery { shard: Some(meters), device: Some("meter".into()), ..everything() };
    assert_eq!(ask(RecordQuery { after: Some(Position::new(meters, 8)), ..behind.clone() }).await, 2);
    assert_eq!(ask(RecordQuery { shard: Some(u16::MAX), ..everything() }).await, 0);
    assert_eq!(ask(RecordQuery { after: Some(Position(u64::MAX)), ..everything() }).await, 0);
}
