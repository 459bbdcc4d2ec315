//! What a record costs a disk: fsyncs, bytes and statements, counted, beside the peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use comfy_table::Table;
use pillarbox_receiver::store::postgres::PostgresStore;
use pillarbox_receiver::store::sqlite::{Core, SqliteStore};
use receiver_testkit::{Postgres, Storage};
use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

use crate::batches::{Sender, secret};
use crate::rates::{Ours, Peers, SENDERS, posts_of, strangers};
use crate::sync_calls::{self, Watched};
use crate::{Effort, StoreName, naive_sqlite};

const BATCH: usize = 100;
/// A process of PostgreSQL has told how often it synced when it has been idle for ten seconds.
const TOLD: Duration = Duration::from_secs(11);

/// Who takes the batches.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Who {
    Ours,
    /// One device, so that no batch shares a transaction with another.
    OursAlone,
    Peer,
    GroupedPeer,
}

impl Who {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursAlone => "ours-alone",
            Self::Peer => "peer",
            Self::GroupedPeer => "grouped-peer",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Ours => "ours, 32 devices",
            Self::OursAlone => "ours, 1 device",
            Self::Peer => "peer",
            Self::GroupedPeer => "grouped peer",
        }
    }
}

/// What some work cost.
#[derive(Clone, Copy, Default)]
struct Cost {
    syncs: u64,
    bytes: u64,
    statements: u64,
}

/// Prints the table. Gives the columns in which ours does not cost less.
pub(crate) async fn run(stores: &[StoreName], effort: Effort) -> Vec<String> {
    let mut table = Table::new();
    table.set_header(["store", "who", "fsyncs a batch", "bytes a record", "statements a record"]);
    let batches = effort.counted_batches;
    let mut missed = Vec::new();
    for &store in stores {
        let costs = match store {
            StoreName::Sqlite => sqlite(batches),
            StoreName::Postgres => postgres(batches).await,
        };
        for (who, cost) in &costs {
            let records = (BATCH * batches) as f64;
            table.add_row([
                store.title().to_owned(),
                who.title().to_owned(),
                format!("{:.3}", cost.syncs as f64 / batches as f64),
                format!("{:.0}", cost.bytes as f64 / records),
                format!("{:.3}", cost.statements as f64 / records),
            ]);
        }
        let cost =
            |who| costs.iter().find(|(name, _)| *name == who).map(|(_, cost)| *cost).unwrap_or_default();
        let (ours, peer) = (cost(Who::Ours), cost(Who::Peer));
        let columns = [
            ("fsyncs", ours.syncs, peer.syncs),
            ("bytes", ours.bytes, peer.bytes),
            ("statements", ours.statements, peer.statements),
        ];
        let more = columns.iter().filter(|(_, ours, peer)| ours >= peer);
        missed.extend(more.map(|(what, ours, peer)| {
            format!("{} takes {ours} {what} where the peer takes {peer}", store.title())
        }));
    }
    println!(
        "On a disk, {batches} batches of {BATCH} records of 128 bytes. Bytes are those of the files (SQLite) and of the write-ahead log \
         (PostgreSQL). Ours has to take fewer than the peer in every column.\n{table}\n"
    );
    missed
}

/// What is watched from outside: so many batches into a new file, and nothing else.
pub(crate) async fn once(who: Who, batches: usize) {
    let directory = tempfile::tempdir().expect("there is a disk");
    let file = directory.path().join("pillarbox.db");
    match who {
        Who::Ours => {
            let store = SqliteStore::open(&file).expect("there is room");
            Ours::new(Arc::new(store)).await.take(BATCH, batches).await;
        }
        Who::OursAlone => {
            let mut core = Core::open(&file).expect("there is room");
            let mut sender = let_in(&mut core);
            (0..batches)
                .for_each(|_| drop(core.take(sender.id, &sender.post(BATCH)).expect("there is room")));
        }
        Who::Peer | Who::GroupedPeer => take_naively(&mut naive_sqlite::open(&file), who, batches),
    }
}

fn let_in(core: &mut Core) -> Sender {
    let mut sender = Sender::stranger(0);
    sender.id = core.add_device(&sender.device, &secret()).expect("it is new");
    sender
}

