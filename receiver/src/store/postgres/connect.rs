//! Connections: from the URL to a pool whose every connection commits durably, waits for nothing for ever, and knows what the database is
//! called.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolBuilder, PoolError,
    RecyclingMethod, Runtime, TimeoutType,
};
use tokio_postgres::NoTls;

use super::migrate::{Named, identify, migrate};
use super::tls;
use crate::store::{Result, StoreError};

/// Connections that a receiver has at most, those that write among them.
const CONNECTIONS: usize = 16;
/// To find the server, and to get a connection that somebody else gives back.
const CONNECT: Duration = Duration::from_secs(5);
/// A server that was unplugged says nothing at all.
const SILENCE: Duration = Duration::from_secs(15);

/// How every connection begins. What a commit answered for must be on the disk, whatever the server is used to. Every table that
/// is asked with a batch has an index for it, which shall be used before anybody has counted the rows. A process that
/// stands still must not keep its locks.
const SESSION: &str = "SELECT set_config('synchronous_commit', 'on', false) \
                         WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply'); \
                       SET application_name = 'pillarbox'; SET jit = off; SET plan_cache_mode = force_generic_plan; \
                       SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
                       SET statement_timeout = '15s'; SET lock_timeout = '10s'; \
                       SET idle_in_transaction_session_timeout = '30s'";

/// The way to the server.
pub(super) struct Server {
    pool: Pool,
    pub(super) named: Arc<Named>,
    pub(super) shards: u16,
}

impl Server {
    /// Connects, and brings the tables up to date.
    pub(super) async fn find(url: &str) -> Result<Self> {
        // The database has no name yet that those could find who come after.
        let unnamed = build(bounded(manager(url)?).max_size(1))?;
        let mut first = unnamed.get().await.map_err(unavailable)?;
        first.batch_execute(SESSION).await?;
        migrate(&mut first).await?;
        let named = Arc::<Named>::default();
        let shards = identify(&first, &named).await?;
        let begin = begin(named.clone());
        let pool = build(bounded(manager(url)?).max_size(CONNECTIONS).post_create(begin))?;
        Ok(Self { pool, named, shards })
    }

    /// A connection, new if none is free.
    pub(super) async fn client(&self) -> Result<Object> {
        self.pool.get().await.map_err(unavailable)
    }

    /// Requests that wait for a connection.
    pub(super) fn waiting(&self) -> usize {
        self.pool.status().waiting
    }
}

fn manager(url: &str) -> Result<Manager> {
    let (mut config, tls) = tls::settings(url)?;
    config.connect_timeout(CONNECT).keepalives_idle(SILENCE).tcp_user_timeout(SILENCE);
    // A connection that broke is noticed by whoever takes it next.
    let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    Ok(match tls {
        Some(tls) => Manager::from_config(config, tls, how),
        None => Manager::from_config(config, NoTls, how),
    })
}

/// Waits for nothing for ever.
fn bounded(manager: Manager) -> PoolBuilder {
    let limit = Some(CONNECT);
    let pool = Pool::builder(manager).runtime(Runtime::Tokio1);
    pool.wait_timeout(limit).create_timeout(limit).recycle_timeout(limit)
}

fn build(pool: PoolBuilder) -> Result<Pool> {
    pool.build().map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// What every connection begins with.
fn begin(named: Arc<Named>) -> Hook {
    Hook::async_fn(move |client: &mut ClientWrapper, _| {
        let named = named.clone();
        Box::pin(async move {
            client.batch_execute(SESSION).await.map_err(HookError::Backend)?;
            identify(client, &named).await.map_err(|error| HookError::message(error.to_string()))?;
            Ok(())
        })
    })
}

fn unavailable(error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => error.into(),
        PoolError::Timeout(TimeoutType::Wait) => {
            StoreError::Unavailable("more is asked of PostgreSQL than it has connections for".into())
        }
        PoolError::Timeout(_) => StoreError::Unavailable("PostgreSQL did not answer in time".into()),
        PoolError::PostCreateHook(HookError::Backend(error)) => error.into(),
        PoolError::PostCreateHook(HookError::Message(why)) => StoreError::Unavailable(why.into_owned()),
        other => StoreError::Unavailable(other.to_string()),
    }
}
