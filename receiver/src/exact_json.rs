//! Whether a JSON document says no more than what it was read as. A number may have more digits than a double holds, and a name
//! may come twice: then two documents that are read alike are not the same, and the text has to stand beside what was read.

use serde_json::{Number, Value};

/// Whether `value` is all that `text`, of which it was read, says.
pub(crate) fn is_exact(value: &Value, text: &[u8]) -> bool {
    let mut named = 0;
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = match first {
            b'"' => behind_string(behind),
            b'-' | b'0'..=b'9' => {
                let len = rest.iter().take_while(|byte| is_of_number(**byte)).count();
                let (number, behind) = rest.split_at(len);
                if !is_held(number) {
                    return false;
                }
                behind
            }
            _ => {
                named += u64::from(*first == b':');
                behind
            }
        };
    }
    named == members(value)
}

fn behind_string(mut text: &[u8]) -> &[u8] {
    loop {
        text = match text {
            [b'"', behind @ ..] => return behind,
            [b'\\', _, behind @ ..] | [_, behind @ ..] => behind,
            [] => return text,
        };
    }
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
}

/// Whether a number is read as the number that is written.
fn is_held(number: &[u8]) -> bool {
    let Ok(written) = std::str::from_utf8(number) else { return false };
    let Ok(read) = serde_json::from_str::<Number>(written) else { return false };
    let Some(written) = Decimal::of(written).map(Some) else { return false };
    match read.as_f64().filter(|_| read.is_f64()) {
        // The shortest text that is read as this double, as a number of at most 15 digits is; or an integer that it is.
        Some(double) => {
            written == Decimal::of(&format!("{double:e}"))
                || (double.fract() == 0.0 && written == Decimal::of(&format!("{double:.0}")))
        }
        None => written == Decimal::of(&read.to_string()),
    }
}

/// A number in its one form: digits that neither begin nor end with 0, and the power of ten behind them.
#[derive(PartialEq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn of(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let is_negative = whole.starts_with('-');
        let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
        let significant = digits.trim_end_matches('0');
        let dropped = i64::try_from(digits.len() - significant.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let digits = significant.trim_start_matches('0').to_owned();
        match digits.is_empty() {
            true => Some(Self { is_negative: false, digits, exponent: 0 }),
            false => Some(Self { is_negative, digits, exponent: exponent.checked_add(dropped)? }),
        }
    }
}

fn members(value: &Value) -> u64 {
    match value {
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Object(object) => object.values().map(|member| 1 + members(member)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_exact_text(text: &str) -> bool {
        is_exact(&serde_json::from_str(text).unwrap(), text.as_bytes())
    }

    #[test]
    fn what_is_read_as_it_is_written_is_exact() {
        for text in [
            "0",
            "-0",
            "-0.0",
            "1.10",
            "0.1",
            "1e2",
            "1E+2",
            "5e-324",
            "18446744073709551615",
            "-9223372036854775808",
            "100000000000000000000",
            "18446744073709551616",
            "123456789012345.6",
            r#"{"a":1,"b":{"c":[1,2.50,{"d":":\"12345678901234567890123\\"}]},"a:":"\\"}"#,
        ] {
            assert!(is_exact_text(text), "{text}");
        }
    }

    #[test]
    fn more_digits_than_are_held_and_names_that_come_twice_are_not() {
        for text in [
            "18446744073709551617",
            "0.10000000000000000000001",
            "1e-400",
            "1e-99999999999999999999",
            r#"[1,{"a":0.1234567890123456789}]"#,
            r#"{"a":1,"a":2}"#,
            r#"{"b":[{"a":1,"a":1}]}"#,
        ] {
            assert!(!is_exact_text(text), "{text}");
        }
    }
}
