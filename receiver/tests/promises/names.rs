//! What a database is called, and which programs may open it.

use std::sync::Arc;

use pillarbox_receiver::store::sqlite::SqliteStore;
use pillarbox_receiver::store::{self, Store, StoreError};
use receiver_testkit::Postgres;

use super::{Device, Fresh, everything, on_both};

on_both! {
    everything_stays_over_a_restart,
    a_database_of_a_newer_program_is_refused,
    another_epoch_is_everybodys,
}

async fn everything_stays_over_a_restart(fresh: Fresh) {
    let device = fresh.device("meter").await;
    device.take(&device.batch(0..10)).await;
    let again = fresh.another().await;
    assert_eq!(again.epoch(), fresh.store.epoch());
    assert_eq!(again.shards(), fresh.store.shards());
    assert_eq!(again.log(everything()).await.expect("it is sound"), fresh.log().await);
    again.is_ready().await.expect("it can be written to");
}

async fn a_database_of_a_newer_program_is_refused(fresh: Fresh) {
    match fresh.name.starts_with("postgres://") {
        true => fresh.sql("UPDATE meta SET version = 99"),
        false => fresh.sql("PRAGMA user_version = 99"),
    }
    let refused = store::open(&fresh.name).await.err().expect("it is newer");
    assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
    let sentence = refused.to_string();
    assert!(sentence.contains("99") && sentence.contains("use a newer pillarbox"), "{sentence}");
}

async fn another_epoch_is_everybodys(fresh: Fresh) {
    let other = fresh.another().await;
    let before = fresh.store.epoch();
    let renewed = fresh.store.renew_epoch().await.expect("it can be written to");
    assert_ne!(renewed, before);
    assert_eq!(fresh.store.epoch(), renewed);
    assert_eq!(fresh.another().await.epoch(), renewed);
    // One that is running hears of it with the next batch, if others may run beside it at all.
    if fresh.name.starts_with("postgres://") {
        let device = fresh.device("meter").await;
        other.take(device.id, Arc::new(device.batch(0..1))).await.expect("there is room");
        assert_eq!(other.epoch(), renewed);
    }
}

#[tokio::test]
async fn a_backup_that_was_put_back_has_another_epoch() {
    let directory = tempfile::tempdir().expect("there is a disk");
    let store = SqliteStore::open(&directory.path().join("first.db")).expect("there is room");
    let copy = directory.path().join("copy.db");
    store.backup(&copy).await.expect("there is room");
    let first = store::Store::epoch(&store);
    let looked_at = SqliteStore::open(&copy).expect("it is sound");
    assert_eq!(store::Store::epoch(&looked_at), first, "who only looks at a backup does not use it up");
    drop(looked_at);
    let put_back = SqliteStore::open(&copy).expect("it is sound");
    put_back.begin().await.expect("there is room");
    assert_ne!(store::Store::epoch(&put_back), first);
    let again = SqliteStore::open(&copy).expect("it is sound");
    again.begin().await.expect("there is room");
    assert_eq!(store::Store::epoch(&again), store::Store::epoch(&put_back), "it is no backup any more");
}

