//! Devices, tokens and the fleet: what operators ask for and change.

use pillarbox::DeviceId;
use rusqlite::{Connection, Row as SqlRow};

use super::{all, bits, first, number, option_bits, take};
use crate::store::{
    Change, Device, DeviceQuery, Door, Fleet, IncarnationRow, LaneRow, Result, Role, StoreError, TokenRow,
    kept::secret_print, tag_keys,
};

pub(super) fn door(connection: &Connection, device: &DeviceId) -> Result<Option<Door>> {
    let sql = "SELECT id, secret, next_secret, revoked_ms IS NOT NULL FROM devices WHERE name = ?";
    first(connection, sql, [device.as_str()], |row| {
        let next: Option<Vec<u8>> = row.get(2)?;
        Ok(Door {
            id: row.get(0)?,
            keys: tag_keys(&row.get::<_, Vec<u8>>(1)?)?,
            next: next
                .map(|secret| Ok::<_, StoreError>((tag_keys(&secret)?, secret_print(&secret))))
                .transpose()?,
            is_revoked: row.get(3)?,
        })
    })
}

pub(super) fn change(connection: &Connection, change: &Change, now_ms: u64) -> Result<()> {
    let now_ms = now_ms as i64;
    match change {
        Change::Add { device, tenant, secret } => {
            let sql = "INSERT INTO devices (name, tenant, secret, created_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let parameters = (device.as_str(), tenant, secret, now_ms);
            match connection.prepare_cached(sql)?.execute(parameters)? {
                0 => Err(StoreError::Refused(format!("there is a device {device} already"))),
                _ => Ok(()),
            }
        }
        Change::Revoke(device) => {
            let sql = "UPDATE devices SET revoked_ms = coalesce(revoked_ms, ?) WHERE name = ?";
            found(connection.prepare_cached(sql)?.execute((now_ms, device.as_str()))?, device)
        }
        Change::Rotate(device, secret) => {
            let sql = "UPDATE devices SET next_secret = ? WHERE name = ? AND revoked_ms IS NULL";
            found(connection.prepare_cached(sql)?.execute((secret, device.as_str()))?, device)
        }
        Change::Fence(device, incarnation) => {
            let sql = "INSERT INTO incarnations (device, incarnation, started_ms, first_heard_ms, is_fenced, is_given_up) \
                       SELECT id, ?, 0, ?, 1, 0 FROM devices WHERE name = ? ON CONFLICT DO UPDATE SET is_fenced = 1";
            found(connection.prepare_cached(sql)?.execute((incarnation, now_ms, device.as_str()))?, device)
        }
        Change::GiveUp(device, incarnation) => {
            let sql = "UPDATE incarnations SET is_given_up = 1 WHERE incarnation = ? \
                       AND device = (SELECT id FROM devices WHERE name = ?)";
            match connection.prepare_cached(sql)?.execute((incarnation, device.as_str()))? {
                0 => Err(StoreError::NotFound(format!("{device} has no incarnation {incarnation:08x}"))),
                _ => Ok(()),
            }
        }
    }
}

fn found(changed: usize, device: &DeviceId) -> Result<()> {
    match changed {
        0 => Err(StoreError::NotFound(format!("there is no device {device}, or it is revoked"))),
        _ => Ok(()),
    }
}

const DEVICE: &str = "SELECT id, name, tenant, created_ms, revoked_ms, next_secret IS NOT NULL, current_incarnation, \
                      (SELECT max(heard_ms) FROM lanes WHERE device = id), stale, conflicts, interleavings FROM devices";

fn read_device(row: &SqlRow<'_>) -> Result<Device> {
    Ok(Device {
        id: row.get(0)?,
        name: row.get(1)?,
        tenant: row.get(2)?,
        created_ms: bits(row, 3)?,
        revoked_ms: option_bits(row, 4)?,
        is_rotating: row.get(5)?,
        current_incarnation: row.get(6)?,
        heard_ms: option_bits(row, 7)?,
        stale: bits(row, 8)?,
        conflicts: bits(row, 9)?,
        interleavings: bits(row, 10)?,
    })
}

pub(super) fn device(connection: &Connection, name: &DeviceId) -> Result<Option<Device>> {
    first(connection, &format!("{DEVICE} WHERE name = ?"), [name.as_str()], read_device)
}

