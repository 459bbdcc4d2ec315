//! What batches have changed, on its way into the database: each table with one statement, whatever the number of batches. The log is the
//! last, so that its shards are locked for as short as can be.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;

use bytes::Bytes;
use deadpool_postgres::Object;
use futures_util::SinkExt;
use futures_util::future::{join, join3, join4};
use pillarbox::Key;
use tokio_postgres::{CopyInSink, Error, Statement};

use super::asides::{self, Asides};
use super::copy::{COPY, Rows};
use super::take::{Attempt, Known};
use super::{Parameters, bits, narrow};
use crate::intake::{Arrival, Incarnation, LaneState, Scene};
use crate::store::kept::{Run, pack_report, runs, summed};
use crate::store::{Position, Result, StoreError};

/// What batches leave behind beside the scenes.
#[derive(Default)]
pub(super) struct Changed<'p> {
    pub(super) stored: Vec<Stored<'p>>,
    pub(super) asides: Asides<'p>,
}

/// What goes to the log from one batch.
pub(super) struct Stored<'p> {
    pub(super) device: i64,
    pub(super) shard: u16,
    pub(super) received_ms: u64,
    pub(super) records: Vec<&'p Arrival>,
}

const DEVICES: &str = "UPDATE devices SET current_incarnation = new.current, stale = new.stale, conflicts = new.conflicts, \
                       interleavings = new.interleavings, has_asides = new.has_asides \
                       FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[]) \
                       AS new (id, current, stale, conflicts, interleavings, has_asides) WHERE devices.id = new.id";
const PROMOTE: &str = "UPDATE devices SET secret = next_secret, next_secret = NULL \
                       WHERE id = ANY($1::bigint[]) AND next_secret IS NOT NULL";
const INCARNATIONS: &str = "INSERT INTO incarnations (device, incarnation, boot, nonce, started_ms, first_heard_ms, is_fenced, \
                            is_given_up) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], \
                            $5::bigint[], $6::bigint[], $7::boolean[], $8::boolean[]) \
                            ON CONFLICT (device, incarnation) DO UPDATE SET boot = excluded.boot, nonce = excluded.nonce, \
                            started_ms = excluded.started_ms, is_given_up = excluded.is_given_up";
const LANES: &str = "INSERT INTO lanes (device, incarnation, lane, books, heard_ms, mark, mark_ms, clock_offset_ms, report_ms, \
                     report, pending, unexplained, lost) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::integer[], \
                     $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], \
                     $11::bigint[], $12::bigint[], $13::bigint[]) ON CONFLICT (device, incarnation, lane) DO UPDATE SET \
                     books = excluded.books, heard_ms = excluded.heard_ms, mark = excluded.mark, mark_ms = excluded.mark_ms, \
                     clock_offset_ms = excluded.clock_offset_ms, report_ms = excluded.report_ms, report = excluded.report, \
                     pending = excluded.pending, unexplained = excluded.unexplained, lost = excluded.lost";
const BOOTS: &str = "INSERT INTO boots (device, incarnation, boot, after_ms, started_ms) SELECT * FROM unnest($1::bigint[], \
                     $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) \
                     ON CONFLICT (device, incarnation, boot) DO UPDATE SET started_ms = excluded.started_ms";
/// Everybody locks shards in their order: the update begins when all of them are had.
const SHARDS: &str = "WITH locked AS (SELECT shard FROM shards WHERE shard = ANY($1::integer[]) ORDER BY shard \
                          FOR NO KEY UPDATE) \
                      UPDATE shards SET head = head + new.count FROM unnest($1::integer[], $2::bigint[]) AS new (shard, count) \
                      WHERE shards.shard = new.shard AND (SELECT count(*) FROM locked) > 0 \
                      RETURNING shards.shard, shards.head - new.count";
const RUNS: &str = "INSERT INTO runs (device, incarnation, lane, first, len, position) SELECT * FROM unnest($1::bigint[], \
                    $2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[])";

/// The statements that write.
pub(super) struct Statements {
    devices: Statement,
    promote: Statement,
    incarnations: Statement,
    lanes: Statement,
    boots: Statement,
    asides: asides::Statements,
    shards: Statement,
    copy: Statement,
    runs: Statement,
}