#[tokio::test]
async fn a_database_of_another_program_is_refused_unchanged() {
    let directory = tempfile::tempdir().expect("there is a disk");
    for (n, theirs) in ["CREATE TABLE orders (id)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
        .iter()
        .enumerate()
    {
        let path = directory.path().join(format!("{n}.db"));
        rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(theirs)).expect("there is room");
        let before = std::fs::read(&path).expect("it is there");
        let refused = SqliteStore::open(&path).err().expect("it is not ours").to_string();
        assert!(refused.contains("not Pillarbox's"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("it is there"), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_in_another_database_has_another_epoch() {
    let fresh = Fresh::postgres().await;
    let device = fresh.device("meter").await;
    device.take(&device.batch(0..10)).await;
    let url = tokio::task::block_in_place(|| {
        let url = Postgres::shared().fresh_database();
        Postgres::shared().copy(&fresh.name, &url);
        url
    });
    let copy = store::open(&url).await.expect("it is sound");
    assert_ne!(copy.epoch(), fresh.store.epoch());
    assert_eq!(copy.log(everything()).await.expect("it is sound"), fresh.log().await);
    assert_eq!(store::open(&url).await.expect("it is sound").epoch(), copy.epoch());
    assert_eq!(fresh.another().await.epoch(), fresh.store.epoch(), "the first one keeps its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_receivers_may_open_a_new_database_at_once() {
    let url = tokio::task::block_in_place(|| Postgres::shared().fresh_database());
    let open = || {
        let url = url.clone();
        tokio::spawn(async move { store::open(&url).await.map(|store| store.epoch()) })
    };
    let opened: Vec<_> = (0..6).map(|_| open()).collect();
    let mut epochs = Vec::new();
    for one in opened {
        epochs.push(one.await.expect("it does not panic").expect("it can be opened"));
    }
    epochs.dedup();
    assert_eq!(epochs.len(), 1, "{epochs:?}");
}

#[tokio::test]
async fn what_cannot_be_opened_is_said_without_the_password() {
    // Nobody listens at port 1.
    let nowhere = "postgres://me:hunter2@127.0.0.1:1/pillarbox";
    let wrong = [
        nowhere,
        "postgres://me:hunter2@host:port/x",
        "postgres://me:hun?ter2@host/x",
        "postgresql://h:hunter2@@",
    ];
    for url in wrong {
        let error = store::open(url).await.err().expect("there is no such server").to_string();
        assert!(!error.contains("hunter2") && !error.contains("ter2"), "{error}");
    }
    let error = store::open(nowhere).await.err().expect("nobody listens");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_are_durable_whatever_the_server_is_used_to() {
    let fresh = Fresh::postgres().await;
    fresh.sql("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET synchronous_commit = off'; END $$");
    let another = fresh.another().await;
    let device = Device::add(another, "meter", "default").await;
    device.take(&device.batch(0..1)).await;
    // A trigger sees the setting of the transaction that writes.
    fresh.sql(
        "CREATE TABLE witness (setting TEXT); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO witness VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$; \
         CREATE TRIGGER note AFTER INSERT ON records FOR EACH ROW EXECUTE FUNCTION note()",
    );
    device.take(&device.batch(1..3)).await;
    let seen = tokio::task::block_in_place(|| {
        Postgres::shared().query(&fresh.name, "SELECT DISTINCT setting FROM witness")
    });
    assert_eq!(seen, "on");
}

/// A row that leaves its page with every batch would leave a dead entry in every index, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_with_every_batch_stays_in_its_page() {
    let fresh = Fresh::postgres().await;
    let mut work = Vec::new();
    for n in 0..20 {
        let device = fresh.device(&format!("meter-{n}")).await;
        work.push(tokio::spawn(async move {
            for first in 0..50 {
                let mut post = device.batch(first..first + 2);
                post.head.issued += first % 4;
                device.take(&post).await;
            }
        }));
    }
    for work in work {
        work.await.expect("it does not panic");
    }
    let (url, sql) = (
        fresh.name.clone(),
        "SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables \
                       WHERE relname IN ('lanes', 'shards')",
    );
    // A connection tells what it has counted when it ends.
    drop(fresh);
    let told = || Postgres::shared().query(&url, sql);
    let mut counted = String::new();
    for _ in 0..100 {
        counted = tokio::task::block_in_place(told);
        let updated = counted.split('|').next().and_then(|count| count.parse::<u64>().ok());
        if updated.is_some_and(|count| count > 1000) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let (updated, in_place) = counted.split_once('|').expect("there are two numbers");
    let (updated, in_place): (u64, u64) =
        (updated.parse().expect("a number"), in_place.parse().expect("a number"));
    assert!(updated > 1000 && in_place * 10 > updated * 9, "{in_place} of {updated} updates");
}
