//! A ring of records in flash: sequential-storage's queue above the guard, behind the boot check.

use core::{mem, ops::Range};

use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use sequential_storage::{
    Error as QueueError,
    cache::{Cache, Uncached, page_pointers::ArrayPagePointers, page_states::ArrayPageStates},
    queue::{QueueConfig, QueueStorage},
};

use crate::{
    Geometry, Key, LaneSpan, Stored,
    guard::{Guard, GuardError, Seen},
    item::Judgement,
    pages::{PageState, Pages, Placed},
    settle::{Settled, settle},
};

/// What a ring remembers of its pages between two operations: 9 bytes a page.
pub(crate) type RingCache<const PAGES: usize> =
    Cache<ArrayPageStates<PAGES>, ArrayPagePointers<PAGES>, Uncached>;

pub(crate) fn cold_cache<const PAGES: usize>() -> RingCache<PAGES> {
    Cache::new(ArrayPageStates::new(), ArrayPagePointers::new(), Uncached)
}

/// What can go wrong in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingError<E> {
    /// No room without giving up the oldest page.
    Full,
    Flash(E),
    WornOut,
    /// The queue does not understand its pages; the next operation checks them anew.
    Disordered,
}

impl<E> From<GuardError<E>> for RingError<E> {
    fn from(error: GuardError<E>) -> Self {
        match error {
            GuardError::Flash(error) => Self::Flash(error),
            GuardError::WornOut => Self::WornOut,
        }
    }
}

impl<E> From<QueueError<GuardError<E>>> for RingError<E> {
    fn from(error: QueueError<GuardError<E>>) -> Self {
        match error {
            QueueError::Storage { value, .. } => value.into(),
            QueueError::FullStorage => Self::Full,
            _ => Self::Disordered,
        }
    }
}

/// What to do with an item that a pass has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    Keep,
    Remove,
    /// Keep it and end the pass; its bytes stay in the buffer.
    Stop,
    /// Remove it and end the pass.
    RemoveAndStop,
}

/// Where a pass has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) page: u16,
    /// Items that could not be read so far.
    pub(crate) corrupt: u32,
}

/// What a pass over the ring saw besides its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Items that cannot be read.
    pub(crate) corrupt: u32,
    /// The pass came to the end of the ring.
    pub(crate) complete: bool,
}

/// Whether a full ring may give up its oldest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    OldestPage,
}

/// A ring's place in the region, and whether its pages can be trusted as they are.
pub(crate) struct Ring<const PAGES: usize> {
    origin: u32,
    span: LaneSpan,
    /// Unset while an operation is under way. If the operation fails or its future is dropped, it stays unset,
    /// and the next one begins with the boot check.
    trusted: bool,
    /// The last boot check found nothing on any page.
    pub(crate) was_blank: bool,
    pub(crate) erases: u32,
}

impl<const PAGES: usize> Ring<PAGES> {
    pub(crate) const fn new(origin: u32, span: LaneSpan) -> Self {
        Self { origin, span, trusted: false, was_blank: false, erases: 0 }
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted
    }

    pub(crate) fn pages_count(&self) -> u16 {
        self.span.pages
    }

    pub(crate) fn next(&self, page: u16) -> u16 {
        if page + 1 >= self.span.pages { 0 } else { page + 1 }
    }

