//! Both stores, fresh, and batches to give them.

mod alike;
mod batches;
mod desk;
mod keys;
mod log;
mod names;
mod times;
mod tls;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pillarbox::wire::Head;
use pillarbox::{DeviceId, Key, Timestamp};
use pillarbox_receiver::intake::{Arrival, Concluded, Outcome, Post, SecretUsed};
use pillarbox_receiver::store::sqlite::SqliteStore;
use pillarbox_receiver::store::{self, Change, RecordQuery, Row, Source, Store};
use receiver_testkit::Postgres;
use tempfile::TempDir;

/// When everything happens that does not happen later.
pub(crate) const NOW: u64 = 1_800_000_000_000;
pub(crate) const SECRET: [u8; 32] = [7; 32];
pub(crate) const INCARNATION: u32 = 0x9f3c_1a77;

/// Makes a test on each store of functions that are given a fresh one.
macro_rules! on_both {
    ($($promise:ident,)+) => {$(
        mod $promise {
            use crate::promises::Fresh;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::$promise(Fresh::sqlite().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                super::$promise(Fresh::postgres().await).await;
            }
        }
    )+};
}
pub(crate) use on_both;

/// A database that nobody else has, and its store.
pub(crate) struct Fresh {
    pub(crate) store: Arc<dyn Store>,
    /// Its file or URL.
    pub(crate) name: String,
    _directory: Option<TempDir>,
}

impl Fresh {
    pub(crate) async fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("there is a disk");
        let path = directory.path().join("pillarbox.db");
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).expect("there is room"));
        Self { store, name: path.display().to_string(), _directory: Some(directory) }
    }

    pub(crate) async fn postgres() -> Self {
        let name = tokio::task::block_in_place(|| Postgres::shared().fresh_database());
        let store = store::open(&name).await.expect("it runs");
        Self { store, name, _directory: None }
    }

    /// Another store on the same database, as another process would have it.
    pub(crate) async fn another(&self) -> Arc<dyn Store> {
        store::open(&self.name).await.expect("it is there")
    }

    /// A statement from beside the receiver.
    pub(crate) fn sql(&self, statement: &str) {
        if self.name.starts_with("postgres://") {
            tokio::task::block_in_place(|| Postgres::shared().query(&self.name, statement));
        } else {
            let connection = rusqlite::Connection::open(Path::new(&self.name)).expect("it is there");
            connection.execute_batch(statement).expect("it is SQL");
        }
    }

    /// Lets a device in.
    pub(crate) async fn device(&self, name: &str) -> Device {
        Device::add(self.store.clone(), name, "default").await
    }

    /// The whole log.
    pub(crate) async fn log(&self) -> Vec<Row> {
        self.store.log(everything()).await.expect("it is sound")
    }

    pub(crate) async fn asides(&self) -> Vec<Row> {
        self.store.asides(everything()).await.expect("it is sound")
    }
}

pub(crate) fn everything() -> RecordQuery {
    RecordQuery { limit: 1_000_000, ..RecordQuery::default() }
}

/// A device that may come in.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) id: i64,
    pub(crate) name: DeviceId,
}

impl Device {
    pub(crate) async fn add(store: Arc<dyn Store>, name: &str, tenant: &str) -> Self {
        let name = DeviceId::new(name).expect("it is a name");
        let change = Change::Add { device: name.clone(), tenant: tenant.into(), secret: SECRET };
        store.change(change, NOW).await.expect("it is new");
        let id = store.door(&name).await.expect("it is sound").expect("it was added").id;
        Self { store, id, name }
    }

    /// A batch with these counters, and all before the first of them settled.
    pub(crate) fn batch(&self, counters: impl IntoIterator<Item = u64>) -> Post {
        let counters: Vec<u64> = counters.into_iter().collect();
        let floor = counters.first().copied().unwrap_or(0);
        let head = Head {
            device: self.name.clone(),
            incarnation: INCARNATION,
            lane: 0,
            is_closing: false,
            is_in_order: false,
            floor,
            issued: counters.last().map_or(floor, |last| last + 1),
            boot: 1,
            boot_nonce: 1,
            attempt_nonce: 1,
            uptime_ms: 60_000,
            wall_ms: None,
        };
        let records = counters.into_iter().map(|counter| record(INCARNATION, 0, counter)).collect();
        Post {
            head,
            entries: Vec::new(),
            report: Vec::new(),
            records,
            late: Vec::new(),
            now_ms: NOW,
            with: SecretUsed::Current,
        }
    }

    pub(crate) async fn take(&self, post: &Post) -> Concluded {
        self.store.take(self.id, Arc::new(post.clone())).await.expect("there is room")
    }

    /// What became of each record.
    pub(crate) async fn outcomes(&self, post: &Post) -> Vec<Outcome> {
        self.take(post).await.outcomes
    }
}

/// A record whose content follows from its key.
pub(crate) fn record(incarnation: u32, lane: u8, counter: u64) -> Arrival {
    Arrival {
        key: Key { incarnation, lane, counter },
        kind: 7,
        time: Timestamp { boot: 1, uptime_ms: 10 * counter, wall_ms: Some(NOW + counter) },
        body: Bytes::from(format!("record {counter}")),
        is_unreadable: false,
    }
}

/// The counters of rows from devices.
pub(crate) fn counters(rows: &[Row]) -> Vec<u64> {
    let counter = |row: &Row| match &row.source {
        Source::Device { key, .. } => key.key.counter,
        Source::Client { .. } => panic!("it is from a client"),
    };
    rows.iter().map(counter).collect()
}
