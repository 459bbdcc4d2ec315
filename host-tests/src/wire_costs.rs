//! What a record costs on the wire, counted at the TCP connection, beside one JSON request per record.

use core::fmt;
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex};

use pillarbox::{EncodedSize, Record, Timeouts, Tls, Trust};
use serde::{Deserialize, Serialize};

use crate::link::http::{After, WORLD_BEGAN_S, date};
use crate::real_net::{HonestServer, Manner, PskServer, RealStation, Said, model};

/// Records of a batch.
pub const BATCHES: [u32; 4] = [1, 10, 64, 256];
/// Batches over a connection that is kept.
pub const KEPT: f64 = 10.0;
/// Between two records.
const APART: Duration = Duration::from_secs(15 * 60);
const KEY: [u8; 32] = [0x2b; 32];

/// A record with a body of 20 bytes.
#[derive(Debug, Clone, Serialize, Deserialize, EncodedSize, Record)]
#[record(kind = 2)]
struct Sample {
    bytes: [u8; 20],
}

/// Bytes in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// From the device.
    pub sent: u64,
    /// To it.
    pub received: u64,
}

impl Bytes {
    /// Both together.
    pub fn total(self) -> u64 {
        self.sent + self.received
    }
}

/// One flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// What went over the connection.
    pub wire: Bytes,
    /// Requests and answers as HTTP, heads and bodies.
    pub http: Vec<Bytes>,
    /// Connections that it took.
    pub connections: u64,
}

/// What a batch of so many records costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Records of the batch.
    pub records: u32,
    /// Over plain HTTP.
    pub plain: Bytes,
    /// Over TLS with a key, without the handshake.
    pub tls: Bytes,
}

/// Everything that was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// By the size of the batch.
    pub lines: Vec<Line>,
    /// To agree on keys, once for a connection.
    pub handshake: Bytes,
    /// One JSON request for each record, on a connection that is kept.
    pub json: Bytes,
}

/// Bytes that TLS 1.3 adds to what fits in one of its records: head, type and tag.
pub const TLS_RECORD: u64 = 5 + 1 + 16;

/// Counts everything.
pub fn run() -> io::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let one = flush(1, 16 * 1024, true).await?;
        let handshake = handshake(&one);
        let mut lines = Vec::new();
        for records in BATCHES {
            let plain = flush(records, 16 * 1024, false).await?.wire;
            let over_tls = flush(records, 16 * 1024, true).await?.wire;
            let tls = Bytes {
                sent: over_tls.sent - handshake.sent,
                received: over_tls.received - handshake.received,
            };
            lines.push(Line { records, plain, tls });
        }
        Ok(Report { lines, handshake, json: json() })
    })
}

/// What is left of a flush of one small batch over TLS without the batch.
pub fn handshake(one: &Flush) -> Bytes {
    let http = one.http.first().copied().unwrap_or_default();
    Bytes {
        sent: one.wire.sent - http.sent - TLS_RECORD,
        received: one.wire.received - http.received - TLS_RECORD,
    }
}

