//! Must not build: #[serde(flatten)] does not work in a record: it makes the struct a map of unknown length

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
struct Place {
    metres: u16,
}

#[derive(Serialize, EncodedSize)]
struct Reading {
    #[serde(rename = "p", flatten)]
    place: Place,
}

fn main() {}
