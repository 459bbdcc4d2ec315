//! The sender's handle to the storage: what to send next, and what the answers mean for the flash.

use embassy_sync::blocking_mutex::raw::{CriticalSectionRawMutex, RawMutex};
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use crate::{
    Cause, Clock, DeviceId, EmbassyClock, Entry, Error, Event, Key, Stats, Stored, Timestamp, Trigger,
    account::Account,
    ledger::DEAD_LETTERS,
    outbox::{Shared, check_lane, run},
    store::{Explain, Late, Reject, Renew, Settle, Take},
};

/// What to do with a record that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Pick {
    /// It is taken; the next is shown.
    Take,
    /// It stays; the next is shown.
    Skip,
    /// It stays, and no more are shown.
    Stop,
}

impl From<bool> for Pick {
    fn from(is_taken: bool) -> Self {
        if is_taken { Self::Take } else { Self::Stop }
    }
}

/// What can be said about a lane in one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Window {
    /// Whose counters these are; a batch holds one incarnation.
    pub incarnation: u32,
    /// The lane.
    pub lane: u8,
    /// Every counter below is settled or accounted for.
    pub floor: u64,
    /// The next counter that will be handed out.
    pub issued: u64,
    /// Records that were taken.
    pub taken: u16,
    /// More are pending.
    pub has_more: bool,
}

/// What became of rejected records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rejection {
    /// So many will be tried again.
    pub retrying: u16,
    /// So many went to the dead letters.
    pub parked: u16,
    /// Some would have, but too many did in a row: parking pauses until something is delivered.
    pub is_paused: bool,
}

/// The storage side of sending. There is one: give it to a [`Dispatcher`](crate::Dispatcher), or drain the outbox in a way of your own.
///
/// Every method locks the storage for its own duration only, never across the network. Dropping one of their
/// futures breaks no promise; at worst a record is sent once more.
pub struct Drain<
    'r,
    F,
    const LANES: usize,
    const RECORD: usize,
    M: RawMutex = CriticalSectionRawMutex,
    C = EmbassyClock,
> {
    pub(crate) shared: &'r Shared<'r, F, M, C, LANES>,
}

