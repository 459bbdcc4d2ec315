//! The fault classes that soaks, tables and command lines name: each a distribution of tears.

use core::fmt;
use core::str::FromStr;

use super::tear::{EraseTear, ProgramTear, Tear};

/// The flip rates that weak bits are drawn with: from a coin toss to a bit that looks solid in a thousand
/// reads.
pub const WEAK_RATES: [f64; 7] = [0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001];

/// A named way of losing power.
///
/// A class about programs cuts erases cleanly (before or after), and the other way round, so that a loss
/// under a class is that class's doing. [`FaultClass::Mixed`] tears whatever it hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultClass {
    /// A program torn to a prefix.
    ProgramPrefix,
    /// A program torn to a random subset of its bits.
    ProgramRandomBits,
    /// An erase torn to a random subset of its bits.
    EraseRandomBits,
    /// An erase that has blanked the ends of the page but not its body.
    EraseMarkersBlank,
    /// An erase that has blanked the start of the page.
    ErasePrefix,
    /// An erase that has blanked the end of the page first.
    EraseSuffix,
    /// An erase cut in or after its pre-programming to all zero.
    EraseAllZero,
    /// A torn program whose bits read differently each time.
    WeakProgram,
    /// A torn erase whose bits read differently each time.
    WeakErase,
    /// A random one of all the others at every cut, for the program and for the erase it may hit.
    Mixed,
}

impl FaultClass {
    /// Every class, in the order of the tables.
    pub const ALL: &[Self] = &[
        Self::ProgramPrefix,
        Self::ProgramRandomBits,
        Self::EraseRandomBits,
        Self::EraseMarkersBlank,
        Self::ErasePrefix,
        Self::EraseSuffix,
        Self::EraseAllZero,
        Self::WeakProgram,
        Self::WeakErase,
        Self::Mixed,
    ];

    /// The stable name, as tables and command lines spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProgramPrefix => "program-prefix",
            Self::ProgramRandomBits => "program-random-bits",
            Self::EraseRandomBits => "erase-random-bits",
            Self::EraseMarkersBlank => "erase-markers-blank",
            Self::ErasePrefix => "erase-prefix",
            Self::EraseSuffix => "erase-suffix",
            Self::EraseAllZero => "erase-all-zero",
            Self::WeakProgram => "weak-program",
            Self::WeakErase => "weak-erase",
            Self::Mixed => "mixed",
        }
    }

    /// Draws the tear for one cut.
    pub fn tear(self, rng: &mut fastrand::Rng) -> Tear {
        let clean = if rng.bool() { Tear::BEFORE } else { Tear::AFTER };
        match self {
            Self::ProgramPrefix => Tear { program: ProgramTear::RandomPrefix, ..clean },
            Self::ProgramRandomBits => Tear { program: ProgramTear::RandomBits, ..clean },
            Self::EraseRandomBits => Tear { erase: EraseTear::RandomBits, ..clean },
            Self::EraseMarkersBlank => Tear { erase: EraseTear::MarkersBlank, ..clean },
            Self::ErasePrefix => Tear { erase: EraseTear::RandomPrefix, ..clean },
            Self::EraseSuffix => Tear { erase: EraseTear::RandomSuffix, ..clean },
            Self::EraseAllZero => Tear { erase: all_zero_erase(rng), ..clean },
            Self::WeakProgram => {
                Tear { program: unsettled_program(rng), weak: Some(weak_rate(rng)), ..clean }
            }
            Self::WeakErase => Tear { erase: unsettled_erase(rng), weak: Some(weak_rate(rng)), ..clean },
            Self::Mixed => Tear {
                program: unsettled_program(rng),
                erase: unsettled_erase(rng),
                weak: rng.bool().then(|| weak_rate(rng)),
            },
        }
    }
}

fn weak_rate(rng: &mut fastrand::Rng) -> f64 {
    WEAK_RATES[rng.usize(..WEAK_RATES.len())]
}

fn all_zero_erase(rng: &mut fastrand::Rng) -> EraseTear {
    if rng.bool() { EraseTear::AllZero } else { EraseTear::AllZeroThenPrefix }
}

/// Any program tear; nominally nothing and nominally everything are among them, because weak bits make them
/// count.
fn unsettled_program(rng: &mut fastrand::Rng) -> ProgramTear {
    match rng.u8(..4) {
        0 => ProgramTear::Prefix(0),
        1 => ProgramTear::Prefix(usize::MAX),
        2 => ProgramTear::RandomPrefix,
        _ => ProgramTear::RandomBits,
    }
}

/// Any erase tear; nominally nothing and nominally everything are among them, because weak bits make them
/// count.
fn unsettled_erase(rng: &mut fastrand::Rng) -> EraseTear {
    match rng.u8(..8) {
        0 => EraseTear::Prefix(0),
        1 => EraseTear::Prefix(usize::MAX),
        2 => EraseTear::RandomPrefix,
        3 => EraseTear::RandomSuffix,
        4 => EraseTear::MarkersBlank,
        5 => all_zero_erase(rng),
        _ => EraseTear::RandomBits,
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no [`FaultClass`] has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFaultClass(pub String);

impl fmt::Display for UnknownFaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no fault class is called {:?}; there are:", self.0)?;
        FaultClass::ALL.iter().try_for_each(|class| write!(f, " {class}"))
    }
}

impl std::error::Error for UnknownFaultClass {}

impl FromStr for FaultClass {
    type Err = UnknownFaultClass;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.iter().copied().find(|class| class.name() == name);
        known.ok_or_else(|| UnknownFaultClass(name.to_owned()))
    }
}
