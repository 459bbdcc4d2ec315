//! PostgreSQL: as many receivers as one likes on one database. A few connections write and commit for everybody who waits; others
//! read.

mod asides;
mod clients;
mod connect;
mod copy;
mod desk;
mod migrate;
mod save;
mod shelf;
mod take;
mod tls;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::Object;
use pillarbox::{DeviceId, DeviceKey};
use tokio_postgres::Row as SqlRow;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql};

use super::{
    Change, Claim, Claimed, Device, DeviceQuery, Door, Fleet, IncarnationRow, LaneRow, Position, Posting,
    RecordQuery, Result, Row, Store, StoreError, TokenRow,
};
use crate::intake::{Concluded, Post};
use connect::Server;
use writer::Writers;

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        // What the server says beside the message may hold values.
        let Some(told) = error.as_db_error() else {
            let why = std::error::Error::source(&error).map(|why| format!(": {why}")).unwrap_or_default();
            return Self::Unavailable(format!("PostgreSQL cannot be reached: {error}{why}"));
        };
        let sentence = format!("PostgreSQL says: {} ({})", told.message(), told.code().code());
        match told.code().code().get(..2) {
            Some("22") => Self::Refused(sentence),
            Some("23") => Self::Damaged(sentence),
            _ if *told.code() == SqlState::UNDEFINED_TABLE => Self::Damaged(sentence),
            _ => Self::Unavailable(sentence),
        }
    }
}

/// What a statement is given.
type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A column of a row.
fn column<'r, T: FromSql<'r>>(row: &'r SqlRow, n: usize) -> Result<T> {
    row.try_get(n).map_err(|error| StoreError::Damaged(error.to_string()))
}

/// A column whose bits are those of an unsigned number.
fn bits(row: &SqlRow, n: usize) -> Result<u64> {
    column::<i64>(row, n).map(|number| number as u64)
}

/// The same where there may be none.
fn option_bits(row: &SqlRow, n: usize) -> Result<Option<u64>> {
    Ok(column::<Option<i64>>(row, n)?.map(|number| number as u64))
}

/// A number that takes a column of 64 bits, because it is unsigned.
fn wide<T: TryFrom<i64>>(row: &SqlRow, n: usize) -> Result<T> {
    T::try_from(column(row, n)?).map_err(|_| out_of_range(row, n))
}

/// The same where there may be none.
fn option_wide<T: TryFrom<i64>>(row: &SqlRow, n: usize) -> Result<Option<T>> {
    let number = column::<Option<i64>>(row, n)?.map(T::try_from);
    number.transpose().map_err(|_| out_of_range(row, n))
}

/// The same of 32 bits.
fn narrow<T: TryFrom<i32>>(row: &SqlRow, n: usize) -> Result<T> {
    T::try_from(column(row, n)?).map_err(|_| out_of_range(row, n))
}

fn out_of_range(row: &SqlRow, n: usize) -> StoreError {
    let name = row.columns().get(n).map_or("?", |column| column.name());
    StoreError::Damaged(format!("the column {name} holds a number that is out of its range"))
}

/// All rows of a query.
async fn all<T>(
    client: &Object,
    sql: &str,
    parameters: Parameters<'_>,
    read: impl FnMut(&SqlRow) -> Result<T>,
) -> Result<Vec<T>> {
    let statement = client.prepare_cached(sql).await?;
    client.query(&statement, parameters).await?.iter().map(read).collect()
}

/// The row of a query, if there is one.
async fn first<T>(
    client: &Object,
    sql: &str,
    parameters: Parameters<'_>,
    read: impl FnOnce(&SqlRow) -> Result<T>,
) -> Result<Option<T>> {
    let statement = client.prepare_cached(sql).await?;
    client.query_opt(&statement, parameters).await?.as_ref().map(read).transpose()
}

/// The row of a query that always gives one.
async fn one<T>(client: &Object, sql: &str, read: impl FnOnce(&SqlRow) -> Result<T>) -> Result<T> {
    let statement = client.prepare_cached(sql).await?;
    read(&client.query_one(&statement, &[]).await?)
}

/// Runs a statement, and gives how many rows it changed.
async fn run(client: &Object, sql: &str, parameters: Parameters<'_>) -> Result<u64> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, parameters).await?)
}

