//! Opening a region: finding whose it is, growing it if asked, and finishing what the last boot left.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use super::{Core, Desk, Store, Task, books::Books};
use crate::{
    Clock, Config, Error, Event, Geometry, Layout, LayoutError, OpenError, buffer_size,
    event::Signals,
    io::{Cells, drive},
    ledger::read_head,
    metadata::Metadata,
    pages::Pages,
    rings::{Rings, Work},
    snapshots::Load,
};

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// A store that is not open yet.
    #[inline(never)]
    pub(crate) fn closed(
        flash: F,
        record: &'r mut [u8],
        signals: &'r Signals<M>,
        clock: C,
        config: &Config<LANES>,
        layout: Layout,
        entropy: u64,
    ) -> Self {
        let geometry = const { Geometry::of::<F>() };
        Self {
            flash,
            core: Core {
                geometry,
                cells: Cells::new(record),
                rings: Rings::new(geometry, &layout, config.origin),
                books: Books::new(signals, clock, layout, config.lanes, entropy),
                desk: Desk::default(),
            },
        }
    }
}

/// Opens the region, or formats it if there is nothing of ours.
pub(crate) struct Open {
    step: Step,
    refusal: Option<Refusal>,
    /// The layout that the region had, without a lane if there was none.
    old: Layout,
}

enum Step {
    Load,
    Loaded,
    /// The pages that a larger layout adds are erased: this page of this ring comes next.
    Grow(u8, u16),
    Done,
}

/// Why a region cannot be opened, though the flash did as it was told.
enum Refusal {
    Unreadable,
    OtherFormat(u8),
    OtherOwner,
    OtherLayout,
}

impl Open {
    pub(crate) fn new() -> Self {
        Self { step: Step::Load, refusal: None, old: Layout::blank() }
    }

    pub(crate) fn end<E>(self) -> Result<(), OpenError<E>> {
        Err(match self.refusal {
            None => return Ok(()),
            Some(Refusal::Unreadable) => OpenError::Storage(Error::NotWritten),
            Some(Refusal::OtherFormat(format)) => OpenError::OtherFormat(format),
            Some(Refusal::OtherOwner) => OpenError::OtherOwner(self.old.device),
            Some(Refusal::OtherLayout) => OpenError::OtherLayout(self.old),
        })
    }

    /// Takes the ledger over from what was found, if it is of this owner and fits this layout.
    fn loaded<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        core: &mut Core<'_, M, C, LANES>,
    ) -> Option<Refusal> {
        if let Some(format) = core.desk.outcome.other_format {
            return Some(Refusal::OtherFormat(format));
        }
        let books = &mut core.books;
        let Some(found) = core.desk.outcome.found else {
            let incarnation = books.ledger.incarnation;
            books.publish(Event::Formatted { incarnation });
            return None;
        };
        // A whole snapshot that cannot be read is one of more lanes, or made by nobody.
        let snapshot = found.snapshot(core.geometry, &core.cells);
        let Some((_, ledger)) = read_head(snapshot, &mut self.old) else {
            return Some(Refusal::Unreadable);
        };
        if self.old.device != books.layout.device {
            return Some(Refusal::OtherOwner);
        }
        if !books.layout.extends(&self.old) || !books.ledger.read(ledger) {
            return Some(Refusal::OtherLayout);
        }
        core.rings.metadata.found(&found);
        None
    }

    /// Erases the pages that a larger layout adds. Until the first snapshot with that layout is written, they
    /// belong to nobody.
    fn grow<M: RawMutex, C: Clock, const LANES: usize>(
        &mut self,
        core: &mut Core<'_, M, C, LANES>,
        from: (u8, u16),
    ) -> Option<Work> {
        let old = &self.old;
        if old.lanes.is_empty() {
            return None;
        }
        let (mut ring, mut page) = from;
        loop {
            let had = match ring {
                lane if lane < LANES as u8 => old.lanes.get(usize::from(lane)).map_or(0, |span| span.pages),
                _ => old.dead_letters.pages,
            };
            page = page.max(had);
            if page < core.rings.get(ring).pages.count {
                core.books.is_growing |= had > 0;
                self.step = Step::Grow(ring, page + 1);
                return Some(Work::Erase(ring, page));
            }
            (ring, page) = (ring + 1, 0);
            if ring > LANES as u8 {
                return None;
            }
        }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Open {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let from = match self.step {
            Step::Load => {
                self.step = Step::Loaded;
                return Some(Work::Load);
            }
            Step::Loaded => {
                self.refusal = self.loaded(core);
                if self.refusal.is_some() {
                    self.step = Step::Done;
                    return None;
                }
                (0, 0)
            }
            Step::Grow(ring, page) => (ring, page),
            Step::Done => return None,
        };
        let work = self.grow(core, from);
        if work.is_some() {
            return work;
        }
        self.step = Step::Done;
        for ring in Rings::<LANES>::numbers() {
            core.rings.begin(ring);
        }
        let books = &mut core.books;
        books.ledger.boot = books.ledger.boot.saturating_add(1);
        books.must_commit = true;
        books.is_loaded = true;
        None
    }
}

/// Erases everything that belongs to an outbox with this configuration, and to the one that lies there now,
/// whoever owns it. What was pending is gone and nobody is told. The buffer has [`buffer_size`]`(LANES, 0)` bytes or more.
///
/// Not to be cancelled; if it is, or power is lost, do it again.
pub async fn wipe<F: MultiwriteNorFlash, const LANES: usize>(
    flash: &mut F,
    config: &Config<LANES>,
    buffer: &mut [u8],
) -> Result<(), OpenError<F::Error>> {
    let geometry = const { Geometry::of::<F>() };
    let wanted = config.layout(geometry, 0, flash.capacity() as u32)?;
    if buffer.len() < buffer_size(LANES, 0) {
        return Err(LayoutError::Buffer.into());
    }
    let cells = &mut Cells::new(buffer);
    let mut load = Load::new(geometry, config.origin);
    drive(flash, cells, &mut load).await?;
    let mut old = Layout::blank();
    let is_ours = load.found.and_then(|found| read_head(found.snapshot(geometry, cells), &mut old)).is_some();
    // The rings first: as long as the metadata stand, the region is not taken for an empty one.
    for span in wanted.rings().chain(Some(&old).filter(|_| is_ours).into_iter().flat_map(Layout::rings)) {
        let end = u64::from(config.origin) + u64::from(span.end()) * u64::from(geometry.page());
        if end <= flash.capacity() as u64 {
            let pages = Pages::new(geometry, config.origin, span);
            for page in 0..pages.count {
                drive(flash, cells, &mut pages.erase(page)).await?;
            }
        }
    }
    let mut metadata = Metadata::new(geometry, config.origin);
    for half in 0..2 {
        drive(flash, cells, &mut metadata.erase(half)).await?;
    }
    Ok(())
}
