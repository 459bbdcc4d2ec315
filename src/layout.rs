//! Which pages belong to what: the region's description of itself.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use crate::DeviceId;

/// The most lanes that a region can have.
pub(crate) const LANES_MAX: usize = 8;

/// The metadata's pages come first in every region, so that a reader finds them without knowing more.
pub(crate) const METADATA: LaneSpan = LaneSpan { first: 0, pages: 2 };

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LaneSpan {
    /// The first page, counted from the region's start.
    pub first: u16,
    /// How many.
    pub pages: u16,
}

impl LaneSpan {
    pub(crate) fn end(&self) -> u32 {
        u32::from(self.first) + u32::from(self.pages)
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        u32::from(self.first) < other.end() && u32::from(other.first) < self.end()
    }
}

/// What a region holds, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Layout {
    /// Whose records these are.
    pub device: DeviceId,
    /// The largest stored record that may be in it.
    pub record_max: u16,
    /// The dead-letter ring.
    pub dead_letters: LaneSpan,
    /// A ring per lane.
    pub lanes: Vec<LaneSpan, LANES_MAX>,
}

impl Layout {
    pub(crate) const ENCODED_MAX: usize = 33 + 3 + 6 + 1 + LANES_MAX * 6;

    /// Pages that the region takes.
    pub fn pages(&self) -> u32 {
        self.spans().map(|span| span.end()).max().unwrap_or(0)
    }

    /// Every ring of the region.
    pub(crate) fn spans(&self) -> impl Iterator<Item = LaneSpan> {
        [METADATA, self.dead_letters].into_iter().chain(self.lanes.iter().copied())
    }
}
