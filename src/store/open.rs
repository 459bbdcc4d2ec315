//! Opening a region: finding whose it is, growing it if asked, and finishing what the last boot left.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use super::{Lane, Store, Youngest};
use crate::{
    Clock, Config, Depth, Entry, Error, Event, Geometry, Layout, LayoutError, OpenError, Reason,
    clock::WallClock,
    event::Channel,
    ledger::{DEAD_LETTERS, LaneLedger, Ledger, SnapshotHead},
    metadata::{Loaded, Metadata},
    ring::Ring,
};

/// The shortest stored record: version, lane, incarnation, and one byte for each of the numbers.
const STORED_MIN: u32 = 1 + 1 + 4 + 1 + 1 + 1 + 1 + 1;

impl<'r, F, M, C, const LANES: usize, const PAGES: usize> Store<'r, F, M, C, LANES, PAGES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// A store that is not open yet. `record_max` is the longest stored record.
    pub(crate) fn closed(
        flash: F,
        buffer: &'r mut [u8],
        events: &'r Channel<M>,
        clock: C,
        config: Config<LANES>,
        record_max: u16,
        entropy: u64,
    ) -> Result<Self, LayoutError> {
        let pages_max = u16::try_from(PAGES).unwrap_or(u16::MAX);
        let layout = config.layout(Self::GEOMETRY, record_max, pages_max, flash.capacity() as u32)?;
        let mut lanes = Vec::new();
        for (lane, span) in config.lanes.iter().zip(&layout.lanes) {
            // There are as many as the configuration has.
            let _ = lanes.push(Lane::new(*lane, Ring::new(config.origin, *span)));
        }
        let mut random = fastrand::Rng::with_seed(entropy);
        Ok(Self {
            boot_nonce: random.u32(..),
            metadata: Metadata::new(config.origin),
            dead: Ring::new(config.origin, layout.dead_letters),
            ledger: Ledger::fresh(random.u32(..)),
            random,
            flash,
            buffer,
            events,
            clock,
            wall: WallClock::unknown(),
            layout,
            must_commit: false,
            lanes,
            appended: None,
            is_growing: false,
            is_heard: false,
            unheard: Vec::new(),
            dead_youngest: None,
            corrupt: 0,
        })
    }

    /// Opens the region, or formats it if there is nothing of ours.
    pub(crate) async fn open(&mut self) -> Result<(), OpenError<F::Error>> {
        match self.metadata.load(&mut self.flash, self.buffer).await? {
            Loaded::OtherFormat(format) => return Err(OpenError::OtherFormat(format)),
            Loaded::Nothing => {
                let incarnation = self.ledger.incarnation;
                self.publish(Event::Formatted { incarnation });
            }
            Loaded::Snapshot(at) => {
                let bytes = self.buffer.get(at).unwrap_or_default();
                // A whole snapshot that cannot be read is one of more lanes, or made by nobody.
                let (head, ledger) =
                    SnapshotHead::decode(bytes).ok_or(OpenError::Storage(Error::NotWritten))?;
                if head.layout.device != self.layout.device {
                    return Err(OpenError::OtherOwner(head.layout.device));
                }
                let ledger = Ledger::<LANES>::decode(ledger).filter(|_| self.layout.extends(&head.layout));
                let Some(ledger) = ledger else {
                    return Err(OpenError::OtherLayout(head.layout));
                };
                self.ledger = ledger;
                self.grow(&head.layout).await?;
            }
        }
        while self.ledger.lanes.len() < LANES {
            let _ = self.ledger.lanes.push(LaneLedger::default());
        }
        self.dead_youngest = self.mount(DEAD_LETTERS).await?.map(|youngest| youngest.key);
        let mut youngest: [Option<Youngest>; LANES] = [None; LANES];
        for (lane, youngest) in (0..).zip(&mut youngest) {
            *youngest = self.mount(lane).await?;
            self.take_up(lane, *youngest)?;
        }
        self.is_growing = false;
        self.ledger.boot = self.ledger.boot.saturating_add(1);
        self.commit().await?;
        self.finish().await?;
        // A cut may have come between the append of a tagged record and the removal of the one it supersedes.
        for youngest in youngest.into_iter().flatten().filter(|youngest| youngest.is_pending) {
            self.adopt(&youngest).await?;
        }
        Ok(())
    }

    /// Erases the pages that a larger layout adds. Until the first snapshot with that layout is written, they
    /// belong to nobody.
    async fn grow(&mut self, old: &Layout) -> Result<(), OpenError<F::Error>> {
        let had = |ring: u8| match ring {
            DEAD_LETTERS => old.dead_letters.pages,
            lane => old.lanes.get(usize::from(lane)).map_or(0, |span| span.pages),
        };
        for ring in (0..LANES as u8).chain([DEAD_LETTERS]) {
            let (this, _, flash, _) = self.parts(ring)?;
            let added = had(ring)..this.pages_count();
            let is_grown = added.start > 0 && !added.is_empty();
            this.erase(flash, added).await.map_err(Error::from)?;
            self.is_growing |= is_grown;
        }
        Ok(())
    }

    /// Continues a lane where the last boot left it.
    fn take_up(&mut self, lane: u8, youngest: Option<Youngest>) -> Result<(), Error<F::Error>> {
        let at = usize::from(lane);
        let incarnation = self.ledger.incarnation;
        let Some(ledger) = self.ledger.lanes.get_mut(at) else {
            return Ok(());
        };
        let of_this = youngest.filter(|youngest| youngest.key.incarnation == incarnation);
        let seen = of_this.map_or(0, |youngest| youngest.key.counter + 1);
        let known = ledger.next.max(seen);
        // The ring comes after the ceiling; should it ever not, no counter may repeat.
        ledger.ceiling = ledger.ceiling.max(known);
        let (ceiling, count) = (ledger.ceiling, ledger.count.take());
        let uncertain =
            Entry { incarnation, lane, reason: Reason::Uncertain, first: known, len: ceiling - known };
        self.ledger.account.fill(uncertain);
        let depth = match count {
            _ if self.lane(lane)?.ring.was_blank => Depth { records: 0, bytes: 0, is_exact: true },
            Some(count) if uncertain.len == 0 => {
                Depth { records: count.records, bytes: count.bytes, is_exact: true }
            }
            _ => self.depth_at_most(lane)?,
        };
        let this = self.lane_mut(lane)?;
        this.next = ceiling;
        this.ceiling = ceiling;
        this.stats.depth = depth;
        this.stats.given_up.add(Reason::Uncertain, u32::try_from(uncertain.len).unwrap_or(u32::MAX));
        Ok(())
    }

    /// No more can lie in the pages of a lane.
    fn depth_at_most(&self, lane: u8) -> Result<Depth, Error<F::Error>> {
        let geometry = Self::GEOMETRY;
        let room = geometry.end_mark() - geometry.first_item();
        let pages = u32::from(self.lane(lane)?.ring.pages_count());
        Ok(Depth {
            records: pages * (room / geometry.item_span(STORED_MIN)),
            bytes: pages * room,
            is_exact: false,
        })
    }
}

