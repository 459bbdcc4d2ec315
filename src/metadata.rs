//! The two halves of the metadata: whole snapshots, of which the newest that is whole counts.
//!
//! The half that holds the newest snapshot is never erased. After a boot, or after a write that failed or was
//! given up, the next snapshot goes to the other half, freshly erased and seen to be blank: so nothing is ever
//! written behind cells that a power cut may have left in doubt.

use embedded_storage_async::nor_flash::NorFlash;

use crate::{
    Error, Geometry, Layout,
    guard::{ERASE_TRIES, GuardError, is_blank},
    item::{Header, data_crc},
    layout::metadata_half,
    ledger::{Ledger, SnapshotHead},
    settle::READS,
    snapshots::Halves,
};

/// Where the metadata lie and where the next snapshot goes.
pub(crate) struct Metadata {
    origin: u32,
    sequence: u32,
    /// The half with the newest snapshot.
    newest: Option<u32>,
    /// Where in that half the next one goes; unset while a write is under way, and after it has failed.
    append_at: Option<u32>,
    pub(crate) erases: u32,
}

/// What lies in the metadata's halves.
pub(crate) enum Loaded {
    /// No snapshot that is whole.
    Nothing,
    /// Snapshots of another version of this library.
    OtherFormat(u8),
    /// The newest snapshot: where its bytes stand in the buffer, or as many of them as fit.
    Snapshot(core::ops::Range<usize>),
}

impl Metadata {
    pub(crate) const fn new(origin: u32) -> Self {
        Self { origin, sequence: 0, newest: None, append_at: None, erases: 0 }
    }

    fn address(&self, geometry: Geometry, half: u32, offset: u32) -> u32 {
        self.origin + half * metadata_half(geometry) + offset
    }

    /// Finds the newest snapshot and programs it once more, in case a power cut has left its cells weak.
    pub(crate) async fn load<F: NorFlash>(
        &mut self,
        flash: &mut F,
        buffer: &mut [u8],
    ) -> Result<Loaded, Error<F::Error>> {
        let geometry = const { Geometry::of::<F>() };
        let word = geometry.word() as usize;
        self.append_at = None;
        self.newest = None;
        let mut below = None;
        let mut other_format = None;
        let mut halves = Halves { flash, geometry, origin: self.origin };
        while let Some(best) =
            halves.newest_below(buffer, below, &mut other_format).await.map_err(Error::Flash)?
        {
            // One of them may be newer than ours, and then our ceilings are old.
            if let Some(format) = other_format {
                return Ok(Loaded::OtherFormat(format));
            }
            for _ in 0..READS {
                if let Some(len) = halves.read_whole(&best, buffer).await.map_err(Error::Flash)? {
                    let end = word + geometry.round_up(len as u32) as usize;
                    let Some(cells) = buffer.get(..end) else {
                        return Ok(Loaded::Snapshot(word..buffer.len()));
                    };
                    let address = halves.address(best.half, best.offset);
                    halves.flash.write(address, cells).await.map_err(Error::Flash)?;
                    self.newest = Some(best.half);
                    self.sequence = best.sequence;
                    return Ok(Loaded::Snapshot(word..word + len));
                }
            }
            // It was whole by chance only.
            below = Some(best.sequence);
        }
        Ok(other_format.map_or(Loaded::Nothing, Loaded::OtherFormat))
    }

    /// Writes a snapshot and sees that it is there. On failure the one before it still counts, or this one does.
    pub(crate) async fn write<F: NorFlash, const LANES: usize>(
        &mut self,
        flash: &mut F,
        buffer: &mut [u8],
        layout: &Layout,
        ledger: &mut Ledger<LANES>,
    ) -> Result<(), Error<F::Error>> {
        let geometry = const { Geometry::of::<F>() };
        let word = geometry.word() as usize;
        // A write that failed may still have left its snapshot there: no number is used twice.
        self.sequence = self.sequence.saturating_add(1);
        let (head, data) = buffer.split_at_mut_checked(word).ok_or(Error::NotWritten)?;
        let mut snapshot = SnapshotHead { sequence: self.sequence, layout: layout.clone() };
        let len = ledger.encode(data, &mut snapshot, geometry.word()).ok_or(Error::NotWritten)?;
        let data = data.get(..len).ok_or(Error::NotWritten)?;
        let header = Header { crc: data_crc(data), len: len as u16 };
        head.iter_mut().zip(header.word()).for_each(|(cell, byte)| *cell = byte);
        let snapshot = buffer.get(..word + len).ok_or(Error::NotWritten)?;
        for _ in 0..ERASE_TRIES {
            let fits = |at: &u32| at + snapshot.len() as u32 <= metadata_half(geometry);
            let (half, at) = match (self.newest, self.append_at.take().filter(fits)) {
                (Some(half), Some(at)) => (half, at),
                (newest, _) => {
                    let half = newest.map_or(0, |newest| 1 - newest);
                    self.erase(flash, half).await?;
                    (half, geometry.word())
                }
            };
            let address = self.address(geometry, half, at);
            flash.write(address, snapshot).await.map_err(Error::Flash)?;
            if holds(flash, address, snapshot).await? {
                self.newest = Some(half);
                self.append_at = Some(at + snapshot.len() as u32);
                return Ok(());
            }
        }
        Err(Error::NotWritten)
    }

    /// Erases both halves: there is no snapshot any more.
    pub(crate) async fn erase_all<F: NorFlash>(&mut self, flash: &mut F) -> Result<(), Error<F::Error>> {
        self.newest = None;
        self.append_at = None;
        for half in 0..2 {
            self.erase(flash, half).await?;
        }
        Ok(())
    }

    async fn erase<F: NorFlash>(&mut self, flash: &mut F, half: u32) -> Result<(), Error<F::Error>> {
        let geometry = const { Geometry::of::<F>() };
        let (from, to) = (self.address(geometry, half, 0), self.address(geometry, half + 1, 0));
        for _ in 0..ERASE_TRIES {
            flash.erase(from, to).await.map_err(Error::Flash)?;
            self.erases += (to - from) / geometry.page();
            if is_blank(flash, from, to).await.map_err(Error::Flash)? {
                // For readers that do not know the geometry yet.
                let magic = geometry.magic_word();
                let magic = magic.get(..geometry.word() as usize).unwrap_or_default();
                return flash.write(from, magic).await.map_err(Error::Flash);
            }
        }
        Err(Error::WornOut)
    }
}

async fn holds<F: NorFlash>(flash: &mut F, address: u32, bytes: &[u8]) -> Result<bool, Error<F::Error>> {
    let mut cells = [0; 2 * Geometry::WORD_MAX];
    for (at, expected) in (address..).step_by(cells.len()).zip(bytes.chunks(cells.len())) {
        let cells = cells.get_mut(..expected.len()).unwrap_or_default();
        flash.read(at, cells).await.map_err(Error::Flash)?;
        if cells != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<E> From<GuardError<E>> for Error<E> {
    fn from(error: GuardError<E>) -> Self {
        match error {
            GuardError::Flash(error) => Self::Flash(error),
            GuardError::WornOut => Self::WornOut,
        }
    }
}
