//! What a record costs a disk: fsyncs, bytes and statements, counted, beside the peer. And what a lane costs for ever.

use std::sync::atomic::{AtomicU64, Ordering};

use comfy_table::Table;
use pillarbox_receiver::store::postgres::PostgresStore;
use pillarbox_receiver::store::sqlite::Core;
use receiver_testkit::{Postgres, Storage};
use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

use crate::batches::Sender;
use crate::naive_postgres::Naive;
use crate::rates::Ours;
use crate::{naive_sqlite, sync_calls};

const BATCH: usize = 100;
const BATCHES: usize = 320;

/// What some work cost.
#[derive(Clone, Copy, Default)]
struct Cost {
    syncs: u64,
    bytes: u64,
    statements: u64,
}

/// Prints the tables; whether ours costs less in every column.
pub(crate) async fn run() -> bool {
    let mut table = Table::new();
    table.set_header(["store", "who", "fsyncs a record", "bytes a record", "statements a record"]);
    let mut is_good = true;
    for (store, ours, peer) in [sqlite().await, postgres().await] {
        let records = (BATCH * BATCHES) as f64;
        for (who, cost) in [("ours", ours), ("peer", peer)] {
            table.add_row([
                store.to_owned(),
                who.to_owned(),
                format!("{:.5}", cost.syncs as f64 / records),
                format!("{:.0}", cost.bytes as f64 / records),
                format!("{:.3}", cost.statements as f64 / records),
            ]);
        }
        is_good &= ours.syncs < peer.syncs && ours.bytes < peer.bytes && ours.statements < peer.statements;
    }
    println!(
        "On a disk, batches of {BATCH}, {BATCHES} of them from 32 devices at the same time (the peer: one after the other):\n{table}"
    );
    println!("{}\n", sync_calls::raw_rate());
    is_good &= state().await;
    is_good
}

/// What is watched from outside: so many batches into a new file, and nothing else. Prints the bytes that it wrote.
pub(crate) async fn once(store: &str, who: &str, batches: usize) {
    assert_eq!(store, "sqlite", "PostgreSQL counts for itself");
    let directory = tempfile::tempdir().expect("there is a disk");
    let before = written();
    if who == "ours" {
        let mut ours = Ours::new(crate::rates::open(store, directory.path(), "").await).await;
        ours.take(BATCH, batches).await;
    } else {
        let mut peer = naive_sqlite::open(&directory.path().join("peer.db"));
        let mut stranger = Sender::stranger(0);
        (0..batches).for_each(|_| naive_sqlite::take(&mut peer, &stranger.post(BATCH)));
    }
    println!("{}", written() - before);
}

/// Bytes that this process has handed to `write`, whether or not they were new.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("this is Linux");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.trim().parse().ok()).expect("it has this line")
}

async fn sqlite() -> (&'static str, Cost, Cost) {
    let cost = |who: &str, statements: u64| {
        // What it costs to make the file and let the devices in is taken off.
        let (base, full) = (sync_calls::watch("sqlite", who, 0), sync_calls::watch("sqlite", who, BATCHES));
        Cost { syncs: full.syncs - base.syncs, bytes: full.bytes - base.bytes, statements }
    };
    let ours = count_ours();
    let peer = count_peer();
    ("SQLite", cost("ours", ours), cost("peer", peer))
}

static STATEMENTS: AtomicU64 = AtomicU64::new(0);

fn watch(connection: &Connection) {
    STATEMENTS.store(0, Ordering::Relaxed);
    let count = |event: TraceEvent<'_>| {
        if let TraceEvent::Profile(..) = event {
            STATEMENTS.fetch_add(1, Ordering::Relaxed);
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_PROFILE, Some(count));
}

/// Alone, with a transaction for each batch: with others it shares them.
fn count_ours() -> u64 {
    let mut core = Core::in_memory().expect("there is memory");
    let mut sender = Sender::stranger(0);
    sender.id = core.add_device(&sender.device, &crate::batches::secret()).expect("it is new");
    watch(core.connection());
    for _ in 0..BATCHES {
        core.take(sender.id, &sender.post(BATCH)).expect("there is room");
    }
    STATEMENTS.load(Ordering::Relaxed)
}

fn count_peer() -> u64 {
    let directory = tempfile::tempdir().expect("there is a disk");
    let mut peer = naive_sqlite::open(&directory.path().join("peer.db"));
    let mut stranger = Sender::stranger(0);
    watch(&peer);
    (0..BATCHES).for_each(|_| naive_sqlite::take(&mut peer, &stranger.post(BATCH)));
    STATEMENTS.load(Ordering::Relaxed)
}

async fn postgres() -> (&'static str, Cost, Cost) {
    let server = Postgres::start_on(Storage::Disk);
    let url = server.url();
    server.query(&url, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
    server.kill();
    server.start_again();
    server.query(&url, "CREATE EXTENSION pg_stat_statements");
    let now = || {
        let row = server.query(
            &url,
            "SELECT wal_sync, wal_bytes, (SELECT sum(calls) FROM pg_stat_statements \
             WHERE dbid <> (SELECT oid FROM pg_database WHERE datname = 'postgres')) FROM pg_stat_wal",
        );
        let numbers: Vec<u64> = row.split('|').map(|number| number.parse().unwrap_or(0)).collect();
        Cost { syncs: numbers[0], bytes: numbers[1], statements: numbers[2] }
    };
    let since = |before: Cost| {
        // The server's processes tell their numbers when they are idle.
        std::thread::sleep(std::time::Duration::from_secs(2));
        let after = now();
        Cost {
            syncs: after.syncs - before.syncs,
            bytes: after.bytes - before.bytes,
            statements: after.statements - before.statements,
        }
    };
    let store = PostgresStore::open(&server.fresh_database()).await.expect("it runs");
    let mut ours = Ours::new(std::sync::Arc::new(store)).await;
    let mut peer = Naive::new(&server.fresh_database()).await;
    let mut stranger = Sender::stranger(0);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = now();
    ours.take(BATCH, BATCHES).await;
    let ours = since(before);
    let before = now();
    for _ in 0..BATCHES {
        peer.take(&stranger.post(BATCH)).await;
    }
    ("PostgreSQL", ours, since(before))
}

/// What is kept of a lane, however much it has sent.
async fn state() -> bool {
    let mut table = Table::new();
    table.set_header(["records that a lane has sent", "bytes of its books", "bytes of its row in all"]);
    let mut core = Core::in_memory().expect("there is memory");
    let mut sender = Sender::stranger(0);
    sender.id = core.add_device(&sender.device, &crate::batches::secret()).expect("it is new");
    let (mut sent, mut is_good) = (0, true);
    for upto in [100, 10_000, 300_000] {
        while sent < upto {
            core.take(sender.id, &sender.post(BATCH)).expect("there is room");
            sent += BATCH;
        }
        let (books, row) = lane_bytes(core.connection());
        is_good &= books <= 200;
        table.add_row([sent.to_string(), books.to_string(), row.to_string()]);
    }
    println!("What is kept of a lane, for ever:\n{table}\n");
    is_good
}

fn lane_bytes(connection: &Connection) -> (usize, usize) {
    let sql = "SELECT length(books) FROM lanes";
    let books = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("there is one") as usize;
    // What SQLite itself counts: the cell with its header.
    let sql = "SELECT sum(payload) FROM dbstat WHERE name = 'lanes'";
    let row = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_or_default() as usize;
    (books, row)
}
