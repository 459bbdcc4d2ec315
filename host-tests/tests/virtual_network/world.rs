//! A world of one device that speaks HTTP by hand, and a server that remembers.

use std::cell::RefCell;
use std::rc::Rc;

use embassy_futures::select::{Either, select};
use embedded_io_async::{ErrorKind, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use host_tests::link::{Connection, Fault, Link, Network};
use host_tests::server::{Reply, Server};
use host_tests::virtual_time::VirtualTime;

pub(crate) const PATIENCE_MS: u64 = 30_000;
pub(crate) const HOUR_MS: u64 = 60 * 60 * 1000;

/// A server that remembers what it saw and answers with the request turned round.
#[derive(Default)]
pub(crate) struct Mirror {
    pub(crate) seen: Vec<(u64, Vec<u8>)>,
}

impl Server for Mirror {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        self.seen.push((now_ms, body.to_vec()));
        Reply { status: 200, body: mirrored(body), retry_after_s: None }
    }
}

fn mirrored(body: &[u8]) -> Vec<u8> {
    body.iter().rev().copied().collect()
}

pub(crate) struct World {
    pub(crate) time: VirtualTime,
    pub(crate) server: Rc<RefCell<Mirror>>,
    pub(crate) network: Network,
    pub(crate) link: Link,
}

impl Drop for World {
    fn drop(&mut self) {
        self.time.kill_all();
    }
}

pub(crate) fn world(seed: u64) -> World {
    let time = VirtualTime::new();
    let server = Rc::new(RefCell::new(Mirror::default()));
    let network = Network::new(&time, seed, server.clone());
    let link = network.link();
    World { time, server, network, link }
}

impl World {
    pub(crate) fn seen(&self) -> Vec<Vec<u8>> {
        self.server.borrow().seen.iter().map(|(_, body)| body.clone()).collect()
    }

    /// Lets everything that is still under way happen.
    pub(crate) fn settle(&self) {
        self.time.run_until(self.time.now_ms() + HOUR_MS);
    }

    /// One request on a connection of its own, with one fault.
    pub(crate) fn exchange_with(&self, fault: Fault, body: &[u8]) -> Outcome {
        self.link.inject(fault);
        self.time.block_on(exchange(&self.time, &self.link, body))
    }
}

/// How a request ended for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer {
        status: u16,
        head: String,
        body: Vec<u8>,
    },
    /// The connection ended after these bytes, which are no answer.
    Ended(Vec<u8>),
    Failed(ErrorKind),
    /// The device waited for long enough.
    TimedOut,
}

impl Outcome {
    pub(crate) fn body(&self) -> &[u8] {
        match self {
            Outcome::Answer { body, .. } => body,
            other => panic!("no answer: {other:?}"),
        }
    }
}

pub(crate) fn post(body: &[u8]) -> Vec<u8> {
    let head =
        format!("POST /v1/batch HTTP/1.1\r\nHost: receiver.test\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

pub(crate) async fn connect(link: &Link) -> Result<Connection, ErrorKind> {
    let address = link.get_host_by_name(Network::SERVER_NAME, AddrType::IPv4).await?;
    link.connect((address, 80).into()).await
}

pub(crate) async fn exchange(time: &VirtualTime, link: &Link, body: &[u8]) -> Outcome {
    let all = async {
        match connect(link).await {
            Ok(mut connection) => send(&mut connection, body).await,
            Err(error) => Outcome::Failed(error),
        }
    };
    patiently(time, all).await
}

pub(crate) async fn patiently(time: &VirtualTime, outcome: impl Future<Output = Outcome>) -> Outcome {
    match select(outcome, time.sleep(PATIENCE_MS)).await {
        Either::First(outcome) => outcome,
        Either::Second(()) => Outcome::TimedOut,
    }
}

pub(crate) async fn send(connection: &mut Connection, body: &[u8]) -> Outcome {
    if let Err(error) = connection.write_all(&post(body)).await {
        return Outcome::Failed(error);
    }
    let mut bytes = Vec::new();
    let mut buffer = [0; 64];
    loop {
        if let Some(answer) = parse(&bytes) {
            return answer;
        }
        match connection.read(&mut buffer).await {
            Ok(0) => return Outcome::Ended(bytes),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => return Outcome::Failed(error),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Outcome> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.get(9..12)?.parse().ok()?;
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse::<usize>().ok()?;
    (bytes.len() >= end + length).then(|| Outcome::Answer {
        status,
        head,
        body: bytes[end..end + length].to_vec(),
    })
}
