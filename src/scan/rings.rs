//! Walking the rings of a region: every item that can be read, in the order in which they were appended.

use embedded_storage_async::nor_flash::ReadNorFlash;

use super::{Magic, Mark, ScanError, Standing, check_bounds};
use crate::{
    Geometry, LaneSpan, Layout, Stored,
    item::{Header, Judgement},
    pages::{PageState, Pages, Slot},
};

/// A ring of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ring {
    /// The ring of this lane.
    Lane(u8),
    /// The ring of the dead letters.
    DeadLetters,
    /// Of a page that is looked at without a layout: nobody knows.
    Unknown,
}

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits to be sent; of a dead letter, to be decided about.
    Pending,
    /// It was delivered or given up. What it held is shown as long as it is legible; no checksum guards it any more.
    Removed,
    /// Its append was cut, and a boot has zeroed it. It never was a record.
    Void,
    /// It is no record of this ring, or its bytes do not add up: damaged, or not yet finished when power was lost.
    Corrupt,
    /// The last item of the page in use, if header and data do not fit: the next boot zeroes it. With a record its removal was
    /// cut, without one most likely its append. Only a [`survey`](super::survey()) tells it from the others.
    Unfinished,
    /// A whole record where the device does not look: behind bytes that are damaged, or on a page that holds nothing. Only a
    /// [`survey`](super::survey()) shows such.
    Stray,
}

/// An item that a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The ring that it lies in.
    pub ring: Ring,
    /// The page of that ring.
    pub page: u16,
    /// Where on the flash it begins.
    pub address: u32,
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
    for (ring, span) in rings(layout) {
        let mut reader = Reader { flash, ring, pages: Pages::new(geometry, origin, span) };
        let mut page = reader.oldest().await?;
        for _ in 0..span.pages {
            let leaf = reader.leaf(page, buffer).await?;
            if leaf.holds_items() {
                leaf.items(&mut show);
            }
            page = reader.pages.next(page);
        }
    }
    Ok(())
}

/// Every ring: the lanes, then the dead letters.
pub(super) fn rings(layout: &Layout) -> impl Iterator<Item = (Ring, LaneSpan)> {
    let lanes = (0..).map(Ring::Lane).zip(layout.lanes.iter().copied());
    lanes.chain([(Ring::DeadLetters, layout.dead_letters)])
}

/// A ring's pages on a flash that is only read.
pub(super) struct Reader<'f, F> {
    pub(super) flash: &'f mut F,
    pub(super) ring: Ring,
    pub(super) pages: Pages,
}

impl<F: ReadNorFlash> Reader<'_, F> {
    /// The page behind the one in use, as the boot check would find it.
    pub(super) async fn oldest(&mut self) -> Result<u16, F::Error> {
        let pages = self.pages;
        let mut best = (0, 0);
        let mut previous = self.state_of(pages.previous(0)).await?;
        let mut state = self.state_of(0).await?;
        for page in 0..pages.count {
            let next = self.state_of(pages.next(page)).await?;
            let rank = PageState::rank(previous, state, next);
            if rank > best.0 {
                best = (rank, pages.next(page));
            }
            (previous, state) = (state, next);
        }
        Ok(best.1)
    }

    /// Whether the flash, or the dump of it, reaches to the end of this page.
    pub(super) fn has(&self, page: u16) -> bool {
        let end =
            u64::from(self.pages.start()) + (u64::from(page) + 1) * u64::from(self.pages.geometry.page());
        end <= self.flash.capacity() as u64
    }

    /// What a page's marks say. A page that is not there holds nothing.
    async fn state_of(&mut self, page: u16) -> Result<PageState, F::Error> {
        if !self.has(page) {
            return Ok(PageState::Open);
        }
        let geometry = self.pages.geometry;
        let word = geometry.word() as usize;
        let mut cells = [0xff; 3 * Geometry::WORD_MAX];
        let (front, end) = cells.split_at_mut_checked(2 * word).unwrap_or_default();
        let end = end.get_mut(..word).unwrap_or_default();
        self.flash.read(self.pages.address(page, 0), front).await?;
        self.flash.read(self.pages.address(page, geometry.end_mark()), end).await?;
        let (magic, start) = front.split_at_checked(word).unwrap_or_default();
        Ok(Standing::of(Magic::of(magic, geometry), Mark::of(start), Mark::of(end)).state())
    }

    /// Reads a page.
    pub(super) async fn leaf<'b>(&mut self, page: u16, buffer: &'b mut [u8]) -> Result<Leaf<'b>, F::Error> {
        let bytes = buffer.get_mut(..self.pages.geometry.page() as usize).unwrap_or_default();
        self.flash.read(self.pages.address(page, 0), bytes).await?;
        Ok(Leaf { ring: self.ring, pages: self.pages, page, bytes })
    }
}

