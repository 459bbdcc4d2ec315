//! The ground that the others stand on: the runtime, and the flash's three operations.

#![no_std]
#![no_main]

use embassy_futures::block_on;
use embedded_storage_async::nor_flash::{NorFlash, ReadNorFlash};
use size::{StubFlash, keep, word};

#[cortex_m_rt::entry]
fn main() -> ! {
    loop {
        block_on(round());
    }
}

async fn round() {
    let mut flash = StubFlash;
    let mut bytes = [0; 16];
    let _ = flash.erase(0, word()).await;
    let _ = flash.write(word(), &bytes).await;
    let _ = flash.read(word(), &mut bytes).await;
    keep(u32::from(bytes[0]));
}
