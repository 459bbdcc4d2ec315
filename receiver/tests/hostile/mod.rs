//! A receiver on a real SQLite and a real socket, devices that mean well beside whoever does not, and a look at every row of the database:
//! what is refused may leave nothing behind.

#![allow(dead_code, reason = "each of the tests uses a part of it")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::wire::{BATCH_CONTENT_TYPE, BatchWriter, ENVELOPE_MAX, Head, Secret, TAG_LEN, TagKeys};
use pillarbox::{DeviceId, Key, Kind, Stored, Timestamp};
use pillarbox_receiver::http::App;
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::serve::{self, Limits, ServeSettings};
use pillarbox_receiver::store::sqlite::SqliteStore;
use pillarbox_receiver::store::{Change, Store};
use rusqlite::Connection;
use rusqlite::types::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Nothing takes so long, unless it never ends.
pub(crate) const NEVER: Duration = Duration::from_secs(25);

/// A receiver that runs in this process.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<SqliteStore>,
    file: PathBuf,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

impl Served {
    pub(crate) async fn start(limits: Limits) -> Self {
        let directory = tempfile::tempdir().expect("there is a disk");
        let file = directory.path().join("pillarbox.db");
        let store = Arc::new(SqliteStore::open(&file).expect("it can be opened"));
        let settings = ServeSettings { limits, ..ServeSettings::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let app = App::new(store.clone(), Kinds::default(), settings, serve::system_clock());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            serve::serve(app, listener, None, Box::pin(async move { drop(stopped.await) })).await;
        });
        Self { address, store, file, stop, running, _directory: directory }
    }

    pub(crate) async fn let_in(&self, sender: &Sender) {
        let change = Change::Add {
            device: sender.device.clone(),
            tenant: "default".into(),
            secret: *sender.secret.expose(),
        };
        self.store.change(change, 1).await.expect("it is new");
    }

    /// Everything in the database, row by row, and how large it is.
    pub(crate) fn dump(&self) -> Vec<String> {
        let connection = Connection::open(&self.file).expect("it is there");
        let mut rows = Vec::new();
        for table in ["page_count".to_owned()].into_iter().chain(tables(&connection)) {
            let query = match &table[..] {
                "page_count" => "PRAGMA page_count".to_owned(),
                _ => format!("SELECT * FROM \"{table}\""),
            };
            let mut statement = connection.prepare(&query).expect("it is a table");
            let columns = statement.column_count();
            let row = |row: &rusqlite::Row<'_>| {
                (0..columns).map(|column| row.get::<_, Value>(column)).collect::<Result<Vec<_>, _>>()
            };
            let found = statement.query_map([], row).expect("it can be read");
            rows.extend(found.map(|row| format!("{table}: {:?}", row.expect("it can be read"))));
        }
        rows.sort();
        rows
    }

    /// So many rows of a table.
    pub(crate) fn rows(&self, of: &str) -> usize {
        self.dump().iter().filter(|row| row.starts_with(&format!("{of}: "))).count()
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        timeout(NEVER, TcpStream::connect(self.address)).await.expect("it listens").expect("it listens")
    }

    /// Sends these bytes and reads until the receiver hangs up, or has answered and says no more.
    pub(crate) async fn say(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut stream = self.connect().await;
        // A receiver that has seen enough may hang up before it has read everything.
        drop(stream.write_all(bytes).await);
        drop(stream.shutdown().await);
        answers(&read_to_end(&mut stream).await)
    }

    pub(crate) async fn post(&self, envelope: &[u8]) -> Answer {
        let mut answers = self.say(&request(envelope, "Connection: close\r\n")).await;
        assert_eq!(answers.len(), 1, "one request, one answer");
        answers.remove(0)
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("it runs");
        timeout(NEVER, self.running).await.expect("it stops").expect("it did not panic");
    }
}

fn tables(connection: &Connection) -> Vec<String> {
    let mut statement =
        connection.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").expect("it is a database");
    let names = statement.query_map([], |row| row.get(0)).expect("it can be read");
    names.map(|name| name.expect("it has a name")).collect()
}

