//! The idempotency key: who sent a record, and which record of theirs it is.

use core::{fmt, str::FromStr};

use heapless::String;
use serde::{Deserialize, Serialize};

use crate::codec::Walk;

/// The name of a device, unique per receiver: 1 to 32 of `A-Z a-z 0-9 _ -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[serde(try_from = "String<32>", into = "String<32>")]
pub struct DeviceId(String<32>);

impl DeviceId {
    /// The longest name.
    pub const MAX_LEN: usize = 32;

    /// Checks the name.
    pub fn new(name: &str) -> Result<Self, DeviceIdError> {
        if name.is_empty() {
            return Err(DeviceIdError::Empty);
        }
        if !name.bytes().all(Self::is_allowed) {
            return Err(DeviceIdError::Character);
        }
        String::try_from(name).map(Self).map_err(|_| DeviceIdError::TooLong)
    }

    /// A name that is none, to be read into.
    pub(crate) fn blank() -> Self {
        Self(String::new())
    }

    fn is_allowed(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
    }

    pub(crate) fn walk(&mut self, walk: &mut Walk<'_>) {
        let old = core::mem::take(&mut self.0);
        let len = walk.count(old.len(), Self::MAX_LEN);
        for at in 0..len {
            let mut byte = old.as_bytes().get(at).copied().unwrap_or_default();
            walk.byte(&mut byte);
            // What is allowed is ASCII; the mask says so to the compiler, which then needs no UTF-8.
            if !Self::is_allowed(byte) || self.0.push(char::from(byte & 0x7f)).is_err() {
                walk.fail();
            }
        }
        if len == 0 {
            walk.fail();
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String<32>> for DeviceId {
    type Error = DeviceIdError;

    fn try_from(name: String<32>) -> Result<Self, DeviceIdError> {
        Self::new(&name)
    }
}

impl From<DeviceId> for String<32> {
    fn from(id: DeviceId) -> Self {
        id.0
    }
}

impl FromStr for DeviceId {
    type Err = DeviceIdError;

    fn from_str(name: &str) -> Result<Self, DeviceIdError> {
        Self::new(name)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is not a device id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DeviceIdError {
    /// It is empty.
    Empty,
    /// It has a character that is not a letter, a digit, `_` or `-`.
    Character,
    /// It is longer than 32 characters.
    TooLong,
}

impl fmt::Display for DeviceIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a device id needs at least one character",
            Self::Character => "a device id may only hold letters, digits, '_' and '-'",
            Self::TooLong => "a device id may have at most 32 characters",
        })
    }
}

impl core::error::Error for DeviceIdError {}

/// A record's name inside its device: minted once, stored with the record, sent unchanged on every attempt.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[allow(
    clippy::derived_hash_with_manual_eq,
    clippy::derive_ord_xor_partial_ord,
    reason = "the same equality, out of line"
)]
pub struct Key {
    /// Random number drawn when the region was formatted or cleared; counters start anew with it.
    pub incarnation: u32,
    /// The lane, and with it the counter that the record was numbered by.
    pub lane: u8,
    /// The record's number in its lane.
    pub counter: u64,
}

impl PartialEq for Key {
    // Compared in many places: inlined, it costs a chip more than a call each.
    #[inline(never)]
    fn eq(&self, other: &Self) -> bool {
        self.counter == other.counter && self.incarnation == other.incarnation && self.lane == other.lane
    }
}

impl Key {
    /// Counters stay below this number.
    pub const COUNTER_LIMIT: u64 = 1 << 63;

    /// The key with its device's name, which is how the rest of the world knows the record.
    pub fn of(self, device: &DeviceId) -> DeviceKey {
        DeviceKey { device: device.clone(), key: self }
    }
}

/// A record's name in the world, written `device.incarnation.lane.counter`.
///
/// ```
/// use pillarbox::{DeviceId, DeviceKey, Key};
///
/// let device = DeviceId::new("meter-0042").unwrap();
/// let key = Key { incarnation: 0x9f3c1a77, lane: 0, counter: 18204 }.of(&device);
/// assert_eq!(key.to_string(), "meter-0042.9f3c1a77.0.18204");
/// assert_eq!("meter-0042.9f3c1a77.0.18204".parse::<DeviceKey>(), Ok(key));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DeviceKey {
    /// The device.
    pub device: DeviceId,
    /// Which of its records.
    pub key: Key,
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { incarnation, lane, counter } = self.key;
        write!(f, "{}.{incarnation:08x}.{lane}.{counter}", self.device)
    }
}

/// The text is not a key: not four parts between dots, or a part that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key reads device.incarnation.lane.counter, such as meter-0042.9f3c1a77.0.18204")
    }
}

impl core::error::Error for KeyError {}

impl FromStr for DeviceKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        // One text per key, or two spellings would be two records: no signs, no leading zeros, lower case.
        let number = |part: &str| -> Result<u64, KeyError> {
            let canonical = part == "0" || !part.starts_with('0');
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if canonical && digits { part.parse().map_err(|_| KeyError) } else { Err(KeyError) }
        };
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or(KeyError);
        let device = DeviceId::new(part()?).map_err(|_| KeyError)?;
        let incarnation = part()?;
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if incarnation.len() != 8 || !incarnation.bytes().all(hex) {
            return Err(KeyError);
        }
        let incarnation = u32::from_str_radix(incarnation, 16).map_err(|_| KeyError)?;
        let lane = u8::try_from(number(part()?)?).map_err(|_| KeyError)?;
        let counter = number(part()?)?;
        if parts.next().is_some() || counter >= Key::COUNTER_LIMIT {
            return Err(KeyError);
        }
        Ok(Self { device, key: Key { incarnation, lane, counter } })
    }
}
