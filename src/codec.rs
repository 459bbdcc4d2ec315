//! Reading and writing what lies in flash, in postcard's encoding, with one walk over the fields for both ways.
//!
//! Serde's derived code for the ledger takes 8 KB more of flash: every field type has its own reader and its own
//! writer. Here a field is visited once, and the way decides what happens to it. `format_compat.rs` in the host
//! tests holds the bytes to postcard's.

use heapless::Vec;

/// Bytes that are read from, or written to.
pub(crate) enum Codec<'b> {
    Read(&'b [u8]),
    Write(&'b mut [u8]),
}

/// A way through a structure's bytes.
pub(crate) struct Walk<'b> {
    bytes: Codec<'b>,
    at: usize,
    /// Something did not fit, or was not what it should be; nothing after it counts.
    failed: bool,
}

impl<'b> Walk<'b> {
    pub(crate) fn reading(bytes: &'b [u8]) -> Self {
        Self { bytes: Codec::Read(bytes), at: 0, failed: false }
    }

    pub(crate) fn writing(bytes: &'b mut [u8]) -> Self {
        Self { bytes: Codec::Write(bytes), at: 0, failed: false }
    }

    /// How many bytes were walked; `None` if one of the fields could not be.
    pub(crate) fn end(&self) -> Option<usize> {
        (!self.failed).then_some(self.at)
    }

    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    pub(crate) fn byte(&mut self, value: &mut u8) {
        let at = self.at;
        self.at += 1;
        match &mut self.bytes {
            Codec::Read(bytes) => match bytes.get(at) {
                Some(byte) => *value = *byte,
                None => self.failed = true,
            },
            Codec::Write(bytes) => match bytes.get_mut(at) {
                Some(byte) => *byte = *value,
                None => self.failed = true,
            },
        }
    }

    /// Seven bits a byte, the lowest first, the high bit while more follow.
    #[inline(never)]
    pub(crate) fn number(&mut self, value: &mut u64) {
        let mut bytes = [0; 10];
        let mut rest = *value;
        for byte in &mut bytes {
            *byte = rest as u8 & 0x7f;
            rest >>= 7;
            if rest != 0 {
                *byte |= 0x80;
            }
            self.byte(byte);
            if *byte & 0x80 == 0 {
                break;
            }
        }
        // Nine bytes hold 63 bits: of the tenth there is one bit, and nothing follows it.
        let [.., last] = bytes;
        self.failed |= last > 1;
        // From the highest down: a shift by so many bits as the place tells would be a function of its own.
        *value = bytes.iter().rev().fold(0, |read, byte| read << 7 | u64::from(byte & 0x7f));
    }

    /// A number up to so much, which takes no more bytes than it needs: the wire has one encoding for each. The flash
    /// does without, so this is apart and costs nothing where nothing is sent.
    #[inline(never)]
    pub(crate) fn shortest(&mut self, value: &mut u64, max: u64) {
        let from = self.at;
        self.number(value);
        if let Codec::Read(bytes) = &self.bytes {
            // Its highest seven bits are told last.
            self.failed |=
                self.at - from > 1 && self.at.checked_sub(1).and_then(|at| bytes.get(at)) == Some(&0);
        }
        self.failed |= *value > max;
    }

    /// Bytes of which everyone knows how many there are.
    pub(crate) fn fixed(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| self.byte(byte));
    }

    pub(crate) fn u32(&mut self, value: &mut u32) {
        let mut number = u64::from(*value);
        self.number(&mut number);
        self.failed |= number > u64::from(u32::MAX);
        *value = number as u32;
    }

    pub(crate) fn u16(&mut self, value: &mut u16) {
        let mut number = u32::from(*value);
        self.u32(&mut number);
        self.failed |= number > u32::from(u16::MAX);
        *value = number as u16;
    }

    /// A choice among a few: an enum, or whether an option is there.
    pub(crate) fn choice(&mut self, value: u8, choices: u8) -> u8 {
        let mut value = value;
        self.byte(&mut value);
        self.failed |= value >= choices;
        if self.failed { 0 } else { value }
    }

    pub(crate) fn option<T: Copy>(&mut self, value: &mut Option<T>, blank: T, each: fn(&mut T, &mut Self)) {
        if self.choice(value.is_some().into(), 2) == 1 {
            each(value.get_or_insert(blank), self);
        } else {
            *value = None;
        }
    }

    pub(crate) fn list<T: Clone, const N: usize>(
        &mut self,
        list: &mut Vec<T, N>,
        blank: T,
        each: fn(&mut T, &mut Self),
    ) {
        let len = self.count(list.len(), N);
        let _ = list.resize(len, blank);
        for item in list {
            each(item, self);
        }
    }

    /// How many elements follow; none if it would be more than so many.
    pub(crate) fn count(&mut self, len: usize, max: usize) -> usize {
        let mut count = len as u32;
        self.u32(&mut count);
        self.failed |= count > max as u32;
        if self.failed { 0 } else { count as usize }
    }
}
