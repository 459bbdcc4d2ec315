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

/// Something to be written, and somebody who waits for it.
trait Job: Send {
    /// Does it. Says whether it went well; if not, whatever it did has to be undone. May be asked again after that.
    fn work(&mut self, connection: &Connection) -> bool;
    /// Tells how it went, now that it is known whether the transaction is durable.
    fn tell(self: Box<Self>, committed: &Result<()>);
}

struct Asked<T, W> {
    work: W,
    result: Option<Result<T>>,
    tell: oneshot::Sender<Result<T>>,
}

impl<T: Send, W: Fn(&Connection) -> Result<T> + Send> Job for Asked<T, W> {
    fn work(&mut self, connection: &Connection) -> bool {
        self.result.insert((self.work)(connection)).is_ok()
    }

    fn tell(self: Box<Self>, committed: &Result<()>) {
        let result = self.result.unwrap_or_else(|| Err(StoreError::Unavailable("it was not tried".into())));
        // Whoever asked may have gone.
        drop(self.tell.send(committed.clone().and(result)));
    }
}

/// The thread's other end.
pub(super) struct Writer {
    jobs: Option<SyncSender<Box<dyn Job>>>,
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
    /// fails is undone without the others; for that it may be done again.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let job = Box::new(Asked { work, result: None, tell });
        self.queued.fetch_add(1, Ordering::Relaxed);
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(job as Box<dyn Job>));
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

fn serve(connection: &Connection, waiting: &Receiver<Box<dyn Job>>, queued: &AtomicUsize) {
    while let Ok(job) = waiting.recv() {
        let mut jobs = vec![job];
        let mut committed = begin(connection);
        let mut is_good = committed.is_ok();
        // What comes while the others are at work has its place too.
        let mut done = 0;
        while let Some(job) = jobs.get_mut(done) {
            is_good = is_good && job.work(connection);
            done += 1;
            if jobs.len() < GROUP_MAX {
                jobs.extend(waiting.try_recv());
            }
        }
        if committed.is_ok() {
            committed = if is_good { commit(connection) } else { one_by_one(connection, &mut jobs) };
        }
        queued.fetch_sub(jobs.len(), Ordering::Relaxed);
        jobs.into_iter().for_each(|job| job.tell(&committed));
    }
}

fn begin(connection: &Connection) -> Result<()> {
    Ok(connection.execute_batch("BEGIN IMMEDIATE")?)
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

/// Does all of it again, so that what fails can be undone alone. A savepoint for each job costs more than it is worth while
/// nothing fails.
fn one_by_one(connection: &Connection, jobs: &mut [Box<dyn Job>]) -> Result<()> {
    let done = (|| {
        if !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
        begin(connection)?;
        jobs.iter_mut().try_for_each(|job| alone(connection, &mut **job))
    })();
    match done {
        Ok(()) => commit(connection),
        Err(error) => {
            // There may be nothing left to undo.
            drop(connection.execute_batch("ROLLBACK"));
            Err(error)
        }
    }
}

/// Does it so that it can be undone alone.
fn alone(connection: &Connection, job: &mut dyn Job) -> Result<()> {
    connection.execute_batch("SAVEPOINT alone")?;
    let is_good = job.work(connection);
    if connection.is_autocommit() {
        return Err(StoreError::Unavailable("the transaction was undone: is the disk full?".into()));
    }
    let end = if is_good { "RELEASE alone" } else { "ROLLBACK TO alone; RELEASE alone" };
    Ok(connection.execute_batch(end)?)
}