    fn pages<'f, F: MultiwriteNorFlash>(&self, flash: &'f mut F) -> Pages<'f, F> {
        Pages { flash, geometry: const { Geometry::of::<F>() }, origin: self.origin, span: self.span }
    }

    /// The boot check. Leaves the youngest record in the buffer.
    pub(crate) async fn mount<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        cache: Option<&mut RingCache<PAGES>>,
        buffer: &mut [u8],
    ) -> Result<Settled, RingError<F::Error>> {
        self.trusted = false;
        let mut states = [PageState::Open; PAGES];
        let settled = settle(&mut self.pages(flash), &mut states, buffer).await?;
        if let Some(cache) = cache {
            *cache = cold_cache();
        }
        self.erases += settled.erases;
        self.was_blank = settled.is_blank;
        self.trusted = true;
        Ok(settled)
    }

    /// Erases pages. The ring is to be mounted again afterwards.
    pub(crate) async fn erase<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        pages: Range<u16>,
    ) -> Result<(), RingError<F::Error>> {
        self.trusted = false;
        for page in pages {
            self.pages(flash).erase(page).await?;
            self.erases += 1;
        }
        Ok(())
    }

    /// Appends an item. Durable when it returns; gives the page that it went to.
    pub(crate) async fn push<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        cache: Option<&mut RingCache<PAGES>>,
        data: &[u8],
        room: Room,
    ) -> Result<u16, RingError<F::Error>> {
        self.trusted = false;
        let mut borrowed = cache;
        let seen = Seen::default();
        let mut queue = self.queue(flash, borrow(&mut borrowed), &seen, usize::MAX)?;
        let result = queue.push(data, room == Room::OldestPage).await;
        give_back(borrowed, queue.destroy().1);
        self.erases += seen.erases();
        self.trusted = matches!(result, Ok(()) | Err(QueueError::FullStorage));
        result?;
        Ok(seen.written())
    }

    /// One pass over the items, oldest first. `visit` is told each item's bytes and where it lies. Pages that turn
    /// out to hold nothing any more are erased on the way.
    pub(crate) async fn visit<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        cache: Option<&mut RingCache<PAGES>>,
        buffer: &mut [u8],
        visit: &mut dyn FnMut(&[u8], Here) -> Visit,
    ) -> Result<Pass, RingError<F::Error>> {
        self.trusted = false;
        let mut borrowed = cache;
        let seen = Seen::default();
        let mut queue = self.queue(flash, borrow(&mut borrowed), &seen, buffer.len())?;
        let result = Self::pass(&mut queue, &seen, buffer, visit).await;
        give_back(borrowed, queue.destroy().1);
        self.erases += seen.erases();
        self.trusted = result.is_ok();
        Ok(Pass { corrupt: seen.corrupt(), complete: result? })
    }

    async fn pass<F: MultiwriteNorFlash>(
        queue: &mut QueueStorage<Guard<'_, F>, RingCache<PAGES>>,
        seen: &Seen,
        buffer: &mut [u8],
        visit: &mut dyn FnMut(&[u8], Here) -> Visit,
    ) -> Result<bool, RingError<F::Error>> {
        let mut items = queue.iter().await?;
        while let Some(item) = items.next(buffer).await? {
            let verdict = visit(&item, Here { page: seen.page(), corrupt: seen.corrupt() });
            if matches!(verdict, Visit::Remove | Visit::RemoveAndStop) {
                item.pop().await?;
            }
            if matches!(verdict, Visit::Stop | Visit::RemoveAndStop) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Walks one page, whatever the queue thinks of it. `visit` is told each legible item's bytes and whether it is
    /// pending, and says whether to go on; the walk gives the item at which it did not.
    pub(crate) async fn walk<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        page: u16,
        buffer: &mut [u8],
        visit: &mut dyn FnMut(&[u8], bool) -> bool,
    ) -> Result<Option<Placed>, RingError<F::Error>> {
        let mut pages = self.pages(flash);
        let mut offset = pages.geometry.first_item();
        while let Ok(item) = pages.item_from(page, offset).await.map_err(RingError::Flash)? {
            offset = pages.after(&item);
            if item.void {
                continue;
            }
            let Some(data) = pages.data(page, &item, buffer).await.map_err(RingError::Flash)? else {
                continue;
            };
            let pending = !item.header.is_popped() && item.header.judge(data) == Judgement::Whole;
            if (pending || item.header.is_popped()) && !visit(data, pending) {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Finds a pending record on a page; its bytes are in the buffer then.
    pub(crate) async fn find<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        page: u16,
        key: Key,
        buffer: &mut [u8],
    ) -> Result<Option<Placed>, RingError<F::Error>> {
        let mut other = |data: &[u8], pending: bool| {
            !(pending && Stored::decode(data).is_some_and(|stored| stored.key == key))
        };
        self.walk(flash, page, buffer, &mut other).await
    }

    /// Removes an item that was found on a page.
    pub(crate) async fn remove<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        page: u16,
        item: &Placed,
    ) -> Result<(), RingError<F::Error>> {
        self.trusted = false;
        let cells = item.header.popped().word();
        let word = const { Geometry::of::<F>() }.word() as usize;
        let cells = cells.get(..word).unwrap_or_default();
        self.pages(flash).program(page, item.offset, cells).await.map_err(RingError::Flash)?;
        self.trusted = true;
        Ok(())
    }

    fn queue<'f, F: MultiwriteNorFlash>(
        &self,
        flash: &'f mut F,
        cache: RingCache<PAGES>,
        seen: &'f Seen,
        longest: usize,
    ) -> Result<QueueStorage<Guard<'f, F>, RingCache<PAGES>>, RingError<F::Error>> {
        let end = u32::from(self.span.pages) * Guard::<F>::PAGE;
        let config = QueueConfig::try_new(0..end).map_err(|_| RingError::Disordered)?;
        Ok(QueueStorage::new(Guard::new(self.pages(flash), seen, longest), config, cache))
    }
}

/// The queue owns its cache while it works. What it leaves behind meanwhile is cold, so that nothing stale is
/// believed if the work is never finished.
fn borrow<const PAGES: usize>(cache: &mut Option<&mut RingCache<PAGES>>) -> RingCache<PAGES> {
    match cache {
        Some(cache) => mem::replace(cache, cold_cache()),
        None => cold_cache(),
    }
}

fn give_back<const PAGES: usize>(cache: Option<&mut RingCache<PAGES>>, warm: RingCache<PAGES>) {
    if let Some(cache) = cache {
        *cache = warm;
    }
}
