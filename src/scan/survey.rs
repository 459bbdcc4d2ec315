//! The health of a region's pages, and every record that can still be read, wherever it lies.
//!
//! The device stops at the first damaged byte of a page, and erases a page without its magic. Somebody who holds a dump
//! wants to see what is behind the damage, too, and where it is.

use embedded_storage_async::nor_flash::ReadNorFlash;

use super::{
    Item, Ring, ScanError, State,
    rings::{Leaf, Reader, rings},
};
use crate::{
    Geometry, LaneSpan, Layout,
    io::is_blank,
    item::Judgement,
    layout::metadata_half,
    pages::{PageState, Pages, Slot},
};

/// What stands where a page has its magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magic {
    /// The magic.
    Exact,
    /// Nothing: an erase was cut, or the page never was used.
    Blank,
    /// Zeros: an erase was about to begin.
    Zeroed,
    /// Something else: an erase was cut in the middle, or damage.
    Other,
}

impl Magic {
    pub(super) fn of(word: &[u8], geometry: Geometry) -> Self {
        if geometry.is_magic(word) {
            return Self::Exact;
        }
        match Mark::of(word) {
            Mark::Blank => Self::Blank,
            Mark::Set => Self::Zeroed,
            Mark::Cut => Self::Other,
        }
    }
}

/// A mark of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It is not set.
    Blank,
    /// It is set.
    Set,
    /// Setting it was cut. It counts as set.
    Cut,
}

impl Mark {
    pub(super) fn of(word: &[u8]) -> Self {
        if is_blank(word) {
            Self::Blank
        } else if word.iter().all(|&byte| byte == 0) {
            Self::Set
        } else {
            Self::Cut
        }
    }
}

/// What a page is, by its magic and its marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Without its magic: it was being erased and holds nothing. The next boot erases it.
    Erasing,
    /// Blank, ready to take records.
    Open,
    /// Its marks cannot be: it holds nothing, and the next boot erases it.
    Senseless,
    /// The page that takes records.
    InUse,
    /// Full.
    Closed,
}

impl Standing {
    pub(super) fn of(magic: Magic, in_use: Mark, closed: Mark) -> Self {
        match (magic, in_use, closed) {
            (Magic::Blank | Magic::Zeroed | Magic::Other, ..) => Self::Erasing,
            (Magic::Exact, Mark::Blank, Mark::Blank) => Self::Open,
            (Magic::Exact, Mark::Blank, _) => Self::Senseless,
            (Magic::Exact, _, Mark::Blank) => Self::InUse,
            (Magic::Exact, ..) => Self::Closed,
        }
    }

    /// As the boot check takes it: a page that holds nothing is as good as one that is open.
    pub(super) fn state(self) -> PageState {
        match self {
            Self::Erasing | Self::Open | Self::Senseless => PageState::Open,
            Self::InUse => PageState::InUse,
            Self::Closed => PageState::Closed,
        }
    }
}

/// What lies behind the items of a page, up to its mark "closed".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing.
    Blank,
    /// What a power cut may have left. The next boot brings it in order.
    Cut,
    /// What no power cut leaves: the items before it may have gone on.
    Damaged,
}

/// The health of a page of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The ring that it belongs to.
    pub ring: Ring,
    /// Its place in that ring.
    pub page: u16,
    /// Where on the flash it begins.
    pub address: u32,
    /// Its bytes.
    pub len: u32,
    /// What it is.
    pub standing: Standing,
    /// What stands in the place of its magic.
    pub magic: Magic,
    /// The mark that it is in use.
    pub in_use: Mark,
    /// The mark that it is full.
    pub closed: Mark,
    /// Words that boots have spent.
    pub spent: u32,
    /// Where on the page its items end.
    pub end: u32,
    /// What lies behind them.
    pub rest: Rest,
    /// Bytes in which it can take records.
    pub free: u32,
}

/// What a survey comes upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight<'a> {
    /// An item. Its page follows when all its items were shown.
    Item(Item<'a>),
    /// A page.
    Page(Page),
    /// A page that the flash, or the dump of it, does not reach.
    Missing {
        /// The ring that it belongs to.
        ring: Ring,
        /// Its place in that ring.
        page: u16,
        /// Where it would begin.
        address: u64,
    },
}

