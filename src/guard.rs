//! A flash whose erase is atomic: what the ring's queue stands on, so that a page is either intact or blank.
//!
//! A page begins with a magic that is programmed only after an erase was seen to be complete, and zeroed before
//! the next erase begins. The boot check (`settle.rs`) erases every page whose magic is not exact.

use core::{
    fmt,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use embedded_storage_async::nor_flash::{
    ErrorType, MultiwriteNorFlash, NorFlash, NorFlashError, NorFlashErrorKind, ReadNorFlash,
};

use crate::{
    Geometry,
    item::{Header, Judgement},
    pages::Pages,
};

/// A page that does not come out of an erase blank is erased so many times before it is called worn out.
pub(crate) const ERASE_TRIES: usize = 4;

/// What can go wrong below the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardError<E> {
    Flash(E),
    WornOut,
}

impl<E: NorFlashError> NorFlashError for GuardError<E> {
    fn kind(&self) -> NorFlashErrorKind {
        match self {
            Self::Flash(error) => error.kind(),
            Self::WornOut => NorFlashErrorKind::Other,
        }
    }
}

impl<E: fmt::Debug> fmt::Display for GuardError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flash(error) => write!(f, "the flash driver failed: {error:?}"),
            Self::WornOut => f.write_str("a page of the flash cannot be erased any more"),
        }
    }
}

impl<E> From<E> for GuardError<E> {
    fn from(error: E) -> Self {
        Self::Flash(error)
    }
}

impl<F: NorFlash> Pages<'_, F> {
    pub(crate) async fn program(&mut self, page: u16, offset: u32, bytes: &[u8]) -> Result<(), F::Error> {
        let address = self.address(page, offset);
        self.flash.write(address, bytes).await
    }

    pub(crate) async fn zero_word(&mut self, page: u16, offset: u32) -> Result<(), F::Error> {
        let zeros = Aligned([0; Geometry::WORD_MAX]);
        self.program(page, offset, zeros.0.get(..self.geometry.word() as usize).unwrap_or_default()).await
    }

    /// Zeroes everything from one offset to another.
    pub(crate) async fn zero(&mut self, page: u16, from: u32, to: u32) -> Result<(), F::Error> {
        let zeros = Aligned([0; 2 * Geometry::WORD_MAX]);
        let mut offset = from;
        while offset < to {
            let len = (to - offset).min(zeros.0.len() as u32);
            self.program(page, offset, zeros.0.get(..len as usize).unwrap_or_default()).await?;
            offset += len;
        }
        Ok(())
    }

    pub(crate) async fn program_magic(&mut self, page: u16) -> Result<(), F::Error> {
        let magic = Aligned(self.geometry.magic_word());
        self.program(page, 0, magic.0.get(..self.geometry.word() as usize).unwrap_or_default()).await
    }

    /// Magic and mark "in use" in one program: a magic that a cut left weak is made good before the page matters.
    async fn begin(&mut self, page: u16) -> Result<(), F::Error> {
        let word = self.geometry.word() as usize;
        let mut cells = Aligned([0; 2 * Geometry::WORD_MAX]);
        for (cell, magic) in cells.0.iter_mut().zip(self.geometry.magic_word()).take(word) {
            *cell = magic;
        }
        self.program(page, 0, cells.0.get(..2 * word).unwrap_or_default()).await
    }

    /// Leaves the page blank with an exact magic, or, when power is lost, without one.
    pub(crate) async fn erase(&mut self, page: u16) -> Result<(), GuardError<F::Error>> {
        self.zero_word(page, 0).await?;
        for _ in 0..ERASE_TRIES {
            let (from, to) = (self.address(page, 0), self.address(page, self.geometry.page()));
            self.flash.erase(from, to).await?;
            if self.is_blank_from(page, 0, self.geometry.page()).await? {
                self.program_magic(page).await?;
                return Ok(());
            }
        }
        Err(GuardError::WornOut)
    }

    /// Whether everything from one offset to another is erased.
    pub(crate) async fn is_blank_from(&mut self, page: u16, from: u32, to: u32) -> Result<bool, F::Error> {
        let (from, to) = (self.address(page, from), self.address(page, to));
        is_blank(self.flash, from, to).await
    }
}

/// Whether every cell from one address to another is erased.
pub(crate) async fn is_blank<F: NorFlash>(flash: &mut F, from: u32, to: u32) -> Result<bool, F::Error> {
    let mut cells = Aligned([0; 128]);
    let mut at = from;
    while at < to {
        let len = (to - at).min(cells.0.len() as u32);
        let chunk = cells.0.get_mut(..len as usize).unwrap_or_default();
        flash.read(at, chunk).await?;
        if chunk.iter().any(|&byte| byte != 0xff) {
            return Ok(false);
        }
        at += len;
    }
    Ok(true)
}

/// Drivers with a DMA want their buffers aligned.
#[repr(align(4))]
struct Aligned<const N: usize>([u8; N]);

/// What the guard notices while the queue works, for the ring to read meanwhile.
#[derive(Default)]
pub(crate) struct Seen {
    /// The page that the queue last read data from.
    page: AtomicU32,
    /// The page that the queue last wrote to.
    written: AtomicU32,
    /// Items that the queue passed over because their data do not fit their checksum or the buffer.
    corrupt: AtomicU32,
    erases: AtomicU32,
}

