//! The stored record: the bytes between an application's type and the flash, as SPEC.md lays them down.

use core::cell::Cell;

use serde::{Deserialize, Serialize};

#[cfg(feature = "outbox")]
use crate::{Geometry, io::fill};
use crate::{Key, Kind, codec::Walk};

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

impl<'a> Stored<'a> {
    /// The most bytes that stand before the body.
    pub(crate) const HEAD_MAX: usize = 1 + 1 + 4 + 10 + 3 + 5 + 10 + 10 + 5 + 1 + 3;

    /// The shortest stored record: version, lane, incarnation, and one byte for each of the numbers.
    #[cfg(feature = "outbox")]
    pub(crate) const LEN_MIN: u32 = 1 + 1 + 4 + 1 + 1 + 1 + 1 + 1;

    /// Reads a stored record; what follows the body is padding. `None` for bytes that are not one.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut stored = Self {
            key: Key { incarnation: 0, lane: 0, counter: 0 },
            kind: Kind(0),
            time: Timestamp { boot: 0, uptime_ms: 0, wall_ms: None },
            tag: None,
            cause: None,
            body: &[],
        };
        let mut len = 0;
        let mut walk = Walk::reading(bytes);
        stored.walk(&mut walk, &mut len);
        let rest = bytes.get(walk.end()?..)?;
        stored.body = rest.get(..usize::from(len))?;
        (stored.key.counter < Key::COUNTER_LIMIT).then_some(stored)
    }

    /// Where the body begins in the bytes that this was read from.
    #[cfg(feature = "outbox")]
    pub(crate) fn body_at(&self, bytes: &[u8]) -> usize {
        (self.body.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize)
    }

    /// Walks what stands before the body.
    fn walk(&mut self, walk: &mut Walk<'_>, body_len: &mut u16) {
        let flag = |present: bool, bit: u8| if present { bit } else { 0 };
        let mut first = VERSION
            | flag(self.time.wall_ms.is_some(), HAS_WALL)
            | flag(self.tag.is_some(), HAS_TAG)
            | flag(self.cause.is_some(), HAS_CAUSE);
        walk.byte(&mut first);
        if first & 0x0f != VERSION || first & 0x80 != 0 {
            return walk.fail();
        }
        walk.byte(&mut self.key.lane);
        let mut incarnation = self.key.incarnation.to_le_bytes();
        incarnation.iter_mut().for_each(|byte| walk.byte(byte));
        self.key.incarnation = u32::from_le_bytes(incarnation);
        walk.number(&mut self.key.counter);
        walk.u16(&mut self.kind.0);
        walk.u32(&mut self.time.boot);
        walk.number(&mut self.time.uptime_ms);
        if first & HAS_WALL != 0 {
            walk.number(self.time.wall_ms.get_or_insert(0));
        }
        if first & HAS_TAG != 0 {
            walk.u32(self.tag.get_or_insert(0));
        }
        if first & HAS_CAUSE != 0 {
            self.cause.get_or_insert(Cause::Rejected).walk(walk);
        }
        walk.u16(body_len);
    }
}

impl Cause {
    pub(crate) fn walk(&mut self, walk: &mut Walk<'_>) {
        *self = match walk.choice(*self as u8, 3) {
            0 => Self::Rejected,
            1 => Self::Expired,
            _ => Self::Blocking,
        };
    }
}

/// Puts a record together in `buffer`, whose bytes from `HEAD_MAX` on already hold the body (`record.body` is
/// ignored), and pads it to the flash's word, so that it is programmed at once. Gives the length.
#[cfg(feature = "outbox")]
pub(crate) fn assemble(
    buffer: &mut [u8],
    record: &mut Stored<'_>,
    body_len: usize,
    geometry: Geometry,
) -> Option<u32> {
    let mut walk = Walk::writing(buffer.get_mut(..Stored::HEAD_MAX)?);
    record.walk(&mut walk, &mut u16::try_from(body_len).ok()?);
    let head_len = walk.end()?;
    let end = head_len + body_len;
    let padded = geometry.round_up(end as u32);
    shift(buffer, Stored::HEAD_MAX, head_len, body_len);
    fill(buffer.get_mut(end..padded as usize)?, 0xff);
    Some(padded)
}

/// Adds the cause of its death to a record of so many bytes in `buffer`. Gives the length that it has then.
#[cfg(feature = "outbox")]
pub(crate) fn add_cause(buffer: &mut [u8], len: u32, cause: Cause, geometry: Geometry) -> Option<u32> {
    let bytes = buffer.get(..len as usize)?;
    let stored = Stored::decode(bytes)?;
    if stored.cause.is_some() {
        return Some(len);
    }
    // It stands before the length of the body, which takes a byte for every seven bits.
    let body_at = stored.body_at(bytes);
    let (mut at, mut rest) = (body_at - 1, stored.body.len() >> 7);
    while rest > 0 {
        at -= 1;
        rest >>= 7;
    }
    let end = body_at + stored.body.len() + 1;
    shift(buffer, at, at + 1, end - 1 - at);
    *buffer.get_mut(at)? = cause as u8;
    *buffer.first_mut()? |= HAS_CAUSE;
    let padded = geometry.round_up(end as u32);
    fill(buffer.get_mut(end..padded as usize)?, 0xff);
    Some(padded)
}

/// Moves bytes to another place in a buffer, which may overlap with theirs.
pub(crate) fn shift(buffer: &mut [u8], from: usize, to: usize, len: usize) {
    let bytes = Cell::from_mut(buffer).as_slice_of_cells();
    for step in 0..len {
        // Whichever way they go, no byte is overwritten before it was moved.
        let at = if to < from { step } else { len - 1 - step };
        // They change places: a plain move would become a call of memmove, which takes 1.3 KB.
        if let (Some(byte), Some(place)) = (bytes.get(from + at), bytes.get(to + at)) {
            byte.set(place.replace(byte.get()));
        }
    }
}
