//! The item of sequential-storage 8.0.2, byte for byte: what the boot check and the read-only scan know of it.

use crc::{Algorithm, Crc, Digest, NoTable};

#[cfg(feature = "outbox")]
use crate::io::fill;

/// Bytes of an item's header, before padding to the word.
pub(crate) const HEADER_LEN: usize = 8;

static DATA_CRC: Crc<u32, NoTable> = Crc::<u32, NoTable>::new(&Algorithm {
    width: 32,
    poly: 0x1edc_6f41,
    init: 0x7777_7777,
    refin: true,
    refout: true,
    xorout: 0xffff_ffff,
    check: 0,
    residue: 0,
});

const LENGTH_CRC: Crc<u16, NoTable> = Crc::<u16, NoTable>::new(&Algorithm {
    width: 16,
    poly: 0x7458,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0,
    residue: 0,
});

/// The checksum of an item's data, piece by piece. Never zero, because zero says "popped".
pub(crate) struct DataCrc(Digest<'static, u32, NoTable>);

impl DataCrc {
    pub(crate) fn new() -> Self {
        Self(DATA_CRC.digest())
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub(crate) fn end(self) -> u32 {
        let crc = self.0.finalize();
        match (crc, crc & 0xff) {
            (0, _) => 1,
            (_, 0 | 0xff) => crc ^ 1,
            _ => crc,
        }
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
    match LENGTH_CRC.checksum(&len.to_le_bytes()) {
        0xffff => 0xfffe,
        crc => crc,
    }
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
