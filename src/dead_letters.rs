//! The application's view of the dead letters: list them, send one again, give one up.

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use crate::{
    Clock, Error, Key, Stored,
    ledger::DEAD_LETTERS,
    outbox::{Shared, run},
    store::{Discard, Inspect, Retry},
};

/// Records that could not be sent: rejected, too old, or in the way.
pub struct DeadLetters<'r, F, const LANES: usize, M: RawMutex, C> {
    shared: &'r Shared<'r, F, M, C, LANES>,
}

impl<'r, F, M, C, const LANES: usize> DeadLetters<'r, F, LANES, M, C>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    pub(crate) fn new(shared: &'r Shared<'r, F, M, C, LANES>) -> Self {
        Self { shared }
    }

    /// Shows every dead letter, the longest dead first; its `cause` says why it is one.
    pub async fn list(&self, mut show: impl FnMut(&Stored<'_>)) -> Result<(), Error<F::Error>> {
        run(self.shared, &mut Inspect::new(DEAD_LETTERS, &mut show)).await
    }

    /// Sends a dead letter again, under its old key. `false` if there is no such letter, or if 4 are under way.
    pub async fn retry(&self, key: Key) -> Result<bool, Error<F::Error>> {
        let mut task = Retry::new(key);
        run(self.shared, &mut task).await?;
        self.shared.lock().await.core.books.signals.bell.ring_work();
        Ok(task.is_late)
    }

    /// Gives a dead letter up for good. `false` if there is no such letter.
    pub async fn discard(&self, key: Key) -> Result<bool, Error<F::Error>> {
        let mut task = Discard::new(key);
        run(self.shared, &mut task).await?;
        Ok(task.is_discarded)
    }
}
