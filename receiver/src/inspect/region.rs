//! Where in a dump the region lies: at the place that the caller names, or wherever its metadata fit best what is around them.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox::Geometry;
use pillarbox::scan::{BUFFER, Image, Metadata, ScanError, metadata_bytes};

/// A region begins at a multiple of the smallest page.
const STEP: usize = 256;
/// Places at which metadata are looked for. The true one is among the first, unless the dump is full of other regions.
const CANDIDATES_MAX: usize = 64;
/// Behind the dump's end there is as much blank flash as the longest metadata and a page, so that what is cut off can be read as far as
/// it goes.
const BEHIND: usize = 3 * 65536;

/// A dump, with the pages in it that have the magic.
pub(super) struct Dump {
    bytes: Vec<u8>,
    /// Bytes of the dump itself.
    pub(super) len: usize,
    magics: BTreeMap<u32, Geometry>,
}

/// A region of which something is known.
pub(super) enum Region {
    /// Its metadata can be read.
    Known {
        origin: u32,
        metadata: Box<Metadata>,
        /// Where other regions begin.
        others: Vec<u32>,
    },
    /// Only its pages can be found.
    Pages { geometry: Geometry, why: ScanError<pillarbox::scan::OutOfBounds>, at: u32 },
    /// There is none.
    None,
}

impl Dump {
    pub(super) fn new(dump: &[u8]) -> Self {
        let mut bytes = dump.to_vec();
        bytes.resize(dump.len() + BEHIND, 0xff);
        let mut image = Image::new(&bytes);
        let magics = (0..dump.len())
            .step_by(STEP)
            .filter_map(|at| u32::try_from(at).ok())
            .filter_map(|at| Some((at, image.magic(at).ok()??)))
            .collect();
        Self { len: dump.len(), magics, bytes }
    }

    /// The flash from its start to the end of the last page, whole or not.
    pub(super) fn image(&self, origin: u32, page: u32) -> Image<'_> {
        let behind = self.len.saturating_sub(origin as usize).next_multiple_of(page as usize);
        Image::new(self.bytes.get(..origin as usize + behind).unwrap_or(&self.bytes))
    }

    /// The same, with blank flash behind it.
    pub(super) fn and_behind(&self) -> Image<'_> {
        Image::new(&self.bytes)
    }

    /// Every page that has the magic of such a region, and what may be one that has lost it, because it lies between others.
    pub(super) fn pages_of(&self, geometry: Geometry) -> BTreeSet<u32> {
        let mut pages: BTreeSet<u32> =
            self.magics.iter().filter(|(_, found)| **found == geometry).map(|(at, _)| *at).collect();
        if let (Some(first), Some(last)) = (pages.first().copied(), pages.last().copied()) {
            pages.extend((first..last).step_by(geometry.page() as usize));
        }
        pages
    }

    pub(super) fn region(&self, origin: Option<u32>) -> Region {
        match origin {
            Some(origin) => self.region_at(origin),
            None => self.search(),
        }
    }

    fn region_at(&self, origin: u32) -> Region {
        match self.and_behind().metadata(origin, &mut vec![0; BUFFER]) {
            Ok(metadata) => Region::Known { origin, metadata: metadata.into(), others: Vec::new() },
            Err(why) => match self.and_behind().geometry(origin) {
                Ok(geometry) => Region::Pages { geometry, why, at: origin },
                Err(_) => Region::None,
            },
        }
    }

    /// Metadata are found at wrong places, too: from a half before them, or a page behind. At the right one most pages have the
    /// magic where the layout says that a ring is.
    fn search(&self) -> Region {
        let mut buffer = vec![0; BUFFER];
        let mut found: Vec<(u32, Metadata)> = Vec::new();
        let mut refused = None;
        for origin in self.candidates() {
            match self.and_behind().metadata(origin, &mut buffer) {
                Ok(metadata) => found.push((origin, metadata)),
                Err(why @ ScanError::OtherFormat(_)) => {
                    refused.get_or_insert((origin, why));
                }
                Err(_) => {}
            }
        }
        found.sort_by_key(|(origin, metadata)| (std::cmp::Reverse(self.fit(*origin, metadata)), *origin));
        let mut best = Vec::new();
        for (origin, metadata) in found {
            let is_apart = |(other, known): &(u32, Metadata)| {
                end(*other, known) <= u64::from(origin) || end(origin, &metadata) <= u64::from(*other)
            };
            if best.iter().all(is_apart) {
                best.push((origin, metadata));
            }
        }
        let mut best = best.into_iter();
        if let Some((origin, metadata)) = best.next() {
            let others = best.map(|(other, _)| other).collect();
            return Region::Known { origin, metadata: metadata.into(), others };
        }
        match self.magics.first_key_value() {
            Some((first, geometry)) => {
                let (at, why) = refused.unwrap_or((*first, ScanError::NoMetadata));
                Region::Pages { geometry: *geometry, why, at }
            }
            None => Region::None,
        }
    }

    /// Where a region may begin, the most likely places first: where both halves of the metadata have their magic; where one has;
    /// and, if none has, so much before the first page of a ring.
    fn candidates(&self) -> Vec<u32> {
        let halves = |(at, geometry): (&u32, &Geometry)| {
            let half = metadata_bytes(*geometry) / 2;
            [Some((*at, half)), at.checked_sub(half).map(|at| (at, half))]
        };
        let mut places: Vec<(u32, u32)> = self.magics.iter().flat_map(halves).flatten().collect();
        if let Some((first, geometry)) = self.magics.first_key_value() {
            let before = |page: u32| {
                let distance = metadata_bytes(*geometry).checked_add(page.checked_mul(geometry.page())?)?;
                Some((first.checked_sub(distance)?, metadata_bytes(*geometry) / 2))
            };
            places.extend((0..16).filter_map(before));
        }
        let has = |at: u32| self.magics.contains_key(&at);
        places.sort_by_key(|(at, half)| !(has(*at) && at.checked_add(*half).is_some_and(has)));
        let mut candidates: Vec<u32> = Vec::new();
        for (at, _) in places {
            if candidates.len() < CANDIDATES_MAX && !candidates.contains(&at) {
                candidates.push(at);
            }
        }
        candidates
    }

    /// How many pages and halves have the magic where these metadata expect it.
    fn fit(&self, origin: u32, metadata: &Metadata) -> usize {
        let (page, layout) = (metadata.geometry.page(), &metadata.layout);
        let half = metadata_bytes(metadata.geometry) / 2;
        let rings = layout.lanes.iter().chain([&layout.dead_letters]).flat_map(|span| {
            let first = u32::from(span.first);
            (first..first + u32::from(span.pages))
                .map(|number| u64::from(origin) + u64::from(number) * u64::from(page))
        });
        let places = rings.chain([u64::from(origin), u64::from(origin) + u64::from(half)]);
        let has =
            |at: u64| u32::try_from(at).is_ok_and(|at| self.magics.get(&at) == Some(&metadata.geometry));
        places.filter(|at| has(*at)).count()
    }
}

fn end(origin: u32, metadata: &Metadata) -> u64 {
    u64::from(origin) + u64::from(metadata.layout.pages()) * u64::from(metadata.geometry.page())
}
