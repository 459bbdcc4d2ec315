//! A simulated NOR flash that fails as flash fails: torn operations, weak bits, death until power returns.
//!
//! `&Chip` is the driver, so that after every cut a new storage object can be built on the same cells.
//! Everything is deterministic from the seed and the sequence of operations.

mod cells;
mod class;
mod cost;
mod tear;

use core::cell::{Cell, RefCell};
use core::fmt;
use core::ops::Range;

use embedded_storage_async::nor_flash::{
    ErrorType, MultiwriteNorFlash, NorFlash, NorFlashError, NorFlashErrorKind, ReadNorFlash,
};

use cells::Cells;
pub use class::{FaultClass, UnknownFaultClass, WEAK_RATES};
pub use cost::{BUSY_WATTS, CHUNK_PROGRAM_US, Counts, PAGE_ERASE_US, PROGRAM_CHUNK, READ_BYTE_US, READ_US};
pub use tear::{EraseTear, ProgramTear, Tear};

/// Why the chip refused an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlashError {
    /// Power is off, or went off during this very operation.
    PowerCut,
    /// The driver failed, once and without effect, as [`Chip::fail_after`] asked it to.
    Io,
    /// The caller's fault: address or length is not a multiple of the unit.
    NotAligned,
    /// The caller's fault: the range ends beyond the chip, or before it starts.
    OutOfBounds,
}

impl fmt::Display for FlashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PowerCut => "power cut",
            Self::Io => "driver error",
            Self::NotAligned => "not aligned",
            Self::OutOfBounds => "out of bounds",
        })
    }
}

impl std::error::Error for FlashError {}

impl NorFlashError for FlashError {
    fn kind(&self) -> NorFlashErrorKind {
        match self {
            Self::PowerCut | Self::Io => NorFlashErrorKind::Other,
            Self::NotAligned => NorFlashErrorKind::NotAligned,
            Self::OutOfBounds => NorFlashErrorKind::OutOfBounds,
        }
    }
}

/// An operation that changes cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MutatingOp {
    /// A program of `len` bytes at `addr`.
    Program {
        /// First byte.
        addr: u32,
        /// Number of bytes.
        len: usize,
    },
    /// An erase of the pages in `from..to`.
    Erase {
        /// First byte of the first page.
        from: u32,
        /// First byte after the last page.
        to: u32,
    },
}

/// A NOR flash chip of `ERASE`-byte pages, read in units of `READ` and programmed in units of `WRITE` bytes.
///
/// An empty read, program or erase is no operation: it is neither counted nor cut.
#[derive(Debug, Clone)]
pub struct Chip<const READ: usize, const WRITE: usize, const ERASE: usize> {
    state: RefCell<State<ERASE>>,
    yields: Cell<bool>,
}

#[derive(Debug, Clone)]
struct State<const ERASE: usize> {
    cells: Cells<ERASE>,
    powered: bool,
    /// The mutating operation, counted since creation, that will lose power.
    cut: Option<(u64, Tear)>,
    /// The operation, counted since creation, that will fail.
    failure: Option<u64>,
    ops: u64,
    mutating_ops: u64,
    violations: u64,
    last_op: Option<MutatingOp>,
    counts: Counts,
    erases_per_page: Vec<u32>,
}

impl<const READ: usize, const WRITE: usize, const ERASE: usize> Chip<READ, WRITE, ERASE> {
    /// A blank chip.
    pub fn new(pages: usize, seed: u64) -> Self {
        Self::with_cells(vec![0xFF; pages * ERASE], seed)
    }

    /// A chip that holds this image, solid.
    ///
    /// # Panics
    /// If the image is not a whole number of pages.
    pub fn from_image(image: &[u8], seed: u64) -> Self {
        Self::with_cells(image.to_vec(), seed)
    }

    fn with_cells(nominal: Vec<u8>, seed: u64) -> Self {
        const {
            assert!(READ > 0 && ERASE.is_multiple_of(READ), "a page is a whole number of read units");
            assert!(WRITE > 0 && ERASE.is_multiple_of(WRITE), "a page is a whole number of write units");
        }
        let pages = nominal.len() / ERASE;
        Self {
            state: RefCell::new(State {
                cells: Cells::new(nominal, seed),
                powered: true,
                cut: None,
                failure: None,
                ops: 0,
                mutating_ops: 0,
                violations: 0,
                last_op: None,
                counts: Counts::default(),
                erases_per_page: vec![0; pages],
            }),
            yields: Cell::new(false),
        }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.state.borrow().erases_per_page.len()
    }

