//! The one loop that touches the flash. A job says what to do next and decides when it is done; nothing else waits.
//!
//! Written as nested async functions the same work takes three times the flash of a chip: every function on the way
//! down saves and restores what it holds around every operation. A job keeps what it has to remember in a struct.

#[cfg(feature = "outbox")]
use embedded_storage_async::nor_flash::NorFlash;
use embedded_storage_async::nor_flash::ReadNorFlash;

use crate::Geometry;

/// One operation on the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Io {
    act: Act,
    place: Place,
    at: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Read,
    Program,
    Erase,
}

/// Which memory is read into or programmed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Headers, marks, and whatever is only looked at.
    Scratch,
    /// The record or the snapshot that is being worked on.
    Record,
}

impl Io {
    pub(crate) const fn read(at: u32, len: u32, place: Place) -> Self {
        Self { act: Act::Read, place, at, len }
    }

    pub(crate) const fn program(at: u32, len: u32, place: Place) -> Self {
        Self { act: Act::Program, place, at, len }
    }

    pub(crate) const fn erase(from: u32, to: u32) -> Self {
        Self { act: Act::Erase, place: Place::Scratch, at: from, len: to - from }
    }
}

/// The memory of the jobs.
pub(crate) struct Cells<'b> {
    scratch: Scratch,
    pub(crate) record: &'b mut [u8],
}

/// Drivers with a DMA want their buffers aligned.
#[repr(align(4))]
struct Scratch([u8; SCRATCH]);

/// Enough for three of the widest words.
pub(crate) const SCRATCH: usize = 128;

impl<'b> Cells<'b> {
    pub(crate) fn new(record: &'b mut [u8]) -> Self {
        Self { scratch: Scratch([0; SCRATCH]), record }
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

    fn place(&mut self, place: Place, len: u32) -> &mut [u8] {
        let cells = match place {
            Place::Scratch => &mut self.scratch.0,
            Place::Record => &mut *self.record,
        };
        cells.get_mut(..len as usize).unwrap_or_default()
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
    while let Some(Io { act, place, at, len }) = job.next(cells).map_err(raised)? {
        let cells = cells.place(place, len);
        match act {
            Act::Read => flash.read(at, cells).await,
            Act::Program => flash.write(at, cells).await,
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
    while let Some(Io { act, place, at, len }) = job.next(cells).map_err(raised)? {
        if act == Act::Read {
            flash.read(at, cells.place(place, len)).await.map_err(Fault::Flash)?;
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
    pub(crate) fn next(&mut self, cells: &Cells<'_>) -> Result<Io, bool> {
        if !is_blank(cells.scratch(self.reading)) {
            return Err(false);
        }
        self.at += self.reading;
        self.reading = (self.to - self.at).min(SCRATCH as u32);
        if self.reading == 0 { Err(true) } else { Ok(Io::read(self.at, self.reading, Place::Scratch)) }
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
                Io::erase(self.from, self.to)
            }
            EraseStep::Check(check) => match check.next(cells) {
                Ok(io) => return Ok(Some(io)),
                Err(true) => {
                    next = EraseStep::Done;
                    self.geometry.put_magic(cells.scratch_mut());
                    Io::program(self.from, word, Place::Scratch)
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
    Io::program(at, word, Place::Scratch)
}
