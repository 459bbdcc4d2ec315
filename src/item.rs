//! The item of sequential-storage 8.0.2, byte for byte: what the boot check and the read-only scan know of it.

#[cfg(feature = "outbox")]
use crate::io::fill;

/// Bytes of an item's header, before padding to the word.
pub(crate) const HEADER_LEN: usize = 8;

/// A checksum whose bits come in and go out with the lowest first, up to 32 wide: `poly` is its polynomial with the
/// bits reversed. One loop for both of an item's checksums.
#[inline(never)]
const fn crc(poly: u32, mut crc: u32, mut data: &[u8]) -> u32 {
    while let [byte, rest @ ..] = data {
        crc ^= *byte as u32;
        let mut bits = 8;
        while bits > 0 {
            let carry = crc & 1;
            crc >>= 1;
            if carry != 0 {
                crc ^= poly;
            }
            bits -= 1;
        }
        data = rest;
    }
    crc
}

/// The checksum of an item's data, piece by piece. Never zero, because zero says "popped".
pub(crate) struct DataCrc(u32);

impl DataCrc {
    const POLY: u32 = 0x1edc_6f41_u32.reverse_bits();

    pub(crate) fn new() -> Self {
        Self(0x7777_7777_u32.reverse_bits())
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0 = crc(Self::POLY, self.0, data);
    }

    // Out of line, which is less code than in each place.
    #[inline(never)]
    pub(crate) fn end(self) -> u32 {
        let crc = !self.0;
        if matches!(crc & 0xff, 0 | 0xff) { crc ^ 1 } else { crc }
    }
}

/// The checksum of an item's data.
pub(crate) fn data_crc(data: &[u8]) -> u32 {
    let mut crc = DataCrc::new();
    crc.update(data);
    crc.end()
}

/// The checksum of an item's length. Never `0xffff`, which is what erased flash reads.
pub(crate) const fn length_crc(len: u16) -> u16 {
    const POLY: u32 = 0x7458_u16.reverse_bits() as u32;
    let crc = crc(POLY, 0xffff, &len.to_le_bytes());
    // It is inverted: zero would become that.
    !(if crc == 0 { 1 } else { crc }) as u16
}

/// An item's header whose length can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Checksum of the data, or zero once the item is popped.
    pub(crate) crc: u32,
    pub(crate) len: u16,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[a, b, c, d, l0, l1, k0, k1], _) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let len = u16::from_le_bytes([l0, l1]);
        let intact = length_crc(len) == u16::from_le_bytes([k0, k1]);
        intact.then_some(Self { crc: u32::from_le_bytes([a, b, c, d]), len })
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = self.crc.to_le_bytes();
        let [l0, l1] = self.len.to_le_bytes();
        let [k0, k1] = length_crc(self.len).to_le_bytes();
        [a, b, c, d, l0, l1, k0, k1]
    }

    /// Puts the header down as it stands in flash, padded to the end of `cells`.
    #[cfg(feature = "outbox")]
    pub(crate) fn put(&self, cells: &mut [u8]) {
        fill(cells, 0xff);
        if let Some(place) = cells.first_chunk_mut() {
            *place = self.encode();
        }
    }

    pub(crate) fn popped(&self) -> Self {
        Self { crc: 0, ..*self }
    }

    pub(crate) fn is_popped(&self) -> bool {
        self.crc == 0
    }

    /// What the data say about the header's checksum.
    pub(crate) fn judge(&self, data: &[u8]) -> Judgement {
        let crc = data_crc(data);
        if self.crc == crc {
            Judgement::Whole
        } else if self.crc & crc == self.crc {
            // Popping only clears bits of the checksum, so a pop that was cut leaves a part of the true one.
            Judgement::PopCut
        } else {
            Judgement::Corrupt
        }
    }
}

/// How an item's data and checksum go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Whole,
    PopCut,
    Corrupt,
}
