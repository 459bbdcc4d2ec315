//! What operators do over HTTP: each request of `admin.rs` at its path, for who has a token that may.

use axum::Json;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::problem::Problem;
use super::{App, Ways, auth, body};
use crate::admin::{
    self, AddDevice, AddToken, AdminError, Asker, CloseIncarnation, Desk, FenceIncarnation, GetRecord,
    ListAsides, ListDevices, ListRecords, ListTokens, Method, RenewEpoch, RevokeDevice, RevokeToken,
    RotateDevice, ShowDevice, ShowEpoch, ShowHeads,
};

/// Bytes of an order at most.
const BODY_MAX: usize = 16 << 10;

/// The ways of the admin API.
pub(super) fn add(ways: Ways) -> Ways {
    let ways = with::<AddDevice>(with::<ListDevices>(ways));
    let ways = with::<RevokeDevice>(with::<ShowDevice>(ways));
    let ways = with::<FenceIncarnation>(with::<RotateDevice>(ways));
    let ways = with::<ListRecords>(with::<CloseIncarnation>(ways));
    let ways = with::<GetRecord>(with::<ListAsides>(ways));
    let ways = with::<ListTokens>(with::<AddToken>(ways));
    let ways = with::<RevokeToken>(with::<ShowHeads>(ways));
    with::<RenewEpoch>(with::<ShowEpoch>(ways))
}

fn with<R: admin::Request>(ways: Ways) -> Ways {
    ways.with(R::METHOD, R::PATH, answer::<R>)
}

async fn answer<R: admin::Request>(
    State(app): State<App>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, content) = request.into_parts();
    let body = body::read(&app, content, BODY_MAX).await;
    let token = auth::require(&app, &parts.headers, R::NEEDS).await?;
    let path = path.map_err(|error| Problem::bad_request(error.body_text()))?;
    let request: R = read::<R>(&path, query.as_deref(), &body?)?;
    let desk = Desk { store: app.store.clone(), kinds: app.kinds.clone(), now_ms: app.now_ms() };
    let asker = Asker { role: token.role, tenant: token.tenant };
    let asked = admin::ask(&desk, &asker, request);
    let answered = tokio::time::timeout(app.settings.limits.store_timeout, asked).await;
    Ok(Json(answered.map_err(|_| Problem::store_unavailable())??).into_response())
}

/// Puts a request together from its path, and from its query or body.
fn read<R: admin::Request>(path: &RawPathParams, query: Option<&str>, body: &[u8]) -> Result<R, Problem> {
    let mut fields = match (R::METHOD, body.is_empty()) {
        (Method::Post, false) => serde_json::from_slice::<Map<String, Value>>(body)
            .map_err(|error| Problem::bad_request(format!("the body is no JSON object: {error}")))?,
        _ => Map::new(),
    };
    if R::METHOD == Method::Get {
        let pairs = query.map(url_pairs).transpose()?.unwrap_or_default();
        fields.extend(pairs.into_iter().map(|(name, text)| {
            // The only numbers that travel in a query; everything else is text.
            let number =
                matches!(name.as_str(), "limit" | "shard").then(|| text.parse::<u32>().ok()).flatten();
            (name, number.map_or(Value::String(text), Value::from))
        }));
    }
    for (name, text) in path {
        let number = (name == "id").then(|| text.parse::<i64>().ok()).flatten();
        fields.insert(name.to_owned(), number.map_or_else(|| Value::from(text), Value::from));
    }
    serde_json::from_value(Value::Object(fields)).map_err(|error| Problem::bad_request(error.to_string()))
}

fn url_pairs(query: &str) -> Result<Vec<(String, String)>, Problem> {
    let parsed = format!("http://receiver.invalid/?{query}").parse::<axum::http::Uri>();
    let parsed =
        parsed.map_err(|error| Problem::bad_request(format!("the query cannot be read: {error}")))?;
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parsed);
    pairs.map(|pairs| pairs.0).map_err(|error| Problem::bad_request(error.to_string()))
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let sentence = error.to_string();
        match error {
            AdminError::Invalid(_) => Self::bad_request(sentence),
            AdminError::Forbidden(_) => Self::forbidden(sentence),
            AdminError::NotFound(_) => Self::not_found(sentence),
            AdminError::Refused(_) => Self::new(
                StatusCode::CONFLICT,
                "refused",
                "Things are not as they would have to be",
                sentence,
            ),
            AdminError::Unavailable(_) => Self::store_unavailable(),
            AdminError::Damaged(_) => {
                tracing::error!(error = sentence, "the store holds what cannot be");
                Self::internal()
            }
        }
    }
}
