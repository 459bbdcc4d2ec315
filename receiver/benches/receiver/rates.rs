//! Records a second at the store's interface: ours, the peers and the bare disk in slices that take turns, so that a noisy machine
//! is noisy for all.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::Table;
use pillarbox_receiver::intake::Post;
use pillarbox_receiver::store::Store;
use pillarbox_receiver::store::postgres::PostgresStore;
use pillarbox_receiver::store::sqlite::SqliteStore;
use receiver_testkit::{Postgres, Storage};

use crate::batches::Sender;
use crate::naive_postgres::Naive;
use crate::{Effort, StoreName, naive_sqlite};

/// Devices that send at the same time.
pub(crate) const SENDERS: usize = 32;
/// Writes of a slice of the bare disk.
const RAW_WRITES: u32 = 50;
/// What ours reaches in memory-backed storage with 100 records a batch, as a multiple of the peer.
const BARS: [(StoreName, f64); 2] = [(StoreName::Sqlite, 2.5), (StoreName::Postgres, 1.8)];

/// How long the slices took.
#[derive(Default)]
struct Tally {
    records: usize,
    ours: Duration,
    peer: Duration,
    grouped: Duration,
    raw: Duration,
    raw_writes: u32,
    /// How much longer the peer took than ours, and the grouped one, in each turn.
    to_peer: Vec<f64>,
    to_grouped: Vec<f64>,
}

impl Tally {
    /// A turn of everybody. A busy machine spoils some turns, so what counts is the one in the middle.
    fn add(&mut self, records: usize, ours: Duration, peer: Duration, grouped: Option<Duration>) {
        let times = |other: Duration| other.as_secs_f64() / ours.as_secs_f64();
        self.records += records;
        self.ours += ours;
        self.peer += peer;
        self.grouped += grouped.unwrap_or_default();
        self.to_peer.push(times(peer));
        self.to_grouped.extend(grouped.map(times));
    }
}

