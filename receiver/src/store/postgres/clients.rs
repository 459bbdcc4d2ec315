//! The keys of ordinary clients: claimed before the work, completed together with the record, forgotten when they are old.

use deadpool_postgres::Object;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::ToSql;

use super::{Parameters, bits, column, first, narrow, option_bits, run};
use crate::store::kept::{KnownKey, shard_of_claim};
use crate::store::{Claim, Claimed, KeyState, Position, Posting, Result, StoreError};

/// A key may be forgotten between two looks at it; so often it is not.
const LOOKS_MAX: usize = 8;

pub(super) async fn claim(client: &mut Object, claim: &Claim) -> Result<Claimed> {
    for _ in 0..LOOKS_MAX {
        // Most keys are new.
        let sql = "INSERT INTO postings (tenant, operation, key, hash, state, holder, lease_until_ms, created_ms) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
        if run(client, sql, &Claimant::of(claim).parameters(claim)).await? == 1 {
            return Ok(Claimed::Ours);
        }
        if let Some(claimed) = claim_known(client, claim).await? {
            return Ok(claimed);
        }
    }
    Err(StoreError::Unavailable("a key comes and goes".into()))
}

/// A claim's values as columns hold them.
struct Claimant<'c> {
    hash: &'c [u8],
    state: i32,
    holder: i64,
    lease_until_ms: i64,
    now_ms: i64,
}

impl<'c> Claimant<'c> {
    fn of(claim: &'c Claim) -> Self {
        Self {
            hash: &claim.hash,
            state: KeyState::InProgress as i32,
            holder: claim.holder as i64,
            lease_until_ms: claim.lease_until_ms as i64,
            now_ms: claim.now_ms as i64,
        }
    }

    fn parameters<'a>(&'a self, claim: &'a Claim) -> [&'a (dyn ToSql + Sync); 8] {
        let Self { hash, state, holder, lease_until_ms, now_ms } = self;
        [&claim.tenant, &claim.operation, &claim.key, hash, state, holder, lease_until_ms, now_ms]
    }
}

/// Claims a key that is there; gives nothing if it is not.
async fn claim_known(client: &mut Object, claim: &Claim) -> Result<Option<Claimed>> {
    let transaction = client.transaction().await?;
    let sql = "SELECT hash, state, holder, lease_until_ms, created_ms, status, answer FROM postings \
               WHERE tenant = $1 AND operation = $2 AND key = $3 FOR UPDATE";
    let select = transaction.prepare_cached(sql).await?;
    let known = transaction.query_opt(&select, &[&claim.tenant, &claim.operation, &claim.key]).await?;
    let Some(known) = known else { return Ok(None) };
    let claimed = read_key(&known)?.claimed(claim)?;
    if claimed == Claimed::Ours {
        let sql = "UPDATE postings SET hash = $4, state = $5, holder = $6, lease_until_ms = $7, created_ms = $8, status = NULL, \
                   answer = NULL, position = NULL WHERE tenant = $1 AND operation = $2 AND key = $3";
        let update = transaction.prepare_cached(sql).await?;
        transaction.execute(&update, &Claimant::of(claim).parameters(claim)).await?;
        transaction.commit().await?;
    }
    Ok(Some(claimed))
}

fn read_key(row: &SqlRow) -> Result<KnownKey> {
    let status = column::<Option<i32>>(row, 5)?.and_then(|status| u16::try_from(status).ok());
    Ok(KnownKey {
        hash: column(row, 0)?,
        state: KeyState::numbered(narrow(row, 1)?)?,
        holder: bits(row, 2)?,
        lease_until_ms: bits(row, 3)?,
        created_ms: bits(row, 4)?,
        answer: status.zip(column(row, 6)?),
    })
}

/// One statement, so one transaction. The locks are taken from left to right: the key, the shard.
pub(super) async fn complete(client: &Object, shards: u16, posting: &Posting) -> Result<Option<Position>> {
    let claim = &posting.claim;
    let shard = shard_of_claim(claim, shards);
    let sql = "WITH ours AS (SELECT 1 FROM postings WHERE tenant = $1 AND operation = $2 AND key = $3 AND holder = $4 \
                   AND state = $5 FOR UPDATE), \
               place AS (UPDATE shards SET head = head + 1 WHERE shard = $6 AND EXISTS (SELECT FROM ours) \
                   RETURNING ($6::bigint << 48) | head AS position), \
               record AS (INSERT INTO records (position, kind, received_ms, body, tenant, client_key, content_type) \
                   SELECT position, $7, $8, $9, $1, $3, $10 FROM place RETURNING position) \
               UPDATE postings SET state = $11, status = $12, answer = $13, position = record.position FROM record \
               WHERE tenant = $1 AND operation = $2 AND key = $3 RETURNING record.position";
    let (holder, now_ms) = (claim.holder as i64, claim.now_ms as i64);
    let (in_progress, completed) = (KeyState::InProgress as i32, KeyState::Completed as i32);
    let (shard, kind, status) = (i32::from(shard), i32::from(posting.kind), i32::from(posting.status));
    let parameters: Parameters<'_> = &[
        &claim.tenant,
        &claim.operation,
        &claim.key,
        &holder,
        &in_progress,
        &shard,
        &kind,
        &now_ms,
        &posting.body,
        &posting.content_type,
        &completed,
        &status,
        &posting.answer,
    ];
    match first(client, sql, parameters, |row| Ok(Position(bits(row, 0)?))).await? {
        Some(position) => Ok(Some(position)),
        None => completed_before(client, claim).await,
    }
}

/// The answer to an earlier commit of this very claim may have been lost.
async fn completed_before(client: &Object, claim: &Claim) -> Result<Option<Position>> {
    let sql = "SELECT position FROM postings WHERE tenant = $1 AND operation = $2 AND key = $3 AND holder = $4 AND state = $5";
    let (holder, completed) = (claim.holder as i64, KeyState::Completed as i32);
    let parameters: Parameters<'_> = &[&claim.tenant, &claim.operation, &claim.key, &holder, &completed];
    let found = first(client, sql, parameters, |row| option_bits(row, 0)).await?;
    Ok(found.flatten().map(Position))
}

pub(super) async fn give_back(client: &Object, claim: &Claim) -> Result<()> {
    let sql = "UPDATE postings SET state = $1 WHERE tenant = $2 AND operation = $3 AND key = $4 AND holder = $5 AND state = $6";
    let (failed, in_progress) = (KeyState::Failed as i32, KeyState::InProgress as i32);
    let holder = claim.holder as i64;
    let parameters: Parameters<'_> =
        &[&failed, &claim.tenant, &claim.operation, &claim.key, &holder, &in_progress];
    run(client, sql, parameters).await.map(drop)
}

/// Of several receivers that do so at once, each forgets others.
pub(super) async fn forget(client: &Object, before_ms: u64, limit: u32) -> Result<u64> {
    let sql = "DELETE FROM postings USING (SELECT tenant, operation, key FROM postings WHERE created_ms < $1 \
               ORDER BY created_ms LIMIT $2 FOR UPDATE SKIP LOCKED) AS old \
               WHERE (postings.tenant, postings.operation, postings.key) = (old.tenant, old.operation, old.key)";
    run(client, sql, &[&(before_ms as i64), &i64::from(limit)]).await
}
