//! The same traits as the simulated network's, over real TCP: what a simulated server accepts, a real one must accept
//! too, and a real socket behaves in ways that a simulated one was not told of.

mod honest;
mod psk;
mod scripted;
mod station;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use embedded_io_adapters::tokio_1::FromTokio;
use embedded_io_async::{ErrorType, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use pillarbox::{Clock, Sleep};
use tokio::net::TcpStream;
use tokio::time::Instant;

pub use honest::{Exchange, HonestServer, Manner, Model, Said, model, plainly, serve};
pub use psk::PskServer;
pub use scripted::{Act, ScriptedServer};
pub use station::{RealStation, RealUplink};

/// The host's network. A clone counts together with it.
#[derive(Clone, Debug, Default)]
pub struct RealNet {
    names: HashMap<String, IpAddr>,
    traffic: Arc<Traffic>,
}

/// What went over all connections.
#[derive(Debug, Default)]
struct Traffic {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    connections: AtomicU64,
}

impl RealNet {
    /// The host's network and its resolver.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a name that no resolver has to know.
    pub fn with_name(mut self, name: &str, address: IpAddr) -> Self {
        self.names.insert(name.to_owned(), address);
        self
    }

    /// Bytes that were written.
    pub fn sent_bytes(&self) -> u64 {
        self.traffic.sent_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    pub fn received_bytes(&self) -> u64 {
        self.traffic.received_bytes.load(Ordering::Relaxed)
    }

    /// Connections that were opened.
    pub fn connections(&self) -> u64 {
        self.traffic.connections.load(Ordering::Relaxed)
    }
}

/// A real connection.
pub struct RealConnection {
    stream: FromTokio<TcpStream>,
    traffic: Arc<Traffic>,
}

impl ErrorType for RealConnection {
    type Error = io::Error;
}

impl Read for RealConnection {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer).await?;
        self.traffic.received_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Write for RealConnection {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(bytes).await?;
        self.traffic.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await
    }
}

impl TcpConnect for RealNet {
    type Error = io::Error;
    type Connection<'a> = RealConnection;

    async fn connect(&self, remote: SocketAddr) -> io::Result<RealConnection> {
        let stream = TcpStream::connect(remote).await?;
        // A head and a body in two writes would wait for each other's acknowledgement.
        stream.set_nodelay(true)?;
        self.traffic.connections.fetch_add(1, Ordering::Relaxed);
        Ok(RealConnection { stream: FromTokio::new(stream), traffic: self.traffic.clone() })
    }
}

impl Dns for RealNet {
    type Error = io::Error;

    async fn get_host_by_name(&self, host: &str, kind: AddrType) -> io::Result<IpAddr> {
        let is_wanted = |address: &IpAddr| match kind {
            AddrType::IPv4 => address.is_ipv4(),
            AddrType::IPv6 => address.is_ipv6(),
            AddrType::Either => true,
        };
        let found = match self.names.get(host) {
            Some(address) => Some(*address).filter(is_wanted),
            // tokio asks std's resolver, on a thread of its own.
            None => tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).find(is_wanted),
        };
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    async fn get_host_by_address(&self, _: IpAddr, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// tokio's clock, from 0 when it is made. It stands still while tokio's time is paused.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    booted_at: Instant,
    /// What a test has skipped. It lives for ever, so that the clock can be copied.
    skipped_ms: &'static AtomicU64,
}

impl TokioClock {
    /// The clock of a device that boots now.
    pub fn boot() -> Self {
        Self { booted_at: Instant::now(), skipped_ms: Box::leak(Box::default()) }
    }

    /// Lets time pass at once. Nobody may be waiting for it.
    pub fn skip(&self, ms: u64) {
        self.skipped_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Sleep for TokioClock {
    async fn sleep_until(&self, uptime_ms: u64) {
        let ms = uptime_ms.saturating_sub(self.skipped_ms.load(Ordering::Relaxed));
        match self.booted_at.checked_add(Duration::from_millis(ms)) {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => core::future::pending().await,
        }
    }
}

impl Clock for TokioClock {
    fn uptime_ms(&self) -> u64 {
        self.booted_at.elapsed().as_millis() as u64 + self.skipped_ms.load(Ordering::Relaxed)
    }
}
