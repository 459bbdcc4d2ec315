//! A device that posts and sends: the programs with Pillarbox's own uplink differ only in how they reach its server.

use core::convert::Infallible;

use embassy_futures::select::{Either, select};
use pillarbox::wire::Secret;
use pillarbox::{BatchUplink, Config, DeviceId, Dispatcher, Http, LaneConfig, Outbox};
use static_cell::ConstStaticCell;

use crate::net::{RX, StubNet, TX};
use crate::{Lock, Memory, PAGES, RECORD, Reading, StubFlash, Ticks, keep, word};

static MEMORY: ConstStaticCell<Memory> = ConstStaticCell::new(Memory::new());
static BUFFERS: ConstStaticCell<([u8; TX], [u8; RX])> = ConstStaticCell::new(([0; TX], [0; RX]));

/// Opens the outbox; then posts, and sends what was posted.
pub async fn work(http: Http<'static, StubNet, StubNet, Ticks>) -> Option<Infallible> {
    let config = Config::new(DeviceId::new("size").ok()?, [LaneConfig::new(PAGES as u16)]);
    let entropy = u64::from(word());
    let opened = pillarbox::new(MEMORY.take(), StubFlash, Ticks, entropy, config).await;
    let (outbox, drain) = opened.ok()?;
    let (tx, rx) = BUFFERS.take();
    let mut uplink = BatchUplink::new(http, &Secret::new([word() as u8; 32]), tx, rx).ok()?;
    let mut dispatcher = Dispatcher::new(drain).await;
    match select(post(outbox), dispatcher.run(&mut uplink)).await {
        Either::First(ended) => ended,
        Either::Second(never) => match never {},
    }
}

async fn post(outbox: Outbox<'static, StubFlash, 1, RECORD, Lock, Ticks>) -> Option<Infallible> {
    loop {
        let reading = Reading { watt_hours: word().into(), temperature: word() as i16 };
        keep(outbox.enqueue(&reading).await.ok()?.counter as u32);
        let letters = outbox.dead_letters();
        letters.list(|letter| keep(letter.kind.0.into())).await.ok()?;
        outbox.suspend().await.ok()?;
    }
}
