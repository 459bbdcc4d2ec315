//! Batches share a transaction on SQLite. One that fails in the middle of its records must leave nothing behind, and must not take the
//! others with it, nor those that come after it.

#[allow(dead_code, reason = "the bench makes more of it")]
#[path = "../benches/receiver/batches.rs"]
mod batches;

use std::sync::Arc;
use std::time::Duration;

use pillarbox_receiver::intake::Post;
use pillarbox_receiver::store::sqlite::SqliteStore;
use pillarbox_receiver::store::{RecordQuery, Row, Source, Store, StoreError};

use batches::Sender;

const SENDERS: usize = 9;
const BATCH: usize = 100;
/// A kind of which the database takes no record.
const REFUSED: u16 = 666;

fn spoiled(post: &Post) -> Arc<Post> {
    let mut post = post.clone();
    post.records[BATCH / 2].kind = REFUSED;
    Arc::new(post)
}

async fn log(store: &SqliteStore) -> Vec<Row> {
    store.log(RecordQuery { limit: 100_000, ..RecordQuery::default() }).await.expect("it is sound")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fails_is_undone_without_the_others() {
    let directory = tempfile::tempdir().expect("there is a disk");
    let path = directory.path().join("pillarbox.db");
    let store = Arc::new(SqliteStore::open(&path).expect("there is room"));
    let mut senders = Vec::new();
    for n in 0..SENDERS {
        senders.push(Sender::register(&*store, n).await);
    }
    let other = rusqlite::Connection::open(&path).expect("it is there");
    let refuse = format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON records WHEN new.kind = {REFUSED} BEGIN SELECT raise(FAIL, 'refused'); END"
    );
    other.execute_batch(&refuse).expect("it is SQL");

    // While another process writes, all of them gather for one transaction.
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    let mut tasks = Vec::new();
    for (n, sender) in senders.iter_mut().enumerate() {
        let (store, id, post) = (store.clone(), sender.id, sender.post(BATCH));
        let post = if n == SENDERS / 2 { spoiled(&post) } else { post };
        tasks.push(tokio::spawn(async move { store.take(id, post).await }));
    }
    for _ in 0..1000 {
        if store.queued() == SENDERS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(store.queued(), SENDERS, "they wait");
    other.execute_batch("COMMIT").expect("it is ours");

    for (n, task) in tasks.into_iter().enumerate() {
        let taken = task.await.expect("it does not panic");
        match n == SENDERS / 2 {
            true => assert!(matches!(taken, Err(StoreError::Unavailable(_))), "{taken:?}"),
            false => assert_eq!(taken.expect("it has nothing to do with the other").outcomes.len(), BATCH),
        }
    }
    let rows = log(&store).await;
    assert_eq!(rows.len(), (SENDERS - 1) * BATCH);
    let is_spoiled = |row: &Row| matches!(&row.source, Source::Device { key, .. } if key.device == senders[SENDERS / 2].device);
    assert!(!rows.iter().any(is_spoiled), "something of it is left");
    let places: Vec<u64> = rows.iter().filter_map(|row| row.position).map(|position| position.n()).collect();
    assert!(places.iter().copied().eq(1..=places.len() as u64), "a place is left out");

    // Sent again as it should be, it is taken, and so is what comes next.
    let again = Sender::stranger(SENDERS / 2).post(BATCH);
    let spoiled_id = senders[SENDERS / 2].id;
    store.take(spoiled_id, again).await.expect("there is room");
    let next = senders[0].post(BATCH);
    store.take(senders[0].id, next).await.expect("there is room");
    assert_eq!(log(&store).await.len(), (SENDERS + 1) * BATCH);
}
