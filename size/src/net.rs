//! A network that costs the same in every program that has one: it may have to be waited for, and nobody knows what comes back.

use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::ptr;
use core::task::Poll;

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use pillarbox::Sleep;

use crate::{Ticks, keep, word};

/// Where the server is.
#[cfg(not(feature = "tls"))]
pub const URL: &str = "http://pillarbox.example";
/// Where the server is.
#[cfg(feature = "tls")]
pub const URL: &str = "https://pillarbox.example";
/// What a batch is put together in.
pub const TX: usize = 1024;
/// What an answer is read into.
pub const RX: usize = 1024;

const FIFO: *mut u8 = 0x5000_0000 as *mut u8;

/// A network interface.
pub struct StubNet;

/// A connection through it.
pub struct StubConnection;

/// Waits until the optimiser cannot know when.
async fn ready() -> Result<(), ErrorKind> {
    poll_fn(|_| match word() {
        0 => Poll::Pending,
        1 => Poll::Ready(Err(ErrorKind::ConnectionReset)),
        _ => Poll::Ready(Ok(())),
    })
    .await
}

impl TcpConnect for StubNet {
    type Error = ErrorKind;
    type Connection<'a> = StubConnection;

    async fn connect(&self, remote: SocketAddr) -> Result<StubConnection, ErrorKind> {
        keep(remote.port().into());
        ready().await.map(|()| StubConnection)
    }
}

impl Dns for StubNet {
    type Error = ErrorKind;

    async fn get_host_by_name(&self, host: &str, _: AddrType) -> Result<IpAddr, ErrorKind> {
        keep(host.len() as u32);
        ready().await.map(|()| IpAddr::V4(word().into()))
    }

    async fn get_host_by_address(&self, _: IpAddr, _: &mut [u8]) -> Result<usize, ErrorKind> {
        Err(ErrorKind::Unsupported)
    }
}

impl ErrorType for StubConnection {
    type Error = ErrorKind;
}

impl Read for StubConnection {
    async fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        ready().await?;
        Ok(receive(bytes))
    }
}

impl Write for StubConnection {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        ready().await?;
        Ok(send(bytes))
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        ready().await
    }
}

#[inline(never)]
fn receive(bytes: &mut [u8]) -> usize {
    let len = bytes.len().min(word() as usize);
    for byte in bytes.iter_mut().take(len) {
        // SAFETY: the program is measured and never run.
        *byte = unsafe { ptr::read_volatile(FIFO) };
    }
    len
}

#[inline(never)]
fn send(bytes: &[u8]) -> usize {
    let len = bytes.len().min(word() as usize);
    for byte in bytes.iter().take(len) {
        // SAFETY: the program is measured and never run.
        unsafe { ptr::write_volatile(FIFO, *byte) };
    }
    len
}

impl Sleep for Ticks {
    async fn sleep_until(&self, uptime_ms: u64) {
        use pillarbox::Clock;

        poll_fn(|_| if self.uptime_ms() < uptime_ms { Poll::Pending } else { Poll::Ready(()) }).await;
    }
}
