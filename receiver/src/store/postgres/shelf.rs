//! Records, as those read them who come later: by key, by place in the log, and those that are kept aside.

use deadpool_postgres::Object;
use pillarbox::{DeviceKey, Key, Timestamp};
use tokio_postgres::Row as SqlRow;

use super::{Parameters, all, bits, column, first, narrow, option_bits, option_wide, wide};
use crate::store::kept::{RawRow, RawSource, places};
use crate::store::{Position, RecordQuery, Result, Row, StoreError};

/// The columns that [`read`] reads; of what is kept aside the place is that of its arrival.
const LOGGED: &str = "SELECT r.position, NULL::integer, r.device, r.incarnation, r.lane, r.counter, r.kind, r.boot, r.uptime_ms, \
                      r.wall_ms, r.received_ms, r.body, coalesce(r.tenant, devices.tenant), devices.name, client_key, \
                      content_type, next.boot, next.after_ms, next.started_ms \
                      FROM records AS r LEFT JOIN devices ON devices.id = r.device";
const ASIDE: &str = "SELECT r.id, r.aside, r.device, r.incarnation, r.lane, r.counter, r.kind, r.boot, r.uptime_ms, r.wall_ms, \
                     r.received_ms, r.body, devices.tenant, devices.name, NULL, NULL, next.boot, next.after_ms, next.started_ms \
                     FROM asides AS r JOIN devices ON devices.id = r.device";
/// The first boot from the record's own on that was heard of, for records whose device did not know the time.
const NEXT_BOOT: &str = "LEFT JOIN LATERAL (SELECT boot, after_ms, started_ms FROM boots WHERE r.wall_ms IS NULL \
                         AND boots.device = r.device AND boots.incarnation = r.incarnation AND boots.boot >= r.boot \
                         ORDER BY boots.boot LIMIT 1) AS next ON TRUE";

fn read(row: &SqlRow) -> Result<Row> {
    let device: Option<i64> = column(row, 2)?;
    let from = match device {
        Some(_) => read_device(row)?,
        None => RawSource::Client { key: column(row, 14)?, content_type: column(row, 15)? },
    };
    let aside: Option<i32> = column(row, 1)?;
    RawRow {
        place: bits(row, 0)?,
        aside: aside.map(|number| u8::try_from(number).unwrap_or(u8::MAX)),
        tenant: column(row, 12)?,
        kind: narrow(row, 6)?,
        received_ms: bits(row, 10)?,
        body: column(row, 11)?,
        from,
    }
    .row()
}

fn read_device(row: &SqlRow) -> Result<RawSource> {
    let key = Key { incarnation: wide(row, 3)?, lane: narrow(row, 4)?, counter: bits(row, 5)? };
    let time = Timestamp { boot: wide(row, 7)?, uptime_ms: bits(row, 8)?, wall_ms: option_bits(row, 9)? };
    let next_boot = match (option_wide(row, 16)?, option_bits(row, 18)?) {
        (Some(boot), Some(started_ms)) => Some((boot, option_bits(row, 17)?, started_ms)),
        _ => None,
    };
    Ok(RawSource::Device { name: column(row, 13)?, key, time, next_boot })
}

pub(super) async fn get(client: &Object, key: &DeviceKey) -> Result<Vec<Row>> {
    let Key { incarnation, lane, counter } = key.key;
    let (incarnation, lane, counter) = (i64::from(incarnation), i32::from(lane), counter as i64);
    let parameters: Parameters<'_> = &[&key.device.as_str(), &incarnation, &lane, &counter];
    let sql = format!(
        "{LOGGED} {NEXT_BOOT} WHERE r.position = (SELECT CASE WHEN $4 - first < len THEN position + ($4 - first) END \
         FROM runs WHERE device = (SELECT id FROM devices WHERE name = $1) AND incarnation = $2 AND lane = $3 AND first <= $4 \
         ORDER BY first DESC LIMIT 1)"
    );
    let mut rows = all(client, &sql, parameters, read).await?;
    let sql = format!(
        "{ASIDE} {NEXT_BOOT} WHERE r.device = (SELECT id FROM devices WHERE name = $1) AND r.incarnation = $2 AND r.lane = $3 \
         AND r.counter = $4 ORDER BY r.id"
    );
    rows.extend(all(client, &sql, parameters, read).await?);
    Ok(rows)
}

pub(super) async fn log(client: &Object, shards: u16, query: &RecordQuery) -> Result<Vec<Row>> {
    // The places of a shard lie together.
    let (behind, to) = places(query, shards);
    let sql = format!(
        "{LOGGED} {NEXT_BOOT} WHERE r.position > $1 AND r.position <= $2 AND {WANTED} \
         AND ($4::text IS NULL OR coalesce(r.tenant, devices.tenant) = $4) ORDER BY r.position LIMIT $6"
    );
    list(client, &sql, (behind, to), query).await
}

pub(super) async fn asides(client: &Object, query: &RecordQuery) -> Result<Vec<Row>> {
    let behind = query.after.map_or(-1, |position| i64::try_from(position.0).unwrap_or(i64::MAX));
    let sql = format!(
        "{ASIDE} {NEXT_BOOT} WHERE r.id > $1 AND r.id <= $2 AND {WANTED} AND ($4::text IS NULL OR devices.tenant = $4) \
         ORDER BY r.id LIMIT $6"
    );
    list(client, &sql, (behind, i64::MAX), query).await
}

/// What a query asks for beside a place and a tenant.
const WANTED: &str = "($3::text IS NULL OR devices.name = $3) AND ($5::integer IS NULL OR r.kind = $5)";

async fn list(client: &Object, sql: &str, (behind, to): (i64, i64), query: &RecordQuery) -> Result<Vec<Row>> {
    let (kind, limit) = (query.kind.map(i32::from), i64::from(query.limit));
    all(client, sql, &[&behind, &to, &query.device, &query.tenant, &kind, &limit], read).await
}

pub(super) async fn heads(client: &Object) -> Result<Vec<Position>> {
    all(client, "SELECT shard, head FROM shards ORDER BY shard", &[], |row| {
        Ok(Position::new(narrow(row, 0)?, bits(row, 1)?))
    })
    .await
}

pub(super) async fn count(client: &Object, device: i64, incarnation: u32, lane: u8) -> Result<u64> {
    let sql = "SELECT (SELECT count(*) FROM runs JOIN records ON records.position >= runs.position \
                   AND records.position < runs.position + runs.len \
                   AND records.counter - runs.first = records.position - runs.position AND records.device = runs.device \
                   AND records.incarnation = runs.incarnation AND records.lane = runs.lane \
                   WHERE runs.device = $1 AND runs.incarnation = $2 AND runs.lane = $3) \
               + (SELECT count(*) FROM asides WHERE device = $1 AND incarnation = $2 AND lane = $3 AND aside = 0)";
    let (incarnation, lane) = (i64::from(incarnation), i32::from(lane));
    let counted = first(client, sql, &[&device, &incarnation, &lane], |row| bits(row, 0)).await?;
    counted.ok_or_else(|| StoreError::Damaged("a count gave nothing".into()))
}
