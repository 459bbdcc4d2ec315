//! Runs the receiver: what can be set, and the way from a socket to a clean stop.

mod patient;

use std::future::Future;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use self::patient::Patient;
use crate::http::{self, App};
use crate::kinds::Kinds;
use crate::metrics::IS_READY;
use crate::store::Store;

/// What time it is, in milliseconds since 1970. Tests have their own.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The clock of this machine.
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// How the receiver is served.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// Where it listens; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// What it proves itself with; without it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// How long a client's key and its answer are remembered.
    pub key_retention: Duration,
    /// What a client is told that uses a key for another payload.
    pub reuse_status: ReuseStatus,
    /// Who may read the metrics.
    pub metrics_access: MetricsAccess,
    /// How much of everything there may be.
    pub limits: Limits,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            tls: None,
            key_retention: Duration::from_secs(7 * 24 * 3600),
            reuse_status: ReuseStatus::Conflict,
            metrics_access: MetricsAccess::Open,
            limits: Limits::default(),
        }
    }
}

/// Certificate and key, as PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The chain, its own certificate first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// The status for a key that comes with another payload. The pattern says 409, the IETF's draft 422; the problem's type says which is
/// meant either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReuseStatus {
    /// Conflict, as the outbox pattern has it.
    #[default]
    #[value(name = "409")]
    Conflict,
    /// Unprocessable content, as the IETF's draft has it.
    #[value(name = "422")]
    Unprocessable,
}

/// Who may read the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsAccess {
    /// Everybody who reaches the port.
    #[default]
    Open,
    /// Who has a viewer's or an admin's token.
    Token,
}

/// A limit on everything that somebody else could make large or slow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more wait to be accepted. Fewer where the operating system does not allow so many files.
    pub connections: usize,
    /// For a request's head, and for how long a connection may be idle.
    pub header_timeout: Duration,
    /// For a request's body.
    pub body_timeout: Duration,
    /// For a client to take a piece of an answer.
    pub write_timeout: Duration,
    /// For the store to do one thing.
    pub store_timeout: Duration,
    /// For what is in flight when the receiver stops.
    pub stop_timeout: Duration,
    /// Bytes of a client's record.
    pub record_max: usize,
    /// How long a request waits for another one with its key, before it is told so.
    pub key_wait: Duration,
    /// How long a request has its key for itself; after a crash the key is free again when this is over.
    pub key_lease: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            store_timeout: Duration::from_secs(20),
            stop_timeout: Duration::from_secs(30),
            record_max: 65_535,
            key_wait: Duration::from_secs(2),
            key_lease: Duration::from_secs(60),
        }
    }
}

/// Files that are not clients' connections: the store's, its readers', the log's.
const FILES_OF_OURS: usize = 100;
/// How often the numbers of the fleet are looked up.
const FLEET_EVERY: Duration = Duration::from_secs(5);
/// How often old keys are forgotten, and how many in one transaction.
const FORGET_EVERY: Duration = Duration::from_secs(60);
const FORGET_MAX: u32 = 500;
/// Bytes of a request's head, and of what is read of a body at a time.
const HEAD_MAX: usize = 64 << 10;
/// After an accept that failed, for want of file handles for example, others may be freed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves until it is told to stop (SIGTERM or SIGINT), finishes what is in flight, and closes the store. Told a second time, it
/// stops at once.
pub async fn run(settings: ServeSettings, store: Arc<dyn Store>, kinds: Kinds) -> anyhow::Result<()> {
    let tls = settings.tls.as_ref().map(acceptor).transpose()?;
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("cannot listen on {}: is another receiver running?", settings.listen))?;
    store.begin().await?;
    let closing = store.clone();
    let settings = ServeSettings { limits: within_files(settings.limits), ..settings };
    let app = App::new(store, kinds, settings, system_clock());
    let mut told =
        Told { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {scheme}://{}", listener.local_addr()?)?;
    stdout.flush()?;
    let served = serve(app, listener, tls, Box::pin(async move { drop(stopped.await) }));
    let hurried = async move {
        told.next().await;
        tracing::info!("stopping: what is in flight is finished");
        drop(stop);
        told.next().await;
    };
    tokio::select! {
        () = served => Ok(closing.end().await?),
        () = hurried => Err(anyhow!("told to stop a second time: what was in flight was broken off")),
    }
}

