//! What the device makes of an image: the outbox of a life is opened on it and asked for everything.

use core::cell::Cell;

use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use pillarbox::{Entry, Key, Resources};

use super::{LANES, VirtualClock, config};
use crate::flash::Chip;

/// What the next boot finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The incarnation of new records.
    pub incarnation: u32,
    /// The number of the boot that found all this.
    pub boot: u32,
    /// What waits in each lane, oldest first.
    pub pending: [Vec<Key>; LANES],
    /// The dead letters, oldest first.
    pub dead: Vec<Key>,
    /// Which of them are to be sent again.
    pub late: Vec<Key>,
    /// What will not arrive.
    pub account: Vec<Entry>,
}

impl Opened {
    /// Opens the outbox of the lives on a copy of this image, every cell of it solid.
    pub fn of<const R: usize, const W: usize, const E: usize, const RECORD: usize, const BUFFER: usize>(
        image: &[u8],
    ) -> Result<Self, String> {
        let chip = Chip::<R, W, E>::from_image(image, 1);
        block_on(Self::open::<R, W, E, RECORD, BUFFER>(&chip))
    }

    async fn open<
        const R: usize,
        const W: usize,
        const E: usize,
        const RECORD: usize,
        const BUFFER: usize,
    >(
        chip: &Chip<R, W, E>,
    ) -> Result<Self, String> {
        let clock = Cell::new(0);
        let mut resources = Resources::<_, LANES, RECORD, BUFFER, NoopRawMutex, VirtualClock<'_>>::new();
        let opened = pillarbox::new(&mut resources, chip, VirtualClock(&clock), 1, config()).await;
        let (outbox, mut drain) = opened.map_err(|error| error.to_string())?;
        let (incarnation, boot, _) = drain.identity().await;
        let mut pending: [Vec<Key>; LANES] = Default::default();
        for (lane, keys) in (0..).zip(&mut pending) {
            let shown = outbox.inspect(lane, |record| keys.push(record.key)).await;
            shown.map_err(|error| error.to_string())?;
        }
        let mut dead = Vec::new();
        let shown = outbox.dead_letters().list(|letter| dead.push(letter.key)).await;
        shown.map_err(|error| error.to_string())?;
        let mut late = Vec::new();
        let shown = drain.late(|letter| {
            late.push(letter.key);
            true
        });
        shown.await.map_err(|error| error.to_string())?;
        let account = drain.account().await.to_vec();
        Ok(Self { incarnation, boot, pending, dead, late, account })
    }
}
