//! The `Idempotency-Key` of a request, as draft-ietf-httpapi-idempotency-key-header-07 writes it: a quoted string of a structured
//! field, and nothing else.

use axum::http::{HeaderMap, HeaderName, StatusCode};
use sfv::{BareItem, Item, Parser};

use super::problem::Problem;

/// Its name.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Characters of a key, at most.
pub(crate) const KEY_MAX: usize = 255;

const FORM: &str =
    "send one header like this, quotes included: Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\"";

/// The key of a request.
pub(crate) fn parse(headers: &HeaderMap) -> Result<String, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let value = values.next().ok_or_else(missing)?;
    if values.next().is_some() {
        return Err(malformed("there is more than one"));
    }
    let item: Item =
        Parser::new(value.as_bytes()).parse().map_err(|_| malformed("it is no quoted string"))?;
    if !item.params.is_empty() {
        return Err(malformed("it has parameters"));
    }
    let BareItem::String(key) = item.bare_item else { return Err(malformed("it is no quoted string")) };
    match key.as_str().len() {
        1..=KEY_MAX => Ok(key.as_str().to_owned()),
        0 => Err(malformed("it is empty")),
        _ => Err(malformed("it has more than 255 characters")),
    }
}

fn missing() -> Problem {
    let title = "This operation needs an Idempotency-Key";
    Problem::new(StatusCode::BAD_REQUEST, "key-missing", title, FORM)
}

fn malformed(why: &'static str) -> Problem {
    let title = "The Idempotency-Key cannot be read";
    Problem::new(StatusCode::BAD_REQUEST, "key-malformed", title, format!("{why}; {FORM}"))
}
