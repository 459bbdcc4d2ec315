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
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::{delete, get, post};

use crate::admin::Method;
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
    /// Whether the store can be written to is tried by one request at a time: anybody may ask, and it takes a write.
    readiness: Arc<tokio::sync::Mutex<()>>,
}

impl App {
    /// Everything that handlers need.
    pub fn new(store: Arc<dyn Store>, kinds: Kinds, settings: ServeSettings, clock: Clock) -> Self {
        let (kinds, settings, metrics) = (Arc::new(kinds), Arc::new(settings), Metrics::new());
        Self { store, kinds, clock, settings, metrics, readiness: Arc::default() }
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

/// Every way in: what is served and what is listed come from one place, so that nothing can be served in silence.
struct Ways {
    router: Router<App>,
    listed: Vec<(Method, &'static str)>,
}

impl Ways {
    fn all() -> Self {
        let none = Self { router: Router::new(), listed: Vec::new() };
        let ways = none
            .with(Method::Post, "/v1/batch", batch::post)
            .with(Method::Post, "/v1/records/{kind}", records::post)
            .with(Method::Get, "/healthz", health::healthz)
            .with(Method::Get, "/readyz", health::readyz)
            .with(Method::Get, "/metrics", health::metrics)
            .with(Method::Get, "/openapi.json", openapi::document);
        admin::add(ways)
    }

    fn with<T: 'static>(mut self, method: Method, path: &'static str, handler: impl Handler<T, App>) -> Self {
        let way = match method {
            Method::Get => get(handler),
            Method::Post => post(handler),
            Method::Delete => delete(handler),
        };
        self.listed.push((method, path));
        Self { router: self.router.route(path, way), ..self }
    }
}

/// What is served: methods and paths, with the names of parameters in braces.
pub fn ways() -> Vec<(Method, &'static str)> {
    Ways::all().listed
}

/// Everything that there is, and problems for what there is not.
pub fn router(app: App) -> Router {
    Ways::all()
        .router
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