impl Statements {
    pub(super) async fn prepare(client: &Object) -> Result<Self> {
        Ok(Self {
            devices: client.prepare_cached(DEVICES).await?,
            promote: client.prepare_cached(PROMOTE).await?,
            incarnations: client.prepare_cached(INCARNATIONS).await?,
            lanes: client.prepare_cached(LANES).await?,
            boots: client.prepare_cached(BOOTS).await?,
            asides: asides::Statements::prepare(client).await?,
            shards: client.prepare_cached(SHARDS).await?,
            copy: client.prepare_cached(COPY).await?,
            runs: client.prepare_cached(RUNS).await?,
        })
    }
}

/// Writes everything, and commits. If any of it fails, the commit does nothing either.
pub(super) async fn save(
    client: &Object,
    statements: &Statements,
    devices: &BTreeMap<i64, Result<Known>>,
    changed: Changed<'_>,
) -> Attempt<()> {
    let devices: Devices<'_> =
        devices.iter().filter_map(|(id, known)| Some((*id, known.as_ref().ok()?))).collect();
    let books = join4(
        save_devices(client, statements, &devices),
        save_incarnations(client, &statements.incarnations, &devices),
        save_lanes(client, &statements.lanes, &devices),
        save_boots(client, &statements.boots, &devices),
    );
    let asides = changed.asides.save(client, &statements.asides);
    if changed.stored.is_empty() {
        let ((devices, incarnations, lanes, boots), asides, committed) =
            join3(books, asides, client.batch_execute("COMMIT")).await;
        devices.and(incarnations).and(lanes).and(boots).and(asides)?;
        return Ok(committed?);
    }
    let log = join(allocate(client, &statements.shards, &changed.stored), client.copy_in(&statements.copy));
    let ((devices, incarnations, lanes, boots), asides, (heads, log)) = join3(books, asides, log).await;
    devices.and(incarnations).and(lanes).and(boots).and(asides)?;
    let (rows, runs) = lay_out(heads?, &changed.stored)?;
    let log = pin!(log?);
    let (copied, run, committed) =
        join3(append(log, rows), save_runs(client, &statements.runs, &runs), client.batch_execute("COMMIT"))
            .await;
    copied?;
    run?;
    Ok(committed?)
}

type Devices<'k> = Vec<(i64, &'k Known)>;
pub(super) type Written = std::result::Result<(), Error>;

/// Sends a statement when it is first polled, if there is anything to write.
pub(super) async fn when(
    is_needed: bool,
    sent: impl Future<Output = std::result::Result<u64, Error>>,
) -> Written {
    if is_needed { sent.await.map(drop) } else { Ok(()) }
}

async fn save_devices(client: &Object, statements: &Statements, devices: &Devices<'_>) -> Written {
    let of =
        |scene: &Scene| (scene.current, scene.stale, scene.conflicts, scene.interleavings, scene.has_asides);
    let changed: Vec<(i64, &Scene)> = devices
        .iter()
        .filter(|(_, known)| of(&known.before) != of(&known.scene))
        .map(|(id, known)| (*id, &known.scene))
        .collect();
    let ids: Vec<i64> = changed.iter().map(|(id, _)| *id).collect();
    let current: Vec<Option<i64>> = changed.iter().map(|(_, scene)| scene.current.map(i64::from)).collect();
    let stale: Vec<i64> = changed.iter().map(|(_, scene)| scene.stale as i64).collect();
    let conflicts: Vec<i64> = changed.iter().map(|(_, scene)| scene.conflicts as i64).collect();
    let interleavings: Vec<i64> = changed.iter().map(|(_, scene)| scene.interleavings as i64).collect();
    let has_asides: Vec<bool> = changed.iter().map(|(_, scene)| scene.has_asides).collect();
    let promoted: Vec<i64> =
        devices.iter().filter(|(_, known)| known.is_promoted).map(|(id, _)| *id).collect();
    let (update, promote) = join(
        when(
            !ids.is_empty(),
            client.execute(
                &statements.devices,
                &[&ids, &current, &stale, &conflicts, &interleavings, &has_asides],
            ),
        ),
        when(!promoted.is_empty(), client.execute(&statements.promote, &[&promoted])),
    )
    .await;
    update.and(promote)
}

