//! The keys of ordinary clients: claimed before the work, completed together with the record, forgotten when they are old.

use rusqlite::Connection;

use super::{append, bits, first};
use crate::store::kept::{KnownKey, shard_of_claim};
use crate::store::{Claim, Claimed, KeyState, Position, Posting, Result};

pub(super) fn claim(connection: &Connection, claim: &Claim) -> Result<Claimed> {
    let sql = "SELECT hash, state, holder, lease_until_ms, created_ms, status, answer FROM postings \
               WHERE tenant = ? AND operation = ? AND key = ?";
    let known = first(connection, sql, (&claim.tenant, &claim.operation, &claim.key), |row| {
        Ok(KnownKey {
            hash: row.get(0)?,
            state: KeyState::numbered(row.get(1)?)?,
            holder: bits(row, 2)?,
            lease_until_ms: bits(row, 3)?,
            created_ms: bits(row, 4)?,
            answer: row.get::<_, Option<u16>>(5)?.zip(row.get::<_, Option<Vec<u8>>>(6)?),
        })
    })?;
    match known.map(|known| known.claimed(claim)).transpose()? {
        None | Some(Claimed::Ours) => {}
        Some(claimed) => return Ok(claimed),
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
    let position = append::allocate(connection, shard_of_claim(claim, shards), 1)?;
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