/// A page that was read.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'b> {
    pub(super) ring: Ring,
    pub(super) pages: Pages,
    pub(super) page: u16,
    bytes: &'b [u8],
}

impl<'b> Leaf<'b> {
    /// So many bytes at an offset, or as many as there are.
    pub(super) fn cells(&self, offset: u32, len: u32) -> &'b [u8] {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        rest.get(..len as usize).unwrap_or(rest)
    }

    /// What stands at an offset.
    pub(super) fn slot(&self, offset: u32) -> Slot {
        self.pages.slot(offset, self.cells(offset, self.pages.look(offset)))
    }

    pub(super) fn data(&self, offset: u32, header: &Header) -> &'b [u8] {
        self.cells(offset + self.pages.geometry.word(), header.len.into())
    }

    pub(super) fn magic(&self) -> Magic {
        Magic::of(self.cells(0, self.pages.geometry.word()), self.pages.geometry)
    }

    pub(super) fn mark(&self, offset: u32) -> Mark {
        Mark::of(self.cells(offset, self.pages.geometry.word()))
    }

    pub(super) fn standing(&self) -> Standing {
        let geometry = self.pages.geometry;
        Standing::of(self.magic(), self.mark(geometry.start_mark()), self.mark(geometry.end_mark()))
    }

    pub(super) fn holds_items(&self) -> bool {
        self.standing().state() != PageState::Open
    }

    /// Shows the items of a page that holds any. Says where they end, and how many words between them were spent.
    pub(super) fn items(&self, mut show: impl FnMut(Item<'b>)) -> (u32, u32) {
        self.walk(|item, _| show(item))
    }

    /// The same, and whether header and data fit: of an item whose removal was cut they do not.
    pub(super) fn walk(&self, mut show: impl FnMut(Item<'b>, bool)) -> (u32, u32) {
        let geometry = self.pages.geometry;
        let (mut offset, mut spent) = (geometry.first_item(), 0);
        loop {
            match self.slot(offset) {
                Slot::End => return (offset, spent),
                Slot::Spent => {
                    spent += 1;
                    offset += geometry.word();
                }
                Slot::Item { header, void } => {
                    let data = self.data(offset, &header);
                    let (state, record) = self.judge(&header, void, data);
                    let fits = header.is_popped() || header.judge(data) == Judgement::Whole;
                    show(self.item(offset, state, record), fits);
                    offset = self.pages.after(offset, &header);
                }
            }
        }
    }

    pub(super) fn item(&self, offset: u32, state: State, record: Option<Stored<'b>>) -> Item<'b> {
        let Self { ring, page, .. } = *self;
        Item { ring, page, address: self.pages.address(page, offset), offset, state, record }
    }

    /// A record, if these bytes are one of this ring.
    pub(super) fn record(&self, data: &'b [u8]) -> Option<Stored<'b>> {
        Stored::decode(data).filter(|record| match self.ring {
            Ring::Lane(lane) => record.key.lane == lane,
            Ring::DeadLetters | Ring::Unknown => true,
        })
    }

    fn judge(&self, header: &Header, void: bool, data: &'b [u8]) -> (State, Option<Stored<'b>>) {
        let record = self.record(data);
        match (header.judge(data), record) {
            _ if header.is_popped() && void => (State::Void, None),
            _ if header.is_popped() => (State::Removed, record),
            (Judgement::Whole, Some(record)) => (State::Pending, Some(record)),
            (Judgement::PopCut, record) => (State::Removed, record),
            (Judgement::Whole | Judgement::Corrupt, _) => (State::Corrupt, None),
        }
    }
}
