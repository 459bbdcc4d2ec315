//! What goes over the wire, as SPEC.md lays it down: the batch and the answer, for device and receiver alike.

mod answer;
mod batch;
mod tag;

pub use answer::{Answer, AnswerDraft, Verdict};
pub use batch::{Batch, BatchWriter, Head, fingerprint};
pub use tag::{Secret, TAG_LEN, TagKeys};

use core::fmt;

/// Counters that the receiver remembers above the floor; nothing beyond is sent.
pub const WINDOW: u64 = 1024;
/// Records in one batch at most.
pub const RECORDS_MAX: usize = 1024;
/// Bytes of an envelope at most.
pub const ENVELOPE_MAX: usize = 65_535;
/// What a batch is sent as.
pub const BATCH_CONTENT_TYPE: &str = "application/vnd.pillarbox.batch";
/// What an answer is sent as.
pub const ANSWER_CONTENT_TYPE: &str = "application/vnd.pillarbox.answer";

/// Why bytes are not an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum WireError {
    /// It was written by another version of the protocol.
    Version(u8),
    /// It ends too early, or a number or a list is not what it should be.
    Malformed,
    /// It holds a section or a flag that has to be understood and is not.
    Unknown(u8),
    /// It breaks a rule: counters outside the window, more records than there may be, sections out of order.
    Rule,
    /// There is no room for it.
    Room,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "the envelope has version {version}; this end speaks version 1")
            }
            Self::Malformed => f.write_str("the envelope is cut short, or holds a number that cannot be"),
            Self::Unknown(what) => {
                write!(f, "the envelope needs a reader that knows {what:#04x}: update this end")
            }
            Self::Rule => f.write_str("the envelope breaks a rule of the protocol: see SPEC.md"),
            Self::Room => f.write_str("the envelope does not fit in its buffer"),
        }
    }
}

impl core::error::Error for WireError {}
