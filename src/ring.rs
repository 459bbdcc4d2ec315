//! A ring of records in flash: sequential-storage's queue above the guard, behind the boot check.

use core::mem;

use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use sequential_storage::{
    Error as QueueError,
    cache::{Cache, Uncached, page_pointers::ArrayPagePointers, page_states::ArrayPageStates},
    queue::{QueueConfig, QueueStorage},
};

use crate::{
    Geometry, LaneSpan,
    guard::{Guard, GuardError, Seen},
    pages::{PageState, Pages},
    settle::{Settled, settle},
};

/// What a ring remembers of its pages between two operations: 9 bytes a page.
pub(crate) type RingCache<const PAGES: usize> = Cache<ArrayPageStates<PAGES>, ArrayPagePointers<PAGES>, Uncached>;

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
    pub(crate) erases: u32,
}

impl<const PAGES: usize> Ring<PAGES> {
    pub(crate) const fn new(origin: u32, span: LaneSpan) -> Self {
        Self { origin, span, trusted: false, erases: 0 }
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted
    }

    pub(crate) fn span(&self) -> LaneSpan {
        self.span
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
        self.trusted = true;
        Ok(settled)
    }

    /// Erases every page.
    pub(crate) async fn erase<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        cache: Option<&mut RingCache<PAGES>>,
    ) -> Result<(), RingError<F::Error>> {
        self.trusted = false;
        if let Some(cache) = cache {
            *cache = cold_cache();
        }
        for page in 0..self.span.pages {
            self.pages(flash).erase(page).await?;
            self.erases += 1;
        }
        Ok(())
    }

    /// Appends an item. Durable when it returns.
    pub(crate) async fn push<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        cache: Option<&mut RingCache<PAGES>>,
        data: &[u8],
        room: Room,
    ) -> Result<(), RingError<F::Error>> {
        self.trusted = false;
        let mut slot = cold_cache();
        let cache = cache.unwrap_or(&mut slot);
        let seen = Seen::default();
        let mut queue = self.queue(flash, mem::replace(cache, cold_cache()), &seen, usize::MAX)?;
        let result = queue.push(data, room == Room::OldestPage).await;
        *cache = queue.destroy().1;
        self.erases += seen.erases();
        self.trusted = matches!(result, Ok(()) | Err(QueueError::FullStorage));
        result.map_err(Into::into)
    }

    /// One pass over the items, oldest first. `visit` is told each item's bytes and page. Pages that turn out to
    /// hold nothing any more are erased on the way.
    pub(crate) async fn visit<F: MultiwriteNorFlash>(
        &mut self,
        flash: &mut F,
        cache: Option<&mut RingCache<PAGES>>,
        buffer: &mut [u8],
        visit: &mut dyn FnMut(&[u8], u16) -> Visit,
    ) -> Result<Pass, RingError<F::Error>> {
        self.trusted = false;
        let mut slot = cold_cache();
        let cache = cache.unwrap_or(&mut slot);
        let seen = Seen::default();
        let mut queue = self.queue(flash, mem::replace(cache, cold_cache()), &seen, buffer.len())?;
        let result = Self::pass(&mut queue, &seen, buffer, visit).await;
        *cache = queue.destroy().1;
        self.erases += seen.erases();
        self.trusted = result.is_ok();
        Ok(Pass { corrupt: seen.corrupt(), complete: result? })
    }

    async fn pass<F: MultiwriteNorFlash>(
        queue: &mut QueueStorage<Guard<'_, F>, RingCache<PAGES>>,
        seen: &Seen,
        buffer: &mut [u8],
        visit: &mut dyn FnMut(&[u8], u16) -> Visit,
    ) -> Result<bool, RingError<F::Error>> {
        let mut items = queue.iter().await?;
        while let Some(item) = items.next(buffer).await? {
            match visit(&item, seen.page()) {
                Visit::Keep => {}
                Visit::Stop => return Ok(false),
                Visit::Remove => {
                    item.pop().await?;
                }
            }
        }
        Ok(true)
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