    /// Size of the chip in bytes.
    pub fn size(&self) -> usize {
        self.state.borrow().cells.nominal().len()
    }

    /// The nominal value of every cell, whether powered or not.
    pub fn image(&self) -> Vec<u8> {
        self.state.borrow().cells.nominal().to_vec()
    }

    /// Replaces every cell by this image, solid. Counts, power and an armed cut stay as they are.
    ///
    /// # Panics
    /// If the image is not of the chip's size.
    pub fn set_image(&self, image: &[u8]) {
        self.state.borrow_mut().cells.set_nominal(image);
    }

    /// Inverts bit `bit` (0 = least significant) of the byte at `addr`, in either direction; it is solid
    /// afterwards.
    pub fn flip_bit(&self, addr: u32, bit: u8) {
        self.state.borrow_mut().cells.flip_bit(addr as usize, bit);
    }

    /// Fills every cell with random bits, solid.
    pub fn fill_random(&self) {
        self.state.borrow_mut().cells.fill_random();
    }

    /// Number of bits that currently read differently each time.
    pub fn weak_bits(&self) -> u32 {
        self.state.borrow().cells.weak_total()
    }

    /// Arms a power cut: the `n`-th mutating operation from now (0 = the very next) is torn like this and
    /// returns [`FlashError::PowerCut`], as does every operation after it until [`Chip::power_on`]. Replaces
    /// an armed cut.
    pub fn cut_after(&self, n: u64, tear: Tear) {
        let mut state = self.state.borrow_mut();
        state.cut = Some((state.mutating_ops + n, tear));
    }

    /// Disarms a cut that has not happened yet.
    pub fn cancel_cut(&self) {
        self.state.borrow_mut().cut = None;
    }

    /// Takes the power away now, between two operations. An armed cut stays armed.
    pub fn power_off(&self) {
        self.state.borrow_mut().powered = false;
    }

    /// Gives the power back. A cut armed meanwhile stays armed.
    pub fn power_on(&self) {
        self.state.borrow_mut().powered = true;
    }

    /// Whether the chip has power.
    pub fn is_powered(&self) -> bool {
        self.state.borrow().powered
    }

    /// Programs and erases begun since creation, the torn ones included. Run a scenario whole and count these
    /// to know at which operations it can be cut.
    pub fn mutating_ops(&self) -> u64 {
        self.state.borrow().mutating_ops
    }

    /// The latest mutating operation: after a cut, the one that was torn.
    pub fn last_op(&self) -> Option<MutatingOp> {
        self.state.borrow().last_op
    }

    /// Arms a driver error: the `n`-th operation from now (0 = the very next; reads count) returns
    /// [`FlashError::Io`], once and without effect.
    pub fn fail_after(&self, n: u64) {
        let mut state = self.state.borrow_mut();
        state.failure = Some(state.ops + n);
    }

    /// Disarms a driver error that has not happened yet.
    pub fn cancel_failure(&self) {
        self.state.borrow_mut().failure = None;
    }

    /// Operations refused because they were not aligned or out of bounds, since creation.
    pub fn violations(&self) -> u64 {
        self.state.borrow().violations
    }

    /// Operations since creation or [`Chip::reset_counts`].
    pub fn counts(&self) -> Counts {
        self.state.borrow().counts
    }

    /// Erases of each page since creation or [`Chip::reset_counts`].
    pub fn erases_per_page(&self) -> Vec<u32> {
        self.state.borrow().erases_per_page.clone()
    }

    /// Starts the counts again from nothing.
    pub fn reset_counts(&self) {
        let mut state = self.state.borrow_mut();
        state.counts = Counts::default();
        state.erases_per_page.fill(0);
    }

    /// With `true`, every operation is pending once before it does anything, so that a future can be dropped
    /// between any two operations.
    pub fn set_yields(&self, yields: bool) {
        self.yields.set(yields);
    }

    async fn turn(&self) {
        if self.yields.get() {
            embassy_futures::yield_now().await;
        }
    }
}

