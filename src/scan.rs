//! Reading a region without changing it: for programs on the host that look at a dump, and for a device that wants
//! to look before it opens.
//!
//! [`metadata`] says whose region it is and how far its counters came; [`items`] shows every record that the device would
//! find, the removed ones included. [`survey`] and [`halves`] tell the health of every page too, and what can be read where the
//! device would not look. All of them only read. Unlike the boot check they read every cell once: of a flash
//! whose last operation was cut they may show something else than the device will decide.
//!
//! ```
//! use pillarbox::scan::{BUFFER, Image, ScanError};
//!
//! let dump = vec![0xff; 65536];
//! let mut buffer = vec![0; BUFFER];
//! let found = Image::new(&dump).metadata(0, &mut buffer);
//! assert_eq!(found, Err(ScanError::NoRegion));
//! ```

mod books;
mod halves;
mod image;
mod rings;
mod survey;

use core::fmt;

pub use books::{Attempts, Backlog, Counters, Former, Lane, Metadata, Tagged, Unfinished};
use embedded_storage_async::nor_flash::ReadNorFlash;
pub use halves::{Half, halves};
pub use image::{Image, OutOfBounds};
pub use rings::{Item, Ring, State, items};
pub use survey::{Magic, Mark, Page, Rest, Sight, Standing, survey, survey_page};

use crate::{
    Geometry,
    io::{Cells, drive_reading},
    layout::{metadata_half, metadata_pages},
    snapshots::Load,
};

/// A buffer of so many bytes is enough for every region. One of a page, and of 4096 at least, is enough for a region
/// with that page.
pub const BUFFER: usize = 65536;

/// Why a region could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError<E> {
    /// The flash driver failed.
    Flash(E),
    /// No page begins with the magic.
    NoRegion,
    /// There is a region, but no snapshot of its metadata is whole.
    NoMetadata,
    /// The region was written by another version of this library: its format has this number.
    OtherFormat(u8),
    /// The flash ends before the region does.
    CutOff,
    /// The buffer is smaller than a page, or than 4096 bytes.
    SmallBuffer,
}

impl<E: fmt::Debug> fmt::Display for ScanError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flash(error) => write!(f, "the flash could not be read: {error:?}"),
            Self::NoRegion => f.write_str("there is no outbox here: no page begins with the magic"),
            Self::NoMetadata => f.write_str(
                "the metadata cannot be read: no snapshot is whole. The records can still be shown to someone who \
                 knows the layout",
            ),
            Self::OtherFormat(format) => write!(
                f,
                "this region has format {format}, which this version does not know"
            ),
            Self::CutOff => f.write_str("the flash or the dump ends before the region does"),
            Self::SmallBuffer => f.write_str("the buffer must hold a page, and 4096 bytes at least"),
        }
    }
}

impl<E: fmt::Debug> core::error::Error for ScanError<E> {}

impl<E> From<E> for ScanError<E> {
    fn from(error: E) -> Self {
        Self::Flash(error)
    }
}

/// Finds the sizes of the region that begins at `origin`: from the magic of either half of its metadata, and else from
/// the first page that has one.
pub async fn geometry<F: ReadNorFlash>(flash: &mut F, origin: u32) -> Result<Geometry, ScanError<F::Error>> {
    let is_half = |geometry: Geometry, at: u32| [0, metadata_half(geometry)].contains(&at);
    let is_page = |geometry: Geometry, at: u32| at.is_multiple_of(geometry.page());
    let halves = [0].into_iter().chain((12..=16).map(|shift| 1u32 << shift));
    for at in halves {
        if let Some(found) = magic_at(flash, origin, at).await?.filter(|found| is_half(*found, at)) {
            return Ok(found);
        }
    }
    let end = (flash.capacity() as u64).saturating_sub(origin.into());
    for at in (0..u32::try_from(end).unwrap_or(u32::MAX)).step_by(256) {
        if let Some(found) = magic_at(flash, origin, at).await?.filter(|found| is_page(*found, at)) {
            return Ok(found);
        }
    }
    Err(ScanError::NoRegion)
}

/// The sizes of the region that a page at this address belongs to, if it begins with the magic.
pub async fn magic<F: ReadNorFlash>(
    flash: &mut F,
    address: u32,
) -> Result<Option<Geometry>, ScanError<F::Error>> {
    Ok(magic_at(flash, address, 0).await?)
}

async fn magic_at<F: ReadNorFlash>(
    flash: &mut F,
    origin: u32,
    at: u32,
) -> Result<Option<Geometry>, F::Error> {
    // As many bytes as the widest word, so that every flash can read them.
    let mut cells = [0; Geometry::WORD_MAX];
    match origin.checked_add(at) {
        Some(address) if u64::from(address) + cells.len() as u64 <= flash.capacity() as u64 => {
            flash.read(address, &mut cells).await?;
            Ok(cells.first_chunk().and_then(Geometry::from_magic))
        }
        _ => Ok(None),
    }
}

/// Bytes of the metadata, with which a region begins. Its rings lie behind them.
pub fn metadata_bytes(geometry: Geometry) -> u32 {
    2 * metadata_half(geometry)
}

/// Reads the newest whole snapshot of the region that begins at `origin`.
pub async fn metadata<F: ReadNorFlash>(
    flash: &mut F,
    origin: u32,
    buffer: &mut [u8],
) -> Result<Metadata, ScanError<F::Error>> {
    let geometry = geometry(flash, origin).await?;
    check_bounds(flash, origin, geometry, metadata_pages(geometry).into(), buffer)?;
    let mut cells = Cells::new(buffer);
    let mut load = Load::new(geometry, origin);
    loop {
        drive_reading(flash, &mut cells, &mut load).await?;
        if let Some(format) = load.other_format {
            return Err(ScanError::OtherFormat(format));
        }
        let newest = load.found.ok_or(ScanError::NoMetadata)?;
        if let Some(found) = Metadata::decode(geometry, newest.snapshot(geometry, &cells)) {
            return Ok(found);
        }
        load.older_than(&newest);
    }
}

/// Whether the region lies on the flash, and a page in the buffer.
fn check_bounds<F: ReadNorFlash>(
    flash: &F,
    origin: u32,
    geometry: Geometry,
    pages: u32,
    buffer: &[u8],
) -> Result<(), ScanError<F::Error>> {
    let end = u64::from(origin) + u64::from(pages) * u64::from(geometry.page());
    if end > flash.capacity() as u64 || end > u32::MAX.into() {
        return Err(ScanError::CutOff);
    }
    if buffer.len() < metadata_half(geometry) as usize {
        return Err(ScanError::SmallBuffer);
    }
    Ok(())
}
