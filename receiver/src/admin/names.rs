//! Names and numbers as they are written in commands, paths and answers: one text for each, refused with a sentence.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::store::Position;

/// An incarnation in eight hexadecimal digits, as keys show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IncarnationName(pub u32);

impl fmt::Display for IncarnationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for IncarnationName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_hex = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or_else(|| {
            format!("{text:?} is no incarnation: it has eight hexadecimal digits, such as 9f3c1a77, and `device show` names it")
        })
    }
}

/// A place in the log, written `shard-number`: as one number it would not survive every JSON reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Place(pub Position);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.shard(), self.0.n())
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('-').and_then(|(shard, n)| {
            let (shard, n): (u16, u64) = (shard.parse().ok()?, n.parse().ok()?);
            let position = Position::new(shard, n);
            ((position.shard(), position.n()) == (shard, n)).then_some(position)
        });
        parsed
            .map(Self)
            .ok_or_else(|| format!("{text:?} is no place in the log: it reads shard-number, such as 3-1200"))
    }
}

/// A device's secret as text: 64 hexadecimal digits. It is never shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretText(pub [u8; 32]);

impl SecretText {
    /// A random one.
    pub fn random() -> Result<Self, String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| format!("the system gives no random numbers: {error}"))?;
        Ok(Self(bytes))
    }

    /// For its owner.
    pub fn reveal(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

impl FromStr for SecretText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 32];
        // The text is not repeated: most of it may be the secret.
        hex::decode_to_slice(text.trim(), &mut bytes)
            .map_err(|_| "a secret has 64 hexadecimal digits, and nothing else".to_owned())?;
        Ok(Self(bytes))
    }
}

/// The name of a tenant: 1 to 64 of `A-Z a-z 0-9 _ . -`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

impl Tenant {
    /// Whose everything is that nobody claims.
    pub const DEFAULT: &'static str = "default";

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Tenant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(is_allowed) {
            return Ok(Self(text.into()));
        }
        Err(format!("{text:?} is no tenant's name: it has 1 to 64 letters, digits, '_', '.' and '-'"))
    }
}

/// Texts that serde reads as strings and that are checked on the way.
macro_rules! as_text {
    ($($name:ty),+) => {$(
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )+};
    (display $($name:ty),+) => {$(
        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.to_string()
            }
        }
    )+};
}

as_text!(IncarnationName, Place, SecretText, Tenant);
as_text!(display IncarnationName, Place, Tenant);

impl From<SecretText> for String {
    fn from(secret: SecretText) -> Self {
        secret.reveal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_text() {
        assert_eq!("9f3c1a77".parse::<IncarnationName>().unwrap().to_string(), "9f3c1a77");
        assert_eq!("0000000a".parse::<IncarnationName>().unwrap().0, 10);
        for wrong in ["", "a", "9f3c1a7", "9f3c1a777", "+f3c1a77", "9f3c1a7g"] {
            assert!(wrong.parse::<IncarnationName>().is_err(), "{wrong}");
        }
        let place = Place(Position::new(3, 1200));
        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "3", "3-", "-3", "70000-1", "1-999999999999999999"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
        for wrong in ["", "a b", "ü", &"x".repeat(65)] {
            assert!(wrong.parse::<Tenant>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_not_in_what_is_printed_for_debugging_or_in_errors() {
        let secret = SecretText([0xab; 32]);
        assert!(!format!("{secret:?}").contains("abab"));
        let almost = &secret.reveal()[1..];
        assert!(!almost.parse::<SecretText>().unwrap_err().contains("abab"));
    }
}
