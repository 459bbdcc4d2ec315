//! What an application chooses: whose outbox it is, where it lies, and how each lane behaves.

use core::time::Duration;

use heapless::Vec;

use crate::{
    DeviceId, Geometry, LaneSpan, Layout, LayoutError,
    io::SCRATCH,
    layout::{LANES_MAX, metadata_pages},
    ledger::snapshot_max,
    stored::Stored,
};

/// A ring needs a page to write to while the oldest is given up.
pub(crate) const PAGES_MIN: u16 = 2;

/// The boot check keeps the state of so many pages in the buffer, four to a byte.
pub(crate) const PAGES_MAX: u16 = 4096;

const _: () = assert!(buffer_size(1, 0) - SCRATCH >= PAGES_MAX as usize / 4);

/// What `enqueue` does when a lane has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WhenFull {
    /// Refuse the new record with an error; nothing is lost.
    Refuse,
    /// Give up the oldest page of records and account for them.
    EvictOldest,
}

/// A lane: a priority class with a ring, a counter and a policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LaneConfig {
    /// Pages of its ring, 2 to 4096.
    pub pages: u16,
    /// Pages kept free behind the ring, into which a later firmware can grow it.
    pub room: u16,
    /// What happens when the ring is full.
    pub when_full: WhenFull,
    /// Records that are older, in milliseconds, go to the dead letters.
    pub max_age_ms: Option<u64>,
    /// Records that the receiver has rejected so often go to the dead letters.
    pub max_attempts: u16,
}

impl LaneConfig {
    /// A lane of so many pages that refuses records when it is full, keeps them however old they are, and takes
    /// five rejections for final.
    pub const fn new(pages: u16) -> Self {
        Self { pages, room: 0, when_full: WhenFull::Refuse, max_age_ms: None, max_attempts: 5 }
    }

    /// Keeps so many pages free behind the ring, to grow into.
    pub const fn room(self, pages: u16) -> Self {
        Self { room: pages, ..self }
    }

    /// Gives up the oldest records when the ring is full.
    pub const fn evict_oldest(self) -> Self {
        Self { when_full: WhenFull::EvictOldest, ..self }
    }

    /// Sends records that are older to the dead letters.
    pub const fn max_age(self, age: Duration) -> Self {
        Self { max_age_ms: Some(age.as_millis() as u64), ..self }
    }

    /// Sends records that were rejected so often to the dead letters.
    pub const fn max_attempts(self, attempts: u16) -> Self {
        Self { max_attempts: attempts, ..self }
    }
}

/// Whose outbox it is, where it lies, and its lanes in order of priority.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Config<const LANES: usize> {
    /// Whose records these are.
    pub device: DeviceId,
    /// Where the region begins on the flash: the first byte of a page.
    pub origin: u32,
    /// Pages of the dead-letter ring, 2 to 4096.
    pub dead_letter_pages: u16,
    /// The lanes, the most urgent first.
    pub lanes: [LaneConfig; LANES],
}

impl<const LANES: usize> Config<LANES> {
    /// An outbox at the flash's start with the smallest dead-letter ring.
    pub const fn new(device: DeviceId, lanes: [LaneConfig; LANES]) -> Self {
        Self { device, origin: 0, dead_letter_pages: PAGES_MIN, lanes }
    }

    /// Puts the region there.
    pub fn at(self, origin: u32) -> Self {
        Self { origin, ..self }
    }

    /// Gives the dead letters so many pages.
    pub fn dead_letter_pages(self, pages: u16) -> Self {
        Self { dead_letter_pages: pages, ..self }
    }

    /// Bytes of flash that the region takes, from its origin on.
    pub const fn region_size(&self, geometry: Geometry) -> u32 {
        self.region_pages(geometry).saturating_mul(geometry.page())
    }

    /// Pages that the region takes, with the metadata and the room that is kept free.
    const fn region_pages(&self, geometry: Geometry) -> u32 {
        let mut pages = metadata_pages(geometry) as u32 + self.dead_letter_pages as u32;
        let mut lane = 0;
        while lane < LANES {
            #[allow(
                clippy::indexing_slicing,
                reason = "a const fn has no iterators, and the bound stands above"
            )]
            let config = &self.lanes[lane];
            pages += config.pages as u32 + config.room as u32;
            lane += 1;
        }
        pages
    }

    /// The layout that this configuration asks for on a flash of so many bytes.
    pub(crate) fn layout(
        &self,
        geometry: Geometry,
        record_max: u16,
        capacity: u32,
    ) -> Result<Layout, LayoutError> {
        if LANES == 0 || LANES > LANES_MAX {
            return Err(LayoutError::Lanes);
        }
        if !self.origin.is_multiple_of(geometry.page()) {
            return Err(LayoutError::Origin);
        }
        let fits = |pages| (PAGES_MIN..=PAGES_MAX).contains(&pages);
        if !fits(self.dead_letter_pages) || !self.lanes.iter().all(|lane| fits(lane.pages)) {
            return Err(LayoutError::Pages);
        }
        if u32::from(record_max) > geometry.largest_item() {
            return Err(LayoutError::Record);
        }
        let room = capacity.checked_sub(self.origin).ok_or(LayoutError::Capacity)?;
        let pages = self.region_pages(geometry);
        // Pages are counted in 16 bits, so that all of them together are less than 4 GB.
        if pages > u32::from(u16::MAX) || pages * geometry.page() > room {
            return Err(LayoutError::Capacity);
        }
        let mut first = metadata_pages(geometry);
        let dead_letters = LaneSpan { first, pages: self.dead_letter_pages };
        first += dead_letters.pages;
        let mut lanes = Vec::new();
        for lane in &self.lanes {
            let _ = lanes.push(LaneSpan { first, pages: lane.pages });
            first += lane.pages + lane.room;
        }
        Ok(Layout { device: self.device.clone(), record_max, dead_letters, lanes })
    }
}

/// The longest stored form of a record whose body has at most so many bytes.
pub(crate) const fn stored_max(record: usize, word: usize) -> usize {
    (Stored::HEAD_MAX + record).next_multiple_of(word)
}

/// Bytes of the buffer that [`Resources`](crate::Resources) needs for so many lanes and bodies of so many bytes:
/// a record or a snapshot of the metadata is put together in it.
pub const fn buffer_size(lanes: usize, record: usize) -> usize {
    let word = Geometry::WORD_MAX;
    // The boot check reads the last record with its header.
    let stored = word + stored_max(record, word);
    let snapshot = word + snapshot_max(lanes).next_multiple_of(word);
    SCRATCH + if stored > snapshot { stored } else { snapshot }
}
