//! What most would write instead: sequential-storage's queue with its page caches; the same record encoded and pushed, iterated
//! and popped.

#![no_std]
#![no_main]

use embassy_futures::block_on;
use sequential_storage::Error;
use sequential_storage::cache::page_pointers::ArrayPagePointers;
use sequential_storage::cache::page_states::ArrayPageStates;
use sequential_storage::cache::{Cache, Uncached};
use sequential_storage::queue::{QueueConfig, QueueStorage};
use size::{PAGES, RECORD, Reading, StubFlash, keep, word};

type Pages = Cache<ArrayPageStates<PAGES>, ArrayPagePointers<PAGES>, Uncached, ()>;

#[cortex_m_rt::entry]
fn main() -> ! {
    let cache = Cache::new(ArrayPageStates::new(), ArrayPagePointers::new(), Uncached);
    let config = const { QueueConfig::new(0..(PAGES * 4096) as u32) };
    let mut queue = QueueStorage::new(StubFlash, config, cache);
    loop {
        if block_on(round(&mut queue)).is_err() {
            keep(1);
        }
    }
}

async fn round(queue: &mut QueueStorage<StubFlash, Pages>) -> Result<(), Error<core::convert::Infallible>> {
    let mut bytes = [0; RECORD];
    let reading = Reading { watt_hours: word().into(), temperature: word() as i16 };
    if let Ok(encoded) = postcard::to_slice(&reading, &mut bytes) {
        queue.push(encoded, false).await?;
    }
    let mut iterator = queue.iter().await?;
    while let Some(entry) = iterator.next(&mut bytes).await? {
        keep(u32::from(entry[0]));
        entry.pop().await?;
    }
    Ok(())
}