fn median(ratios: &[f64]) -> Option<f64> {
    let mut ratios = ratios.to_vec();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

/// Small batches have no bar, and take longer.
fn rounds(effort: Effort, batch: usize) -> usize {
    let share = if batch < 100 { 4 } else { 1 };
    (effort.slice_records / share / batch / SENDERS).max(1)
}

/// Prints the tables. Gives the bars that are missed.
pub(crate) async fn run(stores: &[StoreName], effort: Effort) -> Vec<String> {
    let mut missed = Vec::new();
    for storage in [Storage::Memory, Storage::Disk] {
        let mut table = Table::new();
        table.set_header([
            "store",
            "records a batch",
            "ours, records/s",
            "peer, records/s",
            "ratio",
            "bar",
            "grouped peer, records/s",
            "ratio",
            "fdatasync/s",
        ]);
        // What a disk makes of it swings; a third says as much.
        let effort = match storage {
            Storage::Memory => effort,
            Storage::Disk => {
                Effort { slices: effort.slices / 2, slice_records: effort.slice_records / 3, ..effort }
            }
        };
        for &store in stores {
            for batch in [10, 100] {
                let tally = match store {
                    StoreName::Sqlite => sqlite(storage, batch, effort).await,
                    StoreName::Postgres => postgres(storage, batch, effort).await,
                };
                missed.extend(row(&mut table, storage, store, batch, &tally));
            }
        }
        let place = match storage {
            Storage::Memory => "In memory-backed storage",
            Storage::Disk => "On a disk (no bar: what a disk makes of it swings)",
        };
        println!(
            "{place}, bodies of 128 bytes, {} turns of {} records each, a quarter with small batches; a ratio is that of the turn in the middle. Ours: {SENDERS} devices that send at the same time. Peer: a \
             transaction a batch (SQLite: one writer; PostgreSQL: {SENDERS} connections). Grouped peer: {SENDERS} batches share a \
             transaction, handed to it in one piece.\n{table}\n",
            effort.slices, effort.slice_records,
        );
    }
    missed
}

fn row(table: &mut Table, storage: Storage, store: StoreName, batch: usize, tally: &Tally) -> Option<String> {
    let rate = |time: Duration| tally.records as f64 / time.as_secs_f64();
    let ratio = median(&tally.to_peer).unwrap_or_default();
    let is_barred =
        |(name, _): &&(StoreName, f64)| *name == store && batch == 100 && storage == Storage::Memory;
    let bar = BARS.iter().find(is_barred).map(|(_, bar)| *bar);
    let grouped = median(&tally.to_grouped);
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    table.add_row([
        store.title().to_owned(),
        batch.to_string(),
        format!("{:.0}", rate(tally.ours)),
        format!("{:.0}", rate(tally.peer)),
        format!("{ratio:.2}"),
        cell(bar.map(|bar| format!("{bar:.1}"))),
        cell(grouped.map(|_| format!("{:.0}", rate(tally.grouped)))),
        cell(grouped.map(|ratio| format!("{ratio:.2}"))),
        format!("{:.0}", f64::from(tally.raw_writes) / tally.raw.as_secs_f64()),
    ]);
    let missed = bar.filter(|bar| ratio < *bar)?;
    Some(format!(
        "{} at {batch} records a batch is {ratio:.2} times the peer, not {missed:.1}",
        store.title()
    ))
}

async fn sqlite(storage: Storage, batch: usize, effort: Effort) -> Tally {
    let directory = directory(storage);
    let store = SqliteStore::open(&directory.path().join("ours.db")).expect("there is room");
    let mut ours = Ours::new(Arc::new(store)).await;
    let mut peer = naive_sqlite::open(&directory.path().join("peer.db"));
    let mut grouped = naive_sqlite::open(&directory.path().join("grouped.db"));
    let (mut peers, mut grouped_peers) = (strangers(), strangers());
    let mut tally = Tally::default();
    let rounds = rounds(effort, batch);
    for _ in 0..effort.slices {
        let our_time = ours.take(batch, rounds * SENDERS).await;
        let posts = posts_of(&mut peers, batch, rounds);
        let peer_time =
            time(|| posts.iter().for_each(|post| naive_sqlite::take(&mut peer, std::slice::from_ref(post))));
        let posts = posts_of(&mut grouped_peers, batch, rounds);
        let grouped_time =
            time(|| posts.chunks(SENDERS).for_each(|posts| naive_sqlite::take(&mut grouped, posts)));
        tally.add(rounds * SENDERS * batch, our_time, peer_time, Some(grouped_time));
        raw(directory.path(), &mut tally);
    }
    tally
}

async fn postgres(storage: Storage, batch: usize, effort: Effort) -> Tally {
    let directory = directory(storage);
    let server = Postgres::start_on(storage);
    let store = PostgresStore::open(&server.fresh_database()).await.expect("it runs");
    let mut ours = Ours::new(Arc::new(store)).await;
    let mut peers = Peers::new(&server.fresh_database()).await;
    let mut tally = Tally::default();
    let rounds = rounds(effort, batch);
    for _ in 0..effort.slices {
        let our_time = ours.take(batch, rounds * SENDERS).await;
        let peer_time = peers.take(batch, rounds * SENDERS).await;
        tally.add(rounds * SENDERS * batch, our_time, peer_time, None);
        raw(directory.path(), &mut tally);
    }
    tally
}

fn directory(storage: Storage) -> tempfile::TempDir {
    match storage {
        Storage::Memory => tempfile::tempdir_in("/dev/shm").expect("there is memory"),
        Storage::Disk => tempfile::tempdir().expect("there is a disk"),
    }
}

pub(crate) fn strangers() -> Vec<Sender> {
    (0..SENDERS).map(Sender::stranger).collect()
}

/// The next batches of these devices, in turn.
pub(crate) fn posts_of(senders: &mut [Sender], batch: usize, rounds: usize) -> Vec<Arc<Post>> {
    (0..rounds)
        .flat_map(|_| senders.iter_mut().map(|sender| sender.post(batch)).collect::<Vec<_>>())
        .collect()
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// What a commit waits for, and nothing else.
fn raw(directory: &Path, tally: &mut Tally) {
    let mut file = tempfile::tempfile_in(directory).expect("there is room");
    tally.raw += time(|| {
        for _ in 0..RAW_WRITES {
            file.write_all(&[0x5a; 4096]).expect("there is room");
            file.sync_data().expect("it can be synced");
        }
    });
    tally.raw_writes += RAW_WRITES;
}

/// Our store, and devices that send to it at the same time.
pub(crate) struct Ours {
    store: Arc<dyn Store>,
    senders: Vec<Sender>,
}

impl Ours {
    pub(crate) async fn new(store: Arc<dyn Store>) -> Self {
        let mut senders = Vec::new();
        for n in 0..SENDERS {
            senders.push(Sender::register(&*store, n).await);
        }
        Self { store, senders }
    }

    /// So many batches, by all devices at the same time.
    pub(crate) async fn take(&mut self, batch: usize, batches: usize) -> Duration {
        let mut work = Vec::new();
        for sender in &mut self.senders {
            let posts: Vec<_> = (0..batches / SENDERS).map(|_| sender.post(batch)).collect();
            work.push((sender.id, posts));
        }
        let start = Instant::now();
        let tasks: Vec<_> =
            work.into_iter().map(|(id, posts)| tokio::spawn(send(self.store.clone(), id, posts))).collect();
        for task in tasks {
            task.await.expect("it does not panic");
        }
        start.elapsed()
    }
}

async fn send(store: Arc<dyn Store>, id: i64, posts: Vec<Arc<Post>>) {
    for post in posts {
        let concluded = store.take(id, post).await.expect("there is room");
        assert!(!concluded.is_stale);
    }
}

/// The peer on PostgreSQL: each device has a connection.
pub(crate) struct Peers {
    all: Vec<(Naive, Sender)>,
}

impl Peers {
    pub(crate) async fn new(url: &str) -> Self {
        let mut all = Vec::new();
        for sender in strangers() {
            all.push((Naive::new(url).await, sender));
        }
        Self { all }
    }

    /// So many batches, by all devices at the same time.
    pub(crate) async fn take(&mut self, batch: usize, batches: usize) -> Duration {
        let mut work = Vec::new();
        for (naive, mut sender) in self.all.drain(..) {
            let posts: Vec<_> = (0..batches / SENDERS).map(|_| sender.post(batch)).collect();
            work.push((naive, sender, posts));
        }
        let start = Instant::now();
        let tasks: Vec<_> = work
            .into_iter()
            .map(|(mut naive, sender, posts)| {
                tokio::spawn(async move {
                    for post in &posts {
                        naive.take(post).await;
                    }
                    (naive, sender)
                })
            })
            .collect();
        for task in tasks {
            self.all.push(task.await.expect("it does not panic"));
        }
        start.elapsed()
    }
}
