//! Which program is speaking, and what it may do: bearer tokens, of which the store has only hashes.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use super::App;
use super::problem::Problem;
use crate::store::{Role, TokenRow};

/// What every token begins with, so that one that leaked can be found and told from others.
const PREFIX: &str = "pbx_";
/// Random bytes of a token.
const RANDOM_LEN: usize = 32;

/// A new token, to be shown once. It is as long as a hash and random throughout, so a plain hash of it is safe to keep.
pub fn new_token() -> Result<String, getrandom::Error> {
    let mut random = [0; RANDOM_LEN];
    getrandom::fill(&mut random)?;
    Ok(format!("{PREFIX}{}", hex::encode(random)))
}

/// What the store keeps of a token.
pub fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The token of a request, if it has one that looks like one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_start_matches(' ');
    let digits = token.strip_prefix(PREFIX)?;
    let is_token = digits.len() == 2 * RANDOM_LEN && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

/// Whether who has one role may do what asks for another. An admin may do everything; others only their own.
fn may(has: Role, wanted: Role) -> bool {
    has == wanted || has == Role::Admin
}

/// The token of a request that may do this. The store is asked every time: a revoked token is worthless at once.
pub async fn require(app: &App, headers: &HeaderMap, role: Role) -> Result<TokenRow, Problem> {
    let token = bearer(headers).ok_or_else(Problem::no_token)?;
    let row = app.ask("token", app.store.token(hash(token))).await?;
    let row = row.filter(|row| row.revoked_ms.is_none()).ok_or_else(Problem::no_token)?;
    if !may(row.role, role) {
        return Err(Problem::forbidden("the token is good, but not for this"));
    }
    Ok(row)
}
