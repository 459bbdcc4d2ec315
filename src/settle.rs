//! The boot check: what a power cut left in doubt is decided once, and programmed, so that it reads the same
//! ever after.
//!
//! A cell that was being programmed or erased when the power went may read differently every time. Whatever
//! looks doubtful is therefore read `READS` times; and because a cell may look sound in all of them and waver
//! later, the few cells that the last operation can have touched are programmed again even if they look sound.
//! Every step may itself be cut and is then simply done again.

use embedded_storage_async::nor_flash::NorFlash;

use crate::{
    Geometry,
    guard::GuardError,
    item::{Header, Judgement},
    pages::{PageState, Pages, Placed, Slot},
};

/// How often a doubtful cell is read before it is believed.
pub(crate) const READS: usize = 16;

/// What the boot check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Length of the youngest record, whose bytes are in the buffer: pending, or popped but still legible.
    pub(crate) youngest: Option<usize>,
    /// The page that it lies on.
    pub(crate) page: u16,
    /// That record is pending.
    pub(crate) pending: bool,
    /// Pages in an order that no power cut can produce; they were put right.
    pub(crate) disordered: u32,
    pub(crate) erases: u32,
    /// No page holds anything.
    pub(crate) is_blank: bool,
    /// A page whose mark "closed" was in doubt.
    just_closed: Option<u16>,
}

/// A mark over several reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Blank,
    Set,
    Doubtful,
}

impl Mark {
    /// What the reads so far and this one say together.
    fn seen(before: Option<Self>, cells: &[u8]) -> Option<Self> {
        let now = Self::of(cells);
        Some(if before.is_none_or(|before| before == now) { now } else { Self::Doubtful })
    }

    fn of(cells: &[u8]) -> Self {
        if cells.iter().all(|&byte| byte == 0xff) {
            Self::Blank
        } else if cells.iter().all(|&byte| byte == 0) {
            Self::Set
        } else {
            Self::Doubtful
        }
    }
}

/// Settles a ring's pages. `states` has room for all of them; `buffer` for the largest record.
pub(crate) async fn settle<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    states: &mut [PageState],
    buffer: &mut [u8],
) -> Result<Settled, GuardError<F::Error>> {
    let mut settled = Settled::default();
    let states = states.get_mut(..usize::from(pages.span.pages)).unwrap_or_default();
    for (page, state) in (0..).zip(states.iter_mut()) {
        *state = settle_marks(pages, page, &mut settled).await?;
    }
    settled.is_blank = states.iter().all(|state| *state == PageState::Open);
    let in_use = put_in_order(pages, states, &mut settled).await?;
    // Should its mark have been cut, its magic was in the same program.
    pages.program_magic(in_use).await?;
    let mut last = None;
    // An open page has no items, because its mark comes first; and the queue would write over a word spent in it.
    if states.get(usize::from(in_use)) != Some(&PageState::Open) {
        let (found, tail) = settle_tail(pages, in_use, buffer).await?;
        last = found;
        if !pages.is_blank_from(in_use, tail, pages.geometry.end_mark()).await? {
            // Corruption: there is more behind the last item that can be read. Nothing may be programmed over it.
            pages.zero_word(in_use, pages.geometry.start_mark()).await?;
            pages.zero_word(in_use, pages.geometry.end_mark()).await?;
            let next = pages.next(in_use);
            settled.disordered += 1;
            if states.get(usize::from(next)) != Some(&PageState::Open) {
                give_up(pages, states, next, &mut settled).await?;
            }
        }
    }
    settled.pending = last.is_some_and(|(_, pending)| pending);
    let mut page = in_use;
    if last.is_none() {
        page = pages.previous(in_use);
        if page != in_use && states.get(usize::from(page)) == Some(&PageState::Closed) {
            last = last_legible(pages, page).await?.map(|item| (item, !item.header.is_popped()));
        }
    }
    if let Some((item, pending)) = last {
        settled.pending = pending;
        settled.page = page;
        settled.youngest = pages.data(page, &item, buffer).await?.map(|data| data.len());
    }
    Ok(settled)
}

