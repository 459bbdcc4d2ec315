//! A ring's pages on the flash, by page and offset: reading them and walking their items.

use embedded_storage_async::nor_flash::ReadNorFlash;

use crate::{Geometry, LaneSpan, item::Header};

/// Some pages of a flash.
pub(crate) struct Pages<'f, F> {
    pub(crate) flash: &'f mut F,
    pub(crate) geometry: Geometry,
    /// Where the region begins on the flash.
    pub(crate) origin: u32,
    pub(crate) span: LaneSpan,
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

/// An item and its place in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) offset: u32,
    pub(crate) header: Header,
    pub(crate) void: bool,
}

impl<F: ReadNorFlash> Pages<'_, F> {
    pub(crate) fn address(&self, page: u16, offset: u32) -> u32 {
        self.origin + (u32::from(self.span.first) + u32::from(page)) * self.geometry.page() + offset
    }

    pub(crate) fn next(&self, page: u16) -> u16 {
        if page + 1 >= self.span.pages { 0 } else { page + 1 }
    }

    pub(crate) fn previous(&self, page: u16) -> u16 {
        page.checked_sub(1).unwrap_or(self.span.pages.saturating_sub(1))
    }

    pub(crate) async fn read(&mut self, page: u16, offset: u32, bytes: &mut [u8]) -> Result<(), F::Error> {
        let address = self.address(page, offset);
        self.flash.read(address, bytes).await
    }

    /// Looks at one place where an item may begin.
    pub(crate) async fn slot(&mut self, page: u16, offset: u32) -> Result<Slot, F::Error> {
        let word = self.geometry.word() as usize;
        let room = self.geometry.end_mark().saturating_sub(offset) as usize;
        let mut bytes = [0xff; 2 * Geometry::WORD_MAX];
        // Header and start of the data lie side by side: one read.
        let Some(cells) = bytes.get_mut(..room.min(2 * word)) else {
            return Ok(Slot::End);
        };
        if cells.len() < word {
            return Ok(Slot::End);
        }
        self.read(page, offset, cells).await?;
        let Some((head, data)) = cells.split_at_checked(word) else {
            return Ok(Slot::End);
        };
        if head.iter().all(|&byte| byte == 0) {
            return Ok(Slot::Spent);
        }
        match Header::parse(head) {
            Some(header) if self.geometry.item_span(header.len.into()) as usize <= room => {
                Ok(Slot::Item { header, void: data.first() == Some(&0) })
            }
            _ => Ok(Slot::End),
        }
    }

    /// The next item at or after `offset`, and else where the items end.
    pub(crate) async fn item_from(
        &mut self,
        page: u16,
        mut offset: u32,
    ) -> Result<Result<Placed, u32>, F::Error> {
        loop {
            match self.slot(page, offset).await? {
                Slot::Item { header, void } => return Ok(Ok(Placed { offset, header, void })),
                Slot::Spent => offset += self.geometry.word(),
                Slot::End => return Ok(Err(offset)),
            }
        }
    }

    pub(crate) fn after(&self, item: &Placed) -> u32 {
        item.offset + self.geometry.item_span(item.header.len.into())
    }

    /// Reads an item's data. `None` if they do not fit the buffer.
    pub(crate) async fn data<'b>(
        &mut self,
        page: u16,
        item: &Placed,
        buffer: &'b mut [u8],
    ) -> Result<Option<&'b mut [u8]>, F::Error> {
        let len = usize::from(item.header.len);
        let Some(cells) = buffer.get_mut(..self.geometry.round_up(item.header.len.into()) as usize) else {
            return Ok(None);
        };
        self.read(page, item.offset + self.geometry.word(), cells).await?;
        Ok(cells.get_mut(..len))
    }
}
