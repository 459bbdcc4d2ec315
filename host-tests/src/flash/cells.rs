//! The cells themselves: nominal bits, weak bits, and what whole and torn operations do to both.

use core::ops::Range;

use super::cost::PROGRAM_CHUNK;
use super::tear::{EraseTear, ProgramTear, Tear};

/// How much of each end of a page [`EraseTear::MarkersBlank`] blanks.
const MARKER_BYTES: usize = 64;

/// An array of NOR cells in pages of `ERASE` bytes.
#[derive(Debug, Clone)]
pub(super) struct Cells<const ERASE: usize> {
    nominal: Vec<u8>,
    /// A set bit is weak.
    weak: Vec<u8>,
    /// Flip rate of each byte's weak bits, in 1/65536; a byte torn twice has the later rate.
    flip_rate: Vec<u16>,
    /// Weak bits in each page, so that reading a solid page is a plain copy.
    weak_in_page: Vec<u32>,
    weak_total: u32,
    rng: fastrand::Rng,
}

impl<const ERASE: usize> Cells<ERASE> {
    pub(super) fn new(nominal: Vec<u8>, seed: u64) -> Self {
        assert!(nominal.len().is_multiple_of(ERASE), "an image is a whole number of pages");
        Self {
            weak: vec![0; nominal.len()],
            flip_rate: vec![0; nominal.len()],
            weak_in_page: vec![0; nominal.len() / ERASE],
            weak_total: 0,
            rng: fastrand::Rng::with_seed(seed),
            nominal,
        }
    }

    pub(super) fn nominal(&self) -> &[u8] {
        &self.nominal
    }

    pub(super) fn weak_total(&self) -> u32 {
        self.weak_total
    }

    pub(super) fn set_nominal(&mut self, image: &[u8]) {
        self.solidify_all();
        self.nominal.copy_from_slice(image);
    }

    pub(super) fn fill_random(&mut self) {
        self.solidify_all();
        self.rng.fill(&mut self.nominal);
    }

    pub(super) fn flip_bit(&mut self, at: usize, bit: u8) {
        self.nominal[at] ^= 1 << bit;
        self.set_weak(at, self.weak[at] & !(1 << bit));
    }

    pub(super) fn read(&mut self, at: usize, out: &mut [u8]) {
        let cells = at..at + out.len();
        out.copy_from_slice(&self.nominal[cells.clone()]);
        if self.has_weak(&cells) {
            for (byte, at) in out.iter_mut().zip(cells) {
                if self.weak[at] != 0 {
                    *byte ^= self.weak[at] & random_bits(&mut self.rng, self.flip_rate[at]);
                }
            }
        }
    }

    pub(super) fn program(&mut self, at: usize, bytes: &[u8]) {
        let cells = at..at + bytes.len();
        for (cell, byte) in self.nominal[cells.clone()].iter_mut().zip(bytes) {
            *cell &= byte;
        }
        if self.has_weak(&cells) {
            for (at, byte) in cells.zip(bytes) {
                self.set_weak(at, self.weak[at] & byte);
            }
        }
    }

    pub(super) fn erase_page(&mut self, page: usize) {
        let cells = page * ERASE..(page + 1) * ERASE;
        self.nominal[cells].fill(0xFF);
        self.solidify(page);
    }

    /// Programs as far as the tear lets it.
    pub(super) fn tear_program(&mut self, at: usize, bytes: &[u8], tear: Tear) {
        let (torn_at, prefix) = match tear.program {
            ProgramTear::None => return,
            ProgramTear::Complete => return self.program(at, bytes),
            ProgramTear::Prefix(n) => (n.min(bytes.len()), n),
            ProgramTear::RandomPrefix => {
                let n = self.rng.usize(..=bytes.len());
                (n, n)
            }
            ProgramTear::RandomBits => (self.random_chunk_start(at, bytes.len()), 0),
        };
        let density = if tear.program == ProgramTear::RandomBits { self.rng.u16(..) } else { 0 };
        // A cut at the very end of the program falls into its last chunk.
        let torn_byte = at + torn_at.min(bytes.len() - 1);
        let chunk = torn_byte - torn_byte % PROGRAM_CHUNK;
        let torn = chunk.saturating_sub(at)..(chunk + PROGRAM_CHUNK - at).min(bytes.len());
        self.program(at, &bytes[..torn.start]);

        for i in torn {
            let cell = at + i;
            let in_transition = (self.nominal[cell] | self.weak[cell]) & !bytes[i];
            let reached = if i < prefix { 0xFF } else { random_bits(&mut self.rng, density) };
            self.nominal[cell] &= !(in_transition & reached);
            match tear.weak {
                Some(rate) => self.weaken(cell, in_transition, rate),
                None => self.set_weak(cell, self.weak[cell] & !(in_transition & reached)),
            }
        }
    }

