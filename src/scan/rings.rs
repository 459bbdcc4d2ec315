//! Walking the rings of a region: every item that can be read, in the order in which they were appended.

use embedded_storage_async::nor_flash::ReadNorFlash;

use super::{ScanError, check_bounds};
use crate::{
    Geometry, Layout, Stored,
    io::is_blank,
    item::{Header, Judgement},
    pages::{PageState, Pages, Slot},
};

/// A ring of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The ring of this lane.
    Lane(u8),
    /// The ring of the dead letters.
    DeadLetters,
}

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits to be sent; of a dead letter, to be decided about.
    Pending,
    /// It was delivered or given up. What it held is shown as long as it is legible; no checksum guards it any more.
    Removed,
    /// It is no record of this ring, or its bytes do not add up: damaged, or not yet finished when power was lost.
    Corrupt,
}

/// An item that a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The ring that it lies in.
    pub ring: Ring,
    /// The page of that ring.
    pub page: u16,
    /// Where on that page it begins.
    pub offset: u32,
    /// What became of it.
    pub state: State,
    /// The record, if it can be read: always when it is pending.
    pub record: Option<Stored<'a>>,
}

/// Shows every item of every ring: lane by lane, then the dead letters, in each the oldest page first.
///
/// Layout and geometry are those of [`metadata`](super::metadata()). Where the metadata cannot be read, the layout is that of another
/// device with the same firmware, and [`geometry`](super::geometry()) finds the other.
pub async fn items<F: ReadNorFlash>(
    flash: &mut F,
    origin: u32,
    geometry: Geometry,
    layout: &Layout,
    buffer: &mut [u8],
    mut show: impl FnMut(Item<'_>),
) -> Result<(), ScanError<F::Error>> {
    check_bounds(flash, origin, geometry, layout.pages(), buffer)?;
    let lanes = (0..).map(Ring::Lane).zip(layout.lanes.iter().copied());
    for (ring, span) in lanes.chain([(Ring::DeadLetters, layout.dead_letters)]) {
        let mut reader = Reader { flash, pages: Pages::new(geometry, origin, span) };
        let mut page = reader.oldest().await?;
        for _ in 0..span.pages {
            if reader.state_of(page).await? != PageState::Open {
                reader.items_of_page(ring, page, buffer, &mut show).await?;
            }
            page = reader.pages.next(page);
        }
    }
    Ok(())
}

/// A ring's pages on a flash that is only read.
struct Reader<'f, F> {
    flash: &'f mut F,
    pages: Pages,
}

impl<F: ReadNorFlash> Reader<'_, F> {
    async fn read(&mut self, page: u16, offset: u32, cells: &mut [u8]) -> Result<(), F::Error> {
        self.flash.read(self.pages.address(page, offset), cells).await
    }

    /// The page behind the one in use, as the boot check would find it.
    async fn oldest(&mut self) -> Result<u16, F::Error> {
        let pages = self.pages;
        let mut best = (0, 0);
        for page in 0..pages.count {
            let previous = self.state_of(pages.previous(page)).await?;
            let state = self.state_of(page).await?;
            let rank = PageState::rank(previous, state, self.state_of(pages.next(page)).await?);
            if rank > best.0 {
                best = (rank, pages.next(page));
            }
        }
        Ok(best.1)
    }

    /// What a page's marks say. One without its magic was being erased: it holds nothing, like one that is open.
    async fn state_of(&mut self, page: u16) -> Result<PageState, F::Error> {
        let geometry = self.pages.geometry;
        let word = geometry.word() as usize;
        let mut cells = [0xff; 3 * Geometry::WORD_MAX];
        let (front, end) = cells.split_at_mut_checked(2 * word).unwrap_or_default();
        let end = end.get_mut(..word).unwrap_or_default();
        self.read(page, 0, front).await?;
        self.read(page, geometry.end_mark(), end).await?;
        let (magic, start) = front.split_at_checked(word).unwrap_or_default();
        Ok(if !geometry.is_magic(magic) || is_blank(start) {
            PageState::Open
        } else if is_blank(end) {
            PageState::InUse
        } else {
            PageState::Closed
        })
    }

    async fn items_of_page(
        &mut self,
        ring: Ring,
        page: u16,
        buffer: &mut [u8],
        show: &mut impl FnMut(Item<'_>),
    ) -> Result<(), F::Error> {
        let geometry = self.pages.geometry;
        let mut offset = geometry.first_item();
        loop {
            let mut cells = [0; 2 * Geometry::WORD_MAX];
            let cells = cells.get_mut(..self.pages.look(offset) as usize).unwrap_or_default();
            if !cells.is_empty() {
                self.read(page, offset, cells).await?;
            }
            match self.pages.slot(offset, cells) {
                Slot::End => return Ok(()),
                Slot::Spent => offset += geometry.word(),
                Slot::Item { header, .. } => {
                    let len = usize::from(header.len);
                    let padded = geometry.round_up(header.len.into()) as usize;
                    let data = buffer.get_mut(..padded).unwrap_or_default();
                    self.read(page, offset + geometry.word(), data).await?;
                    let (state, record) = judge(ring, &header, data.get(..len).unwrap_or_default());
                    show(Item { ring, page, offset, state, record });
                    offset = self.pages.after(offset, &header);
                }
            }
        }
    }
}

fn judge<'d>(ring: Ring, header: &Header, data: &'d [u8]) -> (State, Option<Stored<'d>>) {
    let belongs = |record: &Stored<'_>| match ring {
        Ring::Lane(lane) => record.key.lane == lane,
        Ring::DeadLetters => true,
    };
    let record = Stored::decode(data).filter(belongs);
    match (header.judge(data), record) {
        _ if header.is_popped() => (State::Removed, record),
        (Judgement::Whole, Some(record)) => (State::Pending, Some(record)),
        (Judgement::PopCut, record) => (State::Removed, record),
        (Judgement::Whole | Judgement::Corrupt, _) => (State::Corrupt, None),
    }
}
