//! Records, as those read them who come later: by key, by place in the log, and those that are kept aside.

use std::collections::HashMap;

use pillarbox::{DeviceKey, Key, Timestamp};
use rusqlite::{Connection, Row as SqlRow};

use super::{all, bits, first, number, option_bits, take};
use crate::store::kept::{NextBoot, RawRow, RawSource, places};
use crate::store::{Position, RecordQuery, Result, Row};

/// The columns that [`Reader::read`] reads; of what is kept aside the place is that of its arrival.
const LOGGED: &str = "SELECT position, NULL, records.device, incarnation, lane, counter, kind, boot, uptime_ms, wall_ms, \
                      received_ms, body, coalesce(records.tenant, devices.tenant), devices.name, client_key, content_type \
                      FROM records LEFT JOIN devices ON devices.id = records.device";
const ASIDE: &str = "SELECT asides.id, aside, asides.device, incarnation, lane, counter, kind, boot, uptime_ms, wall_ms, \
                     received_ms, body, devices.tenant, devices.name, NULL, NULL \
                     FROM asides JOIN devices ON devices.id = asides.device";

/// Reads rows, and remembers the boots that it had to look up.
struct Reader<'c> {
    connection: &'c Connection,
    boots: HashMap<(i64, u32, u32), NextBoot>,
}

impl<'c> Reader<'c> {
    fn new(connection: &'c Connection) -> Self {
        Self { connection, boots: HashMap::new() }
    }

    fn read(&mut self, row: &SqlRow<'_>) -> Result<Row> {
        let device: Option<i64> = row.get(2)?;
        let from = match device {
            Some(device) => self.read_device(row, device)?,
            None => RawSource::Client { key: row.get(14)?, content_type: row.get(15)? },
        };
        RawRow {
            place: bits(row, 0)?,
            aside: row.get(1)?,
            tenant: row.get(12)?,
            kind: row.get(6)?,
            received_ms: bits(row, 10)?,
            body: row.get(11)?,
            from,
        }
        .row()
    }

    fn read_device(&mut self, row: &SqlRow<'_>, device: i64) -> Result<RawSource> {
        let key = Key { incarnation: row.get(3)?, lane: row.get(4)?, counter: bits(row, 5)? };
        let time = Timestamp { boot: row.get(7)?, uptime_ms: bits(row, 8)?, wall_ms: option_bits(row, 9)? };
        let next_boot = match time.wall_ms {
            Some(_) => None,
            None => self.next_boot(device, key.incarnation, time.boot)?,
        };
        Ok(RawSource::Device { name: row.get(13)?, key, time, next_boot })
    }

    fn next_boot(&mut self, device: i64, incarnation: u32, boot: u32) -> Result<NextBoot> {
        if let Some(known) = self.boots.get(&(device, incarnation, boot)) {
            return Ok(*known);
        }
        let sql = "SELECT boot, after_ms, started_ms FROM boots WHERE device = ? AND incarnation = ? AND boot >= ? \
                   ORDER BY boot LIMIT 1";
        let parameters = (device, incarnation, boot);
        let next = first(self.connection, sql, parameters, |row| {
            Ok((row.get(0)?, option_bits(row, 1)?, bits(row, 2)?))
        })?;
        self.boots.insert((device, incarnation, boot), next);
        Ok(next)
    }
}

pub(super) fn get(connection: &Connection, key: &DeviceKey) -> Result<Vec<Row>> {
    let Some(device) =
        first(connection, "SELECT id FROM devices WHERE name = ?", [key.device.as_str()], |row| {
            Ok(row.get(0)?)
        })?
    else {
        return Ok(Vec::new());
    };
    let mut reader = Reader::new(connection);
    let mut rows = Vec::new();
    if let Some(position) = take::place(connection, device, key.key)? {
        let sql = format!("{LOGGED} WHERE position = ?");
        rows.extend(first(connection, &sql, [position.0 as i64], |row| reader.read(row))?);
    }
    let Key { incarnation, lane, counter } = key.key;
    let sql = format!(
        "{ASIDE} WHERE device = ? AND incarnation = ? AND lane = ? AND counter = ? ORDER BY asides.id"
    );
    rows.extend(all(connection, &sql, (device, incarnation, lane, counter as i64), |row| reader.read(row))?);
    Ok(rows)
}

pub(super) fn log(connection: &Connection, shards: u16, query: &RecordQuery) -> Result<Vec<Row>> {
    // The places of a shard lie together.
    let (behind, to) = places(query, shards);
    let sql = format!(
        "{LOGGED} WHERE position > ?1 AND position <= ?2 AND {} ORDER BY position LIMIT ?6",
        wanted("records")
    );
    let parameters = (behind, to, &query.device, &query.tenant, query.kind, query.limit);
    let mut reader = Reader::new(connection);
    all(connection, &sql, parameters, |row| reader.read(row))
}

pub(super) fn asides(connection: &Connection, query: &RecordQuery) -> Result<Vec<Row>> {
    let after = query.after.map_or(-1, |position| i64::try_from(position.0).unwrap_or(i64::MAX));
    let sql = format!(
        "{ASIDE} WHERE asides.id > ?1 AND ?2 IS NOT NULL AND {} ORDER BY asides.id LIMIT ?6",
        wanted("devices")
    );
    let parameters = (after, 0, &query.device, &query.tenant, query.kind, query.limit);
    let mut reader = Reader::new(connection);
    all(connection, &sql, parameters, |row| reader.read(row))
}

/// What a query asks for beside a place. Clients' records have a tenant of their own.
fn wanted(tenant_of: &str) -> String {
    format!(
        "(?3 IS NULL OR devices.name = ?3) AND (?4 IS NULL OR coalesce({tenant_of}.tenant, devices.tenant) = ?4) \
         AND (?5 IS NULL OR kind = ?5)"
    )
}

pub(super) fn heads(connection: &Connection) -> Result<Vec<Position>> {
    all(connection, "SELECT shard, head FROM shards ORDER BY shard", [], |row| {
        Ok(Position::new(row.get(0)?, bits(row, 1)?))
    })
}

pub(super) fn count(connection: &Connection, device: i64, incarnation: u32, lane: u8) -> Result<u64> {
    let logged = "SELECT count(*) FROM runs JOIN records ON records.position >= runs.position \
                  AND records.position < runs.position + runs.len AND records.counter - runs.first = records.position - runs.position \
                  AND records.device = runs.device AND records.incarnation = runs.incarnation AND records.lane = runs.lane \
                  WHERE runs.device = ? AND runs.incarnation = ? AND runs.lane = ?";
    let logged: i64 = number(connection, logged, (device, incarnation, lane))?;
    let raw = "SELECT count(*) FROM asides WHERE device = ? AND incarnation = ? AND lane = ? AND aside = 0";
    let raw: i64 = number(connection, raw, (device, incarnation, lane))?;
    Ok((logged + raw) as u64)
}
