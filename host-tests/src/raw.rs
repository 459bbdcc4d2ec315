//! Lives of the unguarded sequential-storage queue, to know that the harness can see a loss at all.
//!
//! A claim of "nothing lost" is worth what the same faults do to a queue that is known to lose: these lives
//! run it on a tiny ring, cut it at random operations, and count.

use core::ops::{AddAssign, Range};
use std::collections::BTreeSet;

use embassy_futures::block_on;
use sequential_storage::Error;
use sequential_storage::cache::page_pointers::ArrayPagePointers;
use sequential_storage::cache::page_states::ArrayPageStates;
use sequential_storage::cache::{Cache, CacheImpl, Uncached};
use sequential_storage::queue::{QueueConfig, QueueStorage};

use crate::flash::{Chip, FaultClass, FlashError};

const PAGES: usize = 4;
const PAGE_SIZE: usize = 256;
const RING: Range<u32> = 0..(PAGES * PAGE_SIZE) as u32;
const RECORD_MAX: usize = 40;
/// Cuts of one life, before it is drained: enough to go round the ring once or twice.
const CUTS_PER_LIFE: u64 = 12;
/// Between two cuts there are fewer mutating operations than this, for some four acknowledged records.
const OPS_BETWEEN_CUTS: u64 = 30;
/// No session needs as many steps; a queue that still answers after them has stopped making sense.
const STEPS_MAX: u32 = 1_000;

type RawFlash<'a, const WORD: usize> = &'a Chip<WORD, WORD, PAGE_SIZE>;

/// What became of the records of many lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawReport {
    /// Power cuts.
    pub cuts: u64,
    /// Records whose push returned Ok.
    pub acknowledged: u64,
    /// Acknowledged, never popped nor being popped at a cut, and not found when draining.
    pub lost: u64,
    /// Acknowledged and left in a queue that answers only with errors.
    pub stranded: u64,
    /// Records that came out after a younger one.
    pub inversions: u64,
    /// Records that came out again although their pop had returned Ok.
    pub duplicates: u64,
    /// Records that came out but were never pushed.
    pub garbage: u64,
    /// Errors other than the power cut and a full ring.
    pub hard_errors: u64,
    /// Lives that ended because a fresh start met the same error again, or a ring both full and empty.
    pub wedges: u64,
}

impl AddAssign for RawReport {
    fn add_assign(&mut self, life: Self) {
        self.cuts += life.cuts;
        self.acknowledged += life.acknowledged;
        self.lost += life.lost;
        self.stranded += life.stranded;
        self.inversions += life.inversions;
        self.duplicates += life.duplicates;
        self.garbage += life.garbage;
        self.hard_errors += life.hard_errors;
        self.wedges += life.wedges;
    }
}

/// Runs lives of the raw queue with READ = WRITE = `WORD` under one fault class until there have been `cuts`
/// cuts.
///
/// Half of the lives use the page caches, half none.
pub fn run_raw<const WORD: usize>(class: FaultClass, cuts: u64, seed: u64) -> RawReport {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut total = RawReport::default();
    while total.cuts < cuts {
        let chip = Chip::new(PAGES, rng.u64(..));
        let life = Life::new(rng.fork());
        total += match rng.bool() {
            true => block_on(life.run::<WORD, _>(&chip, class, Cache::new_uncached)),
            false => block_on(life.run::<WORD, _>(&chip, class, || {
                Cache::new(ArrayPageStates::<PAGES>::new(), ArrayPagePointers::<PAGES>::new(), Uncached)
            })),
        };
        assert_eq!(chip.violations(), 0, "sequential-storage keeps to the flash's units");
    }
    total
}

/// Why a session on one queue object ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    PowerCut,
    Empty,
    HardError,
    FullAndEmpty,
}

impl From<Error<FlashError>> for End {
    fn from(error: Error<FlashError>) -> Self {
        match error {
            Error::Storage { value: FlashError::PowerCut, .. } => Self::PowerCut,
            _ => Self::HardError,
        }
    }
}

/// One chip's life, and what the model knows of its records.
struct Life {
    rng: fastrand::Rng,
    /// Makes the records of every life different: one loss depends on the checksums of two records in a row.
    salt: u64,
    pushed: u32,
    /// Acknowledged and not yet popped: these the queue owes.
    owed: BTreeSet<u32>,
    /// Popped with Ok.
    popped: BTreeSet<u32>,
    youngest_popped: Option<u32>,
    report: RawReport,
}

impl Life {
    fn new(mut rng: fastrand::Rng) -> Self {
        Self {
            salt: rng.u64(..),
            rng,
            pushed: 0,
            owed: BTreeSet::new(),
            popped: BTreeSet::new(),
            youngest_popped: None,
            report: RawReport::default(),
        }
    }