async fn save_incarnations(client: &Object, statement: &Statement, devices: &Devices<'_>) -> Written {
    let mut changed: Vec<(i64, u32, &Incarnation, u64)> = Vec::new();
    for (id, known) in devices {
        for (name, incarnation) in &known.scene.incarnations {
            let is_same = known.before.incarnations.get(name).is_some_and(|before| {
                Incarnation { heard_ms: incarnation.heard_ms, ..before.clone() } == *incarnation
            });
            if !is_same {
                let heard_of_ms = known.heard_of_ms.get(name).copied().unwrap_or_default();
                changed.push((*id, *name, incarnation, heard_of_ms));
            }
        }
    }
    let ids: Vec<i64> = changed.iter().map(|(id, ..)| *id).collect();
    let names: Vec<i64> = changed.iter().map(|(_, name, ..)| i64::from(*name)).collect();
    let boots: Vec<Option<i64>> = changed.iter().map(|(_, _, it, _)| Some(it.boot?.0.into())).collect();
    let nonces: Vec<Option<i64>> = changed.iter().map(|(_, _, it, _)| Some(it.boot?.1.into())).collect();
    let started: Vec<i64> = changed.iter().map(|(_, _, it, _)| it.started_ms as i64).collect();
    let heard_of: Vec<i64> = changed.iter().map(|(.., ms)| *ms as i64).collect();
    let fenced: Vec<bool> = changed.iter().map(|(_, _, it, _)| it.is_fenced).collect();
    let given_up: Vec<bool> = changed.iter().map(|(_, _, it, _)| it.is_given_up).collect();
    let parameters: Parameters<'_> =
        &[&ids, &names, &boots, &nonces, &started, &heard_of, &fenced, &given_up];
    when(!ids.is_empty(), client.execute(statement, parameters)).await
}

async fn save_lanes(client: &Object, statement: &Statement, devices: &Devices<'_>) -> Written {
    let mut changed: Vec<(i64, u32, u8, &LaneState)> = Vec::new();
    for (id, known) in devices {
        for ((incarnation, lane), state) in &known.scene.lanes {
            if known.before.lanes.get(&(*incarnation, *lane)) != Some(state) {
                changed.push((*id, *incarnation, *lane, state));
            }
        }
    }
    let of = |number: fn(&LaneState) -> u64| -> Vec<i64> {
        changed.iter().map(|(.., state)| number(state) as i64).collect()
    };
    let ids: Vec<i64> = changed.iter().map(|(id, ..)| *id).collect();
    let incarnations: Vec<i64> = changed.iter().map(|(_, name, ..)| i64::from(*name)).collect();
    let lanes: Vec<i32> = changed.iter().map(|(_, _, lane, _)| i32::from(*lane)).collect();
    let books: Vec<Vec<u8>> = changed.iter().map(|(.., state)| state.books.encode()).collect();
    let offsets: Vec<Option<i64>> = changed.iter().map(|(.., state)| state.clock_offset_ms).collect();
    let report = |(.., state): &(i64, u32, u8, &LaneState)| state.report.clone();
    let report_ms: Vec<Option<i64>> = changed.iter().map(|it| Some(report(it)?.0 as i64)).collect();
    let reports: Vec<Option<Vec<u8>>> = changed.iter().map(|it| Some(pack_report(&report(it)?.1))).collect();
    let parameters: Parameters<'_> = &[
        &ids,
        &incarnations,
        &lanes,
        &books,
        &of(|state| state.heard_ms),
        &of(|state| state.mark),
        &of(|state| state.mark_ms),
        &offsets,
        &report_ms,
        &reports,
        &of(|state| summed(state.books.ledger().pending) as u64),
        &of(|state| summed(state.books.ledger().unexplained) as u64),
        &of(|state| summed(state.books.ledger().lost()) as u64),
    ];
    when(!ids.is_empty(), client.execute(statement, parameters)).await
}

