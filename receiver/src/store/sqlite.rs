//! SQLite: the default, a file next to you. One thread writes and commits for everybody who waits; a few connections read.

mod append;
mod clients;
mod desk;
mod shelf;
mod take;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pillarbox::{DeviceId, DeviceKey, wire::Secret};
use rusqlite::{Connection, OpenFlags, Row as SqlRow, types::FromSql};
use tokio::sync::Semaphore;

use super::kept::random;
use super::{
    Change, Claim, Claimed, Device, DeviceQuery, Door, Fleet, IncarnationRow, LaneRow, Position, Posting,
    RecordQuery, Result, Row, Store, StoreError, TokenRow,
};
use crate::intake::{Concluded, Post};
use writer::Writer;

/// Shards of a new database. One process writes, so there are no writers to keep apart; and a log that grows in one place is a tree
/// that grows at its end, which takes a third less time than one that grows in eight.
const SHARDS: u16 = 1;
/// Each brings a database from the version before it to its own, the first from nothing to 1.
const MIGRATIONS: [&str; 1] = [include_str!("sqlite_1.sql")];
/// "Pbox": a database with another number is another program's.
const APPLICATION: u32 = 0x5062_6f78;
/// Another process, such as a command, may be writing.
const BUSY: Duration = Duration::from_secs(5);
/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;
/// Connections that read at the same time: each takes files.
const READERS_MAX: usize = 16;
/// Connections of these that are kept.
const READERS_KEPT: usize = 4;

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..) => Self::Damaged(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// One connection, and everything that is done on it. Tests use it as it is, without threads.
pub struct Core {
    connection: Connection,
    epoch: u64,
    shards: u16,
}

impl Core {
    /// A database that is gone when this is.
    pub fn in_memory() -> Result<Self> {
        Self::with(Connection::open_in_memory()?)
    }

    /// Opens a file, and makes one if there is none. Only its owner may read it, for it holds secrets.
    pub fn open(path: &Path) -> Result<Self> {
        make_private(path)?;
        Self::with(Connection::open(path)?)
    }

    fn with(connection: Connection) -> Result<Self> {
        prepare(&connection)?;
        // Before anything is changed: the file may be another program's.
        migrate(&connection)?;
        // What returned must be durable: the log of a transaction is on the disk before its commit returns.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let (epoch, shards) = connection.query_row("SELECT epoch, shards FROM meta", [], |row| {
            Ok((bits(row, 0)?, row.get::<_, u16>(1)?))
        })?;
        Ok(Self { connection, epoch, shards })
    }

    /// The name of the database.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Its connection, for those who watch what is done on it.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Gives the database another name.
    pub fn renew_epoch(&mut self) -> Result<u64> {
        self.epoch = renew_epoch(&self.connection)?;
        Ok(self.epoch)
    }

    /// Lets a device in; gives its number.
    pub fn add_device(&mut self, device: &DeviceId, secret: &Secret) -> Result<i64> {
        let change =
            Change::Add { device: device.clone(), tenant: "default".into(), secret: *secret.expose() };
        desk::change(&self.connection, &change, 0)?;
        Ok(self.connection.last_insert_rowid())
    }

    /// What is known of a device before it is let in.
    pub fn door(&self, device: &DeviceId) -> Result<Option<Door>> {
        desk::door(&self.connection, device)
    }

    /// Takes a batch in a transaction of its own.
    pub fn take(&mut self, device: i64, post: &Post) -> Result<Concluded> {
        let transaction = self.connection.transaction()?;
        let concluded = take::take(&transaction, self.shards, device, post)?;
        transaction.commit()?;
        Ok(concluded)
    }

    /// Fences or gives up an incarnation, and so on.
    pub fn change(&mut self, change: &Change, now_ms: u64) -> Result<()> {
        desk::change(&self.connection, change, now_ms)
    }

    /// The lanes of a device.
    pub fn lanes(&self, device: i64) -> Result<Vec<LaneRow>> {
        desk::lanes(&self.connection, device)
    }

    /// Some records of the log.
    pub fn log(&self, query: &RecordQuery) -> Result<Vec<Row>> {
        shelf::log(&self.connection, self.shards, query)
    }

    /// Some records that are kept aside.
    pub fn asides(&self, query: &RecordQuery) -> Result<Vec<Row>> {
        shelf::asides(&self.connection, query)
    }

    /// A copy of everything as it is now, marked as a backup.
    pub fn back_up(&self, to: &mut Connection) -> Result<()> {
        let backup = rusqlite::backup::Backup::new(&self.connection, to)?;
        backup.run_to_completion(1024, Duration::ZERO, None)?;
        drop(backup);
        to.execute("UPDATE meta SET is_backup = 1", [])?;
        Ok(())
    }

    /// Goes back to a backup, which gives the database this other name.
    pub fn restore(&mut self, from: &Connection, epoch: u64) -> Result<()> {
        let backup = rusqlite::backup::Backup::new(from, &mut self.connection)?;
        backup.run_to_completion(1024, Duration::ZERO, None)?;
        drop(backup);
        set_epoch(&self.connection, epoch)?;
        self.epoch = epoch;
        Ok(())
    }
}

