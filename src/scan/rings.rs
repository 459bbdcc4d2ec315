//! Walking the rings of a region: every item that can be read, in the order in which they were appended.

use embedded_storage_async::nor_flash::ReadNorFlash;

use super::{ScanError, check_bounds};
use crate::{
    Geometry, Layout, Stored,
    item::Judgement,
    pages::{PageState, Pages},
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
        let mut pages = Pages { flash, geometry, origin, span };
        let mut page = oldest(&mut pages).await?;
        for _ in 0..span.pages {
            if state_of(&mut pages, page).await? != PageState::Open {
                items_of_page(&mut pages, ring, page, buffer, &mut show).await?;
            }
            page = pages.next(page);
        }
    }
    Ok(())
}

/// The page behind the one in use, as the boot check would find it.
async fn oldest<F: ReadNorFlash>(pages: &mut Pages<'_, F>) -> Result<u16, F::Error> {
    let count = pages.span.pages;
    let mut in_use = None;
    let mut previous = state_of(pages, count.saturating_sub(1)).await?;
    for page in 0..count {
        let state = state_of(pages, page).await?;
        let next = state_of(pages, pages.next(page)).await?;
        let rank = match (previous, state, next) {
            (_, PageState::InUse, PageState::Open) => 3,
            (_, PageState::InUse, _) => 2,
            (PageState::Closed, PageState::Open, _) => 1,
            _ => 0,
        };
        if rank > in_use.map_or(0, |(best, _)| best) {
            in_use = Some((rank, page));
        }
        previous = state;
    }
    Ok(in_use.map_or(0, |(_, page)| pages.next(page)))
}

/// What a page's marks say. One without its magic was being erased: it holds nothing, like one that is open.
async fn state_of<F: ReadNorFlash>(pages: &mut Pages<'_, F>, page: u16) -> Result<PageState, F::Error> {
    if pages.span.pages == 0 {
        return Ok(PageState::Open);
    }
    let word = pages.geometry.word() as usize;
    let mut cells = [0xff; 3 * Geometry::WORD_MAX];
    let (front, end) = cells.split_at_mut_checked(2 * word).unwrap_or_default();
    let end = end.get_mut(..word).unwrap_or_default();
    pages.read(page, 0, front).await?;
    pages.read(page, pages.geometry.end_mark(), end).await?;
    let (magic, start) = front.split_at_checked(word).unwrap_or_default();
    let is_set = |mark: &[u8]| mark.iter().any(|&byte| byte != 0xff);
    Ok(if !pages.geometry.magic_word().starts_with(magic) || !is_set(start) {
        PageState::Open
    } else if is_set(end) {
        PageState::Closed
    } else {
        PageState::InUse
    })
}

async fn items_of_page<F: ReadNorFlash>(
    pages: &mut Pages<'_, F>,
    ring: Ring,
    page: u16,
    buffer: &mut [u8],
    show: &mut impl FnMut(Item<'_>),
) -> Result<(), F::Error> {
    let mut offset = pages.geometry.first_item();
    while let Ok(placed) = pages.item_from(page, offset).await? {
        offset = pages.after(&placed);
        let data = pages.data(page, &placed, buffer).await?.map(|data| &*data).unwrap_or_default();
        let belongs = |record: &Stored<'_>| match ring {
            Ring::Lane(lane) => record.key.lane == lane,
            Ring::DeadLetters => true,
        };
        let record = Stored::decode(data).filter(belongs);
        let (state, record) = match (placed.header.judge(data), record) {
            _ if placed.header.is_popped() => (State::Removed, record),
            (Judgement::Whole, Some(record)) => (State::Pending, Some(record)),
            (Judgement::PopCut, record) => (State::Removed, record),
            (Judgement::Whole | Judgement::Corrupt, _) => (State::Corrupt, None),
        };
        show(Item { ring, page, offset: placed.offset, state, record });
    }
    Ok(())
}
