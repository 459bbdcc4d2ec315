//! Appending a record: a counter below the durable ceiling, a place in the ring, and what happens when there is
//! none.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use super::{Store, Youngest};
use crate::{
    Cause, Clock, EnqueueError, Entry, Error, Event, Key, Kind, Reason, Stored, Tag, WhenFull,
    ledger::{Intent, Tagged},
    ring::{RingError, Room, Visit},
    stored::assemble,
};

/// Counters that one write of the metadata leases; after an unclean boot at most so many are uncertain.
pub(crate) const LEASE: u64 = 64;

/// Encodes a record's body into a buffer; `None` if it does not fit.
pub(crate) type Encode<'e> = dyn FnMut(&mut [u8]) -> Option<usize> + 'e;

impl<'r, F, M, C, const LANES: usize, const PAGES: usize> Store<'r, F, M, C, LANES, PAGES>
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
        let (key, page, len) = match self.append(lane, kind, tag, encode, Room::Free).await {
            Err(EnqueueError::Full) => {
                let room = self.make_room(lane).await?;
                self.append(lane, kind, tag, encode, room).await?
            }
            appended => appended?,
        };
        self.ledger.intent = None;
        self.note_queued(key, len);
        if tag.is_some() {
            // Should this fail or be dropped, the next operation takes it up.
            let youngest = Youngest { key, page, len, tag, is_pending: true };
            self.appended = Some(youngest);
            self.adopt(&youngest).await?;
            self.appended = None;
        }
        Ok(key)
    }

    /// Sees to it that the next counter is below the durable ceiling.
    async fn lease(&mut self, lane: u8) -> Result<(), EnqueueError<F::Error>> {
        let this = self.lane(lane)?;
        let (next, ceiling) = (this.next, this.ceiling);
        if next >= Key::COUNTER_LIMIT - LEASE {
            return Err(EnqueueError::Exhausted);
        }
        if next >= ceiling {
            if let Some(ledger) = self.ledger.lanes.get_mut(usize::from(lane)) {
                ledger.ceiling = next + LEASE;
            }
            self.commit().await?;
        }
        Ok(())
    }

    async fn append(
        &mut self,
        lane: u8,
        kind: Kind,
        tag: Option<Tag>,
        encode: &mut Encode<'_>,
        room: Room,
    ) -> Result<(Key, u16, usize), EnqueueError<F::Error>> {
        let body = self.buffer.get_mut(Stored::HEAD_MAX..).ok_or(EnqueueError::TooLarge)?;
        let body_len = encode(body).ok_or(EnqueueError::TooLarge)?;
        let counter = self.lane(lane)?.next;
        let key = Key { incarnation: self.ledger.incarnation, lane, counter };
        let stored = Stored { key, kind, time: self.timestamp(), tag, cause: None, body: &[] };
        let len =
            assemble(self.buffer, &stored, body_len, Self::GEOMETRY.word()).ok_or(EnqueueError::TooLarge)?;
        if len > usize::from(self.layout.record_max) {
            return Err(EnqueueError::TooLarge);
        }
        self.lane_mut(lane)?.minting = Some(counter);
        let (ring, cache, flash, buffer) = self.parts(lane)?;
        let pushed = ring.push(flash, cache, buffer.get(..len).unwrap_or_default(), room).await;
        let this = self.lane_mut(lane)?;
        match pushed {
            Ok(page) => {
                this.minting = None;
                this.next = counter + 1;
                Ok((key, page, len))
            }
            Err(error) => {
                if matches!(error, RingError::Full) {
                    // Nothing was written: the counter is still free.
                    this.minting = None;
                }
                Err(error.into())
            }
        }
    }

    /// Finds room in a full lane, in the way that costs least.
    async fn make_room(&mut self, lane: u8) -> Result<Room, EnqueueError<F::Error>> {
        // Pages at the front that hold nothing pending go first; looking for the oldest record erases them.
        let erases = self.lane(lane)?.ring.erases;
        let mut oldest = None;
        self.pass(lane, &mut |_, here| {
            oldest = Some(here.page);
            Visit::Stop
        })
        .await?;
        let Some(oldest) = oldest else {
            return Ok(Room::OldestPage);
        };
        if self.lane(lane)?.ring.erases > erases {
            return Ok(Room::Free);
        }
        let next = self.lane(lane)?.ring.next(oldest);
        if self.is_settled(lane, next).await? {
            self.park_page(lane, oldest).await?;
            return Ok(Room::OldestPage);
        }
        self.publish(Event::Full { lane });
        if self.lane(lane)?.config.when_full == WhenFull::Refuse {
            return Err(EnqueueError::Full);
        }
        if let Some(last) = self.explain_page(lane, oldest, |_| Reason::Evicted).await? {
            self.ledger.intent = Some(Intent::Evict { ring: lane, page: oldest, last });
            self.commit().await?;
        }
        // The append itself erases the page. If it comes to nothing, the intent does.
        Ok(Room::OldestPage)
    }

    /// Whether a page has held records, and all of them are gone.
    async fn is_settled(&mut self, lane: u8, page: u16) -> Result<bool, Error<F::Error>> {
        let mut has_held = false;
        let mut note = |_: &[u8], pending: bool| {
            has_held = true;
            !pending
        };
        let (ring, _, flash, buffer) = self.parts(lane)?;
        let pending = ring.walk(flash, page, buffer, &mut note).await?;
        Ok(has_held && pending.is_none())
    }

    /// A few records that nobody takes pin the ring, while all behind them is gone: they go to the dead letters.
    async fn park_page(&mut self, lane: u8, page: u16) -> Result<(), Error<F::Error>> {
        loop {
            let mut found = None;
            let mut note = |data: &[u8], pending: bool| {
                found = Stored::decode(data).filter(|_| pending).map(|stored| stored.key);
                found.is_none()
            };
            let (ring, _, flash, buffer) = self.parts(lane)?;
            ring.walk(flash, page, buffer, &mut note).await?;
            match found {
                Some(key) => self.park(lane, page, key, Cause::Blocking).await?,
                None => return Ok(()),
            }
        }
    }

    /// Makes sure that there is a place for this tag in the lane's index.
    async fn reserve_tag(&mut self, lane: u8, tag: Tag) -> Result<(), EnqueueError<F::Error>> {
        let tags = |store: &Self| store.ledger.lanes.get(usize::from(lane)).map(|ledger| ledger.tags.clone());
        let known = tags(self).ok_or(EnqueueError::Storage(Error::NoSuchLane))?;
        if !known.is_full() || known.iter().any(|tagged| tagged.tag == tag) {
            return Ok(());
        }
        // Some may have been delivered before the last boot.
        for tagged in &known {
            let key = Key { incarnation: self.ledger.incarnation, lane, counter: tagged.counter };
            let (ring, _, flash, buffer) = self.parts(lane)?;
            if ring.find(flash, tagged.page, key, buffer).await?.is_none() {
                self.forget_tag(key, tagged.tag);
            }
        }
        if tags(self).is_some_and(|tags| tags.is_full()) { Err(EnqueueError::TooManyTags) } else { Ok(()) }
    }

    /// The record is gone: its tag is free, unless a younger record has it.
    pub(super) fn forget_tag(&mut self, key: Key, tag: Tag) {
        if let Some(ledger) = self.ledger.lanes.get_mut(usize::from(key.lane)) {
            ledger.tags.retain(|tagged| tagged.tag != tag || tagged.counter != key.counter);
        }
    }

    /// Takes up a record that was appended, but whose append never returned.
    pub(super) async fn adopt(&mut self, youngest: &Youngest) -> Result<(), Error<F::Error>> {
        match youngest.tag {
            Some(tag) if youngest.key.incarnation == self.ledger.incarnation => {
                let tagged = Tagged { tag, counter: youngest.key.counter, page: youngest.page };
                self.supersede(youngest.key.lane, tagged).await
            }
            _ => Ok(()),
        }
    }

    /// Makes a record that is in the ring the newest of its tag, and removes the one that was.
    async fn supersede(&mut self, lane: u8, new: Tagged) -> Result<(), Error<F::Error>> {
        let at = usize::from(lane);
        let Some(ledger) = self.ledger.lanes.get(at) else { return Ok(()) };
        let old = ledger.tags.iter().find(|tagged| tagged.tag == new.tag).copied();
        if old.is_some_and(|old| old.counter >= new.counter) {
            return Ok(());
        }
        let mut removal = None;
        if let Some(old) = old {
            let key = Key { incarnation: self.ledger.incarnation, lane, counter: old.counter };
            let (ring, _, flash, buffer) = self.parts(lane)?;
            let pending = ring.find(flash, old.page, key, buffer).await?;
            removal = pending.map(|_| (key, old.page));
        }
        // From here to the commit nothing is waited for: what the ledger says is all of it or nothing.
        let Some(ledger) = self.ledger.lanes.get_mut(at) else { return Ok(()) };
        ledger.tags.retain(|tagged| tagged.tag != new.tag);
        // There is a place for it: it was reserved, or its predecessor's.
        let _ = ledger.tags.push(new);
        self.must_commit = true;
        let Some((key, page)) = removal else { return self.commit().await };
        let entry = Entry::of(key, Reason::Superseded);
        self.ledger.account.explain(entry);
        self.note_given_up(&entry, 1);
        self.carry_out(Intent::Remove { ring: lane, page, key }).await
    }
}
