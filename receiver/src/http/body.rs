//! Bodies of requests: how long they may be and may take, and what they say that they are.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use bytes::BytesMut;
use http_body_util::BodyExt;

use super::App;
use super::problem::Problem;

/// So much of a body that is too long is read all the same: who has not sent all of it yet does not look for the answer.
const DISCARDED_MAX: usize = 1 << 20;

/// Reads a body, with a limit on its length and on the time that it takes.
pub(crate) async fn read(app: &App, body: Body, limit: usize) -> Result<Bytes, Problem> {
    let limits = &app.settings.limits;
    tokio::time::timeout(limits.body_timeout, read_all(body, limit)).await.unwrap_or_else(|_| {
        let title = "The body took too long";
        let detail = format!("a body has to be there within {} s", limits.body_timeout.as_secs_f32());
        Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", title, detail))
    })
}

async fn read_all(mut body: Body, limit: usize) -> Result<Bytes, Problem> {
    let mut kept = BytesMut::new();
    let mut len = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Problem::bad_request("the body broke off, or is not what HTTP allows"))?;
        let Ok(data) = frame.into_data() else { continue };
        len = len.saturating_add(data.len());
        if len <= limit {
            kept.extend_from_slice(&data);
        } else if len > limit.saturating_add(DISCARDED_MAX) {
            break;
        }
    }
    if len > limit { Err(Problem::too_large(limit)) } else { Ok(kept.freeze()) }
}

/// What a body says that it is, without parameters and in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let essence = value.to_str().ok()?.split(';').next()?.trim();
    Some(essence.to_ascii_lowercase())
}
