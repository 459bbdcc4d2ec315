//! Devices, tokens and the fleet: what operators ask for and change.

use deadpool_postgres::Object;
use pillarbox::DeviceId;
use tokio_postgres::Row as SqlRow;

use super::take::{LANE_COLUMNS, LANE_WIDTH, read_lane};
use super::{Parameters, all, bits, column, first, one, option_bits, option_wide, run, wide};
use crate::store::{
    Change, Device, DeviceQuery, Door, Fleet, IncarnationRow, LaneRow, Result, Role, StoreError, TokenRow,
    kept::secret_print, tag_keys,
};

pub(super) async fn door(client: &Object, device: &DeviceId) -> Result<Option<Door>> {
    let sql = "SELECT id, secret, next_secret, revoked_ms IS NOT NULL FROM devices WHERE name = $1";
    first(client, sql, &[&device.as_str()], |row| {
        let next: Option<&[u8]> = column(row, 2)?;
        Ok(Door {
            id: column(row, 0)?,
            keys: tag_keys(column(row, 1)?)?,
            next: next
                .map(|secret| Ok::<_, StoreError>((tag_keys(secret)?, secret_print(secret))))
                .transpose()?,
            is_revoked: column(row, 3)?,
        })
    })
    .await
}

/// Whoever changes what a batch depends on waits for the batches that are under way, by the device's row.
pub(super) async fn change(client: &Object, change: &Change, now_ms: u64) -> Result<()> {
    let now_ms = now_ms as i64;
    match change {
        Change::Add { device, tenant, secret } => {
            let sql = "INSERT INTO devices (name, tenant, secret, created_ms) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
            match run(client, sql, &[&device.as_str(), tenant, &&secret[..], &now_ms]).await? {
                0 => Err(StoreError::Refused(format!("there is a device {device} already"))),
                _ => Ok(()),
            }
        }
        Change::Revoke(device) => {
            let sql = "UPDATE devices SET revoked_ms = coalesce(revoked_ms, $1) WHERE name = $2";
            found(run(client, sql, &[&now_ms, &device.as_str()]).await?, device)
        }
        Change::Rotate(device, secret) => {
            let sql = "UPDATE devices SET next_secret = $1 WHERE name = $2 AND revoked_ms IS NULL";
            found(run(client, sql, &[&&secret[..], &device.as_str()]).await?, device)
        }
        Change::Fence(device, incarnation) => {
            let sql = "WITH device AS (SELECT id FROM devices WHERE name = $3 FOR NO KEY UPDATE) \
                       INSERT INTO incarnations (device, incarnation, started_ms, first_heard_ms, is_fenced, is_given_up) \
                       SELECT id, $1, 0, $2, TRUE, FALSE FROM device \
                       ON CONFLICT (device, incarnation) DO UPDATE SET is_fenced = TRUE";
            found(run(client, sql, &[&i64::from(*incarnation), &now_ms, &device.as_str()]).await?, device)
        }
        Change::GiveUp(device, incarnation) => {
            let sql = "WITH device AS (SELECT id FROM devices WHERE name = $2 FOR NO KEY UPDATE) \
                       UPDATE incarnations SET is_given_up = TRUE FROM device \
                       WHERE incarnations.device = device.id AND incarnation = $1";
            match run(client, sql, &[&i64::from(*incarnation), &device.as_str()]).await? {
                0 => Err(StoreError::NotFound(format!("{device} has no incarnation {incarnation:08x}"))),
                _ => Ok(()),
            }
        }
    }
}

fn found(changed: u64, device: &DeviceId) -> Result<()> {
    match changed {
        0 => Err(StoreError::NotFound(format!("there is no device {device}, or it is revoked"))),
        _ => Ok(()),
    }
}

const DEVICE: &str = "SELECT id, name, tenant, created_ms, revoked_ms, next_secret IS NOT NULL, current_incarnation, \
                      (SELECT max(heard_ms) FROM lanes WHERE device = id), stale, conflicts, interleavings FROM devices";

fn read_device(row: &SqlRow) -> Result<Device> {
    Ok(Device {
        id: column(row, 0)?,
        name: column(row, 1)?,
        tenant: column(row, 2)?,
        created_ms: bits(row, 3)?,
        revoked_ms: option_bits(row, 4)?,
        is_rotating: column(row, 5)?,
        current_incarnation: option_wide(row, 6)?,
        heard_ms: option_bits(row, 7)?,
        stale: bits(row, 8)?,
        conflicts: bits(row, 9)?,
        interleavings: bits(row, 10)?,
    })
}

pub(super) async fn device(client: &Object, name: &DeviceId) -> Result<Option<Device>> {
    first(client, &format!("{DEVICE} WHERE name = $1"), &[&name.as_str()], read_device).await
}