/// Shows everything that [`items`](super::items()) shows, what can be read besides, and every page: in the same order. A flash that
/// ends too early is shown as far as it goes.
pub async fn survey<F: ReadNorFlash>(
    flash: &mut F,
    origin: u32,
    geometry: Geometry,
    layout: &Layout,
    buffer: &mut [u8],
    mut show: impl FnMut(Sight<'_>),
) -> Result<(), ScanError<F::Error>> {
    check_buffer(geometry, buffer)?;
    if u64::from(origin) + u64::from(layout.pages()) * u64::from(geometry.page()) > u32::MAX.into() {
        return Err(ScanError::CutOff);
    }
    for (ring, span) in rings(layout) {
        let mut reader = Reader { flash, ring, pages: Pages::new(geometry, origin, span) };
        let mut page = reader.oldest().await?;
        for _ in 0..span.pages {
            if reader.has(page) {
                reader.leaf(page, buffer).await?.survey(&mut show);
            } else {
                let address = reader.pages.address(page, 0).into();
                show(Sight::Missing { ring, page, address });
            }
            page = reader.pages.next(page);
        }
    }
    Ok(())
}

/// The same of one page, of which nobody knows what ring it belongs to: for regions whose metadata cannot be read. Every page
/// of a ring begins with the magic, by which [`geometry`](super::geometry()) finds it.
pub async fn survey_page<F: ReadNorFlash>(
    flash: &mut F,
    address: u32,
    geometry: Geometry,
    buffer: &mut [u8],
    show: impl FnMut(Sight<'_>),
) -> Result<(), ScanError<F::Error>> {
    check_buffer(geometry, buffer)?;
    let pages = Pages::new(geometry, address, LaneSpan { first: 0, pages: 1 });
    let mut reader = Reader { flash, ring: Ring::Unknown, pages };
    if !reader.has(0) {
        return Err(ScanError::CutOff);
    }
    reader.leaf(0, buffer).await?.survey(show);
    Ok(())
}

fn check_buffer<E>(geometry: Geometry, buffer: &[u8]) -> Result<(), ScanError<E>> {
    if buffer.len() < metadata_half(geometry) as usize { Err(ScanError::SmallBuffer) } else { Ok(()) }
}

impl<'b> Leaf<'b> {
    fn survey(&self, mut show: impl FnMut(Sight<'b>)) {
        let geometry = self.pages.geometry;
        let standing = self.standing();
        let (mut end, mut spent) = (geometry.first_item(), 0);
        if self.holds_items() {
            let mut last: Option<(Item<'b>, bool)> = None;
            (end, spent) = self.walk(|item, fits| {
                if let Some((before, _)) = last.replace((item, fits)) {
                    show(Sight::Item(before));
                }
            });
            if let Some((mut item, fits)) = last {
                if standing == Standing::InUse && !fits {
                    item.state = State::Unfinished;
                }
                show(Sight::Item(item));
            }
        }
        let (rest, free) = self.rest(standing, end);
        self.strays(end, |item| show(Sight::Item(item)));
        show(Sight::Page(Page {
            ring: self.ring,
            page: self.page,
            address: self.pages.address(self.page, 0),
            len: geometry.page(),
            standing,
            magic: self.magic(),
            in_use: self.mark(geometry.start_mark()),
            closed: self.mark(geometry.end_mark()),
            spent,
            end,
            rest,
            free,
        }));
    }

    /// What lies behind the items, and how much room there is.
    fn rest(&self, standing: Standing, end: u32) -> (Rest, u32) {
        let geometry = self.pages.geometry;
        let word = geometry.word();
        let room = geometry.end_mark().saturating_sub(end);
        let cells = self.cells(end, room);
        let rest = match standing {
            Standing::Erasing | Standing::Senseless => return (Rest::Blank, 0),
            _ if is_blank(cells) => Rest::Blank,
            Standing::Open | Standing::Closed => Rest::Damaged,
            Standing::InUse => {
                // What the boot check stands: one word in doubt, zeros behind it, and then another one.
                let mut words = cells.chunks(word as usize).skip(1).peekable();
                let mut zeros = 0;
                while words.next_if(|word| Mark::of(word) == Mark::Set).is_some() {
                    zeros += 1;
                }
                let mut others = words.skip(usize::from(zeros > 0));
                if others.all(is_blank) { Rest::Cut } else { Rest::Damaged }
            }
        };
        let blank = cells.rchunks(word as usize).take_while(|word| is_blank(word)).count() as u32;
        let takes_records = matches!(standing, Standing::Open | Standing::InUse) && rest != Rest::Damaged;
        (rest, if takes_records { blank * word } else { 0 })
    }

    /// Looks for whole records at every word from here on. Whatever the bytes, it computes checksums over no more than a few times
    /// the page.
    fn strays(&self, from: u32, mut show: impl FnMut(Item<'b>)) {
        let geometry = self.pages.geometry;
        let mut left = 4 * geometry.page();
        let mut offset = from;
        while offset < geometry.end_mark() && left > 0 {
            let mut next = offset + geometry.word();
            if let Slot::Item { header, void: false } = self.slot(offset) {
                let data = self.data(offset, &header);
                if let Some(record) = self.record(data) {
                    left = left.saturating_sub(header.len.into());
                    if header.judge(data) == Judgement::Whole {
                        show(self.item(offset, State::Stray, Some(record)));
                        next = self.pages.after(offset, &header);
                    }
                }
            }
            offset = next;
        }
    }
}
