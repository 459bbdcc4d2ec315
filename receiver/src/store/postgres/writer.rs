//! The few that write. Whatever waits for one of them when it begins is one transaction: many wait for one commit, and nobody waits for a
//! timer. A shard is always the same writer's, so those of one process never wait for each other's locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use tokio::sync::{mpsc, oneshot};

use super::connect::Server;
use super::take::{self, Failure, Statements};
use crate::intake::{Concluded, Post};
use crate::store::{Result, StoreError, shard_of};

/// Connections that write.
const WRITERS: usize = 4;
/// Batches of one transaction at most, and records from which on no more are added: the first of them should not wait too long for
/// its commit.
const GROUP_MAX: usize = 64;
const GROUP_RECORDS: usize = 4096;
/// Batches that may wait for one of them. More are refused, so that a slow database does not fill the memory.
const QUEUE_MAX: usize = 1024;
/// For a transaction. The server's own limits come first, if it can still be reached.
const PATIENCE: Duration = Duration::from_secs(18);
/// How often a batch is tried that only failed because of others.
const TRIES_MAX: usize = 3;

/// A batch that waits to be taken.
pub(super) struct Job {
    pub(super) device: i64,
    pub(super) post: Arc<Post>,
    tell: oneshot::Sender<Result<Concluded>>,
}

/// The ways to all of them.
pub(super) struct Writers {
    queues: Vec<mpsc::Sender<Job>>,
    queued: Arc<AtomicUsize>,
    shards: u16,
}

impl Writers {
    pub(super) fn start(server: &Arc<Server>) -> Self {
        let queued = Arc::new(AtomicUsize::new(0));
        let start = |_| {
            let (jobs, waiting) = mpsc::channel(QUEUE_MAX);
            let writer = Writer { server: server.clone(), queued: queued.clone(), connection: None };
            tokio::spawn(writer.serve(waiting));
            jobs
        };
        Self { queues: (0..WRITERS).map(start).collect(), queued: queued.clone(), shards: server.shards }
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Takes a batch in a transaction that it may share with others, and says what became of it when that is durable.
    pub(super) async fn take(&self, device: i64, post: Arc<Post>) -> Result<Concluded> {
        let shard = shard_of(post.head.device.as_str(), self.shards);
        let (tell, told) = oneshot::channel();
        self.queued.fetch_add(1, Ordering::Relaxed);
        let queue = self.queues.get(usize::from(shard) % WRITERS);
        if queue.is_none_or(|queue| queue.try_send(Job { device, post, tell }).is_err()) {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable("more waits to be written than there is room for".into()));
        }
        told.await.map_err(|_| StoreError::Unavailable("the writer has ended".into()))?
    }
}

/// One of them.
struct Writer {
    server: Arc<Server>,
    queued: Arc<AtomicUsize>,
    connection: Option<(Object, Statements)>,
}

impl Writer {
    /// Until nobody can send any more, and all that was sent is done.
    async fn serve(mut self, mut waiting: mpsc::Receiver<Job>) {
        while let Some(first) = waiting.recv().await {
            let mut records = first.post.records.len();
            let mut jobs = vec![first];
            while jobs.len() < GROUP_MAX && records < GROUP_RECORDS {
                let Ok(job) = waiting.try_recv() else { break };
                records += job.post.records.len();
                jobs.push(job);
            }
            let results = self.take(&jobs).await;
            self.queued.fetch_sub(jobs.len(), Ordering::Relaxed);
            for (job, result) in jobs.into_iter().zip(results) {
                // Whoever asked may have gone.
                drop(job.tell.send(result));
            }
        }
    }

    /// All in one transaction; and if one of them cannot be written, each in its own.
    async fn take(&mut self, jobs: &[Job]) -> Vec<Result<Concluded>> {
        match self.attempt(jobs).await {
            Ok(results) => return results,
            Err(Failure::OfAll(error)) => return jobs.iter().map(|_| Err(error.clone())).collect(),
            Err(Failure::OfOne(error)) => {
                tracing::warn!(%error, "a transaction failed: its batches are taken one by one");
            }
        }
        let mut results = Vec::with_capacity(jobs.len());
        for job in jobs {
            results.push(self.take_alone(job).await);
        }
        results
    }

    async fn take_alone(&mut self, job: &Job) -> Result<Concluded> {
        let mut last = StoreError::Unavailable("it was not tried".into());
        for _ in 0..TRIES_MAX {
            match self.attempt(std::slice::from_ref(job)).await {
                Ok(results) => {
                    let result = results.into_iter().next();
                    return result.unwrap_or_else(|| Err(StoreError::Damaged("a batch was lost".into())));
                }
                Err(Failure::OfAll(error)) => return Err(error),
                Err(Failure::OfOne(error)) => last = error,
            }
        }
        Err(last)
    }

    async fn attempt(&mut self, jobs: &[Job]) -> std::result::Result<Vec<Result<Concluded>>, Failure> {
        let (client, statements) = match self.connection.take() {
            Some(connection) if !connection.0.is_closed() => connection,
            _ => {
                let client = self.server.client().await?;
                let statements = Statements::prepare(&client).await?;
                (client, statements)
            }
        };
        let taking = take::take(&client, &statements, &self.server, jobs);
        let taken = tokio::time::timeout(PATIENCE, taking).await;
        let taken = taken.unwrap_or_else(|_| {
            Err(Failure::OfAll(StoreError::Unavailable("PostgreSQL did not answer in time".into())))
        });
        if taken.is_ok() || (!client.is_closed() && client.batch_execute("ROLLBACK").await.is_ok()) {
            self.connection = Some((client, statements));
        } else {
            // Nobody knows what is still under way on it.
            drop(Object::take(client));
        }
        taken
    }
}
