//! What most would write instead of an uplink: the outbox with one lane, and its records posted with reqwless alone.

#![no_std]
#![no_main]

use core::convert::Infallible;

use embassy_futures::block_on;
use heapless::Vec;
use pillarbox::{Config, DeviceId, Key, LaneConfig};
use reqwless::client::HttpClient;
use reqwless::request::{Method, RequestBuilder};
use size::net::{RX, StubNet, TX, URL};
use size::{Memory, PAGES, Reading, StubFlash, Ticks, keep, word};
use static_cell::ConstStaticCell;

static MEMORY: ConstStaticCell<Memory> = ConstStaticCell::new(Memory::new());

#[cortex_m_rt::entry]
fn main() -> ! {
    if block_on(work()).is_none() {
        keep(1);
    }
    loop {}
}

async fn work() -> Option<Infallible> {
    let config = Config::new(DeviceId::new("size").ok()?, [LaneConfig::new(PAGES as u16)]);
    let entropy = u64::from(word());
    let opened = pillarbox::new(MEMORY.take(), StubFlash, Ticks, entropy, config).await;
    let (outbox, mut drain) = opened.ok()?;
    loop {
        let reading = Reading { watt_hours: word().into(), temperature: word() as i16 };
        keep(outbox.enqueue(&reading).await.ok()?.counter as u32);
        let mut keys: Vec<Key, 16> = Vec::new();
        let mut bodies: Vec<u8, TX> = Vec::new();
        let take = |record: &pillarbox::Stored<'_>| {
            bodies.extend_from_slice(record.body).is_ok() && keys.push(record.key).is_ok()
        };
        let window = drain.window(0, take).await.ok()?;
        keep(window.floor as u32);
        if post(&bodies).await? == 200 {
            keep(drain.settle(0, &keys).await.ok()?);
        }
        let letters = outbox.dead_letters();
        letters.list(|letter| keep(letter.kind.0.into())).await.ok()?;
        outbox.suspend().await.ok()?;
    }
}

async fn post(body: &[u8]) -> Option<u16> {
    let mut rx = [0; RX];
    let mut client = HttpClient::new(&StubNet, &StubNet);
    let request = client.request(Method::POST, URL).await.ok()?;
    let headers = [("Content-Type", "application/octet-stream")];
    let mut request = request.path("/v1/readings").headers(&headers).body(body);
    let response = request.send(&mut rx).await.ok()?;
    let status = response.status.0;
    keep(response.body().read_to_end().await.ok()?.len() as u32);
    Some(status)
}
