//! Must not build: add #[record(kind = ...)], a number that is unique in this firmware

use pillarbox::{EncodedSize, Record};
use serde::Serialize;

#[derive(Serialize, EncodedSize, Record)]
struct Reading {
    celsius: f32,
}

fn main() {}
