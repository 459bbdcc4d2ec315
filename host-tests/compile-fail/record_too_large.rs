//! Must not build: this record's largest encoding is larger than the outbox's RECORD size
//! Builds with the feature `large_enough`, which shows that it fails for the right reason.

use pillarbox::{EncodedSize, Record, assert_fits};
use serde::Serialize;

const RECORD: usize = if cfg!(feature = "large_enough") { 17 } else { 16 };

#[derive(Serialize, EncodedSize, Record)]
#[record(kind = 1)]
struct Reading {
    meter: heapless::String<12>,
    celsius: f32,
}

fn enqueue<R: Record, const RECORD: usize>(_record: &R) {
    const { assert_fits::<R, RECORD>() }
}

fn main() {
    let reading = Reading {
        meter: heapless::String::new(),
        celsius: 21.5,
    };
    enqueue::<_, RECORD>(&reading);
}
