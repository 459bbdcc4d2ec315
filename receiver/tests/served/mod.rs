//! A receiver on a real store, served over real TCP inside the test, with a clock that stands still until it is moved; and those who
//! talk to it. A store more is one line in [`Ground::all`].

// Each test uses its part.
#![allow(dead_code)]

pub(crate) mod authority;
pub(crate) mod device;
pub(crate) mod gate;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pillarbox_receiver::http::{App, auth};
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::serve::{self, ServeSettings};
use pillarbox_receiver::store::{self, RecordQuery, Role, Row, Source, Store, TokenRow};
use receiver_testkit::Postgres;
use reqwest::header::HeaderMap;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// When the clock begins.
pub(crate) const START_MS: u64 = 1_790_000_000_000;
/// A stop that takes longer is none.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// Where a store is, and how it can be taken away.
pub(crate) struct Ground {
    pub(crate) store: Arc<dyn Store>,
    /// What the program has to be told to find it.
    pub(crate) name: String,
    _directory: Option<TempDir>,
}

impl Ground {
    /// One of each sort.
    pub(crate) async fn all() -> Vec<Self> {
        vec![Self::sqlite().await, Self::postgres().await]
    }

    pub(crate) async fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("there is a disk");
        let name = directory.path().join("pillarbox.db").display().to_string();
        Self::open(name, Some(directory)).await
    }

    pub(crate) async fn postgres() -> Self {
        let fresh = tokio::task::spawn_blocking(|| Postgres::shared().fresh_database());
        Self::open(fresh.await.expect("it runs"), None).await
    }

    async fn open(name: String, directory: Option<TempDir>) -> Self {
        let store = store::open(&name).await.expect("it can be opened");
        Self { store, name, _directory: directory }
    }

    /// As long as this lives nothing can be written: somebody else has the database for himself.
    pub(crate) async fn outage(&self) -> Outage {
        if !self.name.starts_with("postgres://") {
            let connection = rusqlite::Connection::open(&self.name).expect("it is there");
            connection.busy_timeout(Duration::from_secs(5)).expect("it can wait");
            connection.execute_batch("BEGIN IMMEDIATE").expect("nobody else has it");
            return Outage::Sqlite(connection);
        }
        let (client, connection) =
            tokio_postgres::connect(&self.name, tokio_postgres::NoTls).await.expect("it runs");
        tokio::spawn(connection);
        let lock = "BEGIN; LOCK TABLE meta, devices, lanes, records, shards, postings IN EXCLUSIVE MODE";
        client.batch_execute(lock).await.expect("nobody else has it");
        Outage::Postgres(client)
    }

    /// A token for this.
    pub(crate) async fn token(&self, role: Role, tenant: Option<&str>) -> String {
        token(&*self.store, role, tenant).await
    }
}

/// Makes a token.
pub(crate) async fn token(store: &dyn Store, role: Role, tenant: Option<&str>) -> String {
    let token = auth::new_token().expect("there are random numbers");
    let row = TokenRow {
        id: 0,
        role,
        tenant: tenant.map(str::to_owned),
        label: "a test's".into(),
        created_ms: START_MS,
        revoked_ms: None,
    };
    store.add_token(auth::hash(&token), row).await.expect("it is new");
    token
}

/// Who has the database. With the connection the lock is gone.
pub(crate) enum Outage {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

/// Kind 7 is `reading` with a schema, kind 8 is `photo` without one.
pub(crate) fn kinds() -> Kinds {
    Kinds::parse(
        "[[kind]]\nnumber = 7\nname = \"reading\"\nschema = \"{ watt_hours: u64 }\"\n\
         [[kind]]\nnumber = 8\nname = \"photo\"\n",
    )
    .expect("they are kinds")
}

/// A receiver that runs.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    pub(crate) store: Arc<dyn Store>,
    clock: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start(ground: &Ground) -> Self {
        Self::with(ground.store.clone(), |_| {}).await
    }

    /// On any store, with settings that are not the usual ones.
    pub(crate) async fn with(store: Arc<dyn Store>, change: impl FnOnce(&mut ServeSettings)) -> Self {
        Self::over(store, None, START_MS, change).await
    }

