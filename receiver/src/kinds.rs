//! What records are: a kinds file gives each kind its name and its schema, so that people and consumers read JSON
//! where there are bytes. What is not in it stays as it is, in hex and base64: nothing is hidden because it is unknown.
//!
//! The application writes the file itself (`pillarbox::schema::KindsFile`):
//!
//! ```toml
//! [[kind]]
//! number = 7
//! name = "reading"
//! schema = '''
//! {
//!     meter: String,
//!     watt_hours: u64,
//!     tamper: Option<enum { CoverOpen, Magnet { millitesla: u16 } }>,
//! }
//! '''
//! ```
//!
//! A body becomes the JSON that serde_json would have written for the record, but that a number beyond 64 bits is text.
//! NaN and the infinities are null, as with serde_json: JSON has no such numbers.
//!
//! Neither a body nor a kinds file is trusted: how deep a schema is and how many values a body becomes is bounded. That is
//! also why bodies are not read with postcard-dyn, which allocates as much as a length in the body says, refuses NaN and
//! does not tell what is left over. The tests compare with postcard itself.

mod decode;
mod fit;
mod grammar;
mod shape;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};

use shape::Shape;

/// A kinds file with more bytes than this is none.
const FILE_BYTES_MAX: usize = 1 << 20;

/// A kind's name has at most so many bytes.
const NAME_BYTES_MAX: usize = 64;

/// Every kind of which something is known. The default knows none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kinds {
    by_number: BTreeMap<u16, Kind>,
}

#[derive(Clone, Debug, PartialEq)]
struct Kind {
    name: String,
    schema: Option<Shape>,
}

/// What a body says.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// What the record holds.
    Json(Value),
    /// There is no schema for this kind.
    Unknown,
    /// There is a schema, and the body is not one of its: the reason.
    Unreadable(String),
}

/// Why there are no kinds: a file that cannot be read, or what to change in it.
#[derive(Debug, thiserror::Error)]
pub enum KindsError {
    /// The file could not be read.
    #[error("the kinds file {} cannot be read: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("the kinds file {} cannot be used: {source}", path.display())]
    In {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: Box<KindsError>,
    },
    /// It is too large, or no text.
    #[error("{0}")]
    Text(String),
    /// It is not TOML, or not the TOML of a kinds file.
    #[error(
        "it does not read as a kinds file, which has a [[kind]] with number, name and schema for each kind.\n{0}"
    )]
    Toml(String),
    /// Something about one kind is wrong.
    #[error("the kind {which} {wrong}")]
    Kind {
        /// Its name and number.
        which: String,
        /// What is wrong, and what to do.
        wrong: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    kind: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    number: i64,
    name: String,
    schema: Option<String>,
}

