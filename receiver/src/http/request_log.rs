//! A name for every request, in its answer and in all that is logged about it. What is logged holds no header and no body: there
//! are secrets in them.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Characters of a name that somebody else gave.
const ID_MAX: usize = 64;

/// The name that a proxy gave, if it is one that can be logged; else a new one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=ID_MAX).contains(&id.len()) && id.bytes().all(is_known)
    };
    match given.filter(is_plain) {
        Some(id) => id.to_owned(),
        None => format!("{:016x}", getrandom::u64().unwrap_or_default()),
    }
}

/// Names a request and logs what became of it.
pub(crate) async fn log(request: Request, next: Next) -> Response {
    let id = request_id(&request);
    // The route, not the path: what a client makes up does not get into the log.
    let route =
        request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let span = tracing::info_span!("request", id, method = %request.method(), route);
    let since = Instant::now();
    let mut response = next.run(request).instrument(span.clone()).await;
    span.in_scope(|| said(response.status(), since));
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn said(status: StatusCode, since: Instant) {
    let (status, ms) = (status.as_u16(), since.elapsed().as_millis() as u64);
    match status {
        500.. => tracing::warn!(status, ms, "answered"),
        400.. => tracing::info!(status, ms, "answered"),
        _ => tracing::debug!(status, ms, "answered"),
    }
}
