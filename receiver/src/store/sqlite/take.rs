//! A batch in a transaction: what is loaded for it, and what is written.

use std::collections::BTreeMap;

use pillarbox::{Key, Timestamp};
use rusqlite::Connection;

use super::append::append;
use super::{all, bits, first, option_bits};
use crate::books::Books;
use crate::intake::{
    Arrival, Aside, BootNote, Concluded, Content, Incarnation, Judged, LaneName, LaneState, Outcome, Post,
    Scene, judge,
};
use crate::store::kept::{Secrets, pack_report, summed, unpack_report};
use crate::store::{Position, Result, StoreError};

/// Takes a batch. Must be in a transaction.
pub(super) fn take(connection: &Connection, shards: u16, device: i64, post: &Post) -> Result<Concluded> {
    let before = load(connection, device, post)?;
    let mut scene = before.clone();
    let judged = judge(&mut scene, post);
    let boot = judged.boot;
    append(connection, shards, device, &judged, post)?;
    let found = look_up(connection, device, &judged, post)?;
    let concluded = judged.conclude(&mut scene, &found);
    set_aside(connection, device, before.has_asides, &concluded, post)?;
    save(connection, device, post, &before, &scene)?;
    if let Some(boot) = boot {
        save_boot(connection, device, &boot)?;
    }
    Ok(concluded)
}

fn load(connection: &Connection, device: i64, post: &Post) -> Result<Scene> {
    let sql = "SELECT current_incarnation, stale, conflicts, interleavings, has_asides, revoked_ms IS NOT NULL, \
               secret, next_secret FROM devices WHERE id = ?";
    let found = first(connection, sql, [device], |row| {
        let scene = Scene {
            current: row.get(0)?,
            stale: bits(row, 1)?,
            conflicts: bits(row, 2)?,
            interleavings: bits(row, 3)?,
            has_asides: row.get(4)?,
            ..Scene::default()
        };
        let secrets = Secrets::new(&row.get::<_, Vec<u8>>(6)?, row.get::<_, Option<Vec<u8>>>(7)?.as_deref());
        Ok((scene, row.get::<_, bool>(5)?, secrets))
    })?;
    let Some((mut scene, false, mut secrets)) = found else {
        return Err(StoreError::NotFound("the device may not come in any more".into()));
    };
    if secrets.are_used(post.with)? {
        let sql = "UPDATE devices SET secret = next_secret, next_secret = NULL WHERE id = ?";
        connection.prepare_cached(sql)?.execute([device])?;
    }
    let names = post.lanes();
    let mut last = None;
    for (incarnation, _) in &names {
        if last.replace(*incarnation) != Some(*incarnation) {
            load_incarnation(connection, device, *incarnation, &mut scene)?;
        }
    }
    scene.refresh();
    Ok(scene)
}

fn load_incarnation(connection: &Connection, device: i64, incarnation: u32, scene: &mut Scene) -> Result<()> {
    let sql = "SELECT boot, nonce, started_ms, is_fenced, is_given_up FROM incarnations WHERE device = ? AND incarnation = ?";
    let found = first(connection, sql, (device, incarnation), |row| {
        let boot: Option<u32> = row.get(0)?;
        let nonce: Option<u32> = row.get(1)?;
        Ok(Incarnation {
            boot: boot.zip(nonce),
            started_ms: bits(row, 2)?,
            heard_ms: None,
            is_fenced: row.get(3)?,
            is_given_up: row.get(4)?,
        })
    })?;
    let Some(found) = found else { return Ok(()) };
    scene.lanes.extend(lanes(connection, "WHERE device = ? AND incarnation = ?", (device, incarnation))?);
    scene.incarnations.insert(incarnation, found);
    Ok(())
}

/// The lanes that a condition names.
pub(super) fn lanes(
    connection: &Connection,
    condition: &str,
    parameters: impl rusqlite::Params,
) -> Result<BTreeMap<LaneName, LaneState>> {
    let sql = format!(
        "SELECT incarnation, lane, books, heard_ms, mark, mark_ms, clock_offset_ms, report_ms, report FROM lanes {condition}"
    );
    let found = all(connection, &sql, parameters, |row| {
        let books = Books::decode(row.get_ref(2)?.as_blob().map_err(damaged)?).map_err(damaged)?;
        let report_ms = option_bits(row, 7)?;
        let report: Option<Vec<u8>> = row.get(8)?;
        let report = report.map(|bytes| unpack_report(&bytes));
        let state = LaneState {
            books,
            heard_ms: bits(row, 3)?,
            mark: bits(row, 4)?,
            mark_ms: bits(row, 5)?,
            clock_offset_ms: row.get(6)?,
            report: report_ms.zip(report),
        };
        Ok(((row.get(0)?, row.get(1)?), state))
    })?;
    Ok(found.into_iter().collect())
}

fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(error.to_string())
}

/// What the compared keys stand for. The batch's own records are in the log by now.
fn look_up(
    connection: &Connection,
    device: i64,
    judged: &Judged<'_>,
    post: &Post,
) -> Result<Vec<Option<Content>>> {
    let keys = judged.compared().filter_map(|n| post.arrival(n)).map(|record| record.key);
    keys.map(|key| content(connection, device, key)).collect()
}

fn content(connection: &Connection, device: i64, key: Key) -> Result<Option<Content>> {
    let read = |row: &rusqlite::Row<'_>| {
        let time = Timestamp { boot: row.get(1)?, uptime_ms: bits(row, 2)?, wall_ms: option_bits(row, 3)? };
        Ok(Content { kind: row.get(0)?, time, body: row.get(4)? })
    };
    if let Some(position) = place(connection, device, key)? {
        let sql = "SELECT kind, boot, uptime_ms, wall_ms, body FROM records WHERE position = ?";
        return first(connection, sql, [position.0 as i64], read);
    }
    let sql = "SELECT kind, boot, uptime_ms, wall_ms, body FROM asides WHERE device = ? AND incarnation = ? AND lane = ? \
               AND counter = ? AND aside = ?";
    let parameters = (device, key.incarnation, key.lane, key.counter as i64, Aside::Unreadable as u8);
    first(connection, sql, parameters, read)
}

/// Where a key is in the log.
pub(super) fn place(connection: &Connection, device: i64, key: Key) -> Result<Option<Position>> {
    let sql = "SELECT first, len, position FROM runs WHERE device = ? AND incarnation = ? AND lane = ? AND first <= ? \
               ORDER BY first DESC LIMIT 1";
    let parameters = (device, key.incarnation, key.lane, key.counter as i64);
    let run = first(connection, sql, parameters, |row| Ok((bits(row, 0)?, bits(row, 1)?, bits(row, 2)?)))?;
    Ok(run.and_then(|(start, len, position)| {
        let at = key.counter.checked_sub(start).filter(|at| *at < len)?;
        Some(Position(position + at))
    }))
}