    /// The same over TLS, or at another time.
    pub(crate) async fn over(
        store: Arc<dyn Store>,
        tls: Option<TlsAcceptor>,
        now_ms: u64,
        change: impl FnOnce(&mut ServeSettings),
    ) -> Self {
        let mut settings = ServeSettings::default();
        change(&mut settings);
        let clock = Arc::new(AtomicU64::new(now_ms));
        let hand = clock.clone();
        let app = App::new(store.clone(), kinds(), settings, Arc::new(move || hand.load(Ordering::SeqCst)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopped) = oneshot::channel();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let stopped = async move { drop(stopped.await) };
        let task = tokio::spawn(serve::serve(app, listener, tls, Box::pin(stopped)));
        Self { address, url, store, clock, stop: Some(stop), task }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Tells it to stop, and does not wait.
    pub(crate) fn tell_to_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until it has stopped.
    pub(crate) async fn stopped(mut self) {
        self.tell_to_stop();
        let stopped = tokio::time::timeout(STOPPED_WITHIN, self.task).await;
        stopped.expect("it stops").expect("it does not panic");
    }

    /// A client with this token.
    pub(crate) fn client(&self, token: &str) -> Client {
        Client { http: reqwest::Client::new(), url: self.url.clone(), token: token.to_owned() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = reqwest::Client::new().get(format!("{}{path}", self.url));
        Answer::of(request).await
    }

    /// The value of a line of the metrics, with its labels.
    pub(crate) async fn metric(&self, line: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text();
        let found = text.lines().find_map(|each| each.strip_prefix(line)?.strip_prefix(' '));
        found.map(|value| value.parse().expect("it is a number"))
    }
}

/// An ordinary client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) token: String,
}

impl Client {
    /// A record that has not been sent yet.
    pub(crate) fn record(&self, kind: &str, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        let to = format!("{}/v1/records/{kind}", self.url);
        self.http.post(to).bearer_auth(&self.token).body(body)
    }

    /// Posts JSON under a key.
    pub(crate) async fn post(&self, kind: &str, key: &str, json: &str) -> Answer {
        self.post_as(kind, key, "application/json", json.as_bytes()).await
    }

    /// Posts anything under a key.
    pub(crate) async fn post_as(&self, kind: &str, key: &str, content_type: &str, body: &[u8]) -> Answer {
        self.try_post(kind, key, content_type, body).await.expect("it answers")
    }

    /// The same, where there may be no answer.
    pub(crate) async fn try_post(
        &self,
        kind: &str,
        key: &str,
        content_type: &str,
        body: &[u8],
    ) -> reqwest::Result<Answer> {
        let request = self.record(kind, body.to_vec());
        let request = request.header("content-type", content_type);
        Answer::try_of(request.header("idempotency-key", format!("\"{key}\""))).await
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) async fn of(request: reqwest::RequestBuilder) -> Self {
        Self::try_of(request).await.expect("it answers")
    }

    pub(crate) async fn try_of(request: reqwest::RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, body: response.bytes().await?.to_vec() })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("it is text")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("it is text"))
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Status and name of a problem. Everything else about it is checked here: that it is one, and that it says so everywhere.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        for member in ["title", "detail"] {
            assert!(!problem[member].as_str().expect("it is text").is_empty(), "{problem}");
        }
        let name = problem["type"].as_str().and_then(|name| name.strip_prefix("urn:pillarbox:problem:"));
        (self.status, name.expect("it has a type").to_owned())
    }

    /// The same, to compare with.
    pub(crate) fn is_problem(&self, status: u16, name: &str) -> bool {
        self.problem() == (status, name.to_owned())
    }
}

/// What ordinary clients have in the log: key and row.
pub(crate) async fn records(store: &dyn Store) -> Vec<(String, Row)> {
    let query = RecordQuery { limit: 1_000_000, ..RecordQuery::default() };
    let rows = store.log(query).await.expect("it is sound");
    rows.into_iter()
        .map(|row| match &row.source {
            Source::Client { key, .. } => (key.clone(), row),
            Source::Device { key, .. } => (key.to_string(), row),
        })
        .collect()
}

/// Looks until something is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    for _ in 0..1000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to pass: {what}");
}
