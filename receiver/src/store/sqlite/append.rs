//! The end of the log: what is new goes there, many rows with one statement.

use std::sync::LazyLock;

use pillarbox::Key;
use rusqlite::Connection;
use rusqlite::types::ToSqlOutput;
use rusqlite::types::ValueRef::{self, Blob, Integer, Null};

use crate::intake::{Arrival, Judged, Post};
use crate::store::kept::{Run, runs};
use crate::store::{Position, Result, shard_of};

/// Rows of one statement, the most first. A statement costs about as much as a row.
const ROWS: [usize; 4] = [64, 16, 4, 1];

/// A failure undoes the whole batch; that SQLite can undo the statement alone is not worth a copy of every page.
static INSERTS: LazyLock<[String; ROWS.len()]> = LazyLock::new(|| {
    ROWS.map(|rows| {
        let rows: Vec<String> =
            (0..rows).map(|n| format!("(?1, ?2, ?3, ?4, ?5 + {n}, ?6 + {n}, ?, ?, ?, ?, ?)")).collect();
        format!(
            "INSERT OR FAIL INTO records (device, incarnation, lane, received_ms, position, counter, kind, boot, uptime_ms, \
             wall_ms, body) VALUES {}",
            rows.join(", ")
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
    let position = allocate(connection, shard_of(post.head.device.as_str(), shards), stored.len())?;
    let mut left = &stored[..];
    for run in runs(stored.iter().map(|record| record.key), position) {
        save_run(connection, device, &run)?;
        let (records, rest) = left.split_at_checked(run.len as usize).unwrap_or((left, &[]));
        insert_run(connection, device, post.now_ms, run, records)?;
        left = rest;
    }
    Ok(())
}

/// What a run has in common is bound once for each statement, and counted up from there.
fn insert_run(
    connection: &Connection,
    device: i64,
    now_ms: u64,
    mut run: Run,
    mut records: &[&Arrival],
) -> Result<()> {
    for (rows, sql) in ROWS.into_iter().zip(&*INSERTS) {
        while let Some((some, rest)) = records.split_at_checked(rows) {
            let mut statement = connection.prepare_cached(sql)?;
            let mut last = 0;
            let mut bind = |value: ValueRef<'_>| {
                last += 1;
                statement.raw_bind_parameter(last, ToSqlOutput::Borrowed(value))
            };
            let Key { incarnation, lane, counter } = run.key;
            let shared = [
                device,
                incarnation.into(),
                lane.into(),
                now_ms as i64,
                run.position.0 as i64,
                counter as i64,
            ];
            shared.into_iter().try_for_each(|number| bind(Integer(number)))?;
            for Arrival { kind, time, body, .. } in some {
                bind(Integer((*kind).into()))?;
                bind(Integer(time.boot.into()))?;
                bind(Integer(time.uptime_ms as i64))?;
                bind(time.wall_ms.map_or(Null, |ms| Integer(ms as i64)))?;
                bind(Blob(body))?;
            }
            statement.raw_execute()?;
            run.key.counter += rows as u64;
            run.position.0 += rows as u64;
            records = rest;
        }
    }
    Ok(())
}

/// The first of so many places at the end of a shard.
pub(super) fn allocate(connection: &Connection, shard: u16, count: usize) -> Result<Position> {
    // RETURNING would make a table in memory for its one row.
    let sql = "SELECT head FROM shards WHERE shard = ?";
    let head: i64 = connection.prepare_cached(sql)?.query_row([shard], |row| row.get(0))?;
    let sql = "UPDATE shards SET head = ? WHERE shard = ?";
    connection.prepare_cached(sql)?.execute((head + count as i64, shard))?;
    Ok(Position::new(shard, (head + 1) as u64))
}

fn save_run(connection: &Connection, device: i64, run: &Run) -> Result<()> {
    let sql = "INSERT INTO runs (device, incarnation, lane, first, len, position) VALUES (?, ?, ?, ?, ?, ?)";
    let Key { incarnation, lane, counter } = run.key;
    let parameters = (device, incarnation, lane, counter as i64, run.len as i64, run.position.0 as i64);
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}
