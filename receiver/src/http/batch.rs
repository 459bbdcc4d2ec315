//! The devices' way in: who is speaking, what it says, and an answer that only the receiver can have made.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use pillarbox::DeviceId;
use pillarbox::wire::{
    ANSWER_CONTENT_TYPE, BATCH_CONTENT_TYPE, Batch, ENVELOPE_MAX, Secret, TAG_LEN, TagKeys, WireError,
};
use tracing::Instrument;

use super::problem::Problem;
use super::{App, STORE_RETRY_AFTER_S, body};
use crate::intake::{AnswerTo, Concluded, Post, SecretPrint, SecretUsed};
use crate::store::{Door, StoreError};

/// Nobody's secret. What is checked with it is refused whatever comes out: it is there so that refusing takes the same work.
const NOBODY: Secret = Secret::new([0; 32]);

/// How often a batch is proved: a secret may take the place of another one between the door and the store.
const PROOFS_MAX: usize = 2;

/// Takes a batch.
pub(crate) async fn post(State(app): State<App>, request: Request) -> Response {
    let response = taken(&app, request).await.unwrap_or_else(Problem::into_response);
    app.metrics.batch(response.status());
    response
}

async fn taken(app: &App, request: Request) -> Result<Response, Problem> {
    let (parts, content) = request.into_parts();
    let envelope = body::read(app, content, ENVELOPE_MAX).await;
    if body::media_type(&parts.headers).as_deref() != Some(BATCH_CONTENT_TYPE) {
        return Err(Problem::wrong_content_type(BATCH_CONTENT_TYPE));
    }
    let envelope = envelope?;
    let device = Batch::device(&envelope).map_err(not_a_batch)?;
    // A task of its own: a device that hangs up does not break off what the store is doing for it, and it is counted.
    let app = app.clone();
    let work = async move { deliver(&app, &device, &envelope).await };
    tokio::spawn(work.in_current_span()).await.unwrap_or_else(|_| Err(Problem::internal()))
}

/// SPEC.md wants the reason in words.
fn not_a_batch(error: WireError) -> Problem {
    let title = "This is no batch of a version that this receiver knows";
    Problem::new(StatusCode::BAD_REQUEST, "not-a-batch", title, error.to_string())
}

async fn deliver(app: &App, device: &DeviceId, envelope: &Bytes) -> Result<Response, Problem> {
    for _ in 0..PROOFS_MAX {
        let door = app.ask("door", app.store.door(device)).await.map_err(before_the_door)?;
        let Some(proof) = prove(door, envelope) else { break };
        let post = Post::decode(envelope, &app.kinds, app.now_ms(), proof.with).map_err(not_a_batch)?;
        let post = Arc::new(post);
        match app.ask("take", app.store.take(proof.device, Arc::clone(&post))).await {
            // Revoked meanwhile, or another secret by now: the door knows.
            Err(StoreError::NotFound(_)) => {}
            Ok(concluded) => {
                note(app, device, &concluded);
                return answer(app, &proof, &post, &concluded, None);
            }
            Err(error) => return nothing(app, device, &proof, &post, &error),
        }
    }
    Err(Problem::unauthorized())
}

/// Whoever is not let in yet learns only that it should come again.
fn before_the_door(error: StoreError) -> Problem {
    match error {
        StoreError::NotFound(_) => Problem::unauthorized(),
        StoreError::Unavailable(_) => error.into(),
        StoreError::Refused(reason) | StoreError::Damaged(reason) => {
            tracing::error!(reason, "a device cannot be looked up");
            Problem::internal()
        }
    }
}

/// A batch whose tag is right.
struct Proof {
    device: i64,
    keys: TagKeys,
    tag: [u8; TAG_LEN],
    with: SecretUsed,
}

/// Whether the batch comes from the device. To be unknown, to be revoked and to have the wrong secret look the same, and take about
/// the same work: keys, and two tags.
fn prove(door: Option<Door>, envelope: &[u8]) -> Option<Proof> {
    let (is_let_in, device, keys, next) = match door {
        Some(door) => (!door.is_revoked, door.id, door.keys, door.next),
        None => (false, 0, TagKeys::new(&NOBODY), None),
    };
    if let (Some(tag), true) = (keys.verify_batch(envelope), is_let_in) {
        return Some(Proof { device, keys, tag, with: SecretUsed::Current });
    }
    let (is_let_in, (keys, print)) = match next {
        Some(next) => (is_let_in, next),
        None => (false, (keys, SecretPrint::default())),
    };
    let tag = keys.verify_batch(envelope)?;
    is_let_in.then_some(Proof { device, keys, tag, with: SecretUsed::Next(print) })
}

/// Counts what became of a batch, and says so where somebody should look.
fn note(app: &App, device: &DeviceId, concluded: &Concluded) {
    app.metrics.concluded(concluded);
    if concluded.is_stale {
        tracing::warn!(%device, "a batch of a boot that is over: a clone, or a flash that was rolled back");
    } else if concluded.is_renew {
        tracing::warn!(%device, "a key came with two contents; both are kept");
    }
}

fn answer(
    app: &App,
    proof: &Proof,
    post: &Post,
    concluded: &Concluded,
    retry_after_s: Option<u32>,
) -> Result<Response, Problem> {
    let epoch = app.store.epoch();
    let to = AnswerTo { keys: &proof.keys, tag: &proof.tag, now_ms: post.now_ms, epoch, retry_after_s };
    let answer = concluded.answer(&to).map_err(|error| {
        tracing::error!(%error, "an answer cannot be written down");
        Problem::internal()
    })?;
    Ok(([(CONTENT_TYPE, ANSWER_CONTENT_TYPE)], answer).into_response())
}

/// The answer of a store that did not take it: the device knows that it was heard, keeps everything, and comes again.
fn nothing(
    app: &App,
    device: &DeviceId,
    proof: &Proof,
    post: &Post,
    error: &StoreError,
) -> Result<Response, Problem> {
    let status = match error {
        StoreError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    tracing::error!(%device, %error, "a batch was not taken");
    let mut response = answer(app, proof, post, &Concluded::nothing(post), Some(STORE_RETRY_AFTER_S))?;
    *response.status_mut() = status;
    response.headers_mut().insert(RETRY_AFTER, STORE_RETRY_AFTER_S.into());
    Ok(response)
}
