//! The outbox with one lane, as a small device uses it: open, post, send, settle, look at the dead letters, sleep.

#![no_std]
#![no_main]

use core::convert::Infallible;

use embassy_futures::block_on;
use heapless::Vec;
use pillarbox::{Config, DeviceId, Key, LaneConfig};
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
        let reading = Reading {
            watt_hours: word().into(),
            temperature: word() as i16,
        };
        keep(outbox.enqueue(&reading).await.ok()?.counter as u32);
        let mut keys: Vec<Key, 16> = Vec::new();
        let take = |record: &pillarbox::Stored<'_>| {
            keep(record.body.len() as u32);
            keys.push(record.key).is_ok()
        };
        let window = drain.window(0, take).await.ok()?;
        keep(window.floor as u32);
        keep(drain.settle(0, &keys).await.ok()?);
        let letters = outbox.dead_letters();
        letters.list(|letter| keep(letter.kind.0.into())).await.ok()?;
        outbox.suspend().await.ok()?;
    }
}
