//! Everything on the flash: the rings and the metadata, each job in one call.

use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use crate::{
    Error, Geometry, Key, Layout, Stored, Tag,
    io::{Cells, Fault, drive},
    ledger::{DEAD_LETTERS, Ledger},
    metadata::Metadata,
    pages::Pages,
    ring::{Push, Ring},
    settle::{Mount, Settled},
    snapshots::{Found, Load},
    walk::{Here, Scope, Sight, Visit, Walk, Walked},
};

/// The rings of a region and its metadata.
pub(crate) struct Rings<'r, F, const LANES: usize> {
    pub(crate) flash: F,
    pub(crate) cells: Cells<'r>,
    pub(crate) lanes: Vec<Ring, LANES>,
    pub(crate) dead: Ring,
    pub(crate) metadata: Metadata,
}

/// The record that was appended last, as the boot check found it.
#[derive(Clone, Copy)]
pub(crate) struct Youngest {
    pub(crate) key: Key,
    pub(crate) page: u16,
    /// Bytes of flash that it takes.
    pub(crate) span: u32,
    pub(crate) tag: Option<Tag>,
    pub(crate) is_pending: bool,
}

impl Youngest {
    fn read(settled: &Settled, geometry: Geometry, cells: &Cells<'_>) -> Option<Self> {
        let Settled { youngest, page, is_pending, .. } = *settled;
        let len = youngest?;
        let Stored { key, tag, .. } = Stored::decode(cells.record(len))?;
        Some(Self { key, page, span: geometry.item_span(len), tag, is_pending })
    }
}

impl<'r, F: MultiwriteNorFlash, const LANES: usize> Rings<'r, F, LANES> {
    pub(crate) const GEOMETRY: Geometry = Geometry::of::<F>();

    pub(crate) fn new(flash: F, record: &'r mut [u8], layout: &Layout, origin: u32) -> Self {
        let ring = |span| Ring::new(Pages::new(Self::GEOMETRY, origin, span));
        Self {
            flash,
            cells: Cells::new(record),
            lanes: layout.lanes.iter().map(|span| ring(*span)).collect(),
            dead: ring(layout.dead_letters),
            metadata: Metadata::new(Self::GEOMETRY, origin),
        }
    }

    /// The lanes, then the dead letters.
    pub(crate) fn numbers() -> impl Iterator<Item = u8> {
        (0..=LANES as u8).map(|ring| if ring < LANES as u8 { ring } else { DEAD_LETTERS })
    }

    pub(crate) fn ring(&mut self, ring: u8) -> Result<&mut Ring, Error<F::Error>> {
        if ring == DEAD_LETTERS {
            return Ok(&mut self.dead);
        }
        self.lanes.get_mut(usize::from(ring)).ok_or(Error::NoSuchLane)
    }

    /// A ring with what is needed to work on it. Until it is trusted again, its ends may be wrong.
    fn parts(&mut self, ring: u8) -> (&mut Ring, &mut F, &mut Cells<'r>) {
        let this = self.lanes.get_mut(usize::from(ring)).unwrap_or(&mut self.dead);
        this.is_trusted = false;
        (this, &mut self.flash, &mut self.cells)
    }

    fn trust(&mut self, ring: u8) {
        if let Ok(ring) = self.ring(ring) {
            ring.is_trusted = true;
        }
    }

    /// The boot check of a ring. Says what is the youngest record, and how many pages were in disorder.
    pub(crate) async fn mount(&mut self, ring: u8) -> Result<(Option<Youngest>, u32), Error<F::Error>> {
        let (this, flash, cells) = self.parts(ring);
        let mut mount = Mount::new(this);
        drive(flash, cells, &mut mount).await?;
        let settled = mount.settled;
        self.trust(ring);
        Ok((Youngest::read(&settled, Self::GEOMETRY, &self.cells), settled.disordered))
    }

