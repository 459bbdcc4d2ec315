//! The outbox with one lane and its own uplink over HTTP.

#![no_std]
#![no_main]

use embassy_futures::block_on;
use pillarbox::Http;
use size::net::{StubNet, URL};
use size::{Ticks, device, keep};

#[cortex_m_rt::entry]
fn main() -> ! {
    if block_on(device::work(Http::new(&StubNet, &StubNet, Ticks, URL))).is_none() {
        keep(1);
    }
    loop {}
}