/// The database for the receiver.
pub struct PostgresStore {
    server: Arc<Server>,
    writers: Writers,
}

impl PostgresStore {
    /// Connects to a database, and makes the tables if there are none.
    ///
    /// The URL is `postgres://user:password@host:port/database`. With `?sslmode=verify-full` behind it (or `require`, which means
    /// the same here) the way there is encrypted, and the server has to prove its name; `&sslrootcert=FILE` says by whose word,
    /// if not by that of the public authorities.
    pub async fn open(url: &str) -> Result<Self> {
        let server = Arc::new(Server::find(url).await?);
        let writers = Writers::start(&server);
        Ok(Self { server, writers })
    }

    async fn client(&self) -> Result<Object> {
        self.server.client().await
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn epoch(&self) -> u64 {
        self.server.named.epoch()
    }

    fn shards(&self) -> u16 {
        self.server.shards
    }

    fn queued(&self) -> usize {
        self.writers.queued() + self.server.waiting()
    }

    async fn renew_epoch(&self) -> Result<u64> {
        let client = self.client().await?;
        migrate::renew_epoch(&client, &self.server.named).await
    }

    async fn is_ready(&self) -> Result<()> {
        let client = self.client().await?;
        migrate::touch(&client, &self.server.named).await
    }

    async fn door(&self, device: &DeviceId) -> Result<Option<Door>> {
        desk::door(&self.client().await?, device).await
    }

    async fn take(&self, device: i64, post: Arc<Post>) -> Result<Concluded> {
        self.writers.take(device, post).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        clients::claim(&mut self.client().await?, &claim).await
    }

    async fn complete(&self, posting: Posting) -> Result<Option<Position>> {
        clients::complete(&self.client().await?, self.shards(), &posting).await
    }

    async fn give_back(&self, claim: Claim) -> Result<()> {
        clients::give_back(&self.client().await?, &claim).await
    }

    async fn forget_keys(&self, before_ms: u64, limit: u32) -> Result<u64> {
        clients::forget(&self.client().await?, before_ms, limit).await
    }

    async fn change(&self, change: Change, now_ms: u64) -> Result<()> {
        desk::change(&self.client().await?, &change, now_ms).await
    }

    async fn device(&self, name: &DeviceId) -> Result<Option<Device>> {
        desk::device(&self.client().await?, name).await
    }

    async fn devices(&self, query: DeviceQuery) -> Result<Vec<Device>> {
        desk::devices(&self.client().await?, &query).await
    }

    async fn incarnations(&self, device: i64) -> Result<Vec<IncarnationRow>> {
        desk::incarnations(&self.client().await?, device).await
    }

    async fn lanes(&self, device: i64) -> Result<Vec<LaneRow>> {
        desk::lanes(&self.client().await?, device).await
    }

    async fn fleet(&self) -> Result<Fleet> {
        desk::fleet(&self.client().await?).await
    }

    async fn get(&self, key: &DeviceKey) -> Result<Vec<Row>> {
        shelf::get(&self.client().await?, key).await
    }

    async fn log(&self, query: RecordQuery) -> Result<Vec<Row>> {
        shelf::log(&self.client().await?, self.shards(), &query).await
    }

    async fn asides(&self, query: RecordQuery) -> Result<Vec<Row>> {
        shelf::asides(&self.client().await?, &query).await
    }

    async fn heads(&self) -> Result<Vec<Position>> {
        shelf::heads(&self.client().await?).await
    }

    async fn count(&self, device: i64, incarnation: u32, lane: u8) -> Result<u64> {
        shelf::count(&self.client().await?, device, incarnation, lane).await
    }

    async fn add_token(&self, hash: [u8; 32], token: TokenRow) -> Result<i64> {
        desk::add_token(&self.client().await?, &hash, &token).await
    }

    async fn token(&self, hash: [u8; 32]) -> Result<Option<TokenRow>> {
        desk::token(&self.client().await?, &hash).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>> {
        desk::tokens(&self.client().await?).await
    }

    async fn revoke_token(&self, id: i64, now_ms: u64) -> Result<()> {
        desk::revoke_token(&self.client().await?, id, now_ms).await
    }
}
