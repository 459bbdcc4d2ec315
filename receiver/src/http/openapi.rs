//! The description of this API, for programs that read such things. A test has it checked against the running receiver.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

/// OpenAPI.
pub const DOCUMENT: &str = include_str!("../../openapi.json");

/// Gives it.
pub(crate) async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT)
}
