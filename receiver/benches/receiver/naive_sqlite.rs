//! The peer on SQLite: a row for every key with its expiry, a row for the record, and a row in an outbox, in one transaction for
//! each batch, with the same settings.

use std::path::Path;
use std::sync::Arc;

use pillarbox_receiver::intake::Post;
use rusqlite::Connection;

pub(crate) fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("there is room");
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32768;
             CREATE TABLE keys (key TEXT PRIMARY KEY, hash BLOB NOT NULL, expires_ms INTEGER NOT NULL) WITHOUT ROWID;
             CREATE TABLE records (id INTEGER PRIMARY KEY, device TEXT NOT NULL, kind INTEGER NOT NULL,
                                   boot INTEGER NOT NULL, uptime_ms INTEGER NOT NULL, wall_ms INTEGER, body BLOB NOT NULL);
             CREATE TABLE outbox (id INTEGER PRIMARY KEY, record INTEGER NOT NULL, published_ms INTEGER);",
        )
        .expect("it is empty");
    connection.set_prepared_statement_cache_capacity(16);
    connection
}

/// Takes batches in one transaction.
pub(crate) fn take(connection: &mut Connection, posts: &[Arc<Post>]) {
    let transaction = connection.transaction().expect("nobody else writes");
    let sql = "INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
    let mut key = transaction.prepare_cached(sql).expect("it is SQL");
    let sql = "INSERT INTO records (device, kind, boot, uptime_ms, wall_ms, body) VALUES (?, ?, ?, ?, ?, ?)";
    let mut record = transaction.prepare_cached(sql).expect("it is SQL");
    let mut outbox = transaction.prepare_cached("INSERT INTO outbox (record) VALUES (?)").expect("it is SQL");
    for (post, arrival) in posts.iter().flat_map(|post| post.records.iter().map(move |record| (post, record)))
    {
        let name = arrival.key.of(&post.head.device).to_string();
        let is_new = key.execute((name, arrival.fingerprint(), post.now_ms as i64)).expect("there is room");
        if is_new == 1 {
            let time = arrival.time;
            let wall_ms = time.wall_ms.map(|ms| ms as i64);
            let device = post.head.device.as_str();
            let row = (device, arrival.kind, time.boot, time.uptime_ms as i64, wall_ms, &arrival.body[..]);
            record.execute(row).expect("there is room");
            outbox.execute([transaction.last_insert_rowid()]).expect("there is room");
        }
    }
    drop((key, record, outbox));
    transaction.commit().expect("there is room");
}
