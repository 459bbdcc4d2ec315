//! The one loop that touches the flash. A job says what to do next and decides when it is done; nothing else waits.
//!
//! Written as nested async functions the same work takes much more of a chip's flash (DESIGN.md, Size): every function on
//! the way down saves and restores what it holds around every operation. A job keeps what it has to remember in a struct.

#[cfg(feature = "outbox")]
use embedded_storage_async::nor_flash::NorFlash;
use embedded_storage_async::nor_flash::ReadNorFlash;

#[cfg(feature = "outbox")]
use crate::Error;
#[cfg(feature = "outbox")]
use crate::Geometry;

/// One operation on the flash.
#[derive(Clone, Copy)]
struct Operation {
    act: Act,
    at: u32,
    len: u32,
}

/// What is done, and with which memory. A number of a whole word, because the smallest cores store such a one best.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Act {
    Read,
    ReadRecord,
    Program,
    ProgramRecord,
    Erase,
    /// Nothing: there is a chore to be done first.
    Chore,
    WornOut,
    NotWritten,
    Full,
}

/// An operation is waiting in the cells to be done. It lies there, not in this, because a job hands this up through
/// several functions, and nothing is cheaper to hand up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Io(());

/// The memory of the jobs.
#[repr(C)]
pub(crate) struct Cells<'b> {
    /// The record or the snapshot that is being worked on.
    pub(crate) record: &'b mut [u8],
    /// What is done next.
    operation: Operation,
    #[cfg(feature = "outbox")]
    chore: Chore,
    /// Headers, marks, and whatever is only looked at.
    scratch: &'b mut [u8],
}

/// Enough for three of the widest words.
pub(crate) const SCRATCH: usize = 128;

impl<'b> Cells<'b> {
    /// Memory for a record or a snapshot, and `SCRATCH` bytes in front of it.
    pub(crate) fn new(buffer: &'b mut [u8]) -> Self {
        let (scratch, record) = buffer.split_at_mut_checked(SCRATCH).unwrap_or_default();
        let operation = Operation { act: Act::Read, at: 0, len: 0 };
        Self {
            record,
            operation,
            #[cfg(feature = "outbox")]
            chore: Chore::NONE,
            scratch,
        }
    }

    /// Puts down what is done next.
    fn ask(&mut self, act: Act, at: u32, len: u32) -> Io {
        self.operation = Operation { act, at, len };
        Io(())
    }

    /// Reads into the scratch.
    pub(crate) fn read(&mut self, at: u32, len: u32) -> Io {
        self.ask(Act::Read, at, len)
    }

    /// Reads into the record's memory.
    pub(crate) fn read_record(&mut self, at: u32, len: u32) -> Io {
        self.ask(Act::ReadRecord, at, len)
    }

    /// Programs what is in the scratch.
    #[cfg(feature = "outbox")]
    pub(crate) fn program(&mut self, at: u32, len: u32) -> Io {
        self.ask(Act::Program, at, len)
    }

    /// Programs what is in the record's memory.
    pub(crate) fn program_record(&mut self, at: u32, len: u32) -> Io {
        self.ask(Act::ProgramRecord, at, len)
    }

    pub(crate) fn scratch(&self, len: u32) -> &[u8] {
        self.scratch.get(..len as usize).unwrap_or_default()
    }

    pub(crate) fn scratch_mut(&mut self) -> &mut [u8] {
        self.scratch
    }

    /// The job ended because there was no room; nothing was written.
    #[cfg(feature = "outbox")]
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.operation.act, Act::Full)
    }

    pub(crate) fn record(&self, len: u32) -> &[u8] {
        self.record.get(..len as usize).unwrap_or_default()
    }

    /// The memory that is read into or programmed from.
    fn place(&mut self) -> &mut [u8] {
        let cells = match self.operation.act {
            Act::ReadRecord | Act::ProgramRecord => &mut *self.record,
            _ => &mut *self.scratch,
        };
        cells.get_mut(..self.operation.len as usize).unwrap_or_default()
    }
}

/// What has been done so far and what comes next.
pub(crate) trait Job {
    /// The next operation, once the one before is done; `None` when there is nothing left to do.
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io>;
}

/// Does a job.
///
/// Dropping the future leaves the job undone at some operation; a driver's operation must not be dropped in the
/// middle.
#[cfg(feature = "outbox")]
pub(crate) async fn drive<F: NorFlash>(
    flash: &mut F,
    cells: &mut Cells<'_>,
    job: &mut dyn Job,
) -> Result<(), Error<F::Error>> {
    // A job that failed or was dropped may have left a chore undone.
    cells.chore.step = ChoreStep::Done;
    while cells.next(job).is_some() {
        let Operation { act, at, len } = cells.operation;
        let cells = cells.place();
        match act {
            Act::Read | Act::ReadRecord => flash.read(at, cells).await,
            Act::Program | Act::ProgramRecord => flash.write(at, cells).await,
            Act::Erase => flash.erase(at, at + len).await,
            Act::Chore => Ok(()),
            Act::WornOut => return Err(Error::WornOut),
            Act::NotWritten => return Err(Error::NotWritten),
            Act::Full => break,
        }
        .map_err(Error::Flash)?;
    }
    Ok(())
}

/// Does a job on a flash that is only read. What the job would write is left out.
pub(crate) async fn drive_reading<F: ReadNorFlash>(
    flash: &mut F,
    cells: &mut Cells<'_>,
    job: &mut dyn Job,
) -> Result<(), F::Error> {
    while job.next(cells).is_some() {
        let Operation { act, at, .. } = cells.operation;
        if let Act::Read | Act::ReadRecord = act {
            flash.read(at, cells.place()).await?;
        }
    }
    Ok(())
}

