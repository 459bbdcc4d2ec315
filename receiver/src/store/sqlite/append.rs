//! The end of the log: what is new goes there, many rows with one statement.

use std::sync::LazyLock;

use pillarbox::Key;
use rusqlite::Connection;

use crate::intake::{Arrival, Judged, Post};
use crate::store::kept::{Run, runs};
use crate::store::{Position, Result, shard_of};

/// Rows of one statement, the most first. A statement costs about as much as a row.
const ROWS: [usize; 4] = [64, 16, 4, 1];

/// A failure undoes the whole batch; that SQLite can undo the statement alone is not worth a copy of every page.
static INSERTS: LazyLock<[String; ROWS.len()]> = LazyLock::new(|| {
    ROWS.map(|rows| {
        let rows = vec!["(?1, ?2, ?3, ?4, ?5, ?, ?, ?, ?, ?, ?)"; rows].join(", ");
        format!(
            "INSERT OR FAIL INTO records (device, incarnation, lane, boot, received_ms, position, counter, kind, uptime_ms, \
             wall_ms, body) VALUES {rows}"
        )
    })
});

/// Appends what is new to the log.
pub(super) fn append(
    connection: &Connection,
    shards: u16,
    device: i64,
    judged: &Judged<'_>,
    post: &Post,
) -> Result<()> {
    let stored: Vec<&Arrival> = judged.stored().filter_map(|n| post.arrival(n)).collect();
    if stored.is_empty() {
        return Ok(());
    }
    let mut position = allocate(connection, shard_of(post.head.device.as_str(), shards), stored.len())?;
    for run in runs(stored.iter().map(|record| record.key), position) {
        save_run(connection, device, &run)?;
    }
    for mut alike in stored.chunk_by(|one, next| shared(one) == shared(next)) {
        for (rows, sql) in ROWS.into_iter().zip(&*INSERTS) {
            while let Some((records, rest)) = alike.split_at_checked(rows) {
                insert(connection, sql, (device, post.now_ms), records, position)?;
                position.0 += rows as u64;
                alike = rest;
            }
        }
    }
    Ok(())
}

/// What the rows of one statement have in common, beside the device and when they came.
fn shared(record: &Arrival) -> (u32, u8, u32) {
    (record.key.incarnation, record.key.lane, record.time.boot)
}

fn insert(
    connection: &Connection,
    sql: &str,
    (device, now_ms): (i64, u64),
    records: &[&Arrival],
    first: Position,
) -> Result<()> {
    let Some((incarnation, lane, boot)) = records.first().map(|record| shared(record)) else { return Ok(()) };
    let mut statement = connection.prepare_cached(sql)?;
    let mut last = 0;
    let mut bind = |value: &dyn rusqlite::ToSql| {
        last += 1;
        statement.raw_bind_parameter(last, value)
    };
    bind(&device)?;
    bind(&incarnation)?;
    bind(&lane)?;
    bind(&boot)?;
    bind(&(now_ms as i64))?;
    for (position, record) in (first.0..).zip(records) {
        bind(&(position as i64))?;
        bind(&(record.key.counter as i64))?;
        bind(&record.kind)?;
        bind(&(record.time.uptime_ms as i64))?;
        bind(&record.time.wall_ms.map(|ms| ms as i64))?;
        bind(&&record.body[..])?;
    }
    statement.raw_execute()?;
    Ok(())
}

/// The first of so many places at the end of a shard.
pub(super) fn allocate(connection: &Connection, shard: u16, count: usize) -> Result<Position> {
    let count = count as i64;
    let sql = "UPDATE shards SET head = head + ? WHERE shard = ? RETURNING head";
    let head: i64 = connection.prepare_cached(sql)?.query_row((count, shard), |row| row.get(0))?;
    Ok(Position::new(shard, (head - count + 1) as u64))
}

fn save_run(connection: &Connection, device: i64, run: &Run) -> Result<()> {
    let sql = "INSERT INTO runs (device, incarnation, lane, first, len, position) VALUES (?, ?, ?, ?, ?, ?)";
    let Key { incarnation, lane, counter } = run.key;
    let parameters = (device, incarnation, lane, counter as i64, run.len as i64, run.position.0 as i64);
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}
