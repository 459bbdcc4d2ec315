//! Must not build: a kind stands for one encoding, and a type parameter makes several

use pillarbox::{EncodedSize, Record};
use serde::Serialize;

#[derive(Serialize, EncodedSize, Record)]
#[record(kind = 1)]
struct Reading<T> {
    value: T,
}

fn main() {}
