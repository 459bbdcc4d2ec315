//! Everything durable, behind one lock: what the flash holds, what is known of it, and the order in which they change.
//!
//! A [`Task`] is what a caller wants. It says which [`Work`] on the flash it needs next, one at a time; before each,
//! `Core::tidy` has its turn, which finishes what was begun: by this task, by one whose future was dropped, or before
//! the power went. So there is one way of recovery, and it is the way everything is done.

mod books;
mod clear;
mod deliver;
mod enqueue;
mod errand;
mod open;
mod park;
mod tidy;

pub(crate) use {
    clear::Clear,
    deliver::{Explain, Inspect, Reject, Renew, Settle, Suspend, Take},
    enqueue::Enqueue,
    open::Open,
    park::{Discard, Late, Retry},
};
pub use {errand::Errand, open::wipe};

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use self::{books::Books, tidy::Desk};
use crate::{
    Clock, Depth, DeviceId, Error, Geometry, LaneStats, Stats, Stored,
    io::{Cells, drive},
    ledger::DEAD_LETTERS,
    ring::Push,
    rings::{AnyJob, Look, Rings, Work, Youngest},
    settle::Mount,
    snapshots::Load,
    walk::{Eyes, Here, Scope, Sight, Visit, Walk},
};

/// Something that a caller wants.
pub(crate) trait Task<M: RawMutex, C, const LANES: usize> {
    /// What is to be done next, when all that was asked for is done; `None` when there is nothing more.
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work>;

    /// Looks at a record of a walk that it has asked for.
    fn visit(&mut self, _books: &mut Books<'_, M, C, LANES>, _stored: &Stored<'_>, _here: &Here) -> Visit {
        Visit::Keep
    }
}

/// The whole outbox, for one caller at a time.
pub(crate) struct Store<'r, F, M: RawMutex, C, const LANES: usize> {
    flash: F,
    pub(crate) core: Core<'r, M, C, LANES>,
}

/// The outbox without its flash: it decides, and never waits.
#[repr(C)]
pub(crate) struct Core<'r, M: RawMutex, C, const LANES: usize> {
    desk: Desk,
    geometry: Geometry,
    cells: Cells<'r>,
    rings: Rings<LANES>,
    pub(crate) books: Books<'r, M, C, LANES>,
}

impl<F, M, C, const LANES: usize> Store<'_, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Does a task.
    ///
    /// Dropping the future leaves the work on the flash undone at some operation; the next task finishes it.
    pub(crate) async fn run(&mut self, task: &mut dyn Task<M, C, LANES>) -> Result<(), Error<F::Error>> {
        self.core.desk.clear();
        while let Some(work) = self.core.next(task) {
            let Core { geometry, cells, rings, books, desk } = &mut self.core;
            let mut eyes = Watch { task: &mut *task, books, desk, work, foreign: 0 };
            let mut job = begin(geometry, cells, rings, &mut eyes);
            drive(&mut self.flash, cells, &mut job).await?;
            let (outcome, foreign) = (job.outcome(), eyes.foreign);
            self.core.desk.outcome = outcome;
            self.core.done(work, foreign);
        }
        Ok(())
    }
}

/// The job that does a piece of work.
#[inline(never)]
fn begin<'w, M: RawMutex, C: Clock, const LANES: usize>(
    geometry: &Geometry,
    cells: &mut Cells<'_>,
    rings: &'w mut Rings<LANES>,
    eyes: &'w mut Watch<'_, '_, M, C, LANES>,
) -> AnyJob<'w> {
    match eyes.work {
        Work::Load => AnyJob::Load(Load::new(*geometry, rings.metadata.origin())),
        Work::Commit => AnyJob::Commit(eyes.books.write(&mut rings.metadata, cells)),
        Work::Mount(ring) => AnyJob::Mount(Mount::new(rings.begin(ring))),
        Work::Push(ring, len) => AnyJob::Push(Push::new(rings.begin(ring), len)),
        Work::Walk(ring, scope, _) => AnyJob::Walk(Walk::new(rings.begin(ring), scope, eyes)),
        Work::Erase(ring, page) => AnyJob::Erase(rings.begin(ring).pages.erase(page)),
    }
}