    /// Shows records to `visit`, oldest first, and does what it says. Items that are no records of this ring are
    /// removed. A ring that does not exist is empty.
    pub(crate) async fn walk(
        &mut self,
        ring: u8,
        scope: Scope,
        visit: &mut dyn FnMut(&Stored<'_>, Here) -> Visit,
    ) -> Result<Walked, Error<F::Error>> {
        self.ring(ring)?;
        let mut foreign = 0;
        let mut decode = |bytes: &[u8], here: Here| {
            let belongs = |stored: &Stored<'_>| {
                let Key { lane, .. } = stored.key;
                if ring == DEAD_LETTERS { lane < LANES as u8 } else { lane == ring }
            };
            match Stored::decode(bytes).filter(belongs) {
                Some(stored) => visit(&stored, here),
                None if here.sight == Sight::Pending && scope == Scope::Pending => {
                    foreign += 1;
                    Visit::Remove
                }
                None => Visit::Keep,
            }
        };
        let (this, flash, cells) = self.parts(ring);
        let mut walk = Walk::new(this, scope, &mut decode);
        drive(flash, cells, &mut walk).await?;
        let mut walked = walk.walked;
        walked.corrupt += foreign;
        self.trust(ring);
        Ok(walked)
    }

    /// Appends the record in the record's memory: durable when it returns. Says to which page it went, and how many
    /// pages were found damaged.
    pub(crate) async fn push(&mut self, ring: u8, len: u32) -> Result<(u16, u32), Fault<F::Error>> {
        let (this, flash, cells) = self.parts(ring);
        let mut push = Push::new(this, len);
        let result = drive(flash, cells, &mut push).await;
        let corrupt = push.corrupt;
        if matches!(result, Ok(()) | Err(Fault::Full)) {
            self.trust(ring);
        }
        result?;
        Ok((self.ring(ring).map_or(0, |ring| ring.tail), corrupt))
    }

    /// Erases a page. Unless it was the oldest, the ring is checked again before it is used.
    pub(crate) async fn erase(&mut self, ring: u8, page: u16) -> Result<(), Error<F::Error>> {
        let (this, flash, cells) = self.parts(ring);
        let mut erase = this.pages.erase(page);
        drive(flash, cells, &mut erase).await?;
        this.erases += 1;
        if this.head.0 == page && this.tail != page {
            this.head = (this.pages.next(page), Self::GEOMETRY.first_item());
            this.is_trusted = true;
        }
        Ok(())
    }

    /// Finds the newest snapshot. Its bytes are in the record's memory then, behind a word for the header.
    pub(crate) async fn load(&mut self) -> Result<Loaded, Error<F::Error>> {
        let mut load = Load::new(Self::GEOMETRY, self.metadata.origin());
        drive(&mut self.flash, &mut self.cells, &mut load).await?;
        if let Some(found) = &load.found {
            self.metadata.found(found);
        }
        Ok(match (load.other_format, load.found) {
            (Some(format), _) => Loaded::OtherFormat(format),
            (None, Some(found)) => Loaded::Snapshot(found),
            (None, None) => Loaded::Nothing,
        })
    }

    /// Writes a snapshot. What it says is durable when this returns.
    pub(crate) async fn write(
        &mut self,
        layout: &Layout,
        ledger: &mut Ledger<LANES>,
    ) -> Result<(), Error<F::Error>> {
        let mut write = self.metadata.write(&mut self.cells, layout, ledger).ok_or(Error::NotWritten)?;
        Ok(drive(&mut self.flash, &mut self.cells, &mut write).await?)
    }

    /// The snapshot that was found, or as much of it as there is memory for.
    pub(crate) fn snapshot(&self, found: &Found) -> &[u8] {
        let word = Self::GEOMETRY.word() as usize;
        let bytes = self.cells.record.get(word..).unwrap_or_default();
        bytes.get(..found.len() as usize).unwrap_or(bytes)
    }

    pub(crate) fn erases(&self) -> u32 {
        self.lanes.iter().map(|ring| ring.erases).sum::<u32>() + self.dead.erases + self.metadata.erases
    }
}

/// What lies in the metadata's halves.
pub(crate) enum Loaded {
    /// No snapshot that is whole.
    Nothing,
    /// Snapshots of another version of this library.
    OtherFormat(u8),
    Snapshot(Found),
}