async fn save_boots(client: &Object, statement: &Statement, devices: &Devices<'_>) -> Written {
    let boots: Vec<_> =
        devices.iter().flat_map(|(id, known)| known.boots.values().map(|boot| (*id, *boot))).collect();
    let ids: Vec<i64> = boots.iter().map(|(id, _)| *id).collect();
    let incarnations: Vec<i64> = boots.iter().map(|(_, boot)| boot.incarnation.into()).collect();
    let numbers: Vec<i64> = boots.iter().map(|(_, boot)| boot.boot.into()).collect();
    let after: Vec<Option<i64>> = boots.iter().map(|(_, boot)| boot.after_ms.map(|ms| ms as i64)).collect();
    let started: Vec<i64> = boots.iter().map(|(_, boot)| boot.started_ms as i64).collect();
    let parameters: Parameters<'_> = &[&ids, &incarnations, &numbers, &after, &started];
    when(!ids.is_empty(), client.execute(statement, parameters)).await
}

/// Keys as columns.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) devices: Vec<i64>,
    pub(super) incarnations: Vec<i64>,
    pub(super) lanes: Vec<i32>,
    pub(super) counters: Vec<i64>,
}

impl Keys {
    pub(super) fn of(keys: impl Iterator<Item = (i64, Key)>) -> Self {
        let mut columns = Self::default();
        for (device, Key { incarnation, lane, counter }) in keys {
            columns.devices.push(device);
            columns.incarnations.push(incarnation.into());
            columns.lanes.push(lane.into());
            columns.counters.push(counter as i64);
        }
        columns
    }
}

/// Locks the shards, and gives the first place in each that is nobody's yet.
async fn allocate(
    client: &Object,
    statement: &Statement,
    stored: &[Stored<'_>],
) -> Attempt<BTreeMap<u16, Position>> {
    let mut counts: BTreeMap<u16, i64> = BTreeMap::new();
    for batch in stored {
        *counts.entry(batch.shard).or_default() += batch.records.len() as i64;
    }
    let shards: Vec<i32> = counts.keys().map(|shard| i32::from(*shard)).collect();
    let counts: Vec<i64> = counts.into_values().collect();
    let mut heads = BTreeMap::new();
    for row in client.query(statement, &[&shards, &counts]).await? {
        let shard: u16 = narrow(&row, 0)?;
        heads.insert(shard, Position::new(shard, bits(&row, 1)? + 1));
    }
    Ok(heads)
}

/// Gives every record its place.
fn lay_out(mut heads: BTreeMap<u16, Position>, stored: &[Stored<'_>]) -> Result<(Bytes, Vec<(i64, Run)>)> {
    let records = stored.iter().flat_map(|batch| &batch.records);
    let bodies = records.clone().map(|record| record.body.len()).sum();
    let mut rows = Rows::with_room(records.count(), bodies);
    let mut all_runs = Vec::new();
    for batch in stored {
        let missing = || StoreError::Damaged(format!("the shard {} is missing", batch.shard));
        let head = heads.get_mut(&batch.shard).ok_or_else(missing)?;
        let keys = batch.records.iter().map(|record| record.key);
        all_runs.extend(runs(keys, *head).into_iter().map(|run| (batch.device, run)));
        for record in &batch.records {
            rows.push(*head, batch.device, batch.received_ms, record);
            head.0 += 1;
        }
    }
    Ok((rows.end(), all_runs))
}

async fn append(mut log: std::pin::Pin<&mut CopyInSink<Bytes>>, rows: Bytes) -> Written {
    log.send(rows).await?;
    log.finish().await.map(drop)
}

async fn save_runs(client: &Object, statement: &Statement, runs: &[(i64, Run)]) -> Written {
    let keys = Keys::of(runs.iter().map(|(device, run)| (*device, run.key)));
    let lens: Vec<i64> = runs.iter().map(|(_, run)| run.len as i64).collect();
    let positions: Vec<i64> = runs.iter().map(|(_, run)| run.position.0 as i64).collect();
    let parameters: Parameters<'_> =
        &[&keys.devices, &keys.incarnations, &keys.lanes, &keys.counters, &lens, &positions];
    client.execute(statement, parameters).await.map(drop)
}