/// Who tells the receiver to stop.
struct Told {
    terminate: Signal,
    interrupt: Signal,
}

impl Told {
    /// May be cancelled: a signal that has come is not lost.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A connection is a file. The soft limit is for programs that cannot handle more than 1024, so it is raised to the hard one; if that
/// is too low as well, fewer are served, so that the store never finds that it cannot open one.
fn within_files(limits: Limits) -> Limits {
    let allowed = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: allowed.maximum, ..allowed };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { raised.current } else { allowed.current };
    let files = current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let connections = limits.connections.min(files.saturating_sub(FILES_OF_OURS)).max(1);
    if connections < limits.connections {
        tracing::warn!(
            "only {connections} connections are served at a time: the limit of open files is {files}; raise it (ulimit -n, LimitNOFILE)"
        );
    }
    Limits { connections, ..limits }
}

/// Serves on this socket until `stop` says so; then what is in flight is finished.
///
/// Boxed, so that all of it is compiled here, once, and not again in every program and test that serves.
pub fn serve(app: App, listener: TcpListener, tls: Option<TlsAcceptor>, stop: Ending) -> Ending {
    Box::pin(serve_until(app, listener, tls, stop))
}

/// Something that comes to an end.
pub type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn serve_until(app: App, listener: TcpListener, tls: Option<TlsAcceptor>, mut stop: Ending) {
    let upkeep = [tokio::spawn(watch_fleet(app.clone())), tokio::spawn(forget_keys(app.clone()))];
    let limits = app.settings.limits;
    let places = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let service = TowerToHyperService::new(http::router(app.clone()));
    loop {
        // Who finds no place waits in the kernel's queue.
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        // Answers are small: waiting to fill a packet only delays them.
        drop(stream.set_nodelay(true));
        let (service, watcher, tls) = (service.clone(), graceful.watcher(), tls.clone());
        tokio::spawn(async move {
            connection(stream, tls, service, watcher, limits).await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.stop_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were not finished in time; their senders will ask again");
    }
    upkeep.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: TowerToHyperService<axum::Router>,
    watcher: Watcher,
    limits: Limits,
) {
    let Some(tls) = tls else { return speak(stream, service, watcher, limits).await };
    match tokio::time::timeout(limits.header_timeout, tls.accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, service, watcher, limits).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client could not agree on TLS"),
        Err(_) => tracing::debug!("a client took too long for TLS"),
    }
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    service: TowerToHyperService<axum::Router>,
    watcher: Watcher,
    limits: Limits,
) {
    let stream = TokioIo::new(Patient::new(stream, limits.write_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Who says that it has said all still waits for its answer.
        .half_close(true)
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEAD_MAX)
        .serve_connection(stream, service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// What proves the receiver to its clients.
pub fn acceptor(files: &TlsFiles) -> anyhow::Result<TlsAcceptor> {
    let (cert, key) = (files.cert.display(), files.key.display());
    let chain = CertificateDer::pem_slice_iter(&read(&files.cert)?)
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| anyhow!("{cert} holds no certificate in PEM"))?;
    let secret = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        // The reason is not repeated: it may hold a part of the key.
        .map_err(|_| anyhow!("{key} holds no private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("{key} is not the key of {cert}, or not one that can be used"))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Looks up the numbers of the fleet now and then, so that reading the metrics costs the store nothing.
async fn watch_fleet(app: App) {
    loop {
        if let Ok(fleet) = app.ask("fleet", app.store.fleet()).await {
            app.metrics.fleet(&fleet, app.now_ms());
        }
        // Writing costs: it is only tried when there is a reason to.
        if app.metrics.is_store_in_doubt() {
            drop(app.ask(IS_READY, app.store.is_ready()).await);
        }
        app.metrics.upkeep();
        tokio::time::sleep(FLEET_EVERY).await;
    }
}

/// Forgets keys whose time is over, a few in each transaction, until there are none.
async fn forget_keys(app: App) {
    let retention_ms = u64::try_from(app.settings.key_retention.as_millis()).unwrap_or(u64::MAX);
    loop {
        let before_ms = app.now_ms().saturating_sub(retention_ms);
        let forgotten = app.ask("forget_keys", app.store.forget_keys(before_ms, FORGET_MAX)).await;
        if !matches!(forgotten, Ok(count) if count >= u64::from(FORGET_MAX)) {
            tokio::time::sleep(FORGET_EVERY).await;
        }
    }
}