fn prepare(connection: &Connection) -> Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "cache_size", -32_768)?;
    Ok(())
}

/// Creates the file with no rights for others; SQLite gives its log the same rights.
fn make_private(path: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let sentence = |error| StoreError::Unavailable(format!("cannot open {}: {error}", path.display()));
    file.map(drop).map_err(sentence)
}

/// Brings the database to the version that this program knows.
fn migrate(connection: &Connection) -> Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: u32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let is_empty = number::<i64>(connection, "SELECT count(*) FROM sqlite_master", [])? == 0;
    if application != APPLICATION && !(is_empty && version == 0 && application == 0) {
        connection.execute_batch("ROLLBACK")?;
        let sentence = "this is a SQLite database, but not Pillarbox's; nothing was changed. Name another file with --store";
        return Err(StoreError::Refused(sentence.into()));
    }
    if version as usize > MIGRATIONS.len() {
        connection.execute_batch("ROLLBACK")?;
        return Err(StoreError::Refused(format!(
            "the database has version {version}, this program knows {} at most: use a newer pillarbox",
            MIGRATIONS.len()
        )));
    }
    for migration in MIGRATIONS.iter().skip(version as usize) {
        connection.execute_batch(migration)?;
    }
    if version == 0 {
        connection.execute(
            "INSERT INTO meta (is_only, epoch, is_backup, shards) VALUES (1, ?, 0, ?)",
            (random()? as i64, SHARDS),
        )?;
        for shard in 0..SHARDS {
            connection.execute("INSERT INTO shards (shard, head) VALUES (?, 0)", [shard])?;
        }
    }
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", MIGRATIONS.len() as u32)?;
    connection.execute_batch("COMMIT")?;
    Ok(())
}

fn renew_epoch(connection: &Connection) -> Result<u64> {
    let epoch = random()?;
    set_epoch(connection, epoch)?;
    Ok(epoch)
}

fn set_epoch(connection: &Connection, epoch: u64) -> Result<()> {
    connection.execute("UPDATE meta SET epoch = ?, is_backup = 0", [epoch as i64])?;
    Ok(())
}

/// A column whose bits are those of an unsigned number.
fn bits(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(|number| number as u64)
}

/// The same where there may be none.
fn option_bits(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(column).map(|number| number.map(|number| number as u64))
}

