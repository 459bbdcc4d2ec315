//! A dump of a flash, read as a flash: the scan without a driver and without an executor.

use core::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use embedded_storage_async::nor_flash::{ErrorType, NorFlashError, NorFlashErrorKind, ReadNorFlash};

use super::{
    Half, Item, Metadata, ScanError, Sight, geometry, halves, items, magic, metadata, survey, survey_page,
};
use crate::{Geometry, Layout};

/// A dump of a flash, read as a flash.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a>(&'a [u8]);

/// The read goes beyond the dump's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl NorFlashError for OutOfBounds {
    fn kind(&self) -> NorFlashErrorKind {
        NorFlashErrorKind::OutOfBounds
    }
}

impl ErrorType for Image<'_> {
    type Error = OutOfBounds;
}

impl ReadNorFlash for Image<'_> {
    const READ_SIZE: usize = 1;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.0.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(OutOfBounds)?);
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.0.len()
    }
}

impl<'a> Image<'a> {
    /// The flash that these bytes are a dump of.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// [`geometry`](super::geometry()), without an executor.
    pub fn geometry(&mut self, origin: u32) -> Result<Geometry, ScanError<OutOfBounds>> {
        at_once(geometry(self, origin))
    }

    /// [`magic`](super::magic()), without an executor.
    pub fn magic(&mut self, address: u32) -> Result<Option<Geometry>, ScanError<OutOfBounds>> {
        at_once(magic(self, address))
    }

    /// [`metadata`](super::metadata()), without an executor.
    pub fn metadata(&mut self, origin: u32, buffer: &mut [u8]) -> Result<Metadata, ScanError<OutOfBounds>> {
        at_once(metadata(self, origin, buffer))
    }

    /// [`items`](super::items()), without an executor.
    pub fn items(
        &mut self,
        origin: u32,
        geometry: Geometry,
        layout: &Layout,
        buffer: &mut [u8],
        show: impl FnMut(Item<'_>),
    ) -> Result<(), ScanError<OutOfBounds>> {
        at_once(items(self, origin, geometry, layout, buffer, show))
    }

    /// [`halves`](super::halves()), without an executor.
    pub fn halves(
        &mut self,
        origin: u32,
        geometry: Geometry,
        buffer: &mut [u8],
    ) -> Result<[Half; 2], ScanError<OutOfBounds>> {
        at_once(halves(self, origin, geometry, buffer))
    }

    /// [`survey`](super::survey()), without an executor.
    pub fn survey(
        &mut self,
        origin: u32,
        geometry: Geometry,
        layout: &Layout,
        buffer: &mut [u8],
        show: impl FnMut(Sight<'_>),
    ) -> Result<(), ScanError<OutOfBounds>> {
        at_once(survey(self, origin, geometry, layout, buffer, show))
    }

    /// [`survey_page`](super::survey_page()), without an executor.
    pub fn survey_page(
        &mut self,
        address: u32,
        geometry: Geometry,
        buffer: &mut [u8],
        show: impl FnMut(Sight<'_>),
    ) -> Result<(), ScanError<OutOfBounds>> {
        at_once(survey_page(self, address, geometry, buffer, show))
    }
}

/// Nothing in an image has to be waited for.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}
