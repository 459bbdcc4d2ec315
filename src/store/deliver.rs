//! What the dispatcher asks of the storage: what to send, and what to do when an answer has come.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use super::Store;
use crate::{
    Cause, Clock, Depth, Entry, Error, Event, Key, Reason, Rejection, Stored, Timestamp, Window,
    ledger::{ATTEMPTS, Attempts},
    walk::{Here, Scope, Sight, Visit},
};

/// Counters that the receiver remembers above the floor; nothing beyond is sent.
pub(crate) const WINDOW: u64 = 1024;

/// Records that may be parked in a row before parking pauses: a wrong deployment must not empty a ring.
const BRAKE: u8 = 8;

/// Rejections handled in one pass; the rest come again.
const REJECTIONS: usize = 8;

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Shows the oldest pending records of a lane to `take`, until it takes no more.
    pub(crate) async fn window(
        &mut self,
        lane: u8,
        take: &mut dyn FnMut(&Stored<'_>) -> bool,
    ) -> Result<Window, Error<F::Error>> {
        self.ready().await?;
        self.clear_front(lane).await?;
        let next = self.lane(lane)?.next;
        let mut first: Option<(Key, Timestamp)> = None;
        let mut last: Option<Key> = None;
        let (mut taken, mut bytes, mut corrupt) = (0, 0, 0);
        let books = &mut self.books;
        let visit = &mut |stored: &Stored<'_>, here: Here| {
            let (start, _) = *first.get_or_insert((stored.key, stored.time));
            if is_beyond(start, stored.key) {
                return Visit::Stop;
            }
            // What could not be read lay between this record and the one before it.
            if let (Some(previous), true) = (last, here.corrupt > corrupt) {
                let from = previous.counter + 1;
                let len = stored.key.counter.saturating_sub(from);
                books.fill(Entry { first: from, len, ..Entry::of(stored.key, Reason::Corrupt) });
            }
            corrupt = here.corrupt;
            if !take(stored) {
                return Visit::Stop;
            }
            last = Some(stored.key);
            taken += 1;
            bytes += here.span;
            Visit::Keep
        };
        let walked = self.rings.walk(lane, Scope::Pending, visit).await?;
        books.note_corruption(lane, walked.corrupt);
        let this = self.lane(lane)?;
        this.oldest = first.map(|(_, time)| time);
        if walked.is_complete {
            this.stats.depth = Depth { records: u32::from(taken), bytes, is_exact: true };
        }
        if self.books.must_commit {
            self.commit().await?;
        }
        let ledger = &self.books.ledger;
        let (incarnation, floor) =
            first.map_or((ledger.incarnation, next), |(key, _)| (key.incarnation, key.counter));
        let issued = if incarnation == ledger.incarnation {
            next
        } else {
            let former = ledger.former.iter().find(|former| former.incarnation == incarnation);
            let issued = former.and_then(|former| former.issued.get(usize::from(lane)).copied());
            issued.unwrap_or(last.map_or(0, |key| key.counter + 1))
        };
        Ok(Window { incarnation, lane, floor, issued, taken, has_more: !walked.is_complete })
    }

    /// Sends to the dead letters what has grown too old, and a record that others have overtaken when nothing else is
    /// left in its window.
    async fn clear_front(&mut self, lane: u8) -> Result<(), Error<F::Error>> {
        loop {
            let this = self.lane(lane)?;
            let (max_age, overtaken) = (this.config.max_age, this.overtaken);
            if max_age.is_none() && overtaken.is_none() {
                return Ok(());
            }
            let mut head: Option<(Key, Timestamp, u16)> = None;
            let mut is_alone = false;
            self.pass(lane, &mut |stored, here| match head {
                None => {
                    head = Some((stored.key, stored.time, here.page));
                    if overtaken == Some(stored.key) { Visit::Keep } else { Visit::Stop }
                }
                Some((first, ..)) => {
                    let of_one = first.incarnation == stored.key.incarnation;
                    is_alone = of_one && is_beyond(first, stored.key);
                    Visit::Stop
                }
            })
            .await?;
            let Some((key, time, page)) = head else { return Ok(()) };
            let age = self.books.age_ms(&time);
            let is_old = max_age.zip(age).is_some_and(|(max, age)| u128::from(age) > max.as_millis());
            let cause = match (is_old, is_alone) {
                (true, _) => Cause::Expired,
                (_, true) => Cause::Blocking,
                _ => return Ok(()),
            };
            self.park(lane, page, key, cause).await?;
        }
    }

    /// Shows every pending record of a ring, oldest first.
    pub(crate) async fn inspect(
        &mut self,
        ring: u8,
        show: &mut dyn FnMut(&Stored<'_>),
    ) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        let visit = &mut |stored: &Stored<'_>, _| {
            show(stored);
            Visit::Keep
        };
        self.pass(ring, visit).await?;
        Ok(())
    }

    /// Removes records that the receiver has, in one pass.
    pub(crate) async fn settle(&mut self, ring: u8, keys: &[Key]) -> Result<u32, Error<F::Error>> {
        self.ready().await?;
        if keys.is_empty() {
            return Ok(0);
        }
        if self.books.lane(ring).is_some_and(|lane| lane.is_counted) {
            self.commit().await?;
        }
        let (mut found, mut removed) = (0, 0);
        let mut oldest: Option<(Key, Timestamp)> = None;
        let books = &mut self.books;
        let visit = &mut |stored: &Stored<'_>, here: Here| {
            let key = stored.key;
            if here.sight == Sight::Removed {
                removed += 1;
                books.note_removed(ring, 1, here.span);
                books.forget_tag(key);
                if let Some(lane) = books.lane(key.lane) {
                    lane.stats.delivered += 1;
                }
                books.publish(Event::Delivered(key));
                return Visit::Keep;
            }
            if !keys.contains(&key) {
                oldest.get_or_insert((key, stored.time));
                return Visit::Keep;
            }
            found += 1;
            if found == keys.len() { Visit::RemoveAndStop } else { Visit::Remove }
        };
        let result = self.rings.walk(ring, Scope::Pending, visit).await;
        for ledger in &mut books.ledger.lanes {
            ledger.attempts.retain(|attempts| !keys.contains(&attempts.key));
        }
        if let Some(lane) = books.lane(ring) {
            lane.oldest = oldest.map(|(_, time)| time);
            if removed > 0 {
                lane.parked_in_a_row = 0;
                lane.overtaken = oldest.map(|(key, _)| key);
            }
            // Of the record that could not be removed nobody knows whether it is there.
            lane.stats.depth.is_exact &= result.is_ok();
        }
        books.note_corruption(ring, result?.corrupt);
        Ok(removed)
    }

    /// Counts rejections; records that were rejected too often go to the dead letters.
    pub(crate) async fn reject(&mut self, lane: u8, keys: &[Key]) -> Result<Rejection, Error<F::Error>> {
        self.ready().await?;
        let mut found: Vec<(Key, u16), REJECTIONS> = Vec::new();
        let counted = self.books.ledger.lanes.get(usize::from(lane)).map(|ledger| ledger.attempts.clone());
        let counted = counted.unwrap_or_default();
        let mut alive: Vec<Key, ATTEMPTS> = Vec::new();
        let mut last = None;
        let pass = self
            .pass(lane, &mut |stored, here| {
                last = Some(stored.key);
                if counted.iter().any(|attempts| attempts.key == stored.key) {
                    let _ = alive.push(stored.key);
                }
                let rejected = keys.contains(&stored.key);
                if rejected && found.push((stored.key, here.page)).is_err() || found.len() == keys.len() {
                    return Visit::Stop;
                }
                Visit::Keep
            })
            .await?;
        // Records that are gone, delivered or evicted perhaps before the last boot, make room for others.
        let is_gone = |key: &Key| {
            let passed = last
                .is_some_and(|last: Key| last.incarnation == key.incarnation && last.counter >= key.counter);
            (passed || pass.is_complete) && !alive.contains(key)
        };
        if let Some(ledger) = self.books.ledger.lanes.get_mut(usize::from(lane)) {
            ledger.attempts.retain(|attempts| !is_gone(&attempts.key));
        }
        let mut rejection = Rejection::default();
        for (key, page) in found {
            let Some(attempts) = self.count_attempt(key) else {
                continue;
            };
            let this = self.lane(lane)?;
            if attempts < this.config.max_attempts {
                this.stats.retried += 1;
                rejection.retrying += 1;
                // Written at 1, 2, 4, 8, ...: few writes, and a reboot forgets less than half.
                self.books.must_commit |= attempts.is_power_of_two();
                self.books.publish(Event::Retrying { key, attempts });
            } else if this.parked_in_a_row >= BRAKE {
                this.stats.retried += 1;
                rejection.retrying += 1;
                rejection.is_paused = true;
            } else {
                this.parked_in_a_row += 1;
                self.park(lane, page, key, Cause::Rejected).await?;
                rejection.parked += 1;
            }
        }
        if rejection.is_paused {
            self.books.publish(Event::ParkingPaused { lane });
        }
        if self.books.must_commit {
            self.commit().await?;
        }
        Ok(rejection)
    }

    /// Parking goes on, whatever was rejected before.
    pub(crate) fn resume_parking(&mut self) {
        for lane in &mut self.books.lanes {
            lane.parked_in_a_row = 0;
        }
    }

    /// How often a record was rejected, this time included; `None` if too many others are being counted.
    fn count_attempt(&mut self, key: Key) -> Option<u16> {
        let attempts = &mut self.books.ledger.lanes.get_mut(usize::from(key.lane))?.attempts;
        if let Some(known) = attempts.iter_mut().find(|known| known.key == key) {
            known.count = known.count.saturating_add(1);
            return Some(known.count);
        }
        attempts.push(Attempts { key, count: 1 }).ok().map(|()| 1)
    }

    /// The receiver knows of these entries now.
    pub(crate) fn confirm(&mut self, entries: &[Entry]) {
        self.books.ledger.account.confirm(entries);
    }

    /// The receiver has no explanation for these counters: whatever is not pending is given one, "lost" if there is
    /// no better.
    pub(crate) async fn explain(&mut self, asked: Entry) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        let mut from = asked.first;
        let next = self.lane(asked.lane)?.next;
        let is_of_this = asked.incarnation == self.books.ledger.incarnation;
        let end = if is_of_this { asked.end().min(next) } else { asked.end() };
        let books = &mut self.books;
        let mut explain_until = |until: u64, from: u64| {
            let len = until.min(end).saturating_sub(from);
            books.fill(Entry { first: from, len, reason: Reason::Lost, ..asked });
        };
        let visit = &mut |stored: &Stored<'_>, _: Here| {
            let Key { incarnation, counter, .. } = stored.key;
            if incarnation != asked.incarnation || counter < from {
                return Visit::Keep;
            }
            explain_until(counter, from);
            from = counter + 1;
            if counter >= end { Visit::Stop } else { Visit::Keep }
        };
        let walked = self.rings.walk(asked.lane, Scope::Pending, visit).await?;
        explain_until(end, from);
        books.note_corruption(asked.lane, walked.corrupt);
        if books.must_commit { self.commit().await } else { Ok(()) }
    }

    /// Takes a new incarnation for new records; those that are pending keep theirs.
    pub(crate) async fn renew_incarnation(&mut self) -> Result<u32, Error<F::Error>> {
        self.ready().await?;
        self.books.leave_incarnation();
        self.commit().await?;
        Ok(self.books.ledger.incarnation)
    }

    /// Earlier incarnations whose books are open.
    pub(crate) fn formers(&self) -> impl Iterator<Item = (u32, &[u64])> {
        self.books.ledger.former.iter().map(|former| (former.incarnation, former.issued.as_slice()))
    }

    /// The receiver has closed the books of an earlier incarnation.
    pub(crate) fn close_former(&mut self, incarnation: u32) {
        self.books.ledger.former.retain(|former| former.incarnation != incarnation);
    }
}

/// Whether a record cannot be in one batch with the first.
fn is_beyond(first: Key, key: Key) -> bool {
    key.incarnation != first.incarnation || key.counter.saturating_sub(first.counter) >= WINDOW
}