pub(super) fn devices(connection: &Connection, query: &DeviceQuery) -> Result<Vec<Device>> {
    let sql = format!(
        "{DEVICE} WHERE name > ?1 AND (?2 IS NULL OR tenant = ?2) AND (?3 IS NULL OR instr(name, ?3) > 0) ORDER BY name LIMIT ?4"
    );
    let after = query.after.as_deref().unwrap_or_default();
    all(connection, &sql, (after, &query.tenant, &query.containing, query.limit), read_device)
}

pub(super) fn incarnations(connection: &Connection, device: i64) -> Result<Vec<IncarnationRow>> {
    let sql = "SELECT incarnation, coalesce(boot, 0), first_heard_ms, is_fenced, is_given_up FROM incarnations \
               WHERE device = ? ORDER BY first_heard_ms, incarnation";
    all(connection, sql, [device], |row| {
        Ok(IncarnationRow {
            incarnation: row.get(0)?,
            boot: row.get(1)?,
            first_heard_ms: bits(row, 2)?,
            is_fenced: row.get(3)?,
            is_given_up: row.get(4)?,
        })
    })
}

pub(super) fn lanes(connection: &Connection, device: i64) -> Result<Vec<LaneRow>> {
    let found = take::lanes(connection, "WHERE device = ?", [device])?;
    Ok(found.into_iter().map(|((incarnation, lane), state)| LaneRow { incarnation, lane, state }).collect())
}

pub(super) fn fleet(connection: &Connection) -> Result<Fleet> {
    // An incarnation that an operator gave up, or fenced, is nobody's lag; what is missing in it stays missing.
    let sql = "SELECT sum(iif(is_given_up OR is_fenced, 0, pending)), sum(unexplained), sum(lost), \
               min(iif(NOT (is_given_up OR is_fenced) AND pending + unexplained > 0, mark_ms, NULL)) \
               FROM lanes JOIN incarnations USING (device, incarnation) WHERE pending > 0 OR unexplained > 0 OR lost > 0";
    let open = first(connection, sql, [], |row| {
        let sum = |column| Ok::<_, rusqlite::Error>(option_bits(row, column)?.unwrap_or(0));
        Ok((sum(0)?, sum(1)?, sum(2)?, option_bits(row, 3)?))
    })?;
    let (pending, unexplained, lost, oldest_pending_ms) = open.unwrap_or_default();
    let count = |sql| number::<i64>(connection, sql, []).map(|number| number as u64);
    Ok(Fleet {
        devices: count("SELECT count(*) FROM devices WHERE revoked_ms IS NULL")?,
        pending,
        unexplained,
        lost,
        oldest_pending_ms,
        asides: count("SELECT count(*) FROM asides")?,
        records: count("SELECT coalesce(sum(head), 0) FROM shards")?,
    })
}

pub(super) fn add_token(connection: &Connection, hash: &[u8; 32], token: &TokenRow) -> Result<i64> {
    let sql = "INSERT INTO tokens (hash, role, tenant, label, created_ms) VALUES (?, ?, ?, ?, ?)";
    let parameters = (hash, token.role.name(), &token.tenant, &token.label, token.created_ms as i64);
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(connection.last_insert_rowid())
}

const TOKEN: &str = "SELECT id, role, tenant, label, created_ms, revoked_ms FROM tokens";

fn read_token(row: &SqlRow<'_>) -> Result<TokenRow> {
    let role: String = row.get(1)?;
    Ok(TokenRow {
        id: row.get(0)?,
        role: Role::named(&role)?,
        tenant: row.get(2)?,
        label: row.get(3)?,
        created_ms: bits(row, 4)?,
        revoked_ms: option_bits(row, 5)?,
    })
}

pub(super) fn token(connection: &Connection, hash: &[u8; 32]) -> Result<Option<TokenRow>> {
    first(connection, &format!("{TOKEN} WHERE hash = ? AND revoked_ms IS NULL"), [hash], read_token)
}

pub(super) fn tokens(connection: &Connection) -> Result<Vec<TokenRow>> {
    all(connection, &format!("{TOKEN} ORDER BY id"), [], read_token)
}

pub(super) fn revoke_token(connection: &Connection, id: i64, now_ms: u64) -> Result<()> {
    let sql = "UPDATE tokens SET revoked_ms = coalesce(revoked_ms, ?) WHERE id = ?";
    match connection.prepare_cached(sql)?.execute((now_ms as i64, id))? {
        0 => Err(StoreError::NotFound(format!("there is no token {id}"))),
        _ => Ok(()),
    }
}
