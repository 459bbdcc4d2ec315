//! How a page of the region is divided, and the magic by which a page says so.

use embedded_storage_async::nor_flash::NorFlash;

use crate::{Stored, item};

/// The version of everything that lies in flash.
pub(crate) const FORMAT: u8 = 1;

/// The sizes that the flash dictates: the page that is erased at once, and the word that is programmed at once.
///
/// A page is divided into words: the magic, the mark "in use", the items, and the mark "closed".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Geometry {
    page: u32,
    word: u32,
    magic: [u8; 8],
}

impl Geometry {
    /// The widest word.
    pub(crate) const WORD_MAX: usize = 32;

    /// The geometry of a flash driver. Fails the build for a flash that does not meet the contract.
    pub const fn of<F: NorFlash>() -> Self {
        let mut word = item::HEADER_LEN;
        if F::READ_SIZE > word {
            word = F::READ_SIZE;
        }
        if F::WRITE_SIZE > word {
            word = F::WRITE_SIZE;
        }
        match Self::new(F::ERASE_SIZE as u32, word as u32) {
            Some(geometry) if word.is_multiple_of(F::READ_SIZE) && word.is_multiple_of(F::WRITE_SIZE) => {
                geometry
            }
            _ => panic_in_build(),
        }
    }

    pub(crate) const fn new(page: u32, word: u32) -> Option<Self> {
        let word_fits = word.is_power_of_two() && word >= 8 && word <= Self::WORD_MAX as u32;
        let page_fits = page.is_power_of_two() && page >= 256 && page <= 65536;
        if word_fits && page_fits {
            Some(Self { page, word, magic: Self::magic_of(page, word) })
        } else {
            None
        }
    }

    /// Bytes that are erased at once.
    pub const fn page(&self) -> u32 {
        self.page
    }

    /// Bytes that are programmed at once; everything in a page is a multiple of it.
    pub const fn word(&self) -> u32 {
        self.word
    }

    pub(crate) const fn start_mark(&self) -> u32 {
        self.word
    }

    pub(crate) const fn first_item(&self) -> u32 {
        2 * self.word
    }

    /// Where the items end and the mark "closed" begins.
    pub(crate) const fn end_mark(&self) -> u32 {
        self.page - self.word
    }

    // Needed in many places: inlined, it costs a chip more than a call each.
    #[inline(never)]
    pub(crate) const fn round_up(&self, len: u32) -> u32 {
        (len + self.word - 1) & !(self.word - 1)
    }

    /// Bytes of flash that an item with so much data takes.
    pub const fn item_span(&self, len: u32) -> u32 {
        self.word + self.round_up(len)
    }

    /// The most data that an item can hold.
    pub const fn largest_item(&self) -> u32 {
        self.end_mark() - self.first_item() - self.word
    }

    /// Records that a page holds if each has a body of so many bytes: at least so many, because a record's head is
    /// counted at its longest.
    pub const fn records_per_page(&self, body: u32) -> u32 {
        (self.end_mark() - self.first_item()) / self.item_span(Stored::HEAD_MAX as u32 + body)
    }

    /// What stands at the start of every page that was erased completely: format and sizes, so that a region
    /// tells its geometry even to a reader that assumes another.
    const fn magic_of(page: u32, word: u32) -> [u8; 8] {
        let shift = page.trailing_zeros() as u8;
        let [low, high] = item::length_crc(u16::from_le_bytes([shift, word as u8])).to_le_bytes();
        [b'P', b'b', b'o', b'x', FORMAT << 4 | 0x0a, shift << 3 | 0x05, low ^ word as u8, high]
    }

    /// Fills a word with the magic.
    #[cfg(feature = "outbox")]
    pub(crate) fn put_magic(&self, cells: &mut [u8]) {
        for (at, cell) in cells.iter_mut().take(self.word as usize).enumerate() {
            *cell = self.magic_byte(at);
        }
    }

    /// Whether a word is filled with the magic.
    pub(crate) fn is_magic(&self, word: &[u8]) -> bool {
        word.iter().enumerate().all(|(at, byte)| *byte == self.magic_byte(at))
    }

    /// The magic is repeated as often as it fits in a word.
    fn magic_byte(&self, at: usize) -> u8 {
        self.magic.get(at % 8).copied().unwrap_or_default()
    }

    /// The geometry that a page's magic tells, if it is one.
    pub(crate) fn from_magic(magic: &[u8; 8]) -> Option<Self> {
        let shift = u32::from(magic.get(5)? >> 3);
        for word in [8, 16, 32] {
            if let Some(geometry) = Self::new(1u32.checked_shl(shift)?, word)
                && geometry.magic == *magic
            {
                return Some(geometry);
            }
        }
        None
    }
}

#[allow(clippy::panic)]
const fn panic_in_build() -> ! {
    panic!(
        "this flash cannot hold an outbox: pages must be a power of two from 256 to 65536 bytes, read and \
         write sizes powers of two up to 32"
    )
}