/// What comes until the other end hangs up. It has to.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // An end with a reset is an end; what came before counts.
    drop(timeout(NEVER, stream.read_to_end(&mut bytes)).await.expect("the receiver hangs up"));
    bytes
}

/// A batch as a request.
pub(crate) fn request(envelope: &[u8], more: &str) -> Vec<u8> {
    let head = format!(
        "POST /v1/batch HTTP/1.1\r\nHost: receiver\r\nContent-Type: {BATCH_CONTENT_TYPE}\r\nContent-Length: {}\r\n{more}\r\n",
        envelope.len()
    );
    [head.as_bytes(), envelope].concat()
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case, without what is another one every time.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The sentence of a problem; every refusal has one.
    pub(crate) fn problem(&self) -> String {
        assert!((400..500).contains(&self.status), "{self:?}");
        assert!(self.headers.contains(&"content-type: application/problem+json".into()), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem is JSON");
        assert_eq!(problem["status"], self.status);
        assert!(problem["type"].as_str().is_some_and(|name| name.starts_with("urn:pillarbox:problem:")));
        let detail = problem["detail"].as_str().expect("a sentence");
        assert!(detail.len() > 10, "{detail}");
        detail.to_owned()
    }
}

/// Takes what came apart into answers; none may be half.
pub(crate) fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let at = bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("a whole head");
        let head = std::str::from_utf8(&bytes[..at]).expect("a head is text").to_ascii_lowercase();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let mut headers: Vec<String> = lines.map(str::to_owned).collect();
        let len = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
        let len: usize = len.map_or(0, |len| len.parse().expect("a length"));
        headers.retain(|header| !header.starts_with("date:") && !header.starts_with("x-request-id:"));
        let body = bytes[at + 4..][..len].to_vec();
        bytes = &bytes[at + 4 + len..];
        let status = status.expect("a status");
        if status >= 200 {
            answers.push(Answer { status, headers, body });
        }
    }
    answers
}

/// A device that puts batches together.
pub(crate) struct Sender {
    pub(crate) device: DeviceId,
    pub(crate) secret: Secret,
    pub(crate) boot: u32,
    next: u64,
    nonce: u64,
}

impl Sender {
    pub(crate) fn new(name: &str, secret: u8) -> Self {
        let device = DeviceId::new(name).expect("it is a name");
        Self { device, secret: Secret::new([secret; 32]), boot: 1, next: 0, nonce: 0 }
    }

    pub(crate) fn keys(&self) -> TagKeys {
        TagKeys::new(&self.secret)
    }

    /// The next batch, with so many new records.
    pub(crate) fn batch(&mut self, records: u64) -> Vec<u8> {
        let floor = self.next;
        self.next += records;
        self.nonce += 1;
        let mut buffer = vec![0; 2 * ENVELOPE_MAX];
        let mut writer = BatchWriter::new(&mut buffer, self.boot, 10_000 * self.nonce, None, 0);
        writer.set_floor(floor);
        for counter in floor..self.next {
            let key = Key { incarnation: 0x9f3c_1a77, lane: 0, counter };
            let time = Timestamp { boot: self.boot, uptime_ms: 5 * counter, wall_ms: None };
            let body = [7, counter as u8, 3];
            let record = Stored { key, kind: Kind(7), time, tag: None, cause: None, body: &body };
            assert!(writer.record(&record, ENVELOPE_MAX), "there is room");
        }
        let mut head = Head {
            device: self.device.clone(),
            incarnation: 0x9f3c_1a77,
            lane: 0,
            is_closing: false,
            is_in_order: false,
            floor,
            issued: self.next,
            boot: 0,
            boot_nonce: self.boot ^ 0x5555,
            attempt_nonce: self.nonce,
            uptime_ms: 0,
            wall_ms: None,
        };
        let (place, _) = writer.finish(&mut head, &[], &[], &self.keys()).expect("it is a batch");
        buffer[place].to_vec()
    }

    /// The same envelope with a tag that is right: what a broken firmware would send.
    pub(crate) fn tagged(&self, mut envelope: Vec<u8>) -> Vec<u8> {
        let end = envelope.len() - TAG_LEN;
        let tag = self.keys().batch_tag(&envelope[..end]);
        envelope[end..].copy_from_slice(&tag);
        envelope
    }
}
