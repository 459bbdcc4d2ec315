//! The dead letters: records that could not be sent, kept aside so that nothing behind them has to wait.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use super::Store;
use crate::{
    Cause, Clock, Entry, Error, Event, Key, Reason, Stored,
    ledger::{DEAD_LETTERS, Intent},
    ring::{RingError, Room, Visit},
    stored::assemble,
};

impl<'r, F, M, C, const LANES: usize, const PAGES: usize> Store<'r, F, M, C, LANES, PAGES>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Moves a record to the dead letters.
    pub(super) async fn park(
        &mut self,
        lane: u8,
        page: u16,
        key: Key,
        cause: Cause,
    ) -> Result<(), Error<F::Error>> {
        let entry = Entry::of(key, Reason::Parked);
        self.ledger.account.explain(entry);
        if let Some(ledger) = self.ledger.lanes.get_mut(usize::from(lane)) {
            ledger.attempts.retain(|attempts| attempts.key != key);
        }
        self.carry_out(Intent::Park { lane, page, key, cause }).await?;
        self.note_given_up(&entry, 1);
        self.publish(Event::Parked { key, cause });
        Ok(())
    }

    /// Copies a record to the dead letters, unless that was done already, and removes it from its lane.
    pub(super) async fn finish_parking(
        &mut self,
        lane: u8,
        page: u16,
        key: Key,
        cause: Cause,
    ) -> Result<(), Error<F::Error>> {
        let (ring, _, flash, buffer) = self.parts(lane)?;
        if ring.find(flash, page, key, buffer).await?.is_none() {
            return Ok(());
        }
        if self.dead_youngest != Some(key) {
            match self.copy(lane, page, key, cause, Room::Free).await {
                Err(RingError::Full) => {
                    let room = self.make_dead_room().await?;
                    self.copy(lane, page, key, cause, room).await?;
                }
                copied => copied?,
            }
            self.dead_youngest = Some(key);
        }
        self.remove(lane, page, key).await
    }

    async fn copy(
        &mut self,
        lane: u8,
        page: u16,
        key: Key,
        cause: Cause,
        room: Room,
    ) -> Result<(), RingError<F::Error>> {
        let (ring, _, flash, buffer) = self.parts(lane).map_err(|_| RingError::Disordered)?;
        let Some(item) = ring.find(flash, page, key, buffer).await? else {
            return Ok(());
        };
        let len = self.rewrite(item.header.len.into(), cause).ok_or(RingError::Disordered)?;
        let record = self.buffer.get(..len).unwrap_or_default();
        self.dead.push(&mut self.flash, None, record, room).await?;
        Ok(())
    }

    /// Puts the record in the buffer together again, with the cause of its death.
    fn rewrite(&mut self, len: usize, cause: Cause) -> Option<usize> {
        let stored = Stored::decode(self.buffer.get(..len)?)?;
        let body_len = stored.body.len();
        let body_at = stored.head_len(body_len);
        let head = Stored { cause: Some(cause), body: &[], ..stored };
        self.buffer.get(..Stored::HEAD_MAX + body_len)?;
        self.buffer.copy_within(body_at..body_at + body_len, Stored::HEAD_MAX);
        assemble(self.buffer, &head, body_len, Self::GEOMETRY.word())
    }

    /// Makes room in the dead letters. What they lose is explained for good.
    async fn make_dead_room(&mut self) -> Result<Room, Error<F::Error>> {
        let erases = self.dead.erases;
        let mut oldest = None;
        self.pass(DEAD_LETTERS, &mut |_, here| {
            oldest = Some(here.page);
            Visit::Stop
        })
        .await?;
        if self.dead.erases > erases {
            return Ok(Room::Free);
        }
        if let Some(page) = oldest {
            self.explain_page(DEAD_LETTERS, page, final_reason).await?;
            self.commit().await?;
        }
        Ok(Room::OldestPage)
    }

    /// Where a dead letter lies, and for which reason it would be given up.
    async fn find_dead(&mut self, key: Key) -> Result<Option<(u16, Reason)>, Error<F::Error>> {
        let mut found = None;
        self.pass(DEAD_LETTERS, &mut |stored, here| {
            if stored.key != key {
                return Visit::Keep;
            }
            found = Some((here.page, final_reason(stored)));
            Visit::Stop
        })
        .await?;
        Ok(found)
    }

    /// Sends a dead letter again, under its old key. `false` if there is no such letter, or if too many are under
    /// way already.
    pub(crate) async fn retry(&mut self, key: Key) -> Result<bool, Error<F::Error>> {
        self.ready().await?;
        if self.ledger.late.contains(&key) {
            return Ok(true);
        }
        if self.find_dead(key).await?.is_none() || self.ledger.late.push(key).is_err() {
            return Ok(false);
        }
        self.commit().await?;
        Ok(true)
    }

    /// Gives a dead letter up for good. `false` if there is no such letter.
    pub(crate) async fn discard(&mut self, key: Key) -> Result<bool, Error<F::Error>> {
        self.ready().await?;
        let Some((page, reason)) = self.find_dead(key).await? else {
            return Ok(false);
        };
        let entry = Entry::of(key, reason);
        self.ledger.account.explain(entry);
        self.ledger.late.retain(|late| *late != key);
        self.carry_out(Intent::Remove { ring: DEAD_LETTERS, page, key }).await?;
        self.note_given_up(&entry, 1);
        Ok(true)
    }

    /// Shows the dead letters that are to be sent again.
    pub(crate) async fn late(
        &mut self,
        take: &mut dyn FnMut(&Stored<'_>) -> bool,
    ) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        if self.ledger.late.is_empty() {
            return Ok(());
        }
        let late = self.ledger.late.clone();
        let mut found = heapless::Vec::<Key, { crate::ledger::LATE }>::new();
        let pass = self
            .pass(DEAD_LETTERS, &mut |stored, _| {
                if !late.contains(&stored.key) {
                    return Visit::Keep;
                }
                let _ = found.push(stored.key);
                if take(stored) { Visit::Keep } else { Visit::Stop }
            })
            .await?;
        if pass.complete {
            // Others have made room for younger dead letters.
            self.ledger.late.retain(|key| found.contains(key));
        }
        Ok(())
    }

    /// The receiver has these dead letters after all.
    pub(crate) async fn settle_late(&mut self, keys: &[Key]) -> Result<u32, Error<F::Error>> {
        let removed = self.settle(DEAD_LETTERS, keys).await?;
        for key in keys {
            self.ledger.account.forget(*key);
            self.ledger.late.retain(|late| late != key);
        }
        Ok(removed)
    }
}

fn final_reason(stored: &Stored<'_>) -> Reason {
    match stored.cause {
        Some(Cause::Rejected) => Reason::Rejected,
        Some(Cause::Expired) => Reason::Expired,
        Some(Cause::Blocking) | None => Reason::Evicted,
    }
}
