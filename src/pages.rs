//! A ring's pages: where they lie, what their marks say, and what stands where an item may begin.

use crate::{Geometry, LaneSpan, item::Header};

/// Where a ring lies on the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) geometry: Geometry,
    /// The address of the first page.
    start: u32,
    pub(crate) count: u16,
}

/// What a page's two marks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum PageState {
    /// Blank.
    #[default]
    Open,
    /// Takes records.
    InUse,
    /// Full.
    Closed,
}

impl PageState {
    /// How much speaks for a page that it is the one to take the next record, between its neighbours.
    pub(crate) fn rank(previous: Self, page: Self, next: Self) -> u8 {
        match (previous, page, next) {
            (_, Self::InUse, Self::Open) => 5,
            (_, Self::InUse, Self::Closed) => 4,
            (_, Self::InUse, Self::InUse) => 3,
            (Self::Closed, Self::Open, _) => 2,
            (_, Self::Open, _) => 1,
            (_, Self::Closed, _) => 0,
        }
    }
}

/// What stands where an item may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing yet, or something that never became an item: the items end here.
    End,
    /// A word that the boot check has spent.
    Spent,
    /// An item.
    Item {
        header: Header,
        /// The boot check found it unfinished and zeroed the start of its data.
        void: bool,
    },
}

impl Pages {
    /// The pages of a ring in a region that begins at `origin`.
    pub(crate) const fn new(geometry: Geometry, origin: u32, span: LaneSpan) -> Self {
        Self { geometry, start: origin + span.first as u32 * geometry.page(), count: span.pages }
    }

    /// The address of the first page.
    pub(crate) const fn start(&self) -> u32 {
        self.start
    }

    pub(crate) fn address(&self, page: u16, offset: u32) -> u32 {
        self.start + u32::from(page) * self.geometry.page() + offset
    }

    // A function of its own, because so many ask for it.
    #[inline(never)]
    pub(crate) fn next(&self, page: u16) -> u16 {
        if page + 1 >= self.count { 0 } else { page + 1 }
    }

    pub(crate) fn previous(&self, page: u16) -> u16 {
        page.checked_sub(1).unwrap_or(self.count.saturating_sub(1))
    }

    /// How much is read to see what stands at an offset: a header and the start of the data, which lie side by
    /// side. Nothing if there is no room for a header.
    pub(crate) fn look(&self, offset: u32) -> u32 {
        let (word, end) = (self.geometry.word(), self.geometry.end_mark());
        if offset + word > end { 0 } else { (end - offset).min(2 * word) }
    }

    /// What the cells that were read at an offset say.
    pub(crate) fn slot(&self, offset: u32, cells: &[u8]) -> Slot {
        let Some((head, data)) = cells.split_at_checked(self.geometry.word() as usize) else {
            return Slot::End;
        };
        if head.iter().all(|&byte| byte == 0) {
            return Slot::Spent;
        }
        match Header::parse(head) {
            Some(header) if self.after(offset, &header) <= self.geometry.end_mark() => {
                Slot::Item { header, void: data.first() == Some(&0) }
            }
            _ => Slot::End,
        }
    }

    /// Where the item behind this one begins.
    pub(crate) fn after(&self, offset: u32, header: &Header) -> u32 {
        offset + self.geometry.item_span(header.len.into())
    }
}
