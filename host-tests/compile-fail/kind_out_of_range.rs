//! Must not build: a kind is a whole number from 0 to 65535

use pillarbox::{EncodedSize, Record};
use serde::Serialize;

#[derive(Serialize, EncodedSize, Record)]
#[record(kind = 65536)]
struct Reading {
    celsius: f32,
}

fn main() {}
