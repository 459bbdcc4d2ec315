//! The health of the metadata: how many snapshots are whole in each half, and what lies between and behind them.

use embedded_storage_async::nor_flash::ReadNorFlash;

use super::{Magic, ScanError, check_bounds};
use crate::{
    Geometry,
    io::{Cells, drive_reading, is_blank},
    layout::{metadata_half, metadata_pages},
    snapshots::{Found, Load},
};

/// A half of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// Where it begins.
    pub address: u32,
    /// What stands in its first word.
    pub magic: Magic,
    /// Whole snapshots.
    pub snapshots: u32,
    /// The highest number among them.
    pub newest: Option<u32>,
    /// Bytes before the last whole snapshot that belong to none: no power cut leaves such, because after one the
    /// next snapshot goes to the other half.
    pub gaps: u32,
    /// Bytes behind the last whole snapshot that were written to: a write that was cut, or damage.
    pub broken: u32,
    /// Blank bytes at its end.
    pub free: u32,
}

/// Looks at both halves of the metadata of the region that begins at `origin`. Of snapshots of another format none
/// counts.
pub async fn halves<F: ReadNorFlash>(
    flash: &mut F,
    origin: u32,
    geometry: Geometry,
    buffer: &mut [u8],
) -> Result<[Half; 2], ScanError<F::Error>> {
    check_bounds(flash, origin, geometry, metadata_pages(geometry).into(), buffer)?;
    let mut surveys = [Survey::default(); 2];
    let mut cells = Cells::new(buffer);
    let mut load = Load::new(geometry, origin);
    loop {
        drive_reading(flash, &mut cells, &mut load).await?;
        let Some(found) = load.found else { break };
        if let Some(survey) = surveys.get_mut(found.half as usize) {
            survey.add(&found, geometry);
        }
        load.older_than(&found);
    }
    let len = metadata_half(geometry);
    let [one, other] = surveys;
    Ok([
        one.end(flash, origin, geometry, buffer).await?,
        other.end(flash, origin.saturating_add(len), geometry, buffer).await?,
    ])
}

/// The snapshots of a half, which come newest first.
#[derive(Clone, Copy, Default)]
struct Survey {
    snapshots: u32,
    newest: Option<u32>,
    /// Bytes that the snapshots take.
    taken: u32,
    /// Where the last one ends.
    end: u32,
}

impl Survey {
    fn add(&mut self, found: &Found, geometry: Geometry) {
        let span = found.span(geometry);
        self.snapshots += 1;
        self.newest = self.newest.max(Some(found.sequence));
        self.taken += span;
        self.end = self.end.max(found.offset + span);
    }

    async fn end<F: ReadNorFlash>(
        self,
        flash: &mut F,
        address: u32,
        geometry: Geometry,
        buffer: &mut [u8],
    ) -> Result<Half, ScanError<F::Error>> {
        let word = geometry.word();
        let half = buffer.get_mut(..metadata_half(geometry) as usize).unwrap_or_default();
        flash.read(address, half).await?;
        let end = self.end.max(word);
        let rest = half.get(end as usize..).unwrap_or_default();
        let blank = rest.rchunks(word as usize).take_while(|cells| is_blank(cells)).count() as u32;
        let free = blank * word;
        Ok(Half {
            address,
            magic: Magic::of(half.get(..word as usize).unwrap_or_default(), geometry),
            snapshots: self.snapshots,
            newest: self.newest,
            gaps: end - word - self.taken.min(end - word),
            broken: rest.len() as u32 - free,
            free,
        })
    }
}
