//! Must not build: #[serde(skip_serializing_if)] does not work in a record: postcard finds fields by

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
struct Reading {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    celsius: Option<f32>,
}

fn main() {}