/// Keeps aside what is to be, and takes out of the quarantine what was stored after all.
fn set_aside(
    connection: &Connection,
    device: i64,
    has_asides: bool,
    concluded: &Concluded,
    post: &Post,
) -> Result<()> {
    for (outcome, record) in concluded.outcomes.iter().zip(post.arrivals()) {
        match outcome {
            Outcome::Aside(aside) => keep_aside(connection, device, *aside, record, post.now_ms)?,
            Outcome::Stored if has_asides => {
                let sql = "DELETE FROM asides WHERE device = ? AND incarnation = ? AND lane = ? AND counter = ? \
                           AND fingerprint = ? AND aside = ?";
                let Key { incarnation, lane, counter } = record.key;
                let fingerprint = record.fingerprint();
                let quarantined = Aside::Quarantined as u8;
                let parameters = (device, incarnation, lane, counter as i64, fingerprint, quarantined);
                connection.prepare_cached(sql)?.execute(parameters)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn keep_aside(
    connection: &Connection,
    device: i64,
    aside: Aside,
    record: &Arrival,
    now_ms: u64,
) -> Result<()> {
    // What is in quarantine and then turns out to be more is no longer in quarantine; never the other way round.
    let sql = "INSERT INTO asides (device, incarnation, lane, counter, fingerprint, aside, kind, boot, uptime_ms, wall_ms, \
               received_ms, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
               ON CONFLICT DO UPDATE SET aside = excluded.aside WHERE aside = 1";
    let Key { incarnation, lane, counter } = record.key;
    connection.prepare_cached(sql)?.execute((
        device,
        incarnation,
        lane,
        counter as i64,
        record.fingerprint(),
        aside as u8,
        record.kind,
        record.time.boot,
        record.time.uptime_ms as i64,
        record.time.wall_ms.map(|ms| ms as i64),
        now_ms as i64,
        &record.body[..],
    ))?;
    Ok(())
}

/// Writes what the batch has changed.
fn save(connection: &Connection, device: i64, post: &Post, before: &Scene, after: &Scene) -> Result<()> {
    for (name, incarnation) in &after.incarnations {
        let known = before.incarnations.get(name);
        let is_same = known.is_some_and(|known| {
            Incarnation { heard_ms: incarnation.heard_ms, ..known.clone() } == *incarnation
        });
        if !is_same {
            save_incarnation(connection, device, *name, incarnation, post.now_ms)?;
        }
    }
    for (name, lane) in &after.lanes {
        if !after.incarnations.contains_key(&name.0) {
            // A dead letter of an incarnation that the receiver had not heard of.
            save_incarnation(connection, device, name.0, &Incarnation::default(), post.now_ms)?;
        }
        if before.lanes.get(name) != Some(lane) {
            save_lane(connection, device, *name, lane)?;
        }
    }
    let of =
        |scene: &Scene| (scene.current, scene.stale, scene.conflicts, scene.interleavings, scene.has_asides);
    if of(before) != of(after) {
        let sql = "UPDATE devices SET current_incarnation = ?, stale = ?, conflicts = ?, interleavings = ?, has_asides = ? \
                   WHERE id = ?";
        let (current, stale, conflicts, interleavings, has_asides) = of(after);
        let parameters = (current, stale as i64, conflicts as i64, interleavings as i64, has_asides, device);
        connection.prepare_cached(sql)?.execute(parameters)?;
    }
    Ok(())
}

fn save_incarnation(
    connection: &Connection,
    device: i64,
    name: u32,
    incarnation: &Incarnation,
    now_ms: u64,
) -> Result<()> {
    let sql = "INSERT INTO incarnations (device, incarnation, boot, nonce, started_ms, first_heard_ms, is_fenced, is_given_up) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET boot = excluded.boot, nonce = excluded.nonce, \
               started_ms = excluded.started_ms, is_given_up = excluded.is_given_up";
    let Incarnation { boot, started_ms, is_fenced, is_given_up, .. } = incarnation;
    let (boot, nonce) = (boot.map(|(boot, _)| boot), boot.map(|(_, nonce)| nonce));
    let parameters = (device, name, boot, nonce, *started_ms as i64, now_ms as i64, is_fenced, is_given_up);
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}

fn save_lane(connection: &Connection, device: i64, name: LaneName, lane: &LaneState) -> Result<()> {
    let sql = "INSERT INTO lanes (device, incarnation, lane, books, heard_ms, mark, mark_ms, clock_offset_ms, report_ms, report, \
               pending, unexplained, lost) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
               ON CONFLICT DO UPDATE SET books = excluded.books, heard_ms = excluded.heard_ms, mark = excluded.mark, \
               mark_ms = excluded.mark_ms, clock_offset_ms = excluded.clock_offset_ms, report_ms = excluded.report_ms, \
               report = excluded.report, pending = excluded.pending, unexplained = excluded.unexplained, lost = excluded.lost";
    let ledger = lane.books.ledger();
    let report = lane.report.as_ref();
    connection.prepare_cached(sql)?.execute((
        device,
        name.0,
        name.1,
        lane.books.encode(),
        lane.heard_ms as i64,
        lane.mark as i64,
        lane.mark_ms as i64,
        lane.clock_offset_ms,
        report.map(|(ms, _)| *ms as i64),
        report.map(|(_, report)| pack_report(report)),
        summed(ledger.pending),
        summed(ledger.unexplained),
        summed(ledger.lost()),
    ))?;
    Ok(())
}

fn save_boot(connection: &Connection, device: i64, boot: &BootNote) -> Result<()> {
    let sql = "INSERT INTO boots (device, incarnation, boot, after_ms, started_ms) VALUES (?, ?, ?, ?, ?) \
               ON CONFLICT DO UPDATE SET started_ms = excluded.started_ms";
    let BootNote { incarnation, boot, after_ms, started_ms } = *boot;
    let parameters = (device, incarnation, boot, after_ms.map(|ms| ms as i64), started_ms as i64);
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}
