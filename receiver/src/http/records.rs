//! Ordinary clients' way in: a record each, under a key that makes it safe to ask again.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::Instrument;

use super::problem::Problem;
use super::request_hash::{Content, request_hash};
use super::{App, auth, body, client_key};
use crate::metrics::ClientOutcome;
use crate::serve::ReuseStatus;
use crate::store::{Claim, Claimed, Posting, Role};

/// Keys are for this operation, whatever the kind: the kind is part of the payload.
const OPERATION: &str = "POST /v1/records";
/// What is taken.
const ACCEPTED: &str = "application/json, application/octet-stream";
const RETENTION: HeaderName = HeaderName::from_static("idempotency-key-retention");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// How often a request looks whether another one with its key is done.
const POLL: Duration = Duration::from_millis(50);
/// Others with the key are usually done sooner than their lease is over.
const IN_PROGRESS_RETRY_MAX_S: u64 = 5;

/// Takes one record.
pub(crate) async fn post(
    State(app): State<App>,
    kind: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let (outcome, mut response) = match posted(&app, kind, request).await {
        Ok(answer) => (answer.outcome(), answer.into_response()),
        Err(problem) => (outcome_of(&problem), problem.into_response()),
    };
    app.metrics.client_request(outcome);
    let retention = HeaderValue::from(app.settings.key_retention.as_secs());
    response.headers_mut().insert(RETENTION, retention);
    response
}

fn outcome_of(problem: &Problem) -> ClientOutcome {
    match problem.name {
        "key-reused" => ClientOutcome::KeyReused,
        "in-progress" => ClientOutcome::InProgress,
        "invalid-record" => ClientOutcome::Invalid,
        "store-unavailable" | "internal" => ClientOutcome::Unavailable,
        _ => ClientOutcome::Refused,
    }
}

/// A request that is in order in itself: what follows depends on its key alone.
struct Wanted {
    tenant: String,
    key: String,
    kind: u16,
    content: Content,
    body: Bytes,
}

