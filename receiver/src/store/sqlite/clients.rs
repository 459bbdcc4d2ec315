//! The keys of ordinary clients: claimed before the work, completed together with the record, forgotten when they are old.

use rusqlite::Connection;

use super::{bits, first, take};
use crate::store::{Claim, Claimed, KeyState, Position, Posting, Result, StoreError, shard_of};

pub(super) fn claim(connection: &Connection, claim: &Claim) -> Result<Claimed> {
    let sql = "SELECT hash, state, lease_until_ms, created_ms, status, answer FROM postings \
               WHERE tenant = ? AND operation = ? AND key = ?";
    let known = first(connection, sql, (&claim.tenant, &claim.operation, &claim.key), |row| {
        let hash: Vec<u8> = row.get(0)?;
        let state = KeyState::numbered(row.get(1)?)?;
        let answer = row.get::<_, Option<u16>>(4)?.zip(row.get::<_, Option<Vec<u8>>>(5)?);
        Ok((hash, state, bits(row, 2)?, bits(row, 3)?, answer))
    })?;
    if let Some((hash, state, lease_until_ms, created_ms, answer)) = known
        && created_ms >= claim.expired_before_ms
    {
        if hash != claim.hash {
            return Ok(Claimed::Reused);
        }
        match (state, answer) {
            (KeyState::Completed, Some((status, body))) => return Ok(Claimed::Completed { status, body }),
            (KeyState::Completed, None) => {
                return Err(StoreError::Damaged("a key is completed and has no answer".into()));
            }
            (KeyState::InProgress, _) if lease_until_ms > claim.now_ms => {
                return Ok(Claimed::InProgress { lease_until_ms });
            }
            (KeyState::InProgress | KeyState::Failed, _) => {}
        }
    }
    let sql = "INSERT OR REPLACE INTO postings (tenant, operation, key, hash, state, holder, lease_until_ms, created_ms) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    connection.prepare_cached(sql)?.execute((
        &claim.tenant,
        &claim.operation,
        &claim.key,
        claim.hash,
        KeyState::InProgress as u8,
        claim.holder as i64,
        claim.lease_until_ms as i64,
        claim.now_ms as i64,
    ))?;
    Ok(Claimed::Ours)
}

pub(super) fn complete(connection: &Connection, shards: u16, posting: &Posting) -> Result<Option<Position>> {
    let claim = &posting.claim;
    let sql = "UPDATE postings SET state = ?, status = ?, answer = ? \
               WHERE tenant = ? AND operation = ? AND key = ? AND holder = ? AND state = ?";
    let changed = connection.prepare_cached(sql)?.execute((
        KeyState::Completed as u8,
        posting.status,
        &posting.answer,
        &claim.tenant,
        &claim.operation,
        &claim.key,
        claim.holder as i64,
        KeyState::InProgress as u8,
    ))?;
    if changed == 0 {
        return Ok(None);
    }
    let position =
        take::allocate(connection, shard_of(&format!("{}/{}", claim.tenant, claim.key), shards), 1)?;
    let sql = "INSERT INTO records (position, kind, received_ms, body, tenant, client_key, content_type) \
               VALUES (?, ?, ?, ?, ?, ?, ?)";
    connection.prepare_cached(sql)?.execute((
        position.0 as i64,
        posting.kind,
        claim.now_ms as i64,
        &posting.body,
        &claim.tenant,
        &claim.key,
        &posting.content_type,
    ))?;
    Ok(Some(position))
}

pub(super) fn give_back(connection: &Connection, claim: &Claim) -> Result<()> {
    let sql = "UPDATE postings SET state = ? WHERE tenant = ? AND operation = ? AND key = ? AND holder = ? AND state = ?";
    let (failed, in_progress) = (KeyState::Failed as u8, KeyState::InProgress as u8);
    let parameters = (failed, &claim.tenant, &claim.operation, &claim.key, claim.holder as i64, in_progress);
    connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(())
}

pub(super) fn forget(connection: &Connection, before_ms: u64, limit: u32) -> Result<u64> {
    let sql = "DELETE FROM postings WHERE (tenant, operation, key) IN \
               (SELECT tenant, operation, key FROM postings WHERE created_ms < ? ORDER BY created_ms LIMIT ?)";
    Ok(connection.prepare_cached(sql)?.execute((before_ms as i64, limit))? as u64)
}
