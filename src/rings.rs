//! Everything that is known of the flash: the rings, the metadata, and the memory that jobs work in.

use crate::{
    Geometry, Key, LaneSpan, Layout, Stored, Tag,
    io::{Cells, Erase, Io, Job},
    ledger::DEAD_LETTERS,
    metadata::{Metadata, Write},
    pages::Pages,
    ring::{Push, Ring},
    settle::{Mount, Settled},
    snapshots::{Found, Load},
    walk::{Scope, Walk, Walked},
};

/// The rings of a region and its metadata.
pub(crate) struct Rings<const LANES: usize> {
    lanes: [Ring; LANES],
    pub(crate) dead: Ring,
    pub(crate) metadata: Metadata,
}

impl<const LANES: usize> Rings<LANES> {
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
pub(crate) enum Report {
    Nothing,
    /// The newest snapshot, and the format of snapshots that are not ours.
    Loaded(Option<Found>, Option<u8>),
    Settled(Settled),
    /// So many pages were damaged.
    Corrupt(u32),
    Walked(Walked),
}

impl AnyJob<'_> {
    // Inlined into the one future that does all work it costs more than the call.
    #[inline(never)]
    pub(crate) fn report(self) -> Report {
        match self {
            Self::Load(job) => Report::Loaded(job.found, job.other_format),
            Self::Commit(_) | Self::Erase(_) => Report::Nothing,
            Self::Mount(job) => Report::Settled(job.settled),
            Self::Push(job) => Report::Corrupt(job.corrupt),
            Self::Walk(job) => Report::Walked(job.walked),
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
    pub(crate) fn read(settled: &Settled, geometry: Geometry, cells: &Cells<'_>) -> Option<Self> {
        let Settled { youngest, page, is_pending, .. } = *settled;
        let len = youngest?;
        let Stored { key, tag, .. } = Stored::decode(cells.record(len))?;
        Some(Self { key, page, span: geometry.item_span(len), tag, is_pending })
    }
}
