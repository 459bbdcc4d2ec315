//! Must not build: #[serde(untagged)] does not work in a record: postcard cannot decode it

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
#[serde(untagged)]
enum Reading {
    Celsius(f32),
    Fahrenheit(f32),
}

fn main() {}