impl<'r, F, M, C, const LANES: usize, const RECORD: usize> Drain<'r, F, LANES, RECORD, M, C>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    pub(crate) fn new(shared: &'r Shared<'r, F, M, C, LANES>) -> Self {
        Self { shared }
    }

    /// Shows the oldest pending records of a lane to `take`, in order, until it takes no more. Those that have grown
    /// too old go to the dead letters first. A closure that says `true` or `false` takes or stops.
    pub async fn window<P: Into<Pick>>(
        &mut self,
        lane: u8,
        mut take: impl FnMut(&Stored<'_>) -> P,
    ) -> Result<Window, Error<F::Error>> {
        let mut take = |stored: &Stored<'_>| take(stored).into();
        let mut task = Take::new(lane, &mut take);
        run(self.shared, &mut task).await?;
        task.window.ok_or(Error::NoSuchLane)
    }

    /// Removes records that the receiver has, in one pass, in whatever order. Says how many were there.
    pub async fn settle(&mut self, lane: u8, delivered: &[Key]) -> Result<u32, Error<F::Error>> {
        // Not by way of `settle_where`: a function that waits for another is a state machine of its own.
        check_lane::<F::Error, LANES>(lane)?;
        let is_delivered = |key: &Key| delivered.contains(key);
        let mut task = Settle::new(lane, delivered.len(), &is_delivered);
        run(self.shared, &mut task).await?;
        Ok(task.removed)
    }

    /// Removes so many records that the receiver has: those of which `is_delivered` is true.
    pub async fn settle_where(
        &mut self,
        lane: u8,
        count: usize,
        is_delivered: &dyn Fn(&Key) -> bool,
    ) -> Result<u32, Error<F::Error>> {
        check_lane::<F::Error, LANES>(lane)?;
        let mut task = Settle::new(lane, count, is_delivered);
        run(self.shared, &mut task).await?;
        Ok(task.removed)
    }

    /// Counts a rejection of each of these records; those rejected too often go to the dead letters.
    pub async fn reject(&mut self, lane: u8, rejected: &[Key]) -> Result<Rejection, Error<F::Error>> {
        check_lane::<F::Error, LANES>(lane)?;
        let mut task = Reject::counted(lane, rejected);
        run(self.shared, &mut task).await?;
        Ok(task.rejection)
    }

    /// Moves these records to the dead letters.
    pub async fn park(&mut self, lane: u8, keys: &[Key], cause: Cause) -> Result<Rejection, Error<F::Error>> {
        check_lane::<F::Error, LANES>(lane)?;
        let mut task = Reject::for_good(lane, keys, cause);
        run(self.shared, &mut task).await?;
        Ok(task.rejection)
    }

    /// Parking goes on, although many records were parked in a row.
    pub async fn resume_parking(&mut self) {
        self.shared.lock().await.core.books.resume_parking();
    }

    /// Shows the dead letters that are to be sent again.
    pub async fn late(&mut self, mut take: impl FnMut(&Stored<'_>) -> bool) -> Result<(), Error<F::Error>> {
        run(self.shared, &mut Late::new(&mut take)).await
    }

    /// Removes dead letters that the receiver has after all.
    pub async fn settle_late(&mut self, delivered: &[Key]) -> Result<u32, Error<F::Error>> {
        let removed = self.remove_late(delivered).await?;
        self.shared.lock().await.core.books.arrived_late(delivered);
        Ok(removed)
    }

    /// Removes dead letters, and nothing else.
    pub(crate) async fn remove_late(&mut self, delivered: &[Key]) -> Result<u32, Error<F::Error>> {
        let is_delivered = |key: &Key| delivered.contains(key);
        let mut task = Settle::new(DEAD_LETTERS, delivered.len(), &is_delivered);
        run(self.shared, &mut task).await?;
        Ok(task.removed)
    }

    /// The receiver does not want these dead letters: they stay what they are, and are not sent again unless the application
    /// says so.
    pub async fn refuse_late(&mut self, keys: &[Key]) {
        self.shared.lock().await.core.books.refused_late(keys);
    }

    /// What the receiver has to be told about counters that will not arrive.
    pub async fn account(&mut self) -> Vec<Entry, { Account::MAX }> {
        self.shared.lock().await.core.books.account().iter().copied().collect()
    }

    /// The receiver knows of these entries now.
    pub async fn confirm(&mut self, entries: &[Entry]) {
        self.shared.lock().await.core.books.confirm(entries);
    }

    /// The receiver asks what became of counters; the account answers. `asked.reason` does not matter.
    pub async fn explain(&mut self, asked: Entry) -> Result<(), Error<F::Error>> {
        check_lane::<F::Error, LANES>(asked.lane)?;
        run(self.shared, &mut Explain::new(asked)).await
    }

    /// Takes a new incarnation for new records, because the receiver says that this device is stale or disputed.
    pub async fn renew_incarnation(&mut self) -> Result<u32, Error<F::Error>> {
        let mut task = Renew::default();
        run(self.shared, &mut task).await?;
        Ok(task.incarnation)
    }

    /// Shows earlier incarnations whose books are open, with the counters that each lane had issued.
    pub async fn former_incarnations(&mut self, mut show: impl FnMut(u32, &[u64])) {
        self.shared
            .lock()
            .await
            .core
            .books
            .formers()
            .for_each(|(incarnation, issued)| show(incarnation, issued));
    }

    /// The receiver has closed the books of an earlier incarnation.
    pub async fn close_incarnation(&mut self, incarnation: u32) {
        self.shared.lock().await.core.books.close_former(incarnation);
    }

    /// How old a record is, in milliseconds, where that is known beyond doubt.
    pub async fn age_ms(&mut self, time: &Timestamp) -> Option<u64> {
        self.shared.lock().await.core.books.age_ms(time)
    }

    /// An authenticated answer said what time it is, in milliseconds since 1970.
    pub async fn learn_time(&mut self, wall_ms: u64) {
        self.shared.lock().await.core.books.learn_time(wall_ms);
    }

    /// The incarnation of new records, the number of this boot, and a random number that tells it from another
    /// with the same number.
    pub async fn identity(&mut self) -> (u32, u32, u32) {
        self.shared.lock().await.core.identity()
    }

    /// The device's name.
    pub async fn device(&mut self) -> DeviceId {
        self.shared.lock().await.core.device().clone()
    }

    /// What time it is, in milliseconds since 1970, if that is known.
    pub async fn wall_ms(&mut self) -> Option<u64> {
        self.shared.lock().await.core.books.timestamp().wall_ms
    }

    /// The outbox in numbers.
    pub async fn stats(&mut self) -> Stats<LANES> {
        self.shared.lock().await.core.stats()
    }

    /// Tells the dispatcher from elsewhere that now is a good moment.
    pub async fn trigger(&self) -> Trigger<'r, M> {
        Trigger::new(&self.shared.lock().await.core.books.signals.bell)
    }

    /// Tells those who listen.
    pub async fn publish(&mut self, event: Event) {
        self.shared.lock().await.core.books.publish(event);
    }
}