    /// Erases as far as the tear lets it; returns how many pages it has begun.
    pub(super) fn tear_erase(&mut self, pages: Range<usize>, tear: Tear) -> usize {
        let torn_page = match tear.erase {
            EraseTear::None => return 0,
            EraseTear::Complete => {
                pages.clone().for_each(|page| self.erase_page(page));
                return pages.len();
            }
            EraseTear::Prefix(n) => pages.start + (n / ERASE).min(pages.len() - 1),
            _ => self.rng.usize(pages.clone()),
        };
        let whole = torn_page - pages.start;
        (pages.start..torn_page).for_each(|page| self.erase_page(page));

        let markers = MARKER_BYTES.min(ERASE / 4);
        // Bytes that are blank, then: do the others hold zeros, and what share of their bits has turned to 1?
        let (blank_before, blank_from, zeroed, density) = match tear.erase {
            EraseTear::None | EraseTear::Complete => (0, ERASE, false, 0),
            EraseTear::Prefix(n) => (n - whole * ERASE, ERASE, false, 0),
            EraseTear::RandomPrefix => (self.rng.usize(..=ERASE), ERASE, false, 0),
            EraseTear::Suffix(n) => (0, ERASE.saturating_sub(n), false, 0),
            EraseTear::RandomSuffix => (0, self.rng.usize(..=ERASE), false, 0),
            EraseTear::RandomBits => (0, ERASE, false, self.rng.u16(..)),
            EraseTear::AllZero => (0, ERASE, true, 0),
            EraseTear::MarkersBlank => (markers, ERASE - markers, false, 0),
            EraseTear::AllZeroThenPrefix => (self.rng.usize(..=ERASE), ERASE, true, 0),
        };
        for i in 0..ERASE {
            let cell = torn_page * ERASE + i;
            let before = self.nominal[cell];
            let (after, driven) = if i < blank_before || i >= blank_from {
                (0xFF, 0xFF)
            } else if zeroed {
                (0x00, 0xFF)
            } else {
                let raised = random_bits(&mut self.rng, density);
                (before | raised, raised)
            };
            self.nominal[cell] = after;
            match tear.weak {
                Some(rate) => self.weaken(cell, !before | !after, rate),
                None => self.set_weak(cell, self.weak[cell] & !driven),
            }
        }
        whole + 1
    }

    /// Offset, within a program, of a random one of the chunks it touches.
    fn random_chunk_start(&mut self, at: usize, len: usize) -> usize {
        let first = at / PROGRAM_CHUNK;
        let last = (at + len - 1) / PROGRAM_CHUNK;
        (self.rng.usize(first..=last) * PROGRAM_CHUNK).saturating_sub(at)
    }

    fn has_weak(&self, cells: &Range<usize>) -> bool {
        if self.weak_total == 0 || cells.is_empty() {
            return false;
        }
        self.weak_in_page[cells.start / ERASE..=(cells.end - 1) / ERASE].iter().any(|&bits| bits != 0)
    }

    fn weaken(&mut self, at: usize, bits: u8, rate: f64) {
        if bits != 0 {
            self.flip_rate[at] = (rate * 65536.0).clamp(1.0, 65535.0) as u16;
            self.set_weak(at, self.weak[at] | bits);
        }
    }

    fn set_weak(&mut self, at: usize, bits: u8) {
        let (before, after) = (self.weak[at].count_ones(), bits.count_ones());
        self.weak[at] = bits;
        let in_page = &mut self.weak_in_page[at / ERASE];
        *in_page = *in_page + after - before;
        self.weak_total = self.weak_total + after - before;
    }

    fn solidify(&mut self, page: usize) {
        if self.weak_in_page[page] != 0 {
            self.weak[page * ERASE..(page + 1) * ERASE].fill(0);
            self.weak_total -= self.weak_in_page[page];
            self.weak_in_page[page] = 0;
        }
    }

    fn solidify_all(&mut self) {
        (0..self.weak_in_page.len()).for_each(|page| self.solidify(page));
    }
}

/// A byte whose bits are each set with a probability of `density` / 65536.
fn random_bits(rng: &mut fastrand::Rng, density: u16) -> u8 {
    if density == 0 {
        return 0;
    }
    // Two draws give eight lanes of 16 bits; weak pages are read often enough for this to show in a soak.
    let lanes = [rng.u64(..), rng.u64(..)];
    (0..8).fold(0, |bits, lane| {
        let drawn = (lanes[lane / 4] >> (lane % 4 * 16)) as u16;
        bits | (u8::from(drawn < density) << lane)
    })
}
