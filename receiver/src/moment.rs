//! A moment and a span of time as people and programs read them: RFC 3339 in UTC, and "3 min ago".

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The receiver's clock, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    // A clock before 1970 is not set; what comes then is shown as it is.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A moment, in milliseconds since 1970. Its text is RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moment(pub u64);

impl Moment {
    /// To the second, and how long ago that is: what tables show.
    pub fn with_ago(self, now_ms: u64) -> String {
        format!("{} ({})", self.to_the_second(), self.ago(now_ms))
    }

    /// To the second: who reads a table does not read milliseconds.
    pub fn to_the_second(self) -> String {
        Self(self.0 / 1000 * 1000).to_string()
    }

    /// How long ago it is, or how far ahead.
    pub fn ago(self, now_ms: u64) -> String {
        match now_ms.checked_sub(self.0) {
            Some(ms) if ms < 1000 => "just now".into(),
            Some(ms) => format!("{} ago", Span(ms)),
            None => format!("in {}", Span(self.0.saturating_sub(now_ms))),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = i64::try_from(self.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        match moment {
            Some(moment) => moment.fmt(f),
            // A device's clock may say anything.
            None => write!(f, "{} ms after 1970", self.0),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no time: write it as 2026-03-01 or 2026-03-01T12:30:00Z");
        if let Some(number) = text.strip_suffix(" ms after 1970") {
            return number.parse().map(Self).map_err(|_| wrong());
        }
        // A day alone is its first moment.
        let is_day = text.len() == 10 && !text.contains('T');
        let full = if is_day { format!("{text}T00:00:00Z") } else { text.to_owned() };
        let moment: jiff::Timestamp = full.parse().map_err(|_| wrong())?;
        u64::try_from(moment.as_millisecond()).map(Self).map_err(|_| wrong())
    }
}

impl TryFrom<String> for Moment {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.to_string()
    }
}

/// A span of time in milliseconds, shown in the largest unit that it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub u64);

/// Milliseconds of a unit, its name in a table, and the letter that is written after a number.
const UNITS: [(u64, &str, &str); 5] =
    [(86_400_000, "d", "d"), (3_600_000, "h", "h"), (60_000, "min", "m"), (1000, "s", "s"), (1, "ms", "ms")];

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name, _) = UNITS.into_iter().find(|(unit, ..)| self.0 >= *unit).unwrap_or((1, "ms", "ms"));
        // Two days and an hour are 49 h: a number below two says too little.
        let (unit, name) = match name {
            "d" if self.0 < 2 * unit => (3_600_000, "h"),
            "h" if self.0 < 2 * unit => (60_000, "min"),
            _ => (unit, name),
        };
        write!(f, "{} {name}", self.0 / unit)
    }
}

impl Span {
    /// The text that [`FromStr`] takes: `7d`, not `168h`.
    pub fn written(self) -> String {
        let unit = UNITS.into_iter().find(|(unit, ..)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        unit.map_or_else(|| "0s".into(), |(unit, _, letter)| format!("{}{letter}", self.0 / unit))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no span of time: write a number and its unit, such as 7d, 36h, 30m or 90s")
        };
        let end = text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, letter) = text.split_at(end);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let (unit, ..) = UNITS.into_iter().find(|(.., name)| *name == letter).ok_or_else(wrong)?;
        number.checked_mul(unit).map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_reads_as_it_is_written() {
        let moment = Moment(1_772_368_200_123);
        assert_eq!(moment.to_string(), "2026-03-01T12:30:00.123Z");
        assert_eq!(moment.to_string().parse(), Ok(moment));
        assert_eq!("2026-03-01".parse(), Ok(Moment(1_772_323_200_000)));
        assert_eq!("2026-03-01T13:30:00.123+01:00".parse(), Ok(moment));
        assert_eq!(Moment(u64::MAX).to_string().parse(), Ok(Moment(u64::MAX)));
        assert!("yesterday".parse::<Moment>().is_err());
        assert_eq!(moment.to_the_second(), "2026-03-01T12:30:00Z");
    }

    #[test]
    fn spans_are_shown_in_a_unit_that_says_something() {
        let shown = [0, 999, 1000, 59_999, 60_000, 119_000, 3_600_000, 7_200_000, 86_400_000, 172_800_000];
        let texts = shown.map(|ms| Span(ms).to_string());
        assert_eq!(
            texts,
            ["0 ms", "999 ms", "1 s", "59 s", "1 min", "1 min", "60 min", "2 h", "24 h", "2 d"]
        );
        for text in ["7d", "36h", "30m", "90s", "5ms"] {
            assert_eq!(text.parse::<Span>().unwrap().written(), text);
        }
        for text in ["7", "d", "", "7 d", "-1d", "1w", "99999999999999999999d", "9999999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