pub(super) async fn devices(client: &Object, query: &DeviceQuery) -> Result<Vec<Device>> {
    let sql = format!(
        "{DEVICE} WHERE name > $1 AND ($2::text IS NULL OR tenant = $2) AND ($3::text IS NULL OR strpos(name, $3) > 0) \
         ORDER BY name LIMIT $4"
    );
    let after = query.after.as_deref().unwrap_or_default();
    let limit = i64::from(query.limit);
    all(client, &sql, &[&after, &query.tenant, &query.containing, &limit], read_device).await
}

pub(super) async fn incarnations(client: &Object, device: i64) -> Result<Vec<IncarnationRow>> {
    let sql = "SELECT incarnation, coalesce(boot, 0), first_heard_ms, is_fenced, is_given_up FROM incarnations \
               WHERE device = $1 ORDER BY first_heard_ms, incarnation";
    all(client, sql, &[&device], |row| {
        Ok(IncarnationRow {
            incarnation: wide(row, 0)?,
            boot: wide(row, 1)?,
            first_heard_ms: bits(row, 2)?,
            is_fenced: column(row, 3)?,
            is_given_up: column(row, 4)?,
        })
    })
    .await
}

pub(super) async fn lanes(client: &Object, device: i64) -> Result<Vec<LaneRow>> {
    let sql = format!(
        "SELECT {}, incarnation FROM lanes WHERE device = $1 ORDER BY incarnation, lane",
        LANE_COLUMNS
    );
    all(client, &sql, &[&device], |row| {
        let (lane, state) = read_lane(row, 0)?;
        Ok(LaneRow { incarnation: wide(row, LANE_WIDTH)?, lane, state })
    })
    .await
}

pub(super) async fn fleet(client: &Object) -> Result<Fleet> {
    // An incarnation that an operator gave up, or fenced, is nobody's lag; what is missing in it stays missing.
    let sql = "SELECT sum(CASE WHEN is_given_up OR is_fenced THEN 0 ELSE pending END)::bigint, sum(unexplained)::bigint, sum(lost)::bigint, \
               min(mark_ms) FILTER (WHERE NOT (is_given_up OR is_fenced) AND pending + unexplained > 0) \
               FROM lanes JOIN incarnations USING (device, incarnation) WHERE is_open";
    let open = one(client, sql, |row| {
        let sum = |column| Ok::<_, StoreError>(option_bits(row, column)?.unwrap_or(0));
        Ok((sum(0)?, sum(1)?, sum(2)?, option_bits(row, 3)?))
    });
    let (pending, unexplained, lost, oldest_pending_ms) = open.await?;
    let sql = "SELECT (SELECT count(*) FROM devices WHERE revoked_ms IS NULL), (SELECT count(*) FROM asides), \
               (SELECT coalesce(sum(head), 0)::bigint FROM shards)";
    one(client, sql, |row| {
        let (devices, asides, records) = (bits(row, 0)?, bits(row, 1)?, bits(row, 2)?);
        Ok(Fleet { devices, pending, unexplained, lost, oldest_pending_ms, asides, records })
    })
    .await
}

pub(super) async fn add_token(client: &Object, hash: &[u8; 32], token: &TokenRow) -> Result<i64> {
    let sql =
        "INSERT INTO tokens (hash, role, tenant, label, created_ms) VALUES ($1, $2, $3, $4, $5) RETURNING id";
    let created_ms = token.created_ms as i64;
    let (hash, role) = (&hash[..], token.role.name());
    let parameters: Parameters<'_> = &[&hash, &role, &token.tenant, &token.label, &created_ms];
    let added = first(client, sql, parameters, |row| column(row, 0)).await?;
    added.ok_or_else(|| StoreError::Damaged("a token that was added has no number".into()))
}

const TOKEN: &str = "SELECT id, role, tenant, label, created_ms, revoked_ms FROM tokens";

fn read_token(row: &SqlRow) -> Result<TokenRow> {
    Ok(TokenRow {
        id: column(row, 0)?,
        role: Role::named(column(row, 1)?)?,
        tenant: column(row, 2)?,
        label: column(row, 3)?,
        created_ms: bits(row, 4)?,
        revoked_ms: option_bits(row, 5)?,
    })
}

pub(super) async fn token(client: &Object, hash: &[u8; 32]) -> Result<Option<TokenRow>> {
    let sql = format!("{TOKEN} WHERE hash = $1 AND revoked_ms IS NULL");
    first(client, &sql, &[&&hash[..]], read_token).await
}

pub(super) async fn tokens(client: &Object) -> Result<Vec<TokenRow>> {
    all(client, &format!("{TOKEN} ORDER BY id"), &[], read_token).await
}

pub(super) async fn revoke_token(client: &Object, id: i64, now_ms: u64) -> Result<()> {
    let sql = "UPDATE tokens SET revoked_ms = coalesce(revoked_ms, $1) WHERE id = $2";
    match run(client, sql, &[&(now_ms as i64), &id]).await? {
        0 => Err(StoreError::NotFound(format!("there is no token {id}"))),
        _ => Ok(()),
    }
}
