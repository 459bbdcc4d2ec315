//! What goes over the wire, as SPEC.md lays it down: the batch and the answer, for device and receiver alike.

mod answer;
mod batch;
mod tag;

pub use answer::{Answer, AnswerDraft, Verdict};
pub use batch::{Batch, BatchWriter, Head, fingerprint};
pub use tag::{Secret, TAG_LEN, TagKeys};

use core::fmt;

use crate::{codec::Walk, stored::shift};

/// The version of both envelopes, their first byte.
const VERSION: u8 = 1;
/// A section of this number or a higher one may be skipped.
const MAY_BE_SKIPPED: u8 = 0x80;
/// Number and length of a section take so many bytes at most: an envelope is no longer than a u16 tells.
const SECTION_MAX: usize = 1 + 3;

/// Counters that the receiver remembers above the floor; nothing beyond is sent.
pub const WINDOW: u64 = 1024;
/// Records in one batch at most.
pub const RECORDS_MAX: usize = 1024;
/// Dead letters in one batch at most.
pub const LATE_MAX: usize = 16;
/// Entries of the account in one batch at most.
pub const ENTRIES_MAX: usize = 32;
/// Numbers in a report at most.
pub const REPORT_MAX: usize = 32;
/// Verdicts in an answer at most.
pub const VERDICTS_MAX: usize = 64;
/// Ranges to explain in an answer at most.
pub const EXPLAIN_MAX: usize = 8;
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

/// Looks at an envelope's first two bytes: its version must be this one, and of its flags all must be known.
fn check_start(bytes: &[u8], known_flags: u8) -> Result<(), WireError> {
    match bytes {
        [] => Err(WireError::Malformed),
        [version, ..] if *version != VERSION => Err(WireError::Version(*version)),
        [_, flags, ..] if flags & !known_flags != 0 => Err(WireError::Unknown(flags & !known_flags)),
        _ => Ok(()),
    }
}

/// The sections of an envelope, one after the other.
struct Sections<'a> {
    rest: &'a [u8],
    last: Option<u8>,
}

impl<'a> Sections<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest, last: None }
    }

    /// The next section that is not to be skipped, of which the first so many are known.
    fn next(&mut self, known: u8) -> Result<Option<(u8, &'a [u8])>, WireError> {
        while !self.rest.is_empty() {
            let mut walk = Walk::reading(self.rest);
            let (mut number, mut len) = (0, 0);
            walk.byte(&mut number);
            walk.shortest(&mut len, u32::MAX.into());
            let at = walk.end().ok_or(WireError::Malformed)?;
            let content = self.rest.get(at..).and_then(|rest| rest.split_at_checked(len as usize));
            let (content, rest) = content.ok_or(WireError::Malformed)?;
            if self.last.is_some_and(|last| number <= last) {
                return Err(WireError::Rule);
            }
            self.last = Some(number);
            self.rest = rest;
            match number {
                MAY_BE_SKIPPED.. => {}
                number if number == 0 || number > known => return Err(WireError::Unknown(number)),
                number => return Ok(Some((number, content))),
            }
        }
        Ok(None)
    }
}

/// Writes number and length of a section at `at`, whose content ends at `end` and begins where it does if
/// they take as many bytes as they can; then moves the content up to them. Gives the section's end: an empty
/// one is left out.
fn close_section(buffer: &mut [u8], number: u8, at: usize, end: usize) -> Option<usize> {
    let content = at + SECTION_MAX;
    let len = end.checked_sub(content)?;
    if len == 0 {
        return Some(at);
    }
    let header = write_section_header(buffer.get_mut(at..content)?, number, len)?;
    shift(buffer, content, at + header, len);
    Some(at + header + len)
}

fn write_section_header(buffer: &mut [u8], number: u8, len: usize) -> Option<usize> {
    let mut walk = Walk::writing(buffer);
    walk.byte(&mut { number });
    walk.number(&mut (len as u64));
    walk.end()
}

/// The elements of a section. The first one that cannot be read is the last.
fn elements<'a, T: 'a>(
    bytes: &'a [u8],
    read: fn(&mut Walk<'_>) -> Result<T, WireError>,
) -> impl Iterator<Item = Result<T, WireError>> + 'a {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut walk = Walk::reading(rest);
        let element = read(&mut walk);
        let end = walk.end();
        rest = end.and_then(|end| rest.get(end..)).unwrap_or_default();
        Some(if end.is_some() { element } else { Err(WireError::Malformed) })
    })
}

/// Whether all elements of a section can be read, and there are not too many.
fn check_elements<T>(
    elements: impl Iterator<Item = Result<T, WireError>>,
    at_most: usize,
) -> Result<(), WireError> {
    let mut count = 0;
    for element in elements {
        element?;
        count += 1;
        if count > at_most {
            return Err(WireError::Rule);
        }
    }
    Ok(())
}
