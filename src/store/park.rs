//! The dead letters: records that could not be sent, kept aside so that nothing behind them has to wait.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use super::Store;
use crate::{
    Cause, Clock, Entry, Error, Event, Key, Reason, Stored,
    io::Fault,
    ledger::{DEAD_LETTERS, Intent},
    stored::assemble,
    walk::Visit,
};

impl<'r, F, M, C, const LANES: usize> Store<'r, F, M, C, LANES>
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
        self.books.ledger.account.explain(entry);
        if let Some(ledger) = self.books.kept(lane) {
            ledger.attempts.retain(|attempts| attempts.key != key);
        }
        self.carry_out(Intent::Park { lane, page, key, cause }).await?;
        self.books.note_given_up(&entry, 1);
        self.books.publish(Event::Parked { key, cause });
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
        while let Some(len) = self.find(lane, page, key).await?
            && self.books.dead_youngest != Some(key)
        {
            let len = self.rewrite(len, cause).ok_or(Error::NotWritten)?;
            match self.rings.push(DEAD_LETTERS, len).await {
                Ok((_, corrupt)) => {
                    self.books.note_corruption(DEAD_LETTERS, corrupt);
                    self.books.dead_youngest = Some(key);
                }
                Err(Fault::Full) => self.make_dead_room().await?,
                Err(fault) => return Err(fault.into()),
            }
        }
        self.remove(lane, page, key).await
    }

    /// Puts the record in memory together again, with the cause of its death.
    fn rewrite(&mut self, len: u32, cause: Cause) -> Option<u32> {
        let record = &mut *self.rings.cells.record;
        let stored = Stored::decode(record.get(..len as usize)?)?;
        let body_len = stored.body.len();
        let body_at = stored.head_len(body_len);
        let head = Stored { cause: Some(cause), body: &[], ..stored };
        record.get(..Stored::HEAD_MAX + body_len)?;
        record.copy_within(body_at..body_at + body_len, Stored::HEAD_MAX);
        assemble(record, &head, body_len, Self::GEOMETRY.word())
    }

    /// Makes room in the dead letters. What they lose is explained for good.
    async fn make_dead_room(&mut self) -> Result<(), Error<F::Error>> {
        self.pass(DEAD_LETTERS, &mut |_, _| Visit::Stop).await?;
        if !self.rings.dead.has_open_page() {
            let page = self.rings.dead.head.0;
            self.explain_page(DEAD_LETTERS, page, final_reason).await?;
            self.commit().await?;
            self.rings.erase(DEAD_LETTERS, page).await?;
        }
        Ok(())
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
        if self.books.ledger.late.contains(&key) {
            return Ok(true);
        }
        if self.find_dead(key).await?.is_none() || self.books.ledger.late.push(key).is_err() {
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
        self.books.ledger.account.explain(entry);
        self.books.ledger.late.retain(|late| *late != key);
        self.carry_out(Intent::Remove { ring: DEAD_LETTERS, page, key }).await?;
        self.books.note_given_up(&entry, 1);
        Ok(true)
    }

    /// Shows the dead letters that are to be sent again.
    pub(crate) async fn late(
        &mut self,
        take: &mut dyn FnMut(&Stored<'_>) -> bool,
    ) -> Result<(), Error<F::Error>> {
        self.ready().await?;
        if self.books.ledger.late.is_empty() {
            return Ok(());
        }
        let mut found = heapless::Vec::<Key, { crate::ledger::LATE }>::new();
        let late = &self.books.ledger.late;
        let visit = &mut |stored: &Stored<'_>, _| {
            if !late.contains(&stored.key) {
                return Visit::Keep;
            }
            let _ = found.push(stored.key);
            if take(stored) { Visit::Keep } else { Visit::Stop }
        };
        let walked = self.rings.walk(DEAD_LETTERS, crate::walk::Scope::Pending, visit).await?;
        self.books.note_corruption(DEAD_LETTERS, walked.corrupt);
        if walked.is_complete {
            // Others have made room for younger dead letters.
            self.books.ledger.late.retain(|key| found.contains(key));
        }
        Ok(())
    }

    /// The receiver has these dead letters after all.
    pub(crate) async fn settle_late(&mut self, keys: &[Key]) -> Result<u32, Error<F::Error>> {
        let removed = self.settle(DEAD_LETTERS, keys).await?;
        for key in keys {
            self.books.ledger.account.forget(*key);
            self.books.ledger.late.retain(|late| late != key);
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