/// Erases everything that belongs to an outbox with this configuration, and to the one that lies there now,
/// whoever owns it. What was pending is gone and nobody is told.
///
/// Not to be cancelled; if it is, or power is lost, do it again.
pub async fn wipe<F: MultiwriteNorFlash, const LANES: usize>(
    flash: &mut F,
    config: &Config<LANES>,
    buffer: &mut [u8],
) -> Result<(), OpenError<F::Error>> {
    let geometry = const { Geometry::of::<F>() };
    let wanted = config.layout(geometry, 0, u16::MAX, flash.capacity() as u32)?;
    let mut metadata = Metadata::new(config.origin);
    let found = match metadata.load(flash, buffer).await? {
        Loaded::Snapshot(at) => {
            SnapshotHead::decode(buffer.get(at).unwrap_or_default()).map(|(head, _)| head.layout)
        }
        _ => None,
    };
    // The rings first: as long as the metadata stand, the region is not taken for an empty one.
    for span in wanted.rings().chain(found.iter().flat_map(Layout::rings)) {
        let end = u64::from(config.origin) + u64::from(span.end()) * u64::from(geometry.page());
        if end <= flash.capacity() as u64 {
            let mut ring = Ring::<0>::new(config.origin, span);
            ring.erase(flash, 0..span.pages).await.map_err(Error::from)?;
        }
    }
    metadata.erase_all(flash).await?;
    Ok(())
}
