//! Opening a region: finding whose it is, growing it if asked, and finishing what the last boot left.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use super::{Store, books::Books};
use crate::{
    Clock, Config, Error, Event, Geometry, Layout, LayoutError, OpenError,
    event::Channel,
    io::{Cells, drive},
    ledger::{DEAD_LETTERS, LaneLedger, SnapshotHead},
    pages::Pages,
    rings::{Loaded, Rings},
    snapshots::Found,
};

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// A store that is not open yet. `record_max` is the longest stored record.
    pub(crate) fn closed(
        flash: F,
        record: &'r mut [u8],
        events: &'r Channel<M>,
        clock: C,
        config: &Config<LANES>,
        record_max: u16,
        entropy: u64,
    ) -> Result<Self, LayoutError> {
        let layout = config.layout(Self::GEOMETRY, record_max, flash.capacity() as u32)?;
        Ok(Self {
            rings: Rings::new(flash, record, &layout, config.origin),
            books: Books::new(events, clock, layout, &config.lanes, entropy),
        })
    }

    /// Opens the region, or formats it if there is nothing of ours.
    pub(crate) async fn open(&mut self) -> Result<(), OpenError<F::Error>> {
        match self.rings.load().await? {
            Loaded::OtherFormat(format) => return Err(OpenError::OtherFormat(format)),
            Loaded::Nothing => {
                let incarnation = self.books.ledger.incarnation;
                self.books.publish(Event::Formatted { incarnation });
            }
            Loaded::Snapshot(found) => {
                let old = self.take_over(&found)?;
                self.grow(&old).await?;
            }
        }
        let books = &mut self.books;
        while books.ledger.lanes.len() < LANES {
            let _ = books.ledger.lanes.push(LaneLedger::default());
        }
        books.ledger.boot = books.ledger.boot.saturating_add(1);
        books.must_commit = true;
        Ok(self.ready().await?)
    }

    /// Takes the ledger over from a snapshot, if it is of this owner and fits this layout. Gives the layout that it had.
    fn take_over(&mut self, found: &Found) -> Result<Layout, OpenError<F::Error>> {
        // A whole snapshot that cannot be read is one of more lanes, or made by nobody.
        let (head, ledger) = SnapshotHead::decode(self.rings.snapshot(found))
            .ok_or(OpenError::Storage(Error::NotWritten))?;
        if head.layout.device != self.books.layout.device {
            return Err(OpenError::OtherOwner(head.layout.device));
        }
        if !self.books.layout.extends(&head.layout) || !self.books.ledger.read(ledger) {
            return Err(OpenError::OtherLayout(head.layout));
        }
        Ok(head.layout)
    }

    /// Erases the pages that a larger layout adds. Until the first snapshot with that layout is written, they
    /// belong to nobody.
    async fn grow(&mut self, old: &Layout) -> Result<(), OpenError<F::Error>> {
        for ring in Rings::<F, LANES>::numbers() {
            let had = match ring {
                DEAD_LETTERS => old.dead_letters.pages,
                lane => old.lanes.get(usize::from(lane)).map_or(0, |span| span.pages),
            };
            for page in had..self.rings.ring(ring)?.pages.count {
                self.rings.erase(ring, page).await?;
                self.books.is_growing |= had > 0;
            }
        }
        Ok(())
    }
}

/// Erases everything that belongs to an outbox with this configuration, and to the one that lies there now,
/// whoever owns it. What was pending is gone and nobody is told.
///
/// Not to be cancelled; if it is, or power is lost, do it again.
pub async fn wipe<F: MultiwriteNorFlash, const LANES: usize>(
    flash: &mut F,
    config: &Config<LANES>,
    buffer: &mut [u8],
) -> Result<(), OpenError<F::Error>> {
    let geometry = const { Geometry::of::<F>() };
    let wanted = config.layout(geometry, 0, flash.capacity() as u32)?;
    let capacity = flash.capacity() as u64;
    let mut rings = Rings::<&mut F, LANES>::new(flash, buffer, &wanted, config.origin);
    let found = match rings.load().await? {
        Loaded::Snapshot(found) => {
            SnapshotHead::decode(rings.snapshot(&found)).map(|(head, _)| head.layout)
        }
        _ => None,
    };
    // The rings first: as long as the metadata stand, the region is not taken for an empty one.
    for span in wanted.rings().chain(found.iter().flat_map(Layout::rings)) {
        let end = u64::from(config.origin) + u64::from(span.end()) * u64::from(geometry.page());
        if end <= capacity {
            erase(&mut rings.flash, &mut rings.cells, Pages::new(geometry, config.origin, span)).await?;
        }
    }
    for half in 0..2 {
        let mut erase = rings.metadata.erase(half);
        drive(&mut rings.flash, &mut rings.cells, &mut erase).await.map_err(Error::from)?;
    }
    Ok(())
}

async fn erase<F: MultiwriteNorFlash>(
    flash: &mut F,
    cells: &mut Cells<'_>,
    pages: Pages,
) -> Result<(), Error<F::Error>> {
    for page in 0..pages.count {
        drive(flash, cells, &mut pages.erase(page)).await?;
    }
    Ok(())
}