/// All rows of a query.
fn all<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
    mut read: impl FnMut(&SqlRow<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(parameters)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// The first row of a query, if there is one.
fn first<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
    read: impl FnOnce(&SqlRow<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(parameters)?;
    rows.next()?.map(read).transpose()
}

/// The one number that a query gives.
fn number<T: FromSql>(connection: &Connection, sql: &str, parameters: impl rusqlite::Params) -> Result<T> {
    Ok(connection.prepare_cached(sql)?.query_row(parameters, |row| row.get(0))?)
}

/// The database for the receiver.
pub struct SqliteStore {
    // Before the writer, for the last connection that closes puts the log into the file, and readers may not.
    readers: Arc<Mutex<Vec<Connection>>>,
    reading: Semaphore,
    writer: Writer,
    path: PathBuf,
    epoch: AtomicU64,
    shards: u16,
}

impl SqliteStore {
    /// Opens a file, and makes one if there is none.
    pub fn open(path: &Path) -> Result<Self> {
        let core = Core::open(path)?;
        let (epoch, shards) = (AtomicU64::new(core.epoch), core.shards);
        let writer = Writer::start(core.connection)?;
        Ok(Self {
            writer,
            path: path.to_owned(),
            readers: Arc::default(),
            reading: Semaphore::new(READERS_MAX),
            epoch,
            shards,
        })
    }

    /// Writes a copy to another file while the receiver goes on. Opened as a database it takes another epoch.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        if to.exists() {
            return Err(StoreError::Refused(format!(
                "{} is there already: choose another name",
                to.display()
            )));
        }
        make_private(to)?;
        let to = to.to_owned();
        self.read(move |connection| {
            let mut target = Connection::open(&to)?;
            let backup = rusqlite::backup::Backup::new(connection, &mut target)?;
            // In one step: between two a commit of the receiver would make it begin anew. Nobody waits for it meanwhile.
            backup.run_to_completion(i32::MAX, Duration::from_millis(10), None)?;
            drop(backup);
            target.pragma_update(None, "journal_mode", "DELETE")?;
            target.execute("UPDATE meta SET is_backup = 1", [])?;
            Ok(())
        })
        .await
    }

    /// Jobs that wait for the writer.
    pub fn queued(&self) -> usize {
        self.writer.queued()
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.reading.acquire().await;
        let _turn = turn.map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        let (readers, path) = (self.readers.clone(), self.path.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let kept = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match kept {
                Some(connection) => connection,
                None => {
                    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                    let connection = Connection::open_with_flags(&path, flags)?;
                    prepare(&connection)?;
                    connection
                }
            };
            let result = work(&connection);
            let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
            // One that failed may be broken.
            if result.is_ok() && readers.len() < READERS_KEPT {
                readers.push(connection);
            }
            result
        });
        reading.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn shards(&self) -> u16 {
        self.shards
    }

    fn queued(&self) -> usize {
        self.writer.queued()
    }

    async fn renew_epoch(&self) -> Result<u64> {
        let epoch = self.writer.write(renew_epoch).await?;
        self.epoch.store(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    async fn begin(&self) -> Result<()> {
        let is_backup =
            self.read(|connection| number::<bool>(connection, "SELECT is_backup FROM meta", [])).await?;
        if is_backup {
            tracing::warn!(
                "this database is a backup that was put back: it takes a new epoch, and devices repeat their accounts"
            );
            self.renew_epoch().await?;
        }
        Ok(())
    }

    async fn end(&self) -> Result<()> {
        let path = self.path.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let connection = Connection::open(&path)?;
            prepare(&connection)?;
            Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
        });
        ended.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    async fn is_ready(&self) -> Result<()> {
        // Reading would go well on a full disk, and so would writing what is there already, which SQLite leaves out.
        self.writer
            .write(|connection| {
                let mut turn = connection.prepare_cached("UPDATE meta SET epoch = ~epoch")?;
                turn.execute([])?;
                turn.execute([])?;
                Ok(())
            })
            .await
    }

    async fn door(&self, device: &DeviceId) -> Result<Option<Door>> {
        let device = device.clone();
        self.read(move |connection| desk::door(connection, &device)).await
    }

    async fn take(&self, device: i64, post: Arc<Post>) -> Result<Concluded> {
        let shards = self.shards;
        self.writer.write(move |connection| take::take(connection, shards, device, &post)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.writer.write(move |connection| clients::claim(connection, &claim)).await
    }

    async fn complete(&self, posting: Posting) -> Result<Option<Position>> {
        let shards = self.shards;
        self.writer.write(move |connection| clients::complete(connection, shards, &posting)).await
    }

    async fn give_back(&self, claim: Claim) -> Result<()> {
        self.writer.write(move |connection| clients::give_back(connection, &claim)).await
    }

    async fn forget_keys(&self, before_ms: u64, limit: u32) -> Result<u64> {
        self.writer.write(move |connection| clients::forget(connection, before_ms, limit)).await
    }

    async fn change(&self, change: Change, now_ms: u64) -> Result<()> {
        self.writer.write(move |connection| desk::change(connection, &change, now_ms)).await
    }

    async fn device(&self, name: &DeviceId) -> Result<Option<Device>> {
        let name = name.clone();
        self.read(move |connection| desk::device(connection, &name)).await
    }

    async fn devices(&self, query: DeviceQuery) -> Result<Vec<Device>> {
        self.read(move |connection| desk::devices(connection, &query)).await
    }

    async fn incarnations(&self, device: i64) -> Result<Vec<IncarnationRow>> {
        self.read(move |connection| desk::incarnations(connection, device)).await
    }

    async fn lanes(&self, device: i64) -> Result<Vec<LaneRow>> {
        self.read(move |connection| desk::lanes(connection, device)).await
    }

    async fn fleet(&self) -> Result<Fleet> {
        self.read(desk::fleet).await
    }

    async fn get(&self, key: &DeviceKey) -> Result<Vec<Row>> {
        let key = key.clone();
        self.read(move |connection| shelf::get(connection, &key)).await
    }

    async fn log(&self, query: RecordQuery) -> Result<Vec<Row>> {
        let shards = self.shards;
        self.read(move |connection| shelf::log(connection, shards, &query)).await
    }

    async fn asides(&self, query: RecordQuery) -> Result<Vec<Row>> {
        self.read(move |connection| shelf::asides(connection, &query)).await
    }

    async fn heads(&self) -> Result<Vec<Position>> {
        self.read(shelf::heads).await
    }

    async fn count(&self, device: i64, incarnation: u32, lane: u8) -> Result<u64> {
        self.read(move |connection| shelf::count(connection, device, incarnation, lane)).await
    }

    async fn add_token(&self, hash: [u8; 32], token: TokenRow) -> Result<i64> {
        self.writer.write(move |connection| desk::add_token(connection, &hash, &token)).await
    }

    async fn token(&self, hash: [u8; 32]) -> Result<Option<TokenRow>> {
        self.read(move |connection| desk::token(connection, &hash)).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>> {
        self.read(desk::tokens).await
    }

    async fn revoke_token(&self, id: i64, now_ms: u64) -> Result<()> {
        self.writer.write(move |connection| desk::revoke_token(connection, id, now_ms)).await
    }
}