/// Decides a page's marks, and erases it if its magic is not exact.
async fn settle_marks<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    page: u16,
    settled: &mut Settled,
) -> Result<PageState, GuardError<F::Error>> {
    let word = pages.geometry.word() as usize;
    let magic = pages.geometry.magic_word();
    let (mut start, mut end) = (None, None);
    let mut exact = true;
    for _ in 0..READS {
        let mut cells = [0; 2 * Geometry::WORD_MAX];
        let front = cells.get_mut(..2 * word).unwrap_or_default();
        pages.read(page, 0, front).await?;
        let (found, mark) = front.split_at_checked(word).unwrap_or_default();
        exact &= magic.starts_with(found);
        start = Mark::seen(start, mark);
        if !exact {
            break;
        }
        let back = cells.get_mut(..word).unwrap_or_default();
        pages.read(page, pages.geometry.end_mark(), back).await?;
        end = Mark::seen(end, back);
    }
    let (start, end) = (start.unwrap_or(Mark::Doubtful), end.unwrap_or(Mark::Doubtful));
    if !exact || (start == Mark::Blank && end != Mark::Blank) {
        settled.erases += 1;
        pages.erase(page).await?;
        return Ok(PageState::Open);
    }
    if start == Mark::Doubtful {
        pages.zero_word(page, pages.geometry.start_mark()).await?;
    }
    if end == Mark::Doubtful {
        settled.just_closed = Some(page);
        pages.zero_word(page, pages.geometry.end_mark()).await?;
    }
    Ok(match (start, end) {
        (Mark::Blank, _) => PageState::Open,
        (_, Mark::Blank) => PageState::InUse,
        _ => PageState::Closed,
    })
}

/// Finds the page in use. From the page after it there must come open pages, then closed ones: that is all that
/// power cuts can leave. Anything else is corruption, and is brought into that order at the least cost.
async fn put_in_order<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    states: &mut [PageState],
    settled: &mut Settled,
) -> Result<u16, GuardError<F::Error>> {
    let state = |states: &[PageState], page: u16| states.get(usize::from(page)).copied().unwrap_or_default();
    let count = pages.span.pages;
    let follows = |states: &[PageState], page: u16, before: PageState| {
        let previous = page.checked_sub(1).unwrap_or(count.saturating_sub(1));
        state(states, previous) == before
    };
    let open_next = |states: &[PageState], page: u16| {
        let next = if page + 1 >= count { 0 } else { page + 1 };
        state(states, next) == PageState::Open
    };
    let in_use = (0..count)
        .find(|&page| state(states, page) == PageState::InUse && open_next(states, page))
        .or_else(|| (0..count).find(|&page| state(states, page) == PageState::InUse))
        .or_else(|| {
            (0..count).find(|&page| {
                state(states, page) == PageState::Open && follows(states, page, PageState::Closed)
            })
        })
        .or_else(|| (0..count).find(|&page| state(states, page) == PageState::Open));
    let in_use = match in_use {
        Some(page) => page,
        // All closed: the ring has to go on, so the oldest page, which follows the youngest, is given up.
        None => {
            let oldest = settled.just_closed.map_or(0, |page| pages.next(page));
            give_up(pages, states, oldest, settled).await?;
            oldest
        }
    };
    let mut seen_closed = false;
    let mut page = pages.next(in_use);
    while page != in_use {
        match state(states, page) {
            PageState::Closed => seen_closed = true,
            PageState::Open if !seen_closed => {}
            found => {
                settled.disordered += 1;
                if found == PageState::Open {
                    pages.zero_word(page, pages.geometry.start_mark()).await?;
                }
                pages.zero_word(page, pages.geometry.end_mark()).await?;
                if let Some(state) = states.get_mut(usize::from(page)) {
                    *state = PageState::Closed;
                }
                seen_closed = true;
            }
        }
        page = pages.next(page);
    }
    Ok(in_use)
}

async fn give_up<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    states: &mut [PageState],
    page: u16,
    settled: &mut Settled,
) -> Result<(), GuardError<F::Error>> {
    settled.disordered += 1;
    settled.erases += 1;
    pages.erase(page).await?;
    if let Some(state) = states.get_mut(usize::from(page)) {
        *state = PageState::Open;
    }
    Ok(())
}