/// A page that does not come out of an erase blank is erased so many times before it is called worn out.
#[cfg(feature = "outbox")]
const ERASE_TRIES: u8 = 4;

/// What a job asks for that takes several operations. One place for it in the memory, and one function that does it,
/// instead of one in every job.
#[cfg(feature = "outbox")]
#[repr(C)]
struct Chore {
    step: ChoreStep,
    tries: u8,
    is_blank: bool,
    from: u32,
    to: u32,
    /// What is being read to see whether it is blank.
    at: u32,
    reading: u32,
    /// Of what is erased.
    geometry: Option<Geometry>,
}

#[cfg(feature = "outbox")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChoreStep {
    Done,
    /// Look whether everything is blank.
    Check,
    Condemn,
    Erase,
    /// Look whether the erase has left everything blank.
    Erased,
}

#[cfg(feature = "outbox")]
impl Chore {
    const NONE: Self = Self {
        step: ChoreStep::Done,
        tries: 0,
        is_blank: false,
        from: 0,
        to: 0,
        at: 0,
        reading: 0,
        geometry: None,
    };
}

#[cfg(feature = "outbox")]
impl Cells<'_> {
    /// Looks whether everything from one address to another is erased: `is_blank` says so afterwards.
    pub(crate) fn check(&mut self, from: u32, to: u32) -> Io {
        self.chore.step = ChoreStep::Check;
        (self.chore.at, self.chore.to, self.chore.reading) = (from, to, 0);
        self.ask(Act::Chore, 0, 0)
    }

    /// What the last check has found.
    pub(crate) fn is_blank(&self) -> bool {
        self.chore.is_blank
    }

    /// The flash did not keep what was written to it.
    pub(crate) fn not_written(&mut self) -> Io {
        self.ask(Act::NotWritten, 0, 0)
    }

    /// There is no room; nothing was written.
    pub(crate) fn full(&mut self) -> Io {
        self.ask(Act::Full, 0, 0)
    }

    /// The next operation of a chore, or of the job when there is none.
    fn next(&mut self, job: &mut dyn Job) -> Option<Io> {
        self.chore().or_else(|| job.next(self))
    }

    /// An erase is made atomic: it leaves the pages blank with an exact magic, or, when power is lost, without one.
    fn chore(&mut self) -> Option<Io> {
        let Chore { from, to, .. } = self.chore;
        let word = self.chore.geometry.as_ref().map_or(0, Geometry::word);
        if let ChoreStep::Check | ChoreStep::Erased = self.chore.step {
            self.chore.is_blank = is_blank(self.scratch(self.chore.reading));
            self.chore.at += self.chore.reading;
            self.chore.reading = (to - self.chore.at).min(SCRATCH as u32);
            if self.chore.is_blank && self.chore.reading != 0 {
                return Some(self.read(self.chore.at, self.chore.reading));
            }
            if self.chore.step == ChoreStep::Erased && !self.chore.is_blank {
                self.chore.step = ChoreStep::Erase;
            }
        }
        let step = self.chore.step;
        self.chore.step = ChoreStep::Done;
        match step {
            ChoreStep::Done | ChoreStep::Check => None,
            ChoreStep::Condemn => {
                self.chore.step = ChoreStep::Erase;
                Some(zero(self, from, word))
            }
            ChoreStep::Erase => {
                if self.chore.tries == 0 {
                    return Some(self.ask(Act::WornOut, 0, 0));
                }
                self.chore.tries -= 1;
                self.chore.step = ChoreStep::Erased;
                (self.chore.at, self.chore.reading) = (from, 0);
                Some(self.ask(Act::Erase, from, to - from))
            }
            ChoreStep::Erased => {
                self.chore.geometry?.put_magic(self.scratch_mut());
                Some(self.program(from, word))
            }
        }
    }
}

pub(crate) fn is_blank(cells: &[u8]) -> bool {
    cells.iter().all(|&byte| byte == 0xff)
}

/// Erases pages: a chore, and nothing else.
#[cfg(feature = "outbox")]
pub(crate) struct Erase {
    from: u32,
    to: u32,
    geometry: Geometry,
    is_begun: bool,
}

#[cfg(feature = "outbox")]
impl Erase {
    pub(crate) const fn new(from: u32, to: u32, geometry: Geometry) -> Self {
        Self { from, to, geometry, is_begun: false }
    }

    /// For a job that has more to do than this.
    pub(crate) fn begin(&self, cells: &mut Cells<'_>) -> Io {
        let Self { from, to, geometry, .. } = *self;
        let chore = &mut cells.chore;
        (chore.step, chore.tries) = (ChoreStep::Condemn, ERASE_TRIES);
        (chore.from, chore.to, chore.geometry) = (from, to, Some(geometry));
        cells.ask(Act::Chore, 0, 0)
    }
}

#[cfg(feature = "outbox")]
impl Job for Erase {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        if self.is_begun {
            return None;
        }
        self.is_begun = true;
        Some(self.begin(cells))
    }
}

/// One place where memory is set, so that there is one function for it.
#[cfg(feature = "outbox")]
#[inline(never)]
pub(crate) fn fill(cells: &mut [u8], byte: u8) {
    cells.fill(byte);
}

/// Zeroes a word.
#[cfg(feature = "outbox")]
pub(crate) fn zero(cells: &mut Cells<'_>, at: u32, word: u32) -> Io {
    fill(cells.scratch_mut(), 0);
    cells.program(at, word)
}
