//! Whether the receiver lives, whether it can work, and what it has counted: for what watches over it.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::{App, auth};
use crate::metrics::IS_READY;
use crate::serve::MetricsAccess;
use crate::store::{Role, StoreError};

/// It lives: nothing else is asked, so that a store that is down does not get a good process killed.
pub(crate) async fn healthz() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], "alive\n")
}

/// It can store what it is given.
pub(crate) async fn readyz(State(app): State<App>) -> Result<impl IntoResponse, Problem> {
    let _turn = app.readiness.lock().await;
    app.ask(IS_READY, app.store.is_ready()).await.map_err(|error: StoreError| {
        tracing::warn!(%error, "not ready");
        Problem::store_unavailable()
    })?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], "ready\n"))
}

/// What was counted.
pub(crate) async fn metrics(State(app): State<App>, headers: HeaderMap) -> Result<Response, Problem> {
    if app.settings.metrics_access == MetricsAccess::Token {
        auth::require(&app, &headers, Role::Viewer).await?;
    }
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render()).into_response())
}