impl<const ERASE: usize> State<ERASE> {
    /// Whether an operation on this range may begin; counts it.
    fn begin(&mut self, range: Range<u64>, unit: usize) -> Result<Range<usize>, FlashError> {
        if !self.powered {
            return Err(FlashError::PowerCut);
        }
        let op = self.ops;
        self.ops += 1;
        if self.failure == Some(op) {
            self.failure = None;
            return Err(FlashError::Io);
        }
        let unit = unit as u64;
        let refused = if range.start > range.end || range.end > self.cells.nominal().len() as u64 {
            FlashError::OutOfBounds
        } else if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
            FlashError::NotAligned
        } else {
            return Ok(range.start as usize..range.end as usize);
        };
        self.violations += 1;
        Err(refused)
    }

    /// Counts a mutating operation; if it is to be torn, takes the power away and says how.
    fn begin_mutating(&mut self, op: MutatingOp) -> Option<Tear> {
        self.last_op = Some(op);
        let number = self.mutating_ops;
        self.mutating_ops += 1;
        let (_, tear) = self.cut.take_if(|(at, _)| *at == number)?;
        self.powered = false;
        Some(tear)
    }

    fn read(&mut self, addr: u32, out: &mut [u8], unit: usize) -> Result<(), FlashError> {
        let range = self.begin(range_of(addr, out.len()), unit)?;
        if range.is_empty() {
            return Ok(());
        }
        self.counts.reads += 1;
        self.counts.bytes_read += out.len() as u64;
        self.cells.read(range.start, out);
        Ok(())
    }

    fn program(&mut self, addr: u32, bytes: &[u8], unit: usize) -> Result<(), FlashError> {
        let range = self.begin(range_of(addr, bytes.len()), unit)?;
        if range.is_empty() {
            return Ok(());
        }
        self.counts.programs += 1;
        self.counts.bytes_programmed += bytes.len() as u64;
        let chunks = (range.end - 1) / PROGRAM_CHUNK - range.start / PROGRAM_CHUNK + 1;
        self.counts.chunks_programmed += chunks as u64;
        if let Some(tear) = self.begin_mutating(MutatingOp::Program { addr, len: bytes.len() }) {
            self.cells.tear_program(range.start, bytes, tear);
            return Err(FlashError::PowerCut);
        }
        self.cells.program(range.start, bytes);
        Ok(())
    }

    fn erase(&mut self, from: u32, to: u32) -> Result<(), FlashError> {
        let range = self.begin(u64::from(from)..u64::from(to), ERASE)?;
        if range.is_empty() {
            return Ok(());
        }
        let pages = range.start / ERASE..range.end / ERASE;
        let tear = self.begin_mutating(MutatingOp::Erase { from, to });
        let begun = self.cells.tear_erase(pages.clone(), tear.unwrap_or(Tear::AFTER));
        self.counts.erases += begun as u64;
        for erases in &mut self.erases_per_page[pages.start..pages.start + begun] {
            *erases += 1;
        }
        if tear.is_some() { Err(FlashError::PowerCut) } else { Ok(()) }
    }
}

fn range_of(addr: u32, len: usize) -> Range<u64> {
    u64::from(addr)..u64::from(addr) + len as u64
}

impl<const READ: usize, const WRITE: usize, const ERASE: usize> ErrorType for &Chip<READ, WRITE, ERASE> {
    type Error = FlashError;
}

impl<const READ: usize, const WRITE: usize, const ERASE: usize> ReadNorFlash for &Chip<READ, WRITE, ERASE> {
    const READ_SIZE: usize = READ;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), FlashError> {
        self.turn().await;
        self.state.borrow_mut().read(offset, bytes, READ)
    }

    fn capacity(&self) -> usize {
        self.size()
    }
}

impl<const READ: usize, const WRITE: usize, const ERASE: usize> NorFlash for &Chip<READ, WRITE, ERASE> {
    const WRITE_SIZE: usize = WRITE;
    const ERASE_SIZE: usize = ERASE;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), FlashError> {
        self.turn().await;
        self.state.borrow_mut().erase(from, to)
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), FlashError> {
        self.turn().await;
        self.state.borrow_mut().program(offset, bytes, WRITE)
    }
}

impl<const READ: usize, const WRITE: usize, const ERASE: usize> MultiwriteNorFlash
    for &Chip<READ, WRITE, ERASE>
{
}
