//! The stored record: the bytes between an application's type and the flash, as SPEC.md lays them down.

use heapless::Vec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Key, Kind};

/// The version of the stored record, in the low half of its first byte. Zero is not a version: the boot check
/// zeroes the first word of a record that was never finished.
const VERSION: u8 = 1;
const HAS_WALL: u8 = 1 << 4;
const HAS_TAG: u8 = 1 << 5;
const HAS_CAUSE: u8 = 1 << 6;

/// Names what a record is about, so that a newer record can supersede an older one that is still pending.
pub type Tag = u32;

/// When a record was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Timestamp {
    /// Number of the boot during which it was enqueued.
    pub boot: u32,
    /// Milliseconds since that boot.
    pub uptime_ms: u64,
    /// Milliseconds since 1970, if the device knew them.
    pub wall_ms: Option<u64>,
}

/// Why a record is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Cause {
    /// The receiver rejected it as often as the lane allows.
    Rejected,
    /// It grew older than the lane allows.
    Expired,
    /// It stood in the way: nothing behind it could be delivered or stored.
    Blocking,
}

/// A record as it lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Stored<'a> {
    /// Its name.
    pub key: Key,
    /// What its body is.
    pub kind: Kind,
    /// When it was enqueued.
    pub time: Timestamp,
    /// What it is about, if it was enqueued to supersede.
    pub tag: Option<Tag>,
    /// Why it is a dead letter, if it is one.
    pub cause: Option<Cause>,
    /// The application's postcard bytes.
    pub body: &'a [u8],
}

type Fixed = (u8, u8, [u8; 4], u64, u16, u32, u64);

impl<'a> Stored<'a> {
    /// The most bytes that stand before the body.
    pub(crate) const HEAD_MAX: usize = 1 + 1 + 4 + 10 + 3 + 5 + 10 + 10 + 5 + 1 + 3;

    /// The bytes of a stored record before a body of so many bytes.
    pub(crate) fn head(&self, body_len: usize) -> Option<Vec<u8, { Stored::HEAD_MAX }>> {
        let flag = |present: bool, bit: u8| if present { bit } else { 0 };
        let first = VERSION
            | flag(self.time.wall_ms.is_some(), HAS_WALL)
            | flag(self.tag.is_some(), HAS_TAG)
            | flag(self.cause.is_some(), HAS_CAUSE);
        let fixed: Fixed = (
            first,
            self.key.lane,
            self.key.incarnation.to_le_bytes(),
            self.key.counter,
            self.kind.0,
            self.time.boot,
            self.time.uptime_ms,
        );
        let mut head = Vec::new();
        append(&mut head, &fixed)?;
        self.time
            .wall_ms
            .map_or(Some(()), |wall| append(&mut head, &wall))?;
        self.tag.map_or(Some(()), |tag| append(&mut head, &tag))?;
        self.cause.map_or(Some(()), |cause| append(&mut head, &cause))?;
        append(&mut head, &u16::try_from(body_len).ok()?)?;
        Some(head)
    }

    /// Reads a stored record; what follows the body is padding. `None` for bytes that are not one.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let ((first, lane, incarnation, counter, kind, boot, uptime_ms), rest): (Fixed, _) = take(bytes)?;
        if first & 0x0f != VERSION || first & 0x80 != 0 || counter >= Key::COUNTER_LIMIT {
            return None;
        }
        let (wall_ms, rest) = take_if(first & HAS_WALL != 0, rest)?;
        let (tag, rest) = take_if(first & HAS_TAG != 0, rest)?;
        let (cause, rest) = take_if(first & HAS_CAUSE != 0, rest)?;
        let (len, rest) = take::<u16>(rest)?;
        Some(Self {
            key: Key {
                incarnation: u32::from_le_bytes(incarnation),
                lane,
                counter,
            },
            kind: Kind(kind),
            time: Timestamp {
                boot,
                uptime_ms,
                wall_ms,
            },
            tag,
            cause,
            body: rest.get(..usize::from(len))?,
        })
    }
}

/// Puts a record together in `buffer`, whose bytes from `HEAD_MAX` on already hold the body (`record.body` is
/// ignored), and pads it to the flash's word, so that it is programmed at once. Gives the length.
#[cfg(feature = "outbox")]
pub(crate) fn assemble(buffer: &mut [u8], record: &Stored<'_>, body_len: usize, word: u32) -> Option<usize> {
    let head = record.head(body_len)?;
    let end = head.len() + body_len;
    let padded = end.next_multiple_of(word as usize);
    buffer.get(..padded.max(Stored::HEAD_MAX + body_len))?;
    buffer.copy_within(Stored::HEAD_MAX..Stored::HEAD_MAX + body_len, head.len());
    buffer.get_mut(..head.len())?.copy_from_slice(&head);
    buffer.get_mut(end..padded)?.fill(0xff);
    Some(padded)
}

fn append<T: Serialize, const N: usize>(head: &mut Vec<u8, N>, value: &T) -> Option<()> {
    let mut bytes = [0; 48];
    let used = postcard::to_slice(value, &mut bytes).ok()?;
    head.extend_from_slice(used).ok()
}

fn take<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    postcard::take_from_bytes(bytes).ok()
}

fn take_if<T: DeserializeOwned>(present: bool, bytes: &[u8]) -> Option<(Option<T>, &[u8])> {
    if present {
        take(bytes).map(|(value, rest)| (Some(value), rest))
    } else {
        Some((None, bytes))
    }
}
