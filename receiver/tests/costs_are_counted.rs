//! What a batch costs is counted, because a clock tells something else on every machine: statements on both databases, and what
//! is kept of a lane, which must not grow with what it has sent.

#[allow(dead_code, reason = "the bench makes more of it")]
#[path = "../benches/receiver/batches.rs"]
mod batches;
#[path = "../benches/receiver/lanes.rs"]
mod lanes;

use std::sync::atomic::{AtomicU64, Ordering};

use pillarbox_receiver::books::OPEN_MAX;
use pillarbox_receiver::store::Store;
use pillarbox_receiver::store::postgres::PostgresStore;
use pillarbox_receiver::store::sqlite::Core;
use receiver_testkit::{Postgres, Storage};
use rusqlite::trace::{TraceEvent, TraceEventCodes};

use batches::{Sender, secret};
use lanes::{Kept, scatter};

const BATCH: usize = 100;

fn lane() -> (Core, Sender) {
    let mut core = Core::in_memory().expect("there is memory");
    let mut sender = Sender::stranger(0);
    sender.id = core.add_device(&sender.device, &secret()).expect("it is new");
    (core, sender)
}

#[test]
fn a_batch_of_a_hundred_takes_few_statements_on_sqlite() {
    static STATEMENTS: AtomicU64 = AtomicU64::new(0);
    let (mut core, mut sender) = lane();
    core.take(sender.id, &sender.post(BATCH)).expect("there is room");
    let count = |event: TraceEvent<'_>| {
        if let TraceEvent::Profile(..) = event {
            STATEMENTS.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mask = TraceEventCodes::SQLITE_TRACE_PROFILE;
    core.connection_mut().trace_v2(mask, Some(count)).expect("it can be watched");
    core.take(sender.id, &sender.post(BATCH)).expect("there is room");
    let statements = STATEMENTS.load(Ordering::Relaxed);
    println!("{statements} statements for a batch of {BATCH}");
    assert!((3..=16).contains(&statements), "{statements} statements");
}

/// Alone: nobody to share a transaction with.
#[tokio::test]
async fn a_batch_of_a_hundred_takes_few_statements_on_postgresql() {
    const BATCHES: u64 = 20;
    let server = Postgres::start_on(Storage::Memory);
    let admin = server.url();
    server.query(&admin, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
    server.kill();
    server.start_again();
    server.query(&admin, "CREATE EXTENSION pg_stat_statements");
    let store = PostgresStore::open(&server.fresh_database()).await.expect("it runs");
    let mut sender = Sender::register(&store, 0).await;
    store.take(sender.id, sender.post(BATCH)).await.expect("it runs");
    server.query(&admin, "SELECT pg_stat_statements_reset()");
    for _ in 0..BATCHES {
        store.take(sender.id, sender.post(BATCH)).await.expect("it runs");
    }
    let counted = server.query(
        &admin,
        "SELECT sum(calls) FROM pg_stat_statements WHERE dbid <> (SELECT oid FROM pg_database WHERE datname = 'postgres')",
    );
    let statements: u64 = counted.parse().expect("a number");
    println!("{statements} statements for {BATCHES} batches of {BATCH}");
    assert!((3 * BATCHES..=16 * BATCHES).contains(&statements), "{statements} statements");
}

#[test]
fn what_is_kept_of_a_lane_does_not_grow_with_what_it_sends() {
    let (mut core, mut sender) = lane();
    let mut sizes = Vec::new();
    for upto in [1, 100, 1_000] {
        while sizes.len() < upto {
            core.take(sender.id, &sender.post(BATCH)).expect("there is room");
            sizes.push(Kept::of(&core, sender.id));
        }
        println!("{} records: {:?}", upto * BATCH, sizes.last());
    }
    // A counter takes a byte more now and then, and nothing else changes.
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    assert!(last.books <= first.books + 8 && last.row <= first.row + 16, "{first:?}, then {last:?}");
    assert!(sizes.iter().all(|kept| kept.row <= kept.max()), "{last:?}");
}

#[test]
fn a_lane_with_all_its_open_ranges_keeps_to_its_size() {
    for ranges in [0, 1, 8, 32, 64] {
        let (mut core, mut sender) = lane();
        scatter(&mut core, &mut sender, ranges);
        let kept = Kept::of(&core, sender.id);
        println!("{ranges} ranges that were given up: {kept:?}");
        assert_eq!(kept.ranges, OPEN_MAX.min(ranges as usize));
        assert!(kept.row <= kept.max(), "{kept:?}, and not {}", kept.max());
    }
}