impl Seen {
    pub(crate) fn page(&self) -> u16 {
        self.page.load(Relaxed) as u16
    }

    pub(crate) fn written(&self) -> u16 {
        self.written.load(Relaxed) as u16
    }

    pub(crate) fn corrupt(&self) -> u32 {
        self.corrupt.load(Relaxed)
    }

    pub(crate) fn erases(&self) -> u32 {
        self.erases.load(Relaxed)
    }
}

/// There is one writer, and small chips have no atomic addition.
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// The ring's pages as the queue sees them: less the magic, in words, with an erase that is atomic.
pub(crate) struct Guard<'f, F> {
    pages: Pages<'f, F>,
    seen: &'f Seen,
    /// Items longer than this cannot be ours.
    longest: usize,
    last_header: Option<(u32, Header)>,
    suspect: Option<u32>,
}

impl<'f, F: NorFlash> Guard<'f, F> {
    const GEOMETRY: Geometry = Geometry::of::<F>();
    const WORD: usize = Self::GEOMETRY.word() as usize;
    /// The queue's page: ours less the magic.
    pub(crate) const PAGE: u32 = Self::GEOMETRY.page() - Self::GEOMETRY.word();

    pub(crate) fn new(pages: Pages<'f, F>, seen: &'f Seen, longest: usize) -> Self {
        Self { pages, seen, longest, last_header: None, suspect: None }
    }

    fn place(offset: u32) -> (u16, u32) {
        ((offset / Self::PAGE) as u16, offset % Self::PAGE + Self::GEOMETRY.word())
    }

    /// The queue passes over corrupt items without a word, and stumbles over one that is longer than its buffer.
    /// So what it reads is looked at here as well: a header, then the data right behind it, twice if the first
    /// time did not add up. Says where an item lies that is to be removed: its pop was cut, or it is corrupt and has
    /// been counted.
    fn watch(&mut self, offset: u32, bytes: &mut [u8]) -> Option<(u32, Header)> {
        if let Some((at, header)) = self.last_header
            && offset == at + Self::GEOMETRY.word()
            && bytes.len() as u32 == Self::GEOMETRY.round_up(header.len.into())
        {
            self.seen.page.store(Self::place(offset).0.into(), Relaxed);
            let data = bytes.get(..header.len.into()).unwrap_or_default();
            match header.judge(data) {
                Judgement::Corrupt if self.suspect == Some(at) => {
                    count(&self.seen.corrupt);
                    self.suspect = None;
                    return Some((at, header));
                }
                Judgement::Corrupt => self.suspect = Some(at),
                Judgement::PopCut => return Some((at, header)),
                Judgement::Whole => self.suspect = None,
            }
            return None;
        }
        self.last_header = None;
        if bytes.len() == Self::WORD
            && let Some(header) = Header::parse(bytes).filter(|header| !header.is_popped())
        {
            if Self::GEOMETRY.round_up(header.len.into()) as usize > self.longest {
                count(&self.seen.corrupt);
                for (byte, popped) in bytes.iter_mut().zip(header.popped().encode()) {
                    *byte = popped;
                }
                return Some((offset, header));
            }
            self.last_header = Some((offset, header));
        }
        None
    }
}

impl<F: NorFlash> ErrorType for Guard<'_, F> {
    type Error = GuardError<F::Error>;
}

impl<F: NorFlash> ReadNorFlash for Guard<'_, F> {
    const READ_SIZE: usize = Self::WORD;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Self::Error> {
        let (page, within) = Self::place(offset);
        self.pages.read(page, within, bytes).await?;
        if let Some((at, header)) = self.watch(offset, bytes) {
            // The cells of a pop that was cut may be weak and read as whole the next time.
            let (page, within) = Self::place(at);
            let cells = header.popped().word();
            self.pages.program(page, within, cells.get(..Self::WORD).unwrap_or_default()).await?;
        }
        Ok(())
    }

    fn capacity(&self) -> usize {
        usize::from(self.pages.span.pages) * Self::PAGE as usize
    }
}

impl<F: NorFlash> NorFlash for Guard<'_, F> {
    const WRITE_SIZE: usize = Self::WORD;
    const ERASE_SIZE: usize = Self::PAGE as usize;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), Self::Error> {
        for page in (from / Self::PAGE)..(to / Self::PAGE) {
            self.pages.erase(page as u16).await?;
            count(&self.seen.erases);
        }
        Ok(())
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error> {
        let (page, within) = Self::place(offset);
        self.seen.written.store(page.into(), Relaxed);
        if within == Self::GEOMETRY.start_mark() {
            if !self.pages.is_blank_from(page, Self::GEOMETRY.first_item(), Self::GEOMETRY.page()).await? {
                // Something happened to its cells since they were erased; a record would not survive on them.
                count(&self.seen.corrupt);
                count(&self.seen.erases);
                self.pages.erase(page).await?;
            }
            self.pages.begin(page).await?;
        } else {
            self.pages.program(page, within, bytes).await?;
        }
        Ok(())
    }
}

impl<F: MultiwriteNorFlash> MultiwriteNorFlash for Guard<'_, F> {}
