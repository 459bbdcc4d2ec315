//! Which pages belong to what: the region's description of itself.

use heapless::Vec;

use crate::{DeviceId, Geometry, codec::Walk};

/// The most lanes that a region can have: the metadata of so many fit in a half of theirs.
pub(crate) const LANES_MAX: usize = 6;

/// The metadata come first in every region, in two halves of this many bytes, or of a page if that is more.
const METADATA_HALF: u32 = 4096;

/// Bytes of each half of the metadata.
pub(crate) const fn metadata_half(geometry: Geometry) -> u32 {
    if geometry.page() > METADATA_HALF { geometry.page() } else { METADATA_HALF }
}

/// Pages of both halves of the metadata.
pub(crate) const fn metadata_pages(geometry: Geometry) -> u16 {
    (2 * metadata_half(geometry) / geometry.page()) as u16
}

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LaneSpan {
    /// The first page, counted from the region's start.
    pub first: u16,
    /// How many.
    pub pages: u16,
}

impl LaneSpan {
    pub(crate) const NONE: Self = Self { first: 0, pages: 0 };

    fn walk(&mut self, walk: &mut Walk<'_>) {
        walk.u16(&mut self.first);
        walk.u16(&mut self.pages);
    }

    pub(crate) fn end(&self) -> u32 {
        u32::from(self.first) + u32::from(self.pages)
    }

    #[cfg(feature = "outbox")]
    fn overlaps(&self, other: &Self) -> bool {
        u32::from(self.first) < other.end() && u32::from(other.first) < self.end()
    }

    /// The same pages, and perhaps more behind them.
    #[cfg(feature = "outbox")]
    fn extends(&self, other: &Self) -> bool {
        self.first == other.first && self.pages >= other.pages
    }
}

/// What a region holds, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The layout of nobody, to be read into.
    pub(crate) fn blank() -> Self {
        Self { device: DeviceId::blank(), record_max: 0, dead_letters: LaneSpan::NONE, lanes: Vec::new() }
    }

    pub(crate) fn walk(&mut self, walk: &mut Walk<'_>) {
        self.device.walk(walk);
        walk.u16(&mut self.record_max);
        self.dead_letters.walk(walk);
        walk.list(&mut self.lanes, LaneSpan::NONE, LaneSpan::walk);
    }

    /// Pages that the region takes, the metadata included.
    pub fn pages(&self) -> u32 {
        self.rings().map(|span| span.end()).max().unwrap_or(0)
    }

    /// Every ring of the region: the dead letters, then the lanes.
    pub(crate) fn rings(&self) -> impl Iterator<Item = LaneSpan> {
        (0..).map_while(|at| self.ring(at).copied())
    }

    /// One of them, by its place in that order.
    fn ring(&self, at: usize) -> Option<&LaneSpan> {
        match at.checked_sub(1) {
            None => Some(&self.dead_letters),
            Some(lane) => self.lanes.get(lane),
        }
    }

    /// Whether a region with the layout `old` can become one with this layout without losing anything: every
    /// ring stays where it is and keeps its pages, and what is new overlaps nothing.
    #[cfg(feature = "outbox")]
    pub(crate) fn extends(&self, old: &Self) -> bool {
        let mut fits = self.lanes.len() >= old.lanes.len() && self.record_max >= old.record_max;
        for (at, new) in self.rings().enumerate() {
            for (other, old) in old.rings().enumerate() {
                fits &= if at == other { new.extends(&old) } else { !new.overlaps(&old) };
            }
        }
        fits
    }
}