impl Kinds {
    /// Reads a kinds file.
    pub fn load(path: &Path) -> Result<Self, KindsError> {
        let unread = |source| KindsError::File { path: path.into(), source };
        let file = std::fs::File::open(path).map_err(unread)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| KindsError::Text("it is not a text file: it has bytes that are no UTF-8.".into()));
        text.and_then(|text| Self::parse(&text))
            .map_err(|source| KindsError::In { path: path.into(), source: source.into() })
    }

    /// Reads the text of a kinds file.
    pub fn parse(text: &str) -> Result<Self, KindsError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(KindsError::Text(format!(
                "it is longer than {FILE_BYTES_MAX} bytes, which no kinds file is."
            )));
        }
        let file: File = toml::from_str(text).map_err(|error| KindsError::Toml(error.to_string()))?;
        let mut kinds = Self::default();
        for entry in file.kind {
            kinds.add(entry)?;
        }
        Ok(kinds)
    }

    fn add(&mut self, entry: Entry) -> Result<(), KindsError> {
        let Entry { number, name, schema } = entry;
        let which = format!("{name:?} (number {number})");
        let refused = |wrong: String| KindsError::Kind { which: which.clone(), wrong };
        let number = u16::try_from(number)
            .map_err(|_| refused("has a number that is none: kinds are numbered from 0 to 65535.".into()))?;
        check_name(&name).map_err(refused)?;
        if let Some(other) = self.by_number.get(&number) {
            let wrong = format!(
                "has the number of the kind {:?}: a number stands for one encoding, so give one of them another.",
                other.name
            );
            return Err(refused(wrong));
        }
        if let Some(other) = self.number(&name) {
            return Err(refused(format!("has the name of kind {other}: give one of them another.")));
        }
        let schema = schema
            .map(|text| grammar::parse(&text))
            .transpose()
            .map_err(|wrong| refused(format!("has a schema that cannot be used. {wrong}")))?;
        self.by_number.insert(number, Kind { name, schema });
        Ok(())
    }

    /// What a kind is called.
    pub fn name(&self, kind: u16) -> Option<&str> {
        self.by_number.get(&kind).map(|kind| kind.name.as_str())
    }

    /// Which kind is meant: a name, or a number, of which nothing need be known.
    pub fn number(&self, name_or_number: &str) -> Option<u16> {
        if is_number(name_or_number) {
            return name_or_number.parse().ok();
        }
        self.iter().find(|(_, name)| *name == name_or_number).map(|(number, _)| number)
    }

    /// Every kind that has a name, by its number.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &str)> {
        self.by_number.iter().map(|(number, kind)| (*number, kind.name.as_str()))
    }

    /// What a body says.
    pub fn decode(&self, kind: u16, body: &[u8]) -> Decoded {
        match self.schema(kind) {
            None => Decoded::Unknown,
            Some(shape) => match decode::decode(shape, body) {
                Ok(value) => Decoded::Json(value),
                Err(why) => Decoded::Unreadable(why),
            },
        }
    }

    /// Whether a body is what its kind's schema says. Without a schema, every body is.
    pub fn is_readable(&self, kind: u16, body: &[u8]) -> bool {
        self.schema(kind).is_none_or(|shape| decode::decode(shape, body).is_ok())
    }

    /// Whether JSON is what this kind's schema says, and if not, why. Without a schema, everything is.
    pub fn check_json(&self, kind: u16, value: &Value) -> Result<(), String> {
        self.schema(kind).map_or(Ok(()), |shape| fit::check(shape, value))
    }

    /// A record's kind and body as far as they can be read: `{"kind":7,"name":"reading","data":{..}}` if there is a schema that fits, else
    /// `{"kind":9,"hex":"..","base64":".."}`. Where the body does not fit, `unreadable` says why.
    pub fn show(&self, kind: u16, body: &[u8]) -> Value {
        let mut shown = Map::new();
        shown.insert("kind".into(), kind.into());
        if let Some(name) = self.name(kind) {
            shown.insert("name".into(), name.into());
        }
        let why = match self.decode(kind, body) {
            Decoded::Json(data) => {
                shown.insert("data".into(), data);
                return Value::Object(shown);
            }
            Decoded::Unknown => None,
            Decoded::Unreadable(why) => Some(why),
        };
        shown.insert("hex".into(), hex::encode(body).into());
        shown.insert("base64".into(), STANDARD.encode(body).into());
        if let Some(why) = why {
            shown.insert("unreadable".into(), why.into());
        }
        Value::Object(shown)
    }

    fn schema(&self, kind: u16) -> Option<&Shape> {
        self.by_number.get(&kind)?.schema.as_ref()
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A name is shown in tables and typed in commands, where a number may stand for it.
fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("needs a name of 1 to {NAME_BYTES_MAX} bytes."));
    }
    if !name.chars().all(is_allowed) {
        return Err("has a name that is hard to type: use letters, digits, '_', '-' and '.'.".into());
    }
    if is_number(name) {
        return Err("has a number for a name, which would be taken for a kind's number: add a letter.".into());
    }
    Ok(())
}
