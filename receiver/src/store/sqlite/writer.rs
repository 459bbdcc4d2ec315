//! The one thread that writes. Whatever waits when it begins is one transaction: many wait for one commit, and nobody waits
//! for a timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::store::{Result, StoreError};

/// Jobs of one transaction at most: the first of them should not wait too long for its commit.
const GROUP_MAX: usize = 256;
/// Jobs that may wait. More are refused, so that a slow disk does not fill the memory.
const QUEUE_MAX: usize = 4096;

/// Told when it is known whether the transaction is durable.
type Told = Box<dyn FnOnce(&Result<()>) + Send>;
type Job = Box<dyn FnOnce(&Connection) -> Told + Send>;

/// The thread's other end.
pub(super) struct Writer {
    jobs: Option<SyncSender<Job>>,
    queued: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection) -> Result<Self> {
        let (jobs, waiting) = sync_channel(QUEUE_MAX);
        let queued = Arc::new(AtomicUsize::new(0));
        let count = queued.clone();
        let thread = std::thread::Builder::new().name("sqlite-writer".into());
        let thread = thread.spawn(move || serve(&connection, &waiting, &count));
        let thread =
            thread.map_err(|error| StoreError::Unavailable(format!("no thread to write: {error}")))?;
        Ok(Self { jobs: Some(jobs), queued, thread: Some(thread) })
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Does a piece of work in a transaction that it may share with others, and gives its result when that is durable. What
    /// fails is undone without the others.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let result = alone(connection, work);
            Box::new(move |committed| drop(tell.send(committed.clone().and(result))))
        });
        self.queued.fetch_add(1, Ordering::Relaxed);
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(job));
        if let Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None = sent {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable("more waits to be written than there is room for".into()));
        }
        told.await.map_err(|_| StoreError::Unavailable("the writer has ended".into()))?
    }
}

impl Drop for Writer {
    /// What waits is still written.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn serve(connection: &Connection, waiting: &Receiver<Job>, queued: &AtomicUsize) {
    while let Ok(job) = waiting.recv() {
        let mut told = Vec::new();
        let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(StoreError::from);
        let mut next = Some(job);
        while let Some(job) = next {
            told.push(job(connection));
            next = if told.len() < GROUP_MAX { waiting.try_recv().ok() } else { None };
        }
        let committed = begun.and_then(|()| commit(connection));
        queued.fetch_sub(told.len(), Ordering::Relaxed);
        for tell in told {
            tell(&committed);
        }
    }
}

fn commit(connection: &Connection) -> Result<()> {
    // A full disk may have undone everything already.
    if connection.is_autocommit() {
        return Err(StoreError::Unavailable("the transaction was undone: is the disk full?".into()));
    }
    connection.execute_batch("COMMIT").map_err(|error| {
        drop(connection.execute_batch("ROLLBACK"));
        error.into()
    })
}

/// Does it so that it can be undone alone.
fn alone<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    if connection.is_autocommit() {
        return Err(StoreError::Unavailable(
            "no transaction could be begun: is the disk full, or locked?".into(),
        ));
    }
    connection.prepare_cached("SAVEPOINT alone")?.execute([])?;
    let result = work(connection);
    if connection.is_autocommit() {
        return result.and_then(|_| Err(StoreError::Unavailable("the transaction was undone".into())));
    }
    if result.is_err() {
        connection.prepare_cached("ROLLBACK TO alone")?.execute([])?;
    }
    connection.prepare_cached("RELEASE alone")?.execute([])?;
    result
}
