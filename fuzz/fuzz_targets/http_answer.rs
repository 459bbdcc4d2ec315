//! Whatever a server sends, and in whatever pieces, a flush ends, never panics and never settles anything: nobody without
//! the device's secret can make it forget a record.
//!
//! An input is the sizes of the pieces and the bytes. Run it with
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run http_answer --sanitizer none -- -max_len=4096`.

#![no_main]

use core::cell::Cell;
use core::convert::Infallible;
use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use arbitrary::Arbitrary;
use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embedded_io_async::{ErrorType, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use libfuzzer_sys::fuzz_target;
use pillarbox::{
    BatchUplink, Clock, Config, DeviceId, Dispatcher, EncodedSize, Http, LaneConfig, Pace, Record, Resources,
    Sleep, buffer_size, wire::Secret,
};
use serde::Serialize;

/// The simulated flash alone: the lives and models beside it take minutes to build with a sanitizer.
#[path = "../../host-tests/src"]
#[allow(dead_code, unused_imports)]
mod simulator {
    pub mod flash;
}

use simulator::flash::Chip;

type Flash = Chip<4, 4, 512>;

const RECORD: usize = 40;
const BUFFER: usize = buffer_size(1, RECORD);
const RECORDS: u32 = 5;
/// A wait is over after so many looks at it.
const PATIENCE: u32 = 50;
/// A flush that is looked at so often hangs.
const POLLS_MAX: u32 = 100_000;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Sizes of the pieces, over and over; 0 is a piece that is not there yet.
    pieces: [u8; 8],
    /// The pieces end with silence and not with the end of the connection.
    is_silent: bool,
    bytes: &'a [u8],
}

#[derive(Debug, Serialize, EncodedSize, Record)]
#[record(kind = 7)]
struct Reading {
    number: u32,
}

#[derive(Clone, Copy)]
struct Impatient;

impl Clock for Impatient {
    fn uptime_ms(&self) -> u64 {
        1_000_000
    }
}

impl Sleep for Impatient {
    async fn sleep_until(&self, _: u64) {
        let mut looks = 0;
        poll_fn(|_| {
            looks += 1;
            if looks > PATIENCE { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Every connection is served the rest of the bytes.
struct Net<'a> {
    input: &'a Input<'a>,
    at: Cell<usize>,
    piece: Cell<usize>,
}

struct Connection<'a>(&'a Net<'a>);

impl ErrorType for Connection<'_> {
    type Error = Infallible;
}

impl Read for Connection<'_> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let Net { input, at, piece } = self.0;
        let rest = &input.bytes[at.get()..];
        if rest.is_empty() && input.is_silent {
            core::future::pending::<()>().await;
        }
        let mut size = usize::from(input.pieces[piece.get() % 8]);
        piece.set(piece.get() + 1);
        if size == 0 {
            let mut looks = 0;
            poll_fn(|_| {
                looks += 1;
                if looks > 1 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            size = 1;
        }
        let count = size.min(rest.len()).min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        at.set(at.get() + count);
        Ok(count)
    }
}

impl Write for Connection<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        Ok(bytes.len())
    }

    async fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl TcpConnect for Net<'_> {
    type Error = Infallible;
    type Connection<'c>
        = Connection<'c>
    where
        Self: 'c;

    async fn connect(&self, _: SocketAddr) -> Result<Connection<'_>, Infallible> {
        Ok(Connection(self))
    }
}

impl Dns for Net<'_> {
    type Error = Infallible;

    async fn get_host_by_name(&self, _: &str, _: AddrType) -> Result<IpAddr, Infallible> {
        Ok(Ipv4Addr::LOCALHOST.into())
    }

    async fn get_host_by_address(&self, _: IpAddr, _: &mut [u8]) -> Result<usize, Infallible> {
        Ok(0)
    }
}

fuzz_target!(|input: Input<'_>| {
    let chip = Flash::new(48, 1);
    let net = Net { input: &input, at: Cell::new(0), piece: Cell::new(0) };
    let mut resources = Resources::<&Flash, 1, RECORD, BUFFER, NoopRawMutex, Impatient>::new();
    let config = Config::new(DeviceId::new("meter-1").expect("it is one"), [LaneConfig::new(8)]);
    let opened = block_on(pillarbox::new(&mut resources, &chip, Impatient, 7, config));
    let (outbox, drain) = opened.expect("a blank chip can be opened");
    let keys: Vec<_> = (0..RECORDS)
        .map(|number| block_on(outbox.enqueue(&Reading { number })).expect("there is room"))
        .collect();
    let pace = Pace::new().spread(core::time::Duration::ZERO);
    let mut dispatcher = block_on(Dispatcher::new(drain)).pace(pace);
    let (mut tx, mut rx) = ([0; 1024], [0; 1024]);
    let http = Http::new(&net, &net, Impatient, "http://receiver.test");
    let uplink = BatchUplink::new(http, &Secret::new([7; 32]), &mut tx, &mut rx);
    let mut uplink = uplink.expect("it is an address");

    let mut step = pin!(dispatcher.step(&mut uplink));
    let mut context = Context::from_waker(Waker::noop());
    let flushed = (0..POLLS_MAX).find_map(|_| match step.as_mut().poll(&mut context) {
        Poll::Ready(flushed) => Some(flushed),
        Poll::Pending => None,
    });
    let flushed = flushed.expect("a flush ends").expect("there is something to send");
    assert!(flushed.is_err(), "the bytes of a stranger were taken for an answer");
    let mut pending = Vec::new();
    block_on(outbox.inspect(0, |stored| pending.push(stored.key))).expect("the flash is sound");
    assert_eq!(pending, keys);
});
