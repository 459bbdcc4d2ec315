//! How an operation that loses power leaves its cells: the vocabulary of `Chip::cut_after`.

/// What a program that loses power leaves behind.
///
/// A program longer than 256 bytes is torn in one 256-byte aligned chunk only: the chunks before it are
/// complete, those after it untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramTear {
    /// Clean: power went before the first cell changed.
    None,
    /// The first bytes of the program, however many there are, and nothing of the rest.
    Prefix(usize),
    /// A prefix of random length, from nothing to everything.
    RandomPrefix,
    /// A random subset, of random density, of the bits that should have gone to 0.
    RandomBits,
    /// Clean: power went after the last cell changed, before the driver returned.
    Complete,
}

/// What an erase that loses power leaves behind.
///
/// An erase over several pages is torn in one page only: the pages before it are blank, those after it
/// untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraseTear {
    /// Clean: power went before the first cell changed.
    None,
    /// The first bytes of the erased range are blank, the rest is untouched.
    Prefix(usize),
    /// The start of one page is blank, up to a random byte; the rest of that page is untouched.
    RandomPrefix,
    /// The last bytes of one page are blank, the rest of that page is untouched.
    Suffix(usize),
    /// The end of one page is blank, from a random byte on; the rest of that page is untouched.
    RandomSuffix,
    /// A random subset, of random density, of one page's bits has gone to 1.
    RandomBits,
    /// One page is all zero: chips program a page to zero before they erase it.
    AllZero,
    /// The first and last 64 bytes of one page are blank, its body is untouched: to software that looks only
    /// at markers at the ends, the page seems erased.
    MarkersBlank,
    /// One page is blank up to a random byte and zero from there on.
    AllZeroThenPrefix,
    /// Clean: power went after the last cell changed, before the driver returned.
    Complete,
}

/// What the operation that loses power leaves behind, whichever kind of operation it turns out to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tear {
    /// If it is a program.
    pub program: ProgramTear,
    /// If it is an erase.
    pub erase: EraseTear,
    /// With a rate, the bits in transition become weak: from then on every read gives each of them flipped
    /// with this probability, independently, until it is programmed to 0 or its page is erased.
    ///
    /// In transition are, in the torn chunk or page only: for a program the bits that were to go from 1 to 0;
    /// for an erase every bit that was 0, before it or in its pre-programming. Clean tears (`None`,
    /// `Complete`) ignore it.
    pub weak: Option<f64>,
}

impl Tear {
    /// A clean cut before the operation.
    pub const BEFORE: Self = Self { program: ProgramTear::None, erase: EraseTear::None, weak: None };

    /// A clean cut after the operation, before the driver returned.
    pub const AFTER: Self = Self { program: ProgramTear::Complete, erase: EraseTear::Complete, weak: None };

    /// A program cut at this very byte; an erase is not begun.
    pub const fn program_prefix(bytes: usize) -> Self {
        Self { program: ProgramTear::Prefix(bytes), ..Self::BEFORE }
    }

    /// A program torn in this way; an erase is not begun.
    pub const fn program(program: ProgramTear) -> Self {
        Self { program, ..Self::BEFORE }
    }

    /// An erase torn in this way; a program is not begun.
    pub const fn erase(erase: EraseTear) -> Self {
        Self { erase, ..Self::BEFORE }
    }

    /// The same tear, its bits in transition weak with this flip rate.
    pub const fn weak(self, rate: f64) -> Self {
        Self { weak: Some(rate), ..self }
    }
}