/// Sends so many records in batches of at most so many bytes. The device knows the time; a report is due, as it is every 15 minutes.
pub async fn flush(records: u32, batch_max: usize, has_tls: bool) -> io::Result<Flush> {
    let model = model();
    let http: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let seen = http.clone();
    let manner: Manner = Arc::new(move |exchange, reply| {
        let said = Said::plainly(reply, After::KeepAlive);
        let received = said.parts.iter().map(|part| part.len() as u64).sum();
        seen.lock().unwrap().push(Bytes { sent: exchange.request as u64, received });
        said
    });
    let mut station = RealStation::boot().await;
    station.timeouts = Timeouts { connect_ms: 20_000, exchange_ms: 20_000 };
    let (mut plain_server, mut tls_server) = (None, None);
    let mut uplink = if has_tls {
        let server = tls_server.insert(PskServer::start(&model, manner, "meter-1", &KEY).await?);
        let trust = Trust::Psk { identity: b"meter-1", key: &KEY };
        let seed = Box::leak(Box::new(|| fastrand::u64(..)));
        let tls = Tls::new(trust, vec![0; 16_640].leak(), vec![0; 4_096].leak(), seed);
        station.uplink(&format!("https://receiver.test:{}", server.port()), Some(tls), batch_max)
    } else {
        let server = plain_server.insert(HonestServer::start(&model, manner).await?);
        station.uplink(&format!("http://receiver.test:{}", server.address().port()), None, batch_max)
    };
    let failed = |failure| io::Error::other(format!("the flush failed: {failure:?}"));
    // From the first answer the device learns the time.
    station.post_all([0]).await;
    station.flush(&mut uplink).await.map_err(failed)?;
    http.lock().unwrap().clear();
    let count = |station: &RealStation| Bytes {
        sent: station.net.sent_bytes(),
        received: station.net.received_bytes(),
    };
    let (before, connections) = (count(&station), station.net.connections());
    for number in 0..records {
        station.clock.skip(APART.as_millis() as u64);
        let sample = Sample { bytes: [number as u8; 20] };
        station.outbox.enqueue(&sample).await.map_err(|_| io::Error::other("there is no room"))?;
    }
    station.flush(&mut uplink).await.map_err(failed)?;
    let after = count(&station);
    let http = http.lock().unwrap().clone();
    Ok(Flush {
        wire: Bytes { sent: after.sent - before.sent, received: after.received - before.received },
        http,
        connections: station.net.connections() - connections,
    })
}

/// One record as an ordinary client of an ordinary API sends it: 20 bytes in base64, who and when beside them, no authorization.
fn json() -> Bytes {
    let body = concat!(
        r#"{"device":"meter-1","time":"2026-01-01T00:15:00.000Z","kind":"sample","#,
        r#""data":"AAECAwQFBgcICQoLDA0ODxAREhM="}"#
    );
    let request = format!(
        "POST /v1/records/sample HTTP/1.1\r\nhost: receiver.test\r\nuser-agent: reqwest/0.12.24\r\n\
         accept: */*\r\ncontent-type: application/json\r\n\
         idempotency-key: \"meter-1.9f3c1a77.0.18204\"\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let said = r#"{"status":"ok"}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\ndate: {}\r\n\r\n{said}",
        said.len(),
        date(WORLD_BEGAN_S)
    );
    Bytes { sent: request.len() as u64, received: answer.len() as u64 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handshake = self.handshake.total() as f64;
        let json = self.json.total() as f64;
        writeln!(
            f,
            "Bytes on the wire per record with a body of 20 bytes, taken 15 minutes apart: requests and answers with all"
        )?;
        writeln!(f, "their headers, and TLS where there is TLS, counted at the TCP connection.\n")?;
        writeln!(
            f,
            "| records in a batch | request | answer | HTTP | TLS, connection kept for 10 batches | TLS, a connection for each batch | a JSON request for each record |"
        )?;
        writeln!(
            f,
            "|-------------------:|--------:|-------:|-----:|-----------------------------------:|--------------------------------:|-------------------------------:|"
        )?;
        for Line { records, plain, tls } in &self.lines {
            let per = |bytes: f64| bytes / f64::from(*records);
            let over_tls = tls.total() as f64;
            writeln!(
                f,
                "| {records:18} | {:7} | {:6} | {:4.0} | {:34.0} | {:31.0} | {json:30.0} |",
                plain.sent,
                plain.received,
                per(plain.total() as f64),
                per(over_tls + handshake / KEPT),
                per(over_tls + handshake),
            )?;
        }
        writeln!(
            f,
            "\nThe handshake with a pre-shared key: {} bytes sent, {} received. The JSON request: {} bytes, its answer: {}, \
             on a plain connection that is kept.",
            self.handshake.sent, self.handshake.received, self.json.sent, self.json.received
        )
    }
}
