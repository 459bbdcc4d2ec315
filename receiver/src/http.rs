//! The receiver over HTTP: what is where, and what every handler has at hand.

// What every request passes.
pub mod auth;
mod body;
pub mod problem;
mod request_log;

// What there is.
pub mod admin;
mod batch;
mod client_key;
mod health;
pub mod openapi;
mod records;
mod request_hash;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::{get, post};

use crate::kinds::Kinds;
use crate::metrics::Metrics;
use crate::serve::{Clock, ServeSettings};
use crate::store::{self, Store, StoreError};

use self::problem::Problem;

/// After so many seconds somebody may ask again whom a store could not serve.
pub(crate) const STORE_RETRY_AFTER_S: u32 = 5;

/// What every handler has at hand.
#[derive(Clone)]
pub struct App {
    /// Where everything is.
    pub store: Arc<dyn Store>,
    /// What bodies mean.
    pub kinds: Arc<Kinds>,
    /// What time it is, in milliseconds since 1970.
    pub clock: Clock,
    /// How it is to be served.
    pub settings: Arc<ServeSettings>,
    /// What is counted.
    pub metrics: Metrics,
}

impl App {
    /// Everything that handlers need.
    pub fn new(store: Arc<dyn Store>, kinds: Kinds, settings: ServeSettings, clock: Clock) -> Self {
        Self { store, kinds: Arc::new(kinds), clock, settings: Arc::new(settings), metrics: Metrics::new() }
    }

    /// Now, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// Asks the store for something, measures how long it takes, and does not wait for ever: a caller may give up, and what it asked for
    /// may happen all the same.
    pub async fn ask<T>(
        &self,
        operation: &'static str,
        asked: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        let timing = self.metrics.store_asked(operation);
        let given = match tokio::time::timeout(self.settings.limits.store_timeout, asked).await {
            Ok(given) => given,
            Err(_) => Err(StoreError::Unavailable("it did not answer in time".into())),
        };
        timing.answered(&given);
        given
    }
}

/// Everything that there is, and problems for what there is not.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/batch", post(batch::post))
        .route("/v1/records/{kind}", post(records::post))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .merge(admin::routes())
        .fallback(nowhere)
        .method_not_allowed_fallback(not_this_way)
        .layer(from_fn(request_log::log))
        .with_state(app)
}

async fn nowhere() -> Problem {
    Problem::not_found("there is nothing here; /openapi.json says what there is")
}

async fn not_this_way() -> Problem {
    let detail = "the header Allow says which methods there are";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Not with this method", detail)
}
