//! Records a second on memory-backed storage: ours and the peer in slices that take turns, so that a noisy machine is noisy for both.

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
use crate::naive_sqlite;

const SLICES: usize = 12;
const RECORDS: usize = 20_000;
/// Devices that send at the same time.
const SENDERS: usize = 32;
/// Connections that the peer on PostgreSQL has: as many as ours writes with.
const CONNECTIONS: usize = 4;

/// Prints the table; whether the bars are met.
pub(crate) async fn run() -> bool {
    let mut table = Table::new();
    table.set_header(["store", "records a batch", "ours, records/s", "peer, records/s", "ratio", "bar"]);
    let mut is_good = true;
    for batch in [10, 100] {
        for (store, bar, (ours, peer)) in
            [("SQLite", 2.5, sqlite(batch).await), ("PostgreSQL", 1.8, postgres(batch).await)]
        {
            let rate = |time: Duration| (SLICES * RECORDS) as f64 / time.as_secs_f64();
            let ratio = rate(ours) / rate(peer);
            let bar = (batch == 100).then_some(bar);
            is_good &= bar.is_none_or(|bar| ratio >= bar);
            table.add_row([
                store.to_owned(),
                batch.to_string(),
                format!("{:.0}", rate(ours)),
                format!("{:.0}", rate(peer)),
                format!("{ratio:.2}"),
                bar.map_or_else(String::new, |bar| format!("{bar:.1}")),
            ]);
        }
    }
    println!(
        "In memory-backed storage, bodies of 128 bytes, {SLICES} slices of {RECORDS} records each:\n{table}\n"
    );
    is_good
}

async fn sqlite(batch: usize) -> (Duration, Duration) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let store = SqliteStore::open(&directory.path().join("ours.db")).expect("there is memory");
    let mut ours = Ours::new(Arc::new(store)).await;
    let mut peer = naive_sqlite::open(&directory.path().join("peer.db"));
    let mut stranger = Sender::stranger(0);
    let (mut our_time, mut peer_time) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..SLICES {
        our_time += ours.slice(batch).await;
        let posts: Vec<_> = (0..RECORDS / batch).map(|_| stranger.post(batch)).collect();
        let start = Instant::now();
        posts.iter().for_each(|post| naive_sqlite::take(&mut peer, post));
        peer_time += start.elapsed();
    }
    (our_time, peer_time)
}

async fn postgres(batch: usize) -> (Duration, Duration) {
    let server = Postgres::start_on(Storage::Memory);
    let store = PostgresStore::open(&server.fresh_database()).await.expect("it runs");
    let mut ours = Ours::new(Arc::new(store)).await;
    let url = server.fresh_database();
    let mut peers = Vec::new();
    for n in 0..CONNECTIONS {
        peers.push((Naive::new(&url).await, Sender::stranger(n)));
    }
    let (mut our_time, mut peer_time) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..SLICES {
        our_time += ours.slice(batch).await;
        let mut work = Vec::new();
        for (naive, stranger) in peers.drain(..) {
            let mut stranger = stranger;
            let posts: Vec<_> = (0..RECORDS / batch / CONNECTIONS).map(|_| stranger.post(batch)).collect();
            work.push((naive, stranger, posts));
        }
        let start = Instant::now();
        let tasks: Vec<_> = work.into_iter().map(|work| tokio::spawn(naive_slice(work))).collect();
        for task in tasks {
            peers.push(task.await.expect("it does not panic"));
        }
        peer_time += start.elapsed();
    }
    (our_time, peer_time)
}

async fn naive_slice((mut naive, stranger, posts): (Naive, Sender, Vec<Arc<Post>>)) -> (Naive, Sender) {
    for post in &posts {
        naive.take(post).await;
    }
    (naive, stranger)
}

/// Our store, and devices that send to it at the same time.
pub(crate) struct Ours {
    pub(crate) store: Arc<dyn Store>,
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

    async fn slice(&mut self, batch: usize) -> Duration {
        self.take(batch, RECORDS / batch).await
    }

    /// So many batches, by all devices at the same time.
    pub(crate) async fn take(&mut self, batch: usize, batches: usize) -> Duration {
        let each = batches / SENDERS;
        let more = batches % SENDERS;
        let work: Vec<(i64, Vec<Arc<Post>>)> = self
            .senders
            .iter_mut()
            .enumerate()
            .map(|(n, sender)| {
                let count = each + usize::from(n < more);
                (sender.id, (0..count).map(|_| sender.post(batch)).collect())
            })
            .collect();
        let start = Instant::now();
        let tasks: Vec<_> = work
            .into_iter()
            .map(|(id, posts)| {
                let store = self.store.clone();
                tokio::spawn(async move {
                    for post in posts {
                        let concluded = store.take(id, post).await.expect("there is room");
                        assert!(!concluded.is_stale);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it does not panic");
        }
        start.elapsed()
    }
}

/// A store on this directory or server, of this name.
pub(crate) async fn open(store: &str, directory: &Path, url: &str) -> Arc<dyn Store> {
    match store {
        "sqlite" => Arc::new(SqliteStore::open(&directory.join("ours.db")).expect("there is room")),
        _ => Arc::new(PostgresStore::open(url).await.expect("it runs")),
    }
}
