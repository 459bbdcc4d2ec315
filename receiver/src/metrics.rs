//! What is counted and measured, under which names: every name stands here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::http::StatusCode;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::intake::{Concluded, Outcome};
use crate::store::{self, Fleet};

/// What became of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientOutcome {
    Stored,
    Replayed,
    KeyReused,
    InProgress,
    Invalid,
    Refused,
    Unavailable,
}

impl ClientOutcome {
    const ALL: [Self; 7] = [
        Self::Stored,
        Self::Replayed,
        Self::KeyReused,
        Self::InProgress,
        Self::Invalid,
        Self::Refused,
        Self::Unavailable,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Replayed => "replayed",
            Self::KeyReused => "key_reused",
            Self::InProgress => "in_progress",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Seconds that the store may take, as a histogram shows them: from a write to memory to a disk that is in trouble.
const STORE_SECONDS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];

/// What this receiver counts. Its own and no global: a process may have several.
#[derive(Clone)]
pub struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    is_store_up: Arc<AtomicBool>,
}

/// Whether the store can be written to. Reading goes well on a full disk, so it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreHealth {
    Up,
    Down,
}

/// The question whose answer proves that the store can be written to.
pub(crate) const IS_READY: &str = "is_ready";

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

impl Metrics {
    pub(crate) fn new() -> Self {
        let buckets = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full("pillarbox_store_seconds".into()), &STORE_SECONDS);
        let recorder = buckets.unwrap_or_default().build_recorder();
        let is_store_up = Arc::new(AtomicBool::new(true));
        let metrics = Self { handle: recorder.handle(), recorder: Arc::new(recorder), is_store_up };
        metrics.describe();
        // A rate needs a beginning: what never happened is told as 0.
        for verdict in Outcome::NAMES {
            metrics.counter("pillarbox_records_total", "verdict", verdict).increment(0);
        }
        for outcome in ClientOutcome::ALL {
            metrics.counter("pillarbox_client_requests_total", "outcome", outcome.name()).increment(0);
        }
        for status in [StatusCode::OK, StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE] {
            metrics.counter("pillarbox_batches_total", "status", status.as_str().to_owned()).increment(0);
        }
        metrics.stale().increment(0);
        metrics.store_failures().increment(0);
        metrics.gauge("pillarbox_store_queue").set(0.0);
        metrics.set_store(StoreHealth::Up);
        metrics
    }

    fn describe(&self) {
        for (name, what) in [
            ("pillarbox_batches_total", "Batches of devices, by the status of the answer"),
            ("pillarbox_records_total", "Records of devices, by what became of them"),
            ("pillarbox_stale_batches_total", "Batches of boots that were over: clones, rolled-back flash"),
            ("pillarbox_client_requests_total", "Requests of ordinary clients, by what became of them"),
            (
                "pillarbox_store_failures_total",
                "Times that the store did not do what it was asked, or not in time",
            ),
        ] {
            self.recorder.describe_counter(name.into(), None, what.into());
        }
        for (name, what) in [
            ("pillarbox_devices", "Devices that may come in"),
            ("pillarbox_device_lag_seconds", "So long, at least, the oldest known record has been awaited"),
            ("pillarbox_pending_records", "Records that are known and still to come"),
            ("pillarbox_unexplained_missing", "Records that are missing, and nobody has said why"),
            ("pillarbox_lost_records", "Records that their devices say are lost"),
            ("pillarbox_asides", "Records that are kept aside: unreadable, quarantined, in conflict"),
            ("pillarbox_log_records", "Records in the log"),
            ("pillarbox_store_queue", "Requests that wait for the store"),
            (
                "pillarbox_store_up",
                "0 from a failure of the store on, until it was seen to be writable again",
            ),
        ] {
            self.recorder.describe_gauge(name.into(), None, what.into());
        }
        let what = "Seconds that the store took, by what it was asked for";
        self.recorder.describe_histogram("pillarbox_store_seconds".into(), None, what.into());
    }

    fn counter(
        &self,
        name: &'static str,
        label: &'static str,
        value: impl Into<metrics::SharedString>,
    ) -> Counter {
        let key = Key::from_parts(name, vec![Label::new(label, value)]);
        self.recorder.register_counter(&key, &METADATA)
    }

    fn stale(&self) -> Counter {
        self.recorder.register_counter(&Key::from_name("pillarbox_stale_batches_total"), &METADATA)
    }

    fn store_failures(&self) -> Counter {
        self.recorder.register_counter(&Key::from_name("pillarbox_store_failures_total"), &METADATA)
    }

    fn set_store(&self, health: StoreHealth) {
        self.is_store_up.store(health == StoreHealth::Up, Ordering::Relaxed);
        self.gauge("pillarbox_store_up").set(if health == StoreHealth::Up { 1.0 } else { 0.0 });
    }

    /// Whether the store has failed and was not seen to be writable since.
    pub(crate) fn is_store_in_doubt(&self) -> bool {
        !self.is_store_up.load(Ordering::Relaxed)
    }

    /// A batch was answered with this status.
    pub(crate) fn batch(&self, status: StatusCode) {
        self.counter("pillarbox_batches_total", "status", status.as_str().to_owned()).increment(1);
    }

    /// This became of a batch.
    pub(crate) fn concluded(&self, concluded: &Concluded) {
        for verdict in Outcome::NAMES {
            let count = concluded.outcomes.iter().filter(|outcome| outcome.name() == verdict).count() as u64;
            if count > 0 {
                self.counter("pillarbox_records_total", "verdict", verdict).increment(count);
            }
        }
        if concluded.is_stale {
            self.stale().increment(1);
        }
    }

    /// This became of a client's request.
    pub(crate) fn client_request(&self, outcome: ClientOutcome) {
        self.counter("pillarbox_client_requests_total", "outcome", outcome.name()).increment(1);
    }

    /// The fleet as it is now.
    pub(crate) fn fleet(&self, fleet: &Fleet, now_ms: u64) {
        let lag_ms = fleet.oldest_pending_ms.map_or(0, |since| now_ms.saturating_sub(since));
        for (name, value) in [
            ("pillarbox_devices", fleet.devices as f64),
            ("pillarbox_device_lag_seconds", lag_ms as f64 / 1000.0),
            ("pillarbox_pending_records", fleet.pending as f64),
            ("pillarbox_unexplained_missing", fleet.unexplained as f64),
            ("pillarbox_lost_records", fleet.lost as f64),
            ("pillarbox_asides", fleet.asides as f64),
            ("pillarbox_log_records", fleet.records as f64),
        ] {
            self.gauge(name).set(value);
        }
    }

    /// Keeps what histograms remember small. Somebody has to call it now and then.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    fn gauge(&self, name: &'static str) -> Gauge {
        self.recorder.register_gauge(&Key::from_name(name), &METADATA)
    }

    fn histogram(&self, name: &'static str, label: &'static str, value: &'static str) -> Histogram {
        let key = Key::from_parts(name, vec![Label::from_static_parts(label, value)]);
        self.recorder.register_histogram(&key, &METADATA)
    }

    /// Begins to measure what the store does.
    pub(crate) fn store_asked(&self, operation: &'static str) -> StoreTiming {
        let queue = self.gauge("pillarbox_store_queue");
        queue.increment(1.0);
        StoreTiming {
            since: Instant::now(),
            queue,
            operation,
            metrics: self.clone(),
            seconds: self.histogram("pillarbox_store_seconds", "operation", operation),
        }
    }

    /// All of it, as Prometheus reads it.
    pub fn render(&self) -> String {
        self.handle.render()
    }
}

/// How long the store takes for one thing. Whoever gives up waiting leaves the queue too.
pub(crate) struct StoreTiming {
    since: Instant,
    queue: Gauge,
    operation: &'static str,
    metrics: Metrics,
    seconds: Histogram,
}

impl StoreTiming {
    pub(crate) fn answered<T>(self, given: &store::Result<T>) {
        self.seconds.record(self.since.elapsed().as_secs_f64());
        match given {
            Err(store::StoreError::Unavailable(_)) => {
                self.metrics.store_failures().increment(1);
                self.metrics.set_store(StoreHealth::Down);
            }
            Ok(_) if self.operation == IS_READY => self.metrics.set_store(StoreHealth::Up),
            _ => {}
        }
    }
}

impl Drop for StoreTiming {
    fn drop(&mut self) {
        self.queue.decrement(1.0);
    }
}
