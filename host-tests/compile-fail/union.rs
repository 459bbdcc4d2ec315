//! Must not build: a union has no EncodedSize: serde cannot encode it, for nothing says which field is in use

use pillarbox::EncodedSize;

#[derive(EncodedSize)]
union Reading {
    celsius: f32,
    raw: u32,
}

fn main() {}
