//! Finding the snapshots in the two halves of the metadata: the same for the device and for the read-only scan.

use embedded_storage_async::nor_flash::ReadNorFlash;

use crate::{
    Geometry,
    geometry::FORMAT,
    item::{DataCrc, Header},
    layout::metadata_half,
    ledger::SnapshotHead,
};

/// The halves of the metadata on a flash.
pub(crate) struct Halves<'f, F> {
    pub(crate) flash: &'f mut F,
    pub(crate) geometry: Geometry,
    /// Where the region begins on the flash.
    pub(crate) origin: u32,
}

/// A snapshot that was whole when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) half: u32,
    pub(crate) offset: u32,
    pub(crate) header: Header,
    pub(crate) sequence: u32,
}

impl<F: ReadNorFlash> Halves<'_, F> {
    pub(crate) fn address(&self, half: u32, offset: u32) -> u32 {
        self.origin + half * metadata_half(self.geometry) + offset
    }

    /// The whole snapshot with the highest number, or with the highest below `below`. Notes the format of whole snapshots that have
    /// another.
    pub(crate) async fn newest_below(
        &mut self,
        buffer: &mut [u8],
        below: Option<u32>,
        other_format: &mut Option<u8>,
    ) -> Result<Option<Candidate>, F::Error> {
        let geometry = self.geometry;
        let word = geometry.word();
        let mut best: Option<Candidate> = None;
        for half in 0..2 {
            let mut offset = word;
            while offset + word <= metadata_half(geometry) {
                let mut cells = [0xff; Geometry::WORD_MAX];
                let cells = cells.get_mut(..word as usize).unwrap_or_default();
                self.flash.read(self.address(half, offset), cells).await?;
                if cells.iter().all(|&byte| byte == 0xff) {
                    break;
                }
                let here = Header::parse(cells).map(|header| Candidate { half, offset, header, sequence: 0 });
                let fits = |found: &Candidate| {
                    offset + geometry.item_span(found.header.len.into()) <= metadata_half(geometry)
                };
                let Some(found) = here.filter(fits) else {
                    offset += word;
                    continue;
                };
                let Some(len) = self.read_whole(&found, buffer).await? else {
                    offset += word;
                    continue;
                };
                offset += geometry.item_span(found.header.len.into());
                let end = buffer.len().min(word as usize + len);
                let bytes = buffer.get(word as usize..end).unwrap_or_default();
                match SnapshotHead::number(bytes) {
                    Some((FORMAT, sequence)) => {
                        let is_below = below.is_none_or(|below| sequence < below);
                        let is_newer = best.is_none_or(|best| best.sequence <= sequence);
                        best =
                            if is_below && is_newer { Some(Candidate { sequence, ..found }) } else { best };
                    }
                    Some((format, _)) => *other_format = Some(format),
                    None => {}
                }
            }
        }
        Ok(best)
    }

    /// Reads a snapshot with its header into the buffer, as much of it as fits; gives its length if it is whole.
    pub(crate) async fn read_whole(
        &mut self,
        found: &Candidate,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, F::Error> {
        let word = self.geometry.word() as usize;
        let len = usize::from(found.header.len);
        let padded = self.geometry.round_up(len as u32) as usize;
        let room = buffer.len().saturating_sub(word) / word * word;
        let Some((head, data)) =
            buffer.get_mut(..word + padded.min(room)).and_then(|cells| cells.split_at_mut_checked(word))
        else {
            return Ok(None);
        };
        head.iter_mut().zip(found.header.word()).for_each(|(cell, byte)| *cell = byte);
        let start = self.address(found.half, found.offset) + word as u32;
        self.flash.read(start, data).await?;
        let mut crc = DataCrc::new();
        crc.update(data.get(..len.min(data.len())).unwrap_or_default());
        // A region with more lanes has larger snapshots than we have room for: it is to be known as such.
        let mut at = data.len();
        while at < len {
            let mut cells = [0; Geometry::WORD_MAX];
            self.flash.read(start + at as u32, cells.get_mut(..word).unwrap_or_default()).await?;
            crc.update(cells.get(..word.min(len - at)).unwrap_or_default());
            at += word;
        }
        Ok((crc.end() == found.header.crc).then_some(len))
    }
}