fn take_naively(peer: &mut Connection, who: Who, batches: usize) {
    let group = if who == Who::GroupedPeer { SENDERS } else { 1 };
    let posts = posts_of(&mut strangers(), BATCH, batches / SENDERS);
    posts.chunks(group).for_each(|posts| naive_sqlite::take(peer, posts));
}

fn sqlite(batches: usize) -> Vec<(Who, Cost)> {
    let cost = |who| {
        // What it takes to make the file and to let the devices in is taken off.
        let (base, full): (Watched, Watched) = (sync_calls::watch(who, 0), sync_calls::watch(who, batches));
        let statements = match who {
            // With others it shares the statements around it: alone it cannot be better than it is.
            Who::Ours | Who::OursAlone => statements_of_ours(batches),
            Who::Peer | Who::GroupedPeer => statements_of_peer(who, batches),
        };
        (who, Cost { syncs: full.syncs - base.syncs, bytes: full.bytes - base.bytes, statements })
    };
    [Who::Ours, Who::OursAlone, Who::Peer, Who::GroupedPeer].map(cost).to_vec()
}

static STATEMENTS: AtomicU64 = AtomicU64::new(0);

/// Counts from now on.
fn count(connection: &mut Connection) {
    STATEMENTS.store(0, Ordering::Relaxed);
    let count = |event: TraceEvent<'_>| {
        if let TraceEvent::Profile(..) = event {
            STATEMENTS.fetch_add(1, Ordering::Relaxed);
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_PROFILE, Some(count)).expect("it can be watched");
}

fn statements_of_ours(batches: usize) -> u64 {
    let mut core = Core::in_memory().expect("there is memory");
    let mut sender = let_in(&mut core);
    count(core.connection_mut());
    (0..batches).for_each(|_| drop(core.take(sender.id, &sender.post(BATCH)).expect("there is room")));
    STATEMENTS.load(Ordering::Relaxed)
}

fn statements_of_peer(who: Who, batches: usize) -> u64 {
    let directory = tempfile::tempdir().expect("there is a disk");
    let mut peer = naive_sqlite::open(&directory.path().join("peer.db"));
    count(&mut peer);
    take_naively(&mut peer, who, batches);
    STATEMENTS.load(Ordering::Relaxed)
}

/// A server of its own for whoever is counted: what the server does later is not put down to somebody else.
struct Counted {
    server: Postgres,
}

impl Counted {
    fn start() -> Self {
        let server = Postgres::start_on(Storage::Disk);
        let url = server.url();
        server.query(&url, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
        server.kill();
        server.start_again();
        server.query(&url, "CREATE EXTENSION pg_stat_statements");
        Self { server }
    }

    /// So far.
    fn now(&self) -> Cost {
        let sql = "SELECT wal_sync, pg_current_wal_insert_lsn() - '0/0', (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements \
                   WHERE dbid <> (SELECT oid FROM pg_database WHERE datname = 'postgres')) FROM pg_stat_wal";
        let row = self.server.query(&self.server.url(), sql);
        let numbers: Vec<u64> = row.split('|').map(|number| number.parse().expect("a number")).collect();
        Cost { syncs: numbers[0], bytes: numbers[1], statements: numbers[2] }
    }

    fn since(&self, before: Cost) -> Cost {
        let now = self.now();
        Cost {
            syncs: now.syncs - before.syncs,
            bytes: now.bytes - before.bytes,
            statements: now.statements - before.statements,
        }
    }
}

async fn postgres(batches: usize) -> Vec<(Who, Cost)> {
    let (for_ours, for_peers) = (Counted::start(), Counted::start());
    let store = PostgresStore::open(&for_ours.server.fresh_database()).await.expect("it runs");
    let mut ours = Ours::new(Arc::new(store)).await;
    let mut peers = Peers::new(&for_peers.server.fresh_database()).await;
    // The first of everything writes whole pages.
    ours.take(BATCH, SENDERS).await;
    peers.take(BATCH, SENDERS).await;
    tokio::time::sleep(TOLD).await;
    let before = (for_ours.now(), for_peers.now());
    ours.take(BATCH, batches).await;
    peers.take(BATCH, batches).await;
    tokio::time::sleep(TOLD).await;
    vec![(Who::Ours, for_ours.since(before.0)), (Who::Peer, for_peers.since(before.1))]
}
