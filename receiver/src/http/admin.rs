//! What operators do over HTTP: each request of `admin.rs` at its path, for who has a token that may.

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Map, Value};

use super::problem::Problem;
use super::{App, auth, body};
use crate::admin::{
    self, AddDevice, AddToken, AdminError, Asker, CloseIncarnation, Desk, FenceIncarnation, GetRecord,
    ListAsides, ListDevices, ListRecords, ListTokens, Method, RenewEpoch, Request, RevokeDevice, RevokeToken,
    RotateDevice, ShowDevice, ShowEpoch, ShowHeads,
};

/// No request has a longer body.
const BODY_MAX: usize = 16_384;

/// The routes of the admin API.
pub fn routes() -> Router<App> {
    let router = Router::new();
    let router = route::<AddDevice>(route::<ListDevices>(router));
    let router = route::<RevokeDevice>(route::<ShowDevice>(router));
    let router = route::<FenceIncarnation>(route::<RotateDevice>(router));
    let router = route::<ListRecords>(route::<CloseIncarnation>(router));
    let router = route::<GetRecord>(route::<ListAsides>(router));
    let router = route::<ListTokens>(route::<AddToken>(router));
    let router = route::<RevokeToken>(route::<ShowHeads>(router));
    route::<RenewEpoch>(route::<ShowEpoch>(router))
}

fn route<R: Request>(router: Router<App>) -> Router<App> {
    let method = match R::METHOD {
        Method::Get => get(answer::<R>),
        Method::Post => post(answer::<R>),
        Method::Delete => delete(answer::<R>),
    };
    router.route(R::PATH, method)
}

async fn answer<R: Request>(
    State(app): State<App>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let token = auth::require(&app, &headers, R::NEEDS).await?;
    let body = body::read(&app, body, BODY_MAX).await?;
    let path = path.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let request: R = read::<R>(&path, query.as_deref(), &body)?;
    let desk = Desk { store: app.store.clone(), kinds: app.kinds.clone(), now_ms: app.now_ms() };
    let asker = Asker { role: token.role, tenant: token.tenant };
    let answer = admin::ask(&desk, &asker, request).await?;
    Ok(Json(answer).into_response())
}

/// Puts a request together from its path, and from its query or body.
fn read<R: Request>(path: &RawPathParams, query: Option<&str>, body: &[u8]) -> Result<R, Problem> {
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