/// Lets the right one look at a walk's records. Items that are no records of their ring are removed.
struct Watch<'w, 'r, M: RawMutex, C, const LANES: usize> {
    task: &'w mut dyn Task<M, C, LANES>,
    books: &'w mut Books<'r, M, C, LANES>,
    desk: &'w mut Desk,
    work: Work,
    foreign: u32,
}

impl<M: RawMutex, C: Clock, const LANES: usize> Eyes for Watch<'_, '_, M, C, LANES> {
    fn see(&mut self, bytes: &[u8], here: &Here) -> Visit {
        let Work::Walk(ring, scope, look) = self.work else { return Visit::Keep };
        let belongs = |lane: u8| if ring == DEAD_LETTERS { lane < LANES as u8 } else { lane == ring };
        match &Stored::decode(bytes) {
            Some(stored) if belongs(stored.key.lane) => match look {
                Look::Task => self.task.visit(self.books, stored, here),
                look => self.desk.visit(self.books, ring, look, stored, here),
            },
            _ if here.sight == Sight::Pending && scope == Scope::Pending => {
                self.foreign += 1;
                Visit::Remove
            }
            _ => Visit::Keep,
        }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Core<'_, M, C, LANES> {
    pub(crate) fn device(&self) -> &DeviceId {
        &self.books.layout.device
    }

    /// The incarnation of new records, the number of this boot and its nonce.
    pub(crate) fn identity(&self) -> (u32, u32, u32) {
        (self.books.ledger.incarnation, self.books.ledger.boot, self.books.boot_nonce)
    }

    pub(crate) fn stats(&self) -> Stats<LANES> {
        let books = &self.books;
        let mut lanes = [LaneStats::default(); LANES];
        for (stats, lane) in lanes.iter_mut().zip(&books.lanes) {
            *stats = lane.stats;
            stats.oldest_ms = lane.oldest.and_then(|time| books.age_ms(&time));
        }
        Stats { lanes, erases: self.rings.erases(), corrupt: books.corrupt, boot: books.ledger.boot }
    }

    /// What is to be done next: first what was begun, then what the task asks for.
    fn next(&mut self, task: &mut dyn Task<M, C, LANES>) -> Option<Work> {
        self.tidy().or_else(|| task.turn(self)).or_else(|| self.tidy())
    }

    /// Something was done.
    #[inline(never)]
    fn done(&mut self, work: Work, foreign: u32) {
        self.desk.is_done = !self.cells.is_full();
        match work {
            Work::Load => {}
            Work::Commit => self.books.written(),
            Work::Erase(ring, page) => self.rings.get(ring).erased(page),
            Work::Mount(ring) | Work::Push(ring, _) | Work::Walk(ring, ..) => {
                self.rings.get(ring).is_trusted = true;
                // Pages that were added lie in the middle of the order.
                if !self.books.is_growing {
                    self.books.note_corruption(ring, self.desk.outcome.corrupt + foreign);
                }
            }
        }
        if let Work::Mount(ring) = work {
            let at_most = self.depth_at_most(ring);
            let youngest = Youngest::read(&self.desk.outcome, self.geometry, &self.cells);
            self.books.mounted(ring, youngest, at_most);
        }
    }

    /// No more can lie in the pages of a ring.
    fn depth_at_most(&mut self, ring: u8) -> Depth {
        let geometry = self.geometry;
        let room = geometry.end_mark() - geometry.first_item();
        let ring = self.rings.get(ring);
        let is_exact = ring.is_blank();
        let pages = if is_exact { 0 } else { u32::from(ring.pages.count) };
        let (mut records, mut used) = (0, geometry.item_span(Stored::LEN_MIN));
        while used <= room {
            records += pages;
            used += geometry.item_span(Stored::LEN_MIN);
        }
        Depth { records, bytes: pages * room, is_exact }
    }
}
