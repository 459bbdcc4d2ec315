//! The one loop that touches the flash. A job says what to do next and decides when it is done; nothing else waits.
//!
//! Written as nested async functions the same work takes three times the flash of a chip: every function on the way
//! down saves and restores what it holds around every operation. A job keeps what it has to remember in a struct.

#[cfg(feature = "outbox")]
use embedded_storage_async::nor_flash::NorFlash;
use embedded_storage_async::nor_flash::ReadNorFlash;

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
}

/// An operation is waiting in the cells to be done. It lies there, not in this, because a job hands this up through
/// several functions, and nothing is cheaper to hand up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Io(());

/// The memory of the jobs.
pub(crate) struct Cells<'b> {
    /// The record or the snapshot that is being worked on.
    pub(crate) record: &'b mut [u8],
    /// What is done next.
    operation: Operation,
    /// Headers, marks, and whatever is only looked at.
    scratch: Scratch,
}

/// Drivers with a DMA want their buffers aligned.
#[repr(align(4))]
struct Scratch([u8; SCRATCH]);

/// Enough for three of the widest words.
pub(crate) const SCRATCH: usize = 128;

impl<'b> Cells<'b> {
    pub(crate) fn new(record: &'b mut [u8]) -> Self {
        let operation = Operation { act: Act::Read, at: 0, len: 0 };
        Self { record, operation, scratch: Scratch([0; SCRATCH]) }
    }

    #[inline(never)]
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
        self.scratch.0.get(..len as usize).unwrap_or_default()
    }

    pub(crate) fn scratch_mut(&mut self) -> &mut [u8; SCRATCH] {
        &mut self.scratch.0
    }

    pub(crate) fn record(&self, len: u32) -> &[u8] {
        self.record.get(..len as usize).unwrap_or_default()
    }

    /// The memory that is read into or programmed from.
    fn place(&mut self) -> &mut [u8] {
        let cells = match self.operation.act {
            Act::ReadRecord | Act::ProgramRecord => &mut *self.record,
            _ => &mut self.scratch.0,
        };
        cells.get_mut(..self.operation.len as usize).unwrap_or_default()
    }
}

/// What a job cannot get over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<E> {
    Flash(E),
    /// A page does not come out of an erase blank any more.
    WornOut,
    /// The flash did not keep what was written to it.
    NotWritten,
    /// A ring has no room without giving up its oldest page. Nothing was written.
    Full,
}

/// No flash error: what a job itself can say.
pub(crate) type JobFault = Fault<core::convert::Infallible>;

/// What has been done so far and what comes next.
pub(crate) trait Job {
    /// The next operation, once the one before is done; `None` when there is nothing left to do.
    fn next(&mut self, cells: &mut Cells<'_>) -> Result<Option<Io>, JobFault>;
}

fn raised<E>(fault: JobFault) -> Fault<E> {
    match fault {
        Fault::Flash(never) => match never {},
        Fault::WornOut => Fault::WornOut,
        Fault::NotWritten => Fault::NotWritten,
        Fault::Full => Fault::Full,
    }
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
) -> Result<(), Fault<F::Error>> {
    while job.next(cells).map_err(raised)?.is_some() {
        let Operation { act, at, len } = cells.operation;
        let cells = cells.place();
        match act {
            Act::Read | Act::ReadRecord => flash.read(at, cells).await,
            Act::Program | Act::ProgramRecord => flash.write(at, cells).await,
            Act::Erase => flash.erase(at, at + len).await,
        }
        .map_err(Fault::Flash)?;
    }
    Ok(())
}

/// Does a job on a flash that is only read. What the job would write is left out.
pub(crate) async fn drive_reading<F: ReadNorFlash>(
    flash: &mut F,
    cells: &mut Cells<'_>,
    job: &mut dyn Job,
) -> Result<(), Fault<F::Error>> {
    while job.next(cells).map_err(raised)?.is_some() {
        let Operation { act, at, .. } = cells.operation;
        if let Act::Read | Act::ReadRecord = act {
            flash.read(at, cells.place()).await.map_err(Fault::Flash)?;
        }
    }
    Ok(())
}

/// A page that does not come out of an erase blank is erased so many times before it is called worn out.
#[cfg(feature = "outbox")]
const ERASE_TRIES: u8 = 4;

/// Looks whether everything from one address to another is erased.
#[derive(Clone, Copy)]
#[cfg(feature = "outbox")]
pub(crate) struct BlankCheck {
    at: u32,
    to: u32,
    reading: u32,
}

#[cfg(feature = "outbox")]
impl BlankCheck {
    pub(crate) const fn new(at: u32, to: u32) -> Self {
        Self { at, to, reading: 0 }
    }

    /// The next read; then whether it is blank.
    pub(crate) fn next(&mut self, cells: &mut Cells<'_>) -> Result<Io, bool> {
        if !is_blank(cells.scratch(self.reading)) {
            return Err(false);
        }
        self.at += self.reading;
        self.reading = (self.to - self.at).min(SCRATCH as u32);
        if self.reading == 0 { Err(true) } else { Ok(cells.read(self.at, self.reading)) }
    }
}

pub(crate) fn is_blank(cells: &[u8]) -> bool {
    cells.iter().all(|&byte| byte == 0xff)
}

/// Makes an erase atomic: leaves the pages blank with an exact magic, or, when power is lost, without one.
#[cfg(feature = "outbox")]
pub(crate) struct Erase {
    from: u32,
    to: u32,
    geometry: Geometry,
    tries: u8,
    step: EraseStep,
}

#[cfg(feature = "outbox")]
enum EraseStep {
    Condemn,
    Erase,
    Check(BlankCheck),
    Done,
}

#[cfg(feature = "outbox")]
impl Erase {
    pub(crate) const fn new(from: u32, to: u32, geometry: Geometry) -> Self {
        Self { from, to, geometry, tries: ERASE_TRIES, step: EraseStep::Condemn }
    }
}

#[cfg(feature = "outbox")]
impl Job for Erase {
    fn next(&mut self, cells: &mut Cells<'_>) -> Result<Option<Io>, JobFault> {
        let word = self.geometry.word();
        let mut next = EraseStep::Erase;
        let io = match &mut self.step {
            EraseStep::Condemn => zero(cells, self.from, word),
            EraseStep::Erase => {
                self.tries = self.tries.checked_sub(1).ok_or(Fault::WornOut)?;
                next = EraseStep::Check(BlankCheck::new(self.from, self.to));
                cells.ask(Act::Erase, self.from, self.to - self.from)
            }
            EraseStep::Check(check) => match check.next(cells) {
                Ok(io) => return Ok(Some(io)),
                Err(true) => {
                    next = EraseStep::Done;
                    self.geometry.put_magic(cells.scratch_mut());
                    cells.program(self.from, word)
                }
                Err(false) => {
                    self.step = EraseStep::Erase;
                    return self.next(cells);
                }
            },
            EraseStep::Done => return Ok(None),
        };
        self.step = next;
        Ok(Some(io))
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
