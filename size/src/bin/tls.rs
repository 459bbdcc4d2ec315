//! The outbox with one lane and its own uplink over HTTP and TLS, with a key that is shared beforehand.

#![no_std]
#![no_main]

use embassy_futures::block_on;
use pillarbox::{Http, Tls, Trust};
use size::net::{StubNet, URL};
use size::{Ticks, device, keep, word};
use static_cell::ConstStaticCell;

/// A whole record of TLS, and what is sent.
static RECORDS: ConstStaticCell<([u8; 16_640], [u8; 2048])> = ConstStaticCell::new(([0; 16_640], [0; 2048]));
static KEY: ConstStaticCell<[u8; 32]> = ConstStaticCell::new([0; 32]);
static SEED: ConstStaticCell<fn() -> u64> = ConstStaticCell::new(|| word().into());

#[cortex_m_rt::entry]
fn main() -> ! {
    let (read, write) = RECORDS.take();
    let key = KEY.take();
    key.fill(word() as u8);
    let tls = Tls::new(Trust::Psk { identity: b"size", key }, read, write, SEED.take());
    if block_on(device::work(Http::new(&StubNet, &StubNet, Ticks, URL).tls(tls))).is_none() {
        keep(1);
    }
    loop {}
}
