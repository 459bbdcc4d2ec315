//! The tables, and what the database is called: both are seen to whenever somebody connects.

use std::sync::{Mutex, MutexGuard, PoisonError};

use deadpool_postgres::ClientWrapper;
use tokio_postgres::error::SqlState;

use super::{bits, column, wide};
use crate::store::kept::random;
use crate::store::{Result, StoreError};

/// Each brings a database from the version before it to its own, the first from nothing to 1.
const MIGRATIONS: [&str; 1] = [include_str!("../postgres_1.sql")];
/// Shards of a new database. Several processes write, and each shard is one's at a time.
const SHARDS: i32 = 64;
/// Whoever brings the tables up to date has this lock: the first eight letters of the program's name.
const LOCK: i64 = i64::from_be_bytes(*b"pillarbo");
/// Where the database is: the cluster's identifier, its timeline, and the database's own number. Asking the log for its timeline,
/// and not the last checkpoint, one hears of a promotion at once.
const WHERE: &str = "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_id, \
                     ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS timeline, \
                     (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database";

/// The name of the database, as it was read last.
#[derive(Debug, Default)]
pub(super) struct Named(Mutex<Name>);

#[derive(Debug, Default)]
struct Name {
    /// Where it was found.
    place: (i64, i64, i64),
    renewals: u64,
    epoch: u64,
}

impl Named {
    pub(super) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Takes note of what a transaction read. Several may end at once, so an earlier name gives way.
    pub(super) fn note(&self, renewals: u64, epoch: u64) {
        let mut name = self.lock();
        if renewals >= name.renewals {
            (name.renewals, name.epoch) = (renewals, epoch);
        }
    }

    /// Takes note of what somebody found who has just connected. After a recovery it may have been renewed less often than before.
    fn found(&self, found: Name) {
        let mut name = self.lock();
        if found.place != name.place || found.renewals >= name.renewals {
            *name = found;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Name> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the tables, or brings them up to date. Of several that come at once one does it and the others wait.
pub(super) async fn migrate(client: &mut ClientWrapper) -> Result<()> {
    let transaction = client.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let has_tables = transaction.query_one("SELECT to_regclass('meta') IS NOT NULL", &[]).await?;
    let version = match column::<bool>(&has_tables, 0)? {
        true => {
            let row = transaction.query_one("SELECT version FROM meta", &[]).await?;
            usize::try_from(column::<i32>(&row, 0)?).unwrap_or(usize::MAX)
        }
        false => 0,
    };
    if version > MIGRATIONS.len() {
        return Err(StoreError::Refused(format!(
            "the database has version {version}, this program knows {} at most: use a newer pillarbox",
            MIGRATIONS.len()
        )));
    }
    for migration in MIGRATIONS.iter().skip(version) {
        transaction.batch_execute(migration).await?;
    }
    if version == 0 {
        let sql = format!(
            "INSERT INTO meta (is_only, version, shards, epoch, renewals, system_id, timeline, database) \
             SELECT 1, 0, $1, $2, 0, system_id, timeline, database FROM ({WHERE}) AS here"
        );
        transaction.execute(&sql, &[&SHARDS, &(random()? as i64)]).await?;
        let sql = "INSERT INTO shards (shard, head) SELECT n, 0 FROM generate_series(0, $1 - 1) AS n";
        transaction.execute(sql, &[&SHARDS]).await?;
    }
    if version < MIGRATIONS.len() {
        transaction.execute("UPDATE meta SET version = $1", &[&(MIGRATIONS.len() as i32)]).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Finds out what the database is called, and gives it another name if it is not where it got its name. Gives the number of shards.
pub(super) async fn identify(client: &ClientWrapper, named: &Named) -> Result<u16> {
    let sql = format!(
        "UPDATE meta SET epoch = $1, renewals = renewals + 1, system_id = here.system_id, timeline = here.timeline, \
         database = here.database FROM ({WHERE}) AS here WHERE (meta.system_id, meta.timeline, meta.database) IS DISTINCT \
         FROM (here.system_id, here.timeline, here.database)"
    );
    match client.execute(&sql, &[&(random()? as i64)]).await {
        Ok(0) => {}
        Ok(_) => tracing::warn!(
            "this database was put back or promoted: it takes a new epoch, and devices repeat their accounts"
        ),
        // A replica cannot be asked for the place in its log.
        Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
            return Err(StoreError::Unavailable(
                "the PostgreSQL server is a replica that only reads: give the address of the one that writes"
                    .into(),
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let sql = "SELECT epoch, renewals, shards::bigint, system_id, timeline, database FROM meta";
    let row = client.query_one(sql, &[]).await?;
    let place = (column(&row, 3)?, column(&row, 4)?, column(&row, 5)?);
    named.found(Name { place, renewals: bits(&row, 1)?, epoch: bits(&row, 0)? });
    wide(&row, 2)
}

/// Gives the database another name.
pub(super) async fn renew_epoch(client: &ClientWrapper, named: &Named) -> Result<u64> {
    let sql = "UPDATE meta SET epoch = $1, renewals = renewals + 1 RETURNING epoch, renewals";
    let row = client.query_one(sql, &[&(random()? as i64)]).await?;
    let (epoch, renewals) = (bits(&row, 0)?, bits(&row, 1)?);
    named.note(renewals, epoch);
    Ok(epoch)
}

/// Writes something, because reading would go well on a full disk.
pub(super) async fn touch(client: &ClientWrapper, named: &Named) -> Result<()> {
    let row = client.query_one("UPDATE meta SET epoch = epoch RETURNING epoch, renewals", &[]).await?;
    named.note(bits(&row, 1)?, bits(&row, 0)?);
    Ok(())
}
