//! What can go wrong, by operation and by who has to do something about it.

use core::fmt;

use crate::{DeviceId, Layout};

/// The flash would not do what was asked. The outbox stays usable: the next operation checks the flash anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Error<E> {
    /// The flash driver failed.
    Flash(E),
    /// A page does not come out of an erase blank any more.
    WornOut,
    /// The flash did not keep what was written to it.
    NotWritten,
    /// There is no such lane.
    NoSuchLane,
}

/// Why a record was not enqueued. Except after `Storage` it will not be sent, and has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum EnqueueError<E> {
    /// The lane is full and refuses new records. Nothing is lost; try again when something was delivered.
    Full,
    /// Every live tag of the lane is taken by another pending record.
    TooManyTags,
    /// The record's `EncodedSize` does not tell the truth: it encodes to more than it says.
    TooLarge,
    /// The lane's counter has come to its end.
    Exhausted,
    /// Storage failed. The next operation finds out whether the record is in flash: then it is sent. If not, its
    /// counter is accounted for as aborted.
    Storage(Error<E>),
}

/// Why an outbox could not be opened. Nothing was changed, except by `Storage`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum OpenError<E> {
    /// The configuration does not fit the flash or itself.
    Config(LayoutError),
    /// The region holds records of another device. If they are no longer wanted, `wipe` it.
    OtherOwner(DeviceId),
    /// The region is laid out in a way that this configuration does not extend. Open it with the layout found
    /// here, or `wipe` it.
    OtherLayout(Layout),
    /// The region was written by another version of this library: its format has this number.
    OtherFormat(u8),
    /// Storage failed.
    Storage(Error<E>),
}

/// What is wrong with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LayoutError {
    /// There must be 1 to 6 lanes.
    Lanes,
    /// The region must begin at the start of a page.
    Origin,
    /// A ring has 2 to 4096 pages.
    Pages,
    /// A page cannot hold the largest record.
    Record,
    /// The region does not fit on the flash.
    Capacity,
    /// The buffer is smaller than `buffer_size(LANES, 0)`.
    Buffer,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lanes => "an outbox has 1 to 6 lanes",
            Self::Origin => "the region must begin at the start of a page",
            Self::Pages => "a ring has 2 to 4096 pages",
            Self::Record => "a page of this flash cannot hold the largest record: lower RECORD",
            Self::Buffer => "the buffer is too small: give it buffer_size(LANES, 0) bytes",
            Self::Capacity => "the region does not fit on the flash: take fewer pages, or another origin",
        })
    }
}

impl core::error::Error for LayoutError {}

impl<E: fmt::Debug> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flash(error) => write!(f, "the flash driver failed: {error:?}"),
            Self::WornOut => f.write_str("a page of the flash cannot be erased any more: replace the device"),
            Self::NotWritten => f.write_str("the flash did not keep what was written to it"),
            Self::NoSuchLane => f.write_str("there is no such lane"),
        }
    }
}

impl<E: fmt::Debug> core::error::Error for Error<E> {}

impl<E: fmt::Debug> fmt::Display for EnqueueError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the lane is full: try again when something was delivered"),
            Self::TooManyTags => f.write_str("16 other tags of this lane have pending records"),
            Self::TooLarge => f.write_str("the record is larger than its EncodedSize says"),
            Self::Exhausted => f.write_str("the lane's counter has come to its end: clear the outbox"),
            Self::Storage(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug> core::error::Error for EnqueueError<E> {}

impl<E: fmt::Debug> fmt::Display for OpenError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::OtherOwner(owner) => {
                write!(f, "this region belongs to {owner}: wipe it if its records are no longer wanted")
            }
            Self::OtherLayout(found) => write!(
                f,
                "this region has another layout ({} lanes in {} pages, records of {} bytes): open it with that, or \
                 wipe it",
                found.lanes.len(),
                found.pages(),
                found.record_max
            ),
            Self::OtherFormat(format) => {
                write!(f, "this region has format {format}, which this version does not know")
            }
            Self::Storage(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug> core::error::Error for OpenError<E> {}

impl<E> From<Error<E>> for EnqueueError<E> {
    fn from(error: Error<E>) -> Self {
        Self::Storage(error)
    }
}

impl<E> From<Error<E>> for OpenError<E> {
    fn from(error: Error<E>) -> Self {
        Self::Storage(error)
    }
}

impl<E> From<LayoutError> for OpenError<E> {
    fn from(error: LayoutError) -> Self {
        Self::Config(error)
    }
}
