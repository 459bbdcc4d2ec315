//! Must not build: #[serde(serialize_with)] does not work in a record: the encoding, and so the size

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
struct Reading {
    #[serde(serialize_with = "as_text")]
    celsius: f32,
}

fn as_text<S: serde::Serializer>(_celsius: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("21.5")
}

fn main() {}
