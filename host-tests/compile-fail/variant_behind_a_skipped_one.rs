//! Must not build: serde cannot decode the variants behind a skipped one: move the skipped variant to the end

use pillarbox::EncodedSize;
use serde::Serialize;

#[derive(Serialize, EncodedSize)]
enum Alarm {
    Overload,
    #[serde(skip)]
    Internal,
    Tamper,
}

fn main() {}
