//! Everything that is known of the flash: the rings, the metadata, and the memory that jobs work in.

use crate::{
    Geometry, Key, LaneSpan, Layout, Stored, Tag,
    io::{Cells, Erase, Io, Job},
    ledger::DEAD_LETTERS,
    metadata::{Metadata, Write},
    pages::Pages,
    ring::{Push, Ring},
    settle::Mount,
    snapshots::{Found, Load},
    walk::{Scope, Walk},
};

/// The rings of a region and its metadata.
pub(crate) struct Rings<const LANES: usize> {
    lanes: [Ring; LANES],
    pub(crate) dead: Ring,
    pub(crate) metadata: Metadata,
}

impl<const LANES: usize> Rings<LANES> {
    #[inline(never)]
    pub(crate) fn new(geometry: Geometry, layout: &Layout, origin: u32) -> Self {
        let ring = |span| Ring::new(Pages::new(geometry, origin, span));
        Self {
            lanes: core::array::from_fn(|lane| {
                ring(layout.lanes.get(lane).copied().unwrap_or(LaneSpan::NONE))
            }),
            dead: ring(layout.dead_letters),
            metadata: Metadata::new(geometry, origin),
        }
    }

    /// The lanes, then the dead letters.
    pub(crate) fn numbers() -> impl Iterator<Item = u8> {
        (0..=LANES as u8).map(|ring| if ring < LANES as u8 { ring } else { DEAD_LETTERS })
    }

    /// A lane's ring, and for every other number that of the dead letters.
    // Asked for in many places: inlined into each it costs hundreds of bytes.
    #[inline(never)]
    pub(crate) fn get(&mut self, ring: u8) -> &mut Ring {
        self.lanes.get_mut(usize::from(ring)).unwrap_or(&mut self.dead)
    }

    /// A ring that is about to be worked on. Until the work is done, its ends may be wrong.
    pub(crate) fn begin(&mut self, ring: u8) -> &mut Ring {
        let ring = self.get(ring);
        ring.is_trusted = false;
        ring
    }

    pub(crate) fn erases(&self) -> u32 {
        self.lanes.iter().map(|ring| ring.erases).sum::<u32>() + self.dead.erases + self.metadata.erases
    }
}

/// Something to be done on the flash.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Find the newest snapshot of the metadata.
    Load,
    /// Write a snapshot.
    Commit,
    /// Check a ring.
    Mount(u8),
    /// Append the record in memory, which has this length, to a ring.
    Push(u8, u32),
    /// Walk over a ring or one of its pages.
    Walk(u8, Scope, Look),
    /// Erase a page of a ring.
    Erase(u8, u16),
}

/// Who looks at the records of a walk, and for what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The task that asked for the walk does.
    Task,
    /// Find the sought record while it is pending.
    Find,
    /// Remove the sought record, also if it seems to be gone: a removal that was cut may have left it weak.
    Remove,
    /// Which record is the last?
    Last,
    /// Which is the first that is pending?
    First,
    /// Has there been anything, and is nothing pending?
    Settled,
    /// Explain everything, for it is going to be erased.
    GiveUp,
}

/// Any of the jobs, so that they are all done in one place.
pub(crate) enum AnyJob<'w> {
    Load(Load),
    Commit(Write<'w>),
    Mount(Mount<'w>),
    Push(Push<'w>),
    Walk(Walk<'w>),
    Erase(Erase),
}

impl Job for AnyJob<'_> {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        match self {
            Self::Load(job) => job.next(cells),
            Self::Commit(job) => job.next(cells),
            Self::Mount(job) => job.next(cells),
            Self::Push(job) => job.next(cells),
            Self::Walk(job) => job.next(cells),
            Self::Erase(job) => job.next(cells),
        }
    }
}

/// What a job has found out.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Outcome {
    /// A walk came to the end: it was not stopped.
    pub(crate) is_complete: bool,
    /// The youngest record, found by a boot check, is pending: else it was removed and is still legible.
    pub(crate) is_pending: bool,
    /// The page that it lies on.
    pub(crate) page: u16,
    /// Its length, if there is one. Its bytes are in the record's memory.
    pub(crate) len: Option<u32>,
    /// Items that cannot be read, pages that are not as they should be, or in an order that no power cut can produce.
    pub(crate) corrupt: u32,
    /// The newest snapshot, and the format of snapshots that are not ours.
    pub(crate) found: Option<Found>,
    pub(crate) other_format: Option<u8>,
}

impl AnyJob<'_> {
    #[inline(never)]
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Load(job) => {
                Outcome { found: job.found, other_format: job.other_format, ..Outcome::default() }
            }
            Self::Commit(_) | Self::Erase(_) => Outcome::default(),
            Self::Mount(job) => job.outcome,
            Self::Push(job) => Outcome { corrupt: job.corrupt, ..Outcome::default() },
            Self::Walk(job) => job.outcome,
        }
    }
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
    pub(crate) fn read(outcome: &Outcome, geometry: Geometry, cells: &Cells<'_>) -> Option<Self> {
        let Outcome { page, is_pending, .. } = *outcome;
        let len = outcome.len?;
        let Stored { key, tag, .. } = Stored::decode(cells.record(len))?;
        Some(Self { key, page, span: geometry.item_span(len), tag, is_pending })
    }
}