    async fn run<const WORD: usize, C: CacheImpl<()>>(
        mut self,
        chip: RawFlash<'_, WORD>,
        class: FaultClass,
        fresh_cache: impl Fn() -> C,
    ) -> RawReport {
        let open = || QueueStorage::new(chip, const { QueueConfig::new(RING) }, fresh_cache());
        while self.report.cuts < CUTS_PER_LIFE {
            let tear = class.tear(&mut self.rng);
            chip.cut_after(self.rng.u64(..OPS_BETWEEN_CUTS), tear);
            let end = self.retry(open, async |life, queue| life.live(queue).await).await;
            if end != End::PowerCut {
                return self.wedged();
            }
            self.report.cuts += 1;
            chip.power_on();
        }
        // A weak bit may hide a record from one pass; what two passes do not find is lost.
        for _ in 0..2 {
            let end = self.retry(open, async |life, queue| life.drain(queue).await).await;
            if end != End::Empty {
                return self.wedged();
            }
        }
        self.report.lost += self.owed.len() as u64;
        self.report
    }

    /// Runs a session; after a hard error, once more on a fresh queue object, as a device would after a
    /// reset.
    async fn retry<Q>(
        &mut self,
        open: impl Fn() -> Q,
        session: impl AsyncFn(&mut Self, &mut Q) -> Result<(), End>,
    ) -> End {
        for _ in 0..2 {
            match session(self, &mut open()).await {
                Ok(()) => return End::Empty,
                Err(End::HardError) => self.report.hard_errors += 1,
                Err(end) => return end,
            }
        }
        End::HardError
    }

    fn wedged(mut self) -> RawReport {
        self.report.wedges += 1;
        self.report.stranded += self.owed.len() as u64;
        self.report
    }

    /// Pushes and pops at random until something ends it.
    async fn live<const WORD: usize, C: CacheImpl<()>>(
        &mut self,
        queue: &mut QueueStorage<RawFlash<'_, WORD>, C>,
    ) -> Result<(), End> {
        for _ in 0..STEPS_MAX {
            if self.rng.u8(..5) < 2 {
                self.pop(queue).await?;
            } else if !self.push(queue).await? && !self.pop(queue).await? {
                return Err(End::FullAndEmpty);
            }
        }
        Err(End::HardError)
    }

    async fn drain<const WORD: usize, C: CacheImpl<()>>(
        &mut self,
        queue: &mut QueueStorage<RawFlash<'_, WORD>, C>,
    ) -> Result<(), End> {
        for _ in 0..STEPS_MAX {
            if !self.pop(queue).await? {
                return Ok(());
            }
        }
        Err(End::HardError)
    }

    /// Pushes the next record; false if the ring is full.
    async fn push<const WORD: usize, C: CacheImpl<()>>(
        &mut self,
        queue: &mut QueueStorage<RawFlash<'_, WORD>, C>,
    ) -> Result<bool, End> {
        let id = self.pushed;
        let mut buf = [0; RECORD_MAX];
        match queue.push(self.record(id, &mut buf), false).await {
            Ok(()) => {}
            Err(Error::FullStorage) => return Ok(false),
            // Whether or not anything of it is on the flash, its number is used up.
            Err(error) => {
                self.pushed += 1;
                return Err(error.into());
            }
        }
        self.pushed += 1;
        self.report.acknowledged += 1;
        self.owed.insert(id);
        Ok(true)
    }

    /// Pops the oldest record; false if there is none.
    async fn pop<const WORD: usize, C: CacheImpl<()>>(
        &mut self,
        queue: &mut QueueStorage<RawFlash<'_, WORD>, C>,
    ) -> Result<bool, End> {
        let mut buf = [0; PAGE_SIZE];
        let mut iter = queue.iter().await?;
        let Some(entry) = iter.next(&mut buf).await? else {
            return Ok(false);
        };
        let id = self.identify(&entry);
        // From here on a cut may leave it or take it: the queue owes it no more.
        if let Some(id) = id {
            self.owed.remove(&id);
        }
        entry.pop().await?;
        match id {
            Some(id) => self.note_popped(id),
            None => self.report.garbage += 1,
        }
        Ok(true)
    }

    /// The record of this number: its number, then bytes that depend on it, of a length that depends on it.
    fn record<'b>(&self, id: u32, buf: &'b mut [u8; RECORD_MAX]) -> &'b [u8] {
        let mut rng = fastrand::Rng::with_seed(self.salt ^ u64::from(id));
        let len = rng.usize(8..=RECORD_MAX);
        rng.fill(buf);
        buf[..4].copy_from_slice(&id.to_le_bytes());
        &buf[..len]
    }

    fn identify(&self, bytes: &[u8]) -> Option<u32> {
        let id = u32::from_le_bytes(*bytes.first_chunk()?);
        (id < self.pushed && bytes == self.record(id, &mut [0; RECORD_MAX])).then_some(id)
    }

    fn note_popped(&mut self, id: u32) {
        if !self.popped.insert(id) {
            self.report.duplicates += 1;
        } else if self.youngest_popped.is_some_and(|youngest| id < youngest) {
            self.report.inversions += 1;
        }
        self.youngest_popped = self.youngest_popped.max(Some(id));
    }
}
