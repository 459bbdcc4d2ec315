//! What the dispatcher asks of the storage: what to send, and what to do when an answer has come.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use super::Store;
use crate::{
    Cause, Clock, Entry, Error, Event, Key, Reason, Rejection, Stored, Tag, Timestamp, Window,
    ledger::{ATTEMPTS, Attempts, FORMER, Former, TAGS},
    ring::Visit,
};

/// Counters that the receiver remembers above the floor; nothing beyond is sent.
pub(crate) const WINDOW: u64 = 1024;

/// Records that may be parked in a row before parking pauses: a wrong deployment must not empty a ring.
const BRAKE: u8 = 8;

/// Rejections handled in one pass; the rest come again.
const REJECTIONS: usize = 8;

/// Gaps explained at once; the receiver asks again for the rest.
const GAPS: usize = 8;

impl<'r, F, M, C, const LANES: usize, const PAGES: usize> Store<'r, F, M, C, LANES, PAGES>
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
        self.expire(lane).await?;
        self.unpin(lane).await?;
        let next = self.lane(lane)?.next;
        let mut first = None;
        let mut previous = None;
        let mut gaps: Vec<Entry, GAPS> = Vec::new();
        let (mut taken, mut bytes, mut corrupt, mut last) = (0, 0, 0, None);
        let pass = self
            .pass(lane, &mut |stored, here| {
                let (start, _) = *first.get_or_insert((stored.key, stored.time));
                let far = stored.key.counter.saturating_sub(start.counter) >= WINDOW;
                if stored.key.incarnation != start.incarnation || far {
                    return Visit::Stop;
                }
                // What could not be read lay between this record and the one before it.
                if let (Some(previous), true) = (previous, here.corrupt > corrupt) {
                    let _ = gaps.push(between(previous, stored.key, Reason::Corrupt));
                }
                (previous, corrupt) = (Some(stored.key), here.corrupt);
                if !take(stored) {
                    return Visit::Stop;
                }
                taken += 1;
                bytes += Self::GEOMETRY.item_span(stored_len(stored, Self::GEOMETRY.word()));
                last = Some(stored.key);
                Visit::Keep
            })
            .await?;
        let this = self.lane_mut(lane)?;
        this.oldest = first.map(|(_, time)| time);
        if pass.complete {
            this.stats.depth = crate::Depth { records: u32::from(taken), bytes, is_exact: true };
        }
        self.explain_gaps(&gaps).await?;
        let incarnation = first.map_or(self.ledger.incarnation, |(key, _)| key.incarnation);
        let issued = if incarnation == self.ledger.incarnation {
            next
        } else {
            let former = self.ledger.former.iter().find(|former| former.incarnation == incarnation);
            let issued = former.and_then(|former| former.issued.get(usize::from(lane)).copied());
            issued.unwrap_or(last.map_or(0, |key: Key| key.counter + 1))
        };
        let floor = first.map_or(next, |(key, _)| key.counter);
        Ok(Window { incarnation, lane, floor, issued, taken, has_more: !pass.complete })
    }

    /// A record that others have overtaken goes to the dead letters when nothing else is left in the window.
    async fn unpin(&mut self, lane: u8) -> Result<(), Error<F::Error>> {
        let Some(overtaken) = self.lane(lane)?.overtaken else { return Ok(()) };
        let mut head = None;
        let mut is_pinned = false;
        self.pass(lane, &mut |stored, here| match head {
            None => {
                head = Some((stored.key, here.page));
                Visit::Keep
            }
            Some((head, _)) => {
                let head: Key = head;
                let of_one = stored.key.incarnation == head.incarnation;
                is_pinned = of_one && stored.key.counter.saturating_sub(head.counter) >= WINDOW;
                Visit::Stop
            }
        })
        .await?;
        match head {
            Some((key, page)) if is_pinned && key == overtaken => {
                self.park(lane, page, key, Cause::Blocking).await
            }
            _ => Ok(()),
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
        if self.lane(ring).is_ok_and(|lane| lane.is_counted) {
            self.commit().await?;
        }
        let events = self.events.immediate_publisher();
        let mut found = 0;
        let (mut removed, mut bytes) = (0, 0);
        let mut delivered = [0; LANES];
        // There are no more live tags than this.
        let mut tags: Vec<(Key, Tag), TAGS> = Vec::new();
        let mut count = |key: Key, tag: Option<Tag>, span: u32| {
            removed += 1;
            bytes += span;
            if let Some(delivered) = delivered.get_mut(usize::from(key.lane)) {
                *delivered += 1;
            }
            let _ = tag.map(|tag| tags.push((key, tag)));
        };
        let mut last = None;
        let mut oldest: Option<(Key, Timestamp)> = None;
        let result = self
            .pass(ring, &mut |stored, _| {
                // The one before has been removed by now.
                if let Some((key, tag, span)) = last.take() {
                    count(key, tag, span);
                }
                if !keys.contains(&stored.key) {
                    oldest.get_or_insert((stored.key, stored.time));
                    return Visit::Keep;
                }
                found += 1;
                let span = Self::GEOMETRY.item_span(stored_len(stored, Self::GEOMETRY.word()));
                last = Some((stored.key, stored.tag, span));
                events.publish_immediate(Event::Delivered(stored.key));
                if found == keys.len() { Visit::RemoveAndStop } else { Visit::Remove }
            })
            .await;
        if let (Some((key, tag, span)), true) = (last, result.is_ok()) {
            count(key, tag, span);
        }
        for (key, tag) in tags {
            self.forget_tag(key, tag);
        }
        for ledger in &mut self.ledger.lanes {
            ledger.attempts.retain(|attempts| !keys.contains(&attempts.key));
        }
        self.note_removed(ring, removed, bytes);
        for (lane, delivered) in self.lanes.iter_mut().zip(delivered) {
            lane.stats.delivered += delivered;
        }
        if let Ok(lane) = self.lane_mut(ring) {
            lane.oldest = oldest.map(|(_, time)| time);
            if removed > 0 {
                lane.parked_in_a_row = 0;
                lane.overtaken = oldest.map(|(key, _)| key);
            }
            // Of the record that could not be removed nobody knows whether it is there.
            lane.stats.depth.is_exact &= result.is_ok();
        }
        result?;
        Ok(removed)
    }

    /// Counts rejections; records that were rejected too often go to the dead letters.
    pub(crate) async fn reject(&mut self, lane: u8, keys: &[Key]) -> Result<Rejection, Error<F::Error>> {
        self.ready().await?;
        let mut found: Vec<(Key, u16), REJECTIONS> = Vec::new();
        let counted = self.ledger.lanes.get(usize::from(lane)).map(|ledger| ledger.attempts.clone());
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
            (passed || pass.complete) && !alive.contains(key)
        };
        if let Some(ledger) = self.ledger.lanes.get_mut(usize::from(lane)) {
            ledger.attempts.retain(|attempts| !is_gone(&attempts.key));
        }
        let mut rejection = Rejection::default();
        for (key, page) in found {
            let Some(attempts) = self.count_attempt(key) else {
                continue;
            };
            let this = self.lane_mut(lane)?;
            if attempts < this.config.max_attempts {
                this.stats.retried += 1;
                rejection.retrying += 1;
                // Written at 1, 2, 4, 8, ...: few writes, and a reboot forgets less than half.
                self.must_commit |= attempts.is_power_of_two();
                self.publish(Event::Retrying { key, attempts });
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
            self.publish(Event::ParkingPaused { lane });
        }
        if self.must_commit {
            self.commit().await?;
        }
        Ok(rejection)
    }

    /// Parking goes on, whatever was rejected before.
    pub(crate) fn resume_parking(&mut self) {
        for lane in &mut self.lanes {
            lane.parked_in_a_row = 0;
        }
    }

    /// How often a record was rejected, this time included; `None` if too many others are being counted.
    fn count_attempt(&mut self, key: Key) -> Option<u16> {
        let attempts = &mut self.ledger.lanes.get_mut(usize::from(key.lane))?.attempts;
        if let Some(known) = attempts.iter_mut().find(|known| known.key == key) {
            known.count = known.count.saturating_add(1);
            return Some(known.count);
        }
        attempts.push(Attempts { key, count: 1 }).ok().map(|()| 1)
    }

    /// Sends records that have grown too old to the dead letters.
    async fn expire(&mut self, lane: u8) -> Result<(), Error<F::Error>> {
        let Some(max_age) = self.lane(lane)?.config.max_age else {
            return Ok(());
        };
        loop {
            let mut oldest = None;
            self.pass(lane, &mut |stored, here| {
                oldest = Some((stored.key, stored.time, here.page));
                Visit::Stop
            })
            .await?;
            let Some((key, time, page)) = oldest else {
                return Ok(());
            };
            if self.age_ms(&time).is_none_or(|age| u128::from(age) <= max_age.as_millis()) {
                return Ok(());
            }
            self.park(lane, page, key, Cause::Expired).await?;
        }
    }

    /// The receiver knows of these entries now.
    pub(crate) fn confirm(&mut self, entries: &[Entry]) {
        self.ledger.account.confirm(entries);
    }

    /// The receiver has no explanation for these counters: whatever is not pending is given one, "lost" if there is
    /// no better.
    pub(crate) async fn explain(&mut self, asked: Entry) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        let mut gaps: Vec<Entry, GAPS> = Vec::new();
        let mut from = asked.first;
        let end = match self.lane(asked.lane)?.next {
            next if asked.incarnation == self.ledger.incarnation => asked.end().min(next),
            _ => asked.end(),
        };
        self.pass(asked.lane, &mut |stored, _| {
            let Key { incarnation, counter, .. } = stored.key;
            if incarnation != asked.incarnation || counter < from {
                return Visit::Keep;
            }
            let until = counter.min(end);
            let gap = Entry { first: from, len: until.saturating_sub(from), reason: Reason::Lost, ..asked };
            from = counter + 1;
            if (gap.len > 0 && gaps.push(gap).is_err()) || counter >= end { Visit::Stop } else { Visit::Keep }
        })
        .await?;
        if from < end && !gaps.is_full() {
            let _ = gaps.push(Entry { first: from, len: end - from, reason: Reason::Lost, ..asked });
        }
        self.explain_gaps(&gaps).await
    }

    async fn explain_gaps(&mut self, gaps: &[Entry]) -> Result<(), Error<F::Error>> {
        let before = self.ledger.account.clone();
        for gap in gaps {
            self.ledger.account.fill(*gap);
        }
        if before == self.ledger.account {
            return Ok(());
        }
        for gap in gaps {
            self.note_given_up(gap, u32::try_from(gap.len).unwrap_or(u32::MAX));
        }
        self.commit().await
    }

    /// Takes a new incarnation for new records; those that are pending keep theirs.
    pub(crate) async fn renew_incarnation(&mut self) -> Result<u32, Error<F::Error>> {
        self.ready().await?;
        self.leave_incarnation();
        self.commit().await?;
        Ok(self.ledger.incarnation)
    }

    /// The counters start anew under another incarnation; the books of this one stay open.
    pub(super) fn leave_incarnation(&mut self) {
        let mut former = Former { incarnation: self.ledger.incarnation, issued: Vec::new() };
        for (lane, ledger) in self.lanes.iter_mut().zip(&mut self.ledger.lanes) {
            let _ = former.issued.push(lane.next);
            (lane.next, lane.ceiling) = (0, 0);
            (ledger.next, ledger.ceiling, ledger.count) = (0, 0, None);
            ledger.tags.clear();
        }
        if self.ledger.former.len() == FORMER {
            self.ledger.former.remove(0);
        }
        let _ = self.ledger.former.push(former);
        self.ledger.incarnation = self.random.u32(..);
    }

    /// Earlier incarnations whose books are open.
    pub(crate) fn formers(&self) -> impl Iterator<Item = (u32, &[u64])> {
        self.ledger.former.iter().map(|former| (former.incarnation, former.issued.as_slice()))
    }

    /// The receiver has closed the books of an earlier incarnation.
    pub(crate) fn close_former(&mut self, incarnation: u32) {
        self.ledger.former.retain(|former| former.incarnation != incarnation);
    }
}

fn between(previous: Key, next: Key, reason: Reason) -> Entry {
    let first = previous.counter + 1;
    Entry { first, len: next.counter.saturating_sub(first), ..Entry::of(next, reason) }
}

/// Bytes that a record takes as an item's data.
fn stored_len(stored: &Stored<'_>, word: u32) -> u32 {
    let body_len = stored.body.len();
    ((stored.head_len(body_len) + body_len) as u32).next_multiple_of(word)
}
