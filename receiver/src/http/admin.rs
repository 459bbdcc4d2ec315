//! What operators do over HTTP. A stand-in until it is there.

use axum::Router;

use super::App;

/// The routes of the admin API.
pub fn routes() -> Router<App> {
    Router::new()
}
