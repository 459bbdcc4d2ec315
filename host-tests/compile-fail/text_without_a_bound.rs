//! Must not build: the largest encoding of `str` is not known

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
struct Reading<'a> {
    meter: &'a str,
}

fn main() {}
