//! What two requests must have in common to be the same request: what is asked for and with which content, not how it was
//! written down or carried.

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

use crate::exact_json::is_exact;

/// What a client posted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// A JSON document, and how it was written.
    Json(Value),
    /// Bytes that only their kind can explain.
    Raw,
}

impl Content {
    /// Its media type.
    pub(crate) fn media_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json",
            Self::Raw => "application/octet-stream",
        }
    }
}

/// The hash of a request for this route and kind. In JSON neither spaces nor the order of members count, and a number counts as what
/// it stands for: an integer of 64 bits, however it was written, else a double. Where that is not all that was written, how it was
/// written counts too: two records that are not the same must not pass for one.
pub(crate) fn request_hash(route: &str, kind: u16, content: &Content, body: &[u8]) -> [u8; 32] {
    let mut canonical = Vec::new();
    let written: &[u8] = match content {
        Content::Json(value) => {
            write(value, &mut canonical);
            if is_exact(value, body) { &[] } else { body }
        }
        Content::Raw => body,
    };
    let mut hash = Sha256::new();
    for part in [route.as_bytes(), &kind.to_be_bytes(), content.media_type().as_bytes(), &canonical, written]
    {
        // Lengths in front, so that no two lists of parts look alike.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Writes a document in one way only. Its depth is bounded by the parser that read it.
fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Array(items) => {
            out.push(b'[');
            for item in items {
                write(item, out);
                out.push(b',');
            }
            out.push(b']');
        }
        Value::Object(members) => {
            // Sorted here, whatever order the map keeps.
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            out.push(b'{');
            for (name, member) in members {
                out.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
                out.push(b':');
                write(member, out);
                out.push(b',');
            }
            out.push(b'}');
        }
        Value::Number(number) => out.extend_from_slice(plain(number).to_string().as_bytes()),
        scalar => out.extend_from_slice(scalar.to_string().as_bytes()),
    }
}

/// An integer is one, however it was written: `1.0` and `1e0` are `1`, and `-0` is `0`.
fn plain(number: &Number) -> Number {
    let Some(double) = number.as_f64().filter(|double| number.is_f64() && double.fract() == 0.0) else {
        return number.clone();
    };
    // Both bounds are powers of two, so a double has them exactly.
    const U64_END: f64 = 18_446_744_073_709_551_616.0;
    const I64_MIN: f64 = -9_223_372_036_854_775_808.0;
    if (0.0..U64_END).contains(&double) {
        return (double as u64).into();
    }
    if (I64_MIN..0.0).contains(&double) { (double as i64).into() } else { number.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(json: &str) -> [u8; 32] {
        request_hash("r", 1, &Content::Json(serde_json::from_str(json).unwrap()), json.as_bytes())
    }

    #[test]
    fn only_what_json_means_counts() {
        assert_eq!(
            hash(r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#),
            hash(r#"{ "b": {"d":"\u0078","c":[1, 2]}, "a": 1 }"#)
        );
        for other in [
            r#"{"a":2}"#,
            r#"{"a":"1"}"#,
            r#"{"a":[1]}"#,
            r#"{"a":1.5}"#,
            r#"{"b":1}"#,
            "{}",
            "[]",
            r#"["a",1]"#,
        ] {
            assert_ne!(hash(r#"{"a":1}"#), hash(other), "{other}");
        }
        assert_ne!(hash(r#"[["a"],"b"]"#), hash(r#"[["a","b"]]"#));
        assert_ne!(hash(r#"{"a,b":1}"#), hash(r#"{"a":1,"b":1}"#));
    }

    #[test]
    fn a_number_is_what_it_stands_for() {
        for same in [
            ["1", "1.0"],
            ["100", "1e2"],
            ["0", "-0.0"],
            ["-5", "-50e-1"],
            ["0.5", "5E-1"],
            ["10000000000000000000", "1e19"],
            ["100000000000000000000", "1e20"],
            ["-9223372036854775808", "-9223372036854775808.0"],
        ] {
            assert_eq!(hash(same[0]), hash(same[1]), "{same:?}");
        }
        for [one, other] in [
            ["1", "1.5"],
            ["1", "-1"],
            ["18446744073709551615", "18446744073709551616"],
            ["18446744073709551616", "18446744073709551617"],
            ["0.1", "0.10000000000000000000001"],
            [r#"{"a":1,"a":2}"#, r#"{"a":2}"#],
        ] {
            assert_ne!(hash(one), hash(other), "{one} {other}");
        }
    }

    #[test]
    fn route_kind_and_content_type_count() {
        let raw = request_hash("r", 1, &Content::Raw, b"1");
        assert_eq!(raw, request_hash("r", 1, &Content::Raw, b"1"));
        assert_ne!(raw, request_hash("s", 1, &Content::Raw, b"1"));
        assert_ne!(raw, request_hash("r", 2, &Content::Raw, b"1"));
        assert_ne!(raw, hash("1"));
    }
}
