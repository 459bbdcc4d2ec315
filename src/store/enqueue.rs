//! Appending a record: a counter below the durable ceiling, a place in the ring, and what happens when there is
//! none.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use super::Store;
use crate::{
    Cause, Clock, EnqueueError, Entry, Error, Event, Key, Kind, Reason, Stored, Tag, WhenFull,
    io::Fault,
    ledger::{Intent, Tagged},
    stored::assemble,
    walk::{Here, Scope, Sight, Visit},
};

/// Counters that one write of the metadata leases; after an unclean boot at most so many are uncertain.
pub(crate) const LEASE: u64 = 64;

/// Encodes a record's body into a buffer; `None` if it does not fit.
pub(crate) type Encode<'e> = dyn FnMut(&mut [u8]) -> Option<usize> + 'e;

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Appends a record; durable when it returns `Ok`.
    pub(crate) async fn enqueue(
        &mut self,
        lane: u8,
        kind: Kind,
        tag: Option<Tag>,
        encode: &mut Encode<'_>,
    ) -> Result<Key, EnqueueError<F::Error>> {
        self.ready().await?;
        if let Some(tag) = tag {
            self.reserve_tag(lane, tag).await?;
        }
        self.lease(lane).await?;
        let mut may_make_room = true;
        loop {
            let (key, len) = self.mint(lane, kind, tag, encode)?;
            let pushed = self.rings.push(lane, len).await;
            let this = self.lane(lane)?;
            match pushed {
                Ok((page, corrupt)) => {
                    this.minting = None;
                    this.next = key.counter + 1;
                    this.appended = tag.map(|tag| Tagged { tag, counter: key.counter, page });
                    self.books.note_corruption(lane, corrupt);
                    self.books.note_queued(key, Self::GEOMETRY.item_span(len));
                    // Should this fail or be dropped, the next operation takes it up.
                    self.adopt(lane).await?;
                    return Ok(key);
                }
                Err(Fault::Full) => {
                    // Nothing was written: the counter is still free.
                    this.minting = None;
                    if !may_make_room {
                        return Err(EnqueueError::Full);
                    }
                    may_make_room = false;
                    self.make_room(lane).await?;
                }
                Err(fault) => return Err(Error::from(fault).into()),
            }
        }
    }

    /// Sees to it that the next counter is below the durable ceiling.
    async fn lease(&mut self, lane: u8) -> Result<(), EnqueueError<F::Error>> {
        let this = self.lane(lane)?;
        let (next, ceiling) = (this.next, this.ceiling);
        if next >= Key::COUNTER_LIMIT - LEASE {
            return Err(EnqueueError::Exhausted);
        }
        if next >= ceiling {
            if let Some(ledger) = self.books.kept(lane) {
                ledger.ceiling = next + LEASE;
            }
            self.commit().await?;
        }
        Ok(())
    }

    /// Takes the next counter and puts the record together.
    fn mint(
        &mut self,
        lane: u8,
        kind: Kind,
        tag: Option<Tag>,
        encode: &mut Encode<'_>,
    ) -> Result<(Key, u32), EnqueueError<F::Error>> {
        let counter = self.lane(lane)?.next;
        let key = self.books.key(lane, counter);
        let stored = Stored { key, kind, time: self.books.timestamp(), tag, cause: None, body: &[] };
        let record = &mut *self.rings.cells.record;
        let len = record.get_mut(Stored::HEAD_MAX..).and_then(encode).and_then(|body_len| {
            assemble(record, &stored, body_len, Self::GEOMETRY.word())
        });
        let largest = u32::from(self.books.layout.record_max);
        let len = len.filter(|len| *len <= largest).ok_or(EnqueueError::TooLarge)?;
        self.lane(lane)?.minting = Some(counter);
        Ok((key, len))
    }

    /// Finds room in a full lane, in the way that costs least.
    async fn make_room(&mut self, lane: u8) -> Result<(), EnqueueError<F::Error>> {
        loop {
            // Pages at the front that hold nothing pending go first; looking for the oldest record erases them.
            self.pass(lane, &mut |_, _| Visit::Stop).await?;
            let ring = self.rings.ring(lane)?;
            let (oldest, next) = (ring.head.0, ring.pages.next(ring.head.0));
            if ring.has_open_page() {
                return Ok(());
            }
            if !self.is_settled(lane, next).await? {
                return self.evict(lane, oldest).await;
            }
            // A few records that nobody takes pin the ring, while all behind them is gone.
            while let Some(key) = self.first_pending(lane, oldest).await? {
                self.park(lane, oldest, key, Cause::Blocking).await?;
            }
        }
    }

    /// Gives the oldest page up, if the lane's policy allows it.
    async fn evict(&mut self, lane: u8, oldest: u16) -> Result<(), EnqueueError<F::Error>> {
        self.books.publish(Event::Full { lane });
        if self.lane(lane)?.config.when_full == WhenFull::Refuse {
            return Err(EnqueueError::Full);
        }
        if let Some(last) = self.explain_page(lane, oldest, |_| Reason::Evicted).await? {
            self.carry_out(Intent::Evict { ring: lane, page: oldest, last }).await?;
        }
        Ok(())
    }

    /// Whether a page has held records, and all of them are gone.
    async fn is_settled(&mut self, lane: u8, page: u16) -> Result<bool, Error<F::Error>> {
        let mut has_held = false;
        let visit = &mut |_: &Stored<'_>, here: Here| {
            has_held = true;
            if here.sight == Sight::Pending { Visit::Stop } else { Visit::Keep }
        };
        Ok(self.rings.walk(lane, Scope::Page(page), visit).await?.is_complete && has_held)
    }

    async fn first_pending(&mut self, lane: u8, page: u16) -> Result<Option<Key>, Error<F::Error>> {
        let mut found = None;
        let visit = &mut |stored: &Stored<'_>, here: Here| {
            if here.sight != Sight::Pending {
                return Visit::Keep;
            }
            found = Some(stored.key);
            Visit::Stop
        };
        self.rings.walk(lane, Scope::Page(page), visit).await?;
        Ok(found)
    }

    /// Makes sure that there is a place for this tag in the lane's index.
    async fn reserve_tag(&mut self, lane: u8, tag: Tag) -> Result<(), EnqueueError<F::Error>> {
        let mut at = 0;
        loop {
            let ledger = self.books.kept(lane).ok_or(Error::NoSuchLane)?;
            if !ledger.tags.is_full() || ledger.tags.iter().any(|tagged| tagged.tag == tag) {
                return Ok(());
            }
            // Some may have been delivered before the last boot.
            let Tagged { counter, page, .. } = *ledger.tags.get(at).ok_or(EnqueueError::TooManyTags)?;
            let key = self.books.key(lane, counter);
            if self.find(lane, page, key).await?.is_none() {
                self.books.forget_tag(key);
            }
            at += 1;
        }
    }

    /// Takes up the tag of a record that was appended: it becomes the newest of its tag, and the one that was is
    /// removed.
    pub(super) async fn adopt(&mut self, lane: u8) -> Result<(), Error<F::Error>> {
        let Some(new) = self.lane(lane)?.appended else { return Ok(()) };
        let known = self.books.kept(lane).and_then(|ledger| {
            ledger.tags.iter().find(|tagged| tagged.tag == new.tag).copied()
        });
        if known.is_none_or(|old| old.counter < new.counter) {
            let mut removal = None;
            if let Some(old) = known {
                let key = self.books.key(lane, old.counter);
                removal = self.find(lane, old.page, key).await?.map(|_| (key, old.page));
            }
            // From here to the commit nothing is waited for: what the ledger says is all of it or nothing.
            if let Some(ledger) = self.books.kept(lane) {
                ledger.tags.retain(|tagged| tagged.tag != new.tag);
                // There is a place for it: it was reserved, or its predecessor's.
                let _ = ledger.tags.push(new);
            }
            if let Some((key, page)) = removal {
                self.books.give_up(Entry::of(key, Reason::Superseded), 1);
                self.books.ledger.intent = Some(Intent::Remove { ring: lane, page, key });
            }
            self.commit().await?;
            self.finish().await?;
        }
        self.lane(lane)?.appended = None;
        Ok(())
    }
}
