//! Must not build: #[serde(skip_deserializing)] does not work in a record: it would be encoded

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
struct Reading {
    #[serde(skip_deserializing)]
    celsius: f32,
}

fn main() {}