async fn posted(
    app: &App,
    kind: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Answer, Problem> {
    let (parts, content) = request.into_parts();
    let content = body::read(app, content, app.settings.limits.record_max).await;
    let wanted = wanted(app, kind, &parts.headers, content).await?;
    // A task of its own: a client that hangs up leaves no key behind that is in progress until its lease ends.
    let app = app.clone();
    let work = async move { once(&app, wanted).await };
    tokio::spawn(work.in_current_span()).await.unwrap_or_else(|_| Err(Problem::internal()))
}

/// All that can be said against a request without its key: none of it occupies the key.
async fn wanted(
    app: &App,
    kind: Result<Path<String>, PathRejection>,
    headers: &HeaderMap,
    content: Result<Bytes, Problem>,
) -> Result<Wanted, Problem> {
    let token = auth::require(app, headers, Role::Client).await?;
    let no_tenant = || Problem::forbidden("the token is for no tenant; records need a token that is for one");
    let tenant = token.tenant.ok_or_else(no_tenant)?;
    let key = client_key::parse(headers)?;
    let Path(name) = kind?;
    let kind = app.kinds.number(&name).ok_or_else(|| {
        let detail = format!(
            "there is no kind {name:?}; a kind is named as the receiver's kinds are, or by its number"
        );
        Problem::new(StatusCode::NOT_FOUND, "unknown-kind", "The kind is not known", detail)
    })?;
    let media_type = body::media_type(headers).unwrap_or_default();
    if !ACCEPTED.split(", ").any(|accepted| accepted == media_type) {
        return Err(Problem::wrong_content_type(ACCEPTED));
    }
    let body = content?;
    let content = read_content(app, kind, &media_type, &body).map_err(|why| {
        let title = "The record is not what its kind wants";
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-record", title, why)
    })?;
    Ok(Wanted { tenant, key, kind, content, body })
}

fn read_content(app: &App, kind: u16, media_type: &str, body: &[u8]) -> Result<Content, String> {
    if media_type == "application/json" {
        let value = serde_json::from_slice(body).map_err(|error| format!("this is no JSON: {error}"))?;
        app.kinds.check_json(kind, &value)?;
        return Ok(Content::Json(value));
    }
    match app.kinds.is_readable(kind, body) {
        true => Ok(Content::Raw),
        false => Err(format!("the bytes do not fit the schema of kind {kind}")),
    }
}

/// Takes the key, and does what is asked for or finds that it was done.
async fn once(app: &App, wanted: Wanted) -> Result<Answer, Problem> {
    let holder = getrandom::u64().map_err(|error| {
        tracing::error!(%error, "there are no random numbers");
        Problem::internal()
    })?;
    let hash = request_hash(OPERATION, wanted.kind, &wanted.content, &wanted.body);
    let wait_until = Instant::now() + app.settings.limits.key_wait;
    loop {
        let claim = new_claim(app, &wanted, hash, holder);
        let claimed = match app.ask("claim", app.store.claim(claim.clone())).await {
            Ok(claimed) => claimed,
            Err(error) => {
                // It may have been taken all the same.
                give_back(app, claim);
                return Err(error.into());
            }
        };
        match claimed {
            Claimed::Ours => return complete(app, wanted, claim).await,
            Claimed::Completed { status, body } => return replay(status, body),
            Claimed::Reused => return Err(reused(app.settings.reuse_status)),
            Claimed::InProgress { lease_until_ms } if Instant::now() >= wait_until => {
                return Err(in_progress(lease_until_ms.saturating_sub(claim.now_ms)));
            }
            Claimed::InProgress { .. } => tokio::time::sleep(POLL).await,
        }
    }
}

fn new_claim(app: &App, wanted: &Wanted, hash: [u8; 32], holder: u64) -> Claim {
    let (now_ms, settings) = (app.now_ms(), &app.settings);
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Claim {
        tenant: wanted.tenant.clone(),
        operation: OPERATION.to_owned(),
        key: wanted.key.clone(),
        hash,
        holder,
        now_ms,
        lease_until_ms: now_ms.saturating_add(ms(settings.limits.key_lease)),
        expired_before_ms: now_ms.saturating_sub(ms(settings.key_retention)),
    }
}

/// Stores the record and the answer at once. If that fails the key is given back: the next request with it starts anew. If the
/// store did it all the same, giving back finds the key completed and changes nothing.
async fn complete(app: &App, wanted: Wanted, claim: Claim) -> Result<Answer, Problem> {
    let answer = written(&wanted, claim.now_ms)?;
    let posting = Posting {
        claim: claim.clone(),
        kind: wanted.kind,
        content_type: wanted.content.media_type().to_owned(),
        body: wanted.body.to_vec(),
        status: StatusCode::CREATED.as_u16(),
        answer: answer.clone(),
    };
    match app.ask("complete", app.store.complete(posting)).await {
        Ok(Some(_)) => Ok(Answer { status: StatusCode::CREATED, body: answer, is_replay: false }),
        Ok(None) => Err(in_progress(0)),
        Err(error) => {
            tracing::error!(%error, "a client's record was not stored");
            give_back(app, claim);
            Err(Problem::store_unavailable())
        }
    }
}

/// Makes a key free whose request failed. Nobody waits for it: a store that does not answer has let the client wait long enough.
fn give_back(app: &App, claim: Claim) {
    let app = app.clone();
    let work = async move {
        if let Err(error) = app.ask("give_back", app.store.give_back(claim)).await {
            tracing::warn!(%error, "a key could not be given back; it is free when its lease ends");
        }
    };
    tokio::spawn(work.in_current_span());
}

fn written(wanted: &Wanted, now_ms: u64) -> Result<Vec<u8>, Problem> {
    let now = i64::try_from(now_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let received_at = now.ok_or_else(Problem::internal)?.to_string();
    let answer = serde_json::json!({ "kind": wanted.kind, "key": wanted.key, "received_at": received_at });
    Ok(answer.to_string().into_bytes())
}

fn replay(status: u16, body: Vec<u8>) -> Result<Answer, Problem> {
    let status = StatusCode::from_u16(status).map_err(|_| {
        tracing::error!(status, "the store holds an answer with a status that there is not");
        Problem::internal()
    })?;
    Ok(Answer { status, body, is_replay: true })
}

fn reused(status: ReuseStatus) -> Problem {
    let status = match status {
        ReuseStatus::Conflict => StatusCode::CONFLICT,
        ReuseStatus::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let detail = "the key came with another payload before; a new request needs a new key";
    Problem::new(status, "key-reused", "The key is taken", detail)
}

fn in_progress(lease_ms: u64) -> Problem {
    let detail = "a request with this key is under way; ask again with the same key";
    let seconds = lease_ms.div_ceil(1000).clamp(1, IN_PROGRESS_RETRY_MAX_S) as u32;
    Problem::new(StatusCode::CONFLICT, "in-progress", "The key is in use", detail).retry_after(seconds)
}

/// What a client is told now and whenever it asks again.
struct Answer {
    status: StatusCode,
    body: Vec<u8>,
    is_replay: bool,
}

impl Answer {
    fn outcome(&self) -> ClientOutcome {
        if self.is_replay { ClientOutcome::Replayed } else { ClientOutcome::Stored }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.is_replay {
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}
