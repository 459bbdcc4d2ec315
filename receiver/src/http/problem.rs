//! What went wrong, in a form that programs and people can read: problem+json, RFC 9457.

use std::borrow::Cow;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::store::StoreError;

/// The content type of a problem.
pub const CONTENT_TYPE_PROBLEM: &str = "application/problem+json";

/// What went wrong. Its body holds nothing that its reader did not know or may not know.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// Its type is `urn:pillarbox:problem:<name>`.
    pub name: &'static str,
    /// What problems of this type have in common, in words.
    pub title: &'static str,
    /// What is to be said about this one.
    pub detail: Cow<'static, str>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// A problem of this type.
    pub fn new(
        status: StatusCode,
        name: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, name, title, detail: detail.into(), headers: Vec::new() }
    }

    /// The same, and when to try again.
    pub fn retry_after(self, seconds: u32) -> Self {
        self.header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// The same, with a header.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// A request that makes no sense.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be understood", detail)
    }

    /// Nobody known: the same words whatever was wrong.
    pub fn unauthorized() -> Self {
        let detail = "the request carries nothing that proves who sent it, or something that is not valid";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "Not authenticated", detail)
    }

    /// Nobody known, where a token would have helped.
    pub fn no_token() -> Self {
        Self::unauthorized().header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"pillarbox\""))
    }

    /// Somebody who may not do this.
    pub fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    /// Something that is not there.
    pub fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    /// The store cannot be reached.
    pub fn store_unavailable() -> Self {
        let detail = "nothing was changed that could not be asked for again; try again with the same keys";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The store is not available", detail)
            .retry_after(super::STORE_RETRY_AFTER_S)
    }

    fn unsupported_media_type(detail: impl Into<Cow<'static, str>>) -> Self {
        let title = "The content type is not one that is taken here";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", title, detail)
    }

    /// A body of another type than those.
    pub fn wrong_content_type(accepted: &'static str) -> Self {
        Self::unsupported_media_type(format!("what is taken here: {accepted}"))
            .header(HeaderName::from_static("accept-post"), HeaderValue::from_static(accepted))
    }

    /// A body that is too long.
    pub fn too_large(limit: usize) -> Self {
        let title = "The body is too long";
        let detail = format!("a body may have {limit} bytes at most");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", title, detail)
    }

    /// The receiver's own fault.
    pub fn internal() -> Self {
        let detail = "the receiver's log has the reason, with this answer's request id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "The receiver has a fault", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::json!({
            "type": format!("urn:pillarbox:problem:{}", self.name),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE_PROBLEM));
        headers.extend(self.headers);
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(reason) => {
                tracing::warn!(reason, "the store is not available");
                Self::store_unavailable()
            }
            StoreError::NotFound(detail) => Self::not_found(detail),
            StoreError::Refused(detail) => {
                Self::new(StatusCode::CONFLICT, "refused", "It is not as it would have to be", detail)
            }
            StoreError::Damaged(reason) => {
                tracing::error!(reason, "the store is damaged");
                Self::internal()
            }
        }
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        match rejection.status() {
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::wrong_content_type("application/json"),
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The body is too long",
                rejection.body_text(),
            ),
            _ => Self::bad_request(rejection.body_text()),
        }
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}