/// Decides the last item of the page in use and spends the word behind it. Gives the youngest item that is
/// legible, whether it is pending, and where the free space begins.
async fn settle_tail<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    page: u16,
    buffer: &mut [u8],
) -> Result<(Option<(Placed, bool)>, u32), GuardError<F::Error>> {
    let mut offset = pages.geometry.first_item();
    let (mut last, mut legible): (Option<Placed>, Option<Placed>) = (None, None);
    let mut tail = loop {
        match pages.item_from(page, offset).await? {
            Ok(item) => {
                offset = pages.after(&item);
                legible = last.filter(|item| !item.void).or(legible);
                last = Some(item);
            }
            Err(tail) => break tail,
        }
    };
    let mut youngest = legible.map(|item| (item, !item.header.is_popped()));
    // Where the spent words behind the last item begin.
    let mut spent = offset;
    if let Some(item) = last {
        match settle_item(pages, page, &item, buffer).await? {
            Verdict::NoItem => (spent, tail) = (item.offset, item.offset),
            Verdict::Void => spent = item.offset,
            Verdict::Popped(header) => youngest = Some((Placed { header, ..item }, false)),
            Verdict::Pending(header) => youngest = Some((Placed { header, ..item }, true)),
        }
    }
    // The zeroing of spent words may have been cut: one that wavers would be taken for the tail some day, in front of
    // younger items. Ones cannot be made good again, so what is void is zeroed whole, its header last. One doubtful
    // word at a time: should this be cut too, there is still only one.
    pages.zero(page, spent, tail).await?;
    // The library completes a header before any data, so what wavers behind the last item is in one word; unless it
    // is the header of an item that was being voided, with its data, zeroed, behind it.
    let mut end = tail + pages.geometry.word();
    while pages.slot(page, end).await? == Slot::Spent {
        end += pages.geometry.word();
    }
    let end = end.min(pages.geometry.end_mark());
    pages.zero(page, tail, end).await?;
    tail = end;
    Ok((youngest, tail))
}

enum Verdict {
    /// The header wavers: it was never finished, so nothing was written behind it.
    NoItem,
    /// Its data were never finished. They are zeroed now; the header is to follow.
    Void,
    Popped(Header),
    Pending(Header),
}

async fn settle_item<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    page: u16,
    item: &Placed,
    buffer: &mut [u8],
) -> Result<Verdict, GuardError<F::Error>> {
    let word = pages.geometry.word() as usize;
    let mut steady = true;
    let mut cells = [0xff; Geometry::WORD_MAX];
    for _ in 0..READS {
        let slot = cells.get_mut(..word).unwrap_or_default();
        pages.read(page, item.offset, slot).await?;
        match Header::parse(slot) {
            Some(header) if header.len == item.header.len => steady &= header.crc == item.header.crc,
            _ => return Ok(Verdict::NoItem),
        }
    }
    let data_offset = item.offset + word as u32;
    if steady && item.header.is_popped() {
        for _ in 0..READS {
            let slot = cells.get_mut(..word).unwrap_or_default();
            if item.header.len == 0 {
                break;
            }
            pages.read(page, data_offset, slot).await?;
            // No record begins with a zero: it was being voided.
            if slot.first() == Some(&0) {
                return void(pages, page, item).await;
            }
        }
        return Ok(Verdict::Popped(item.header));
    }
    let mut whole = steady;
    for _ in 0..READS {
        let data = if whole {
            pages.data(page, item, buffer).await?
        } else {
            break;
        };
        whole = data.is_some_and(|data| item.header.judge(data) == Judgement::Whole);
    }
    if whole {
        // It is there; what wavers without having been seen is programmed once more. The buffer holds the
        // data of the last read, which was good.
        let cells = item.header.word();
        pages.program(page, item.offset, cells.get(..word).unwrap_or_default()).await?;
        let len = pages.geometry.round_up(item.header.len.into()) as usize;
        if len > 0 {
            pages.program(page, data_offset, buffer.get(..len).unwrap_or_default()).await?;
        }
        return Ok(Verdict::Pending(item.header));
    }
    void(pages, page, item).await
}

/// Zeroes the data of an item that was never finished. Its header, which may be weak, is made good first: as long as the
/// data waver, it has to say how long they are.
async fn void<F: NorFlash>(
    pages: &mut Pages<'_, F>,
    page: u16,
    item: &Placed,
) -> Result<Verdict, GuardError<F::Error>> {
    let word = pages.geometry.word();
    let cells = item.header.word();
    pages.program(page, item.offset, cells.get(..word as usize).unwrap_or_default()).await?;
    pages.zero(page, item.offset + word, pages.after(item)).await?;
    Ok(Verdict::Void)
}

/// The last item of a closed page that still tells what it was.
async fn last_legible<F: NorFlash>(pages: &mut Pages<'_, F>, page: u16) -> Result<Option<Placed>, F::Error> {
    let mut offset = pages.geometry.first_item();
    let mut last = None;
    while let Ok(item) = pages.item_from(page, offset).await? {
        offset = pages.after(&item);
        if !item.void {
            last = Some(item);
        }
    }
    Ok(last)
}
