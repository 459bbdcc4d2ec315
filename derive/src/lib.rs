//! Derives `EncodedSize`, `Record` and `Schema` for the pillarbox crate, which re-exports them beside the traits of
//! the same names: use them from there.

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

mod kind;
mod schema;
mod serde_attributes;
mod serde_names;
mod size;

/// Derives `pillarbox::EncodedSize`: the largest number of bytes that postcard needs for any value of the
/// type.
///
/// It follows serde's derive: fields under `#[serde(skip)]` or `#[serde(skip_serializing)]` are not counted,
/// and attributes under which the size would be wrong or postcard could not decode its own output are build
/// errors. Derive `Serialize` beside it: a `Serialize` written by hand may encode something else.
#[proc_macro_derive(EncodedSize)]
pub fn encoded_size(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    size::derive(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Derives `pillarbox::Record` from `#[record(kind = ...)]`, a number below 65536 or a constant of type
/// `u16`.
///
/// The type needs `serde::Serialize` and `EncodedSize` too:
/// `#[derive(Serialize, EncodedSize, Record)]`.
#[proc_macro_derive(Record, attributes(record))]
pub fn record(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    kind::derive(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Derives `pillarbox::Schema`: what the bytes of a record mean, for those who read them without having the type.
///
/// It follows serde's derive as `EncodedSize` does, and has the names that serde gives to fields and variants:
/// `rename` and `rename_all` included.
///
/// Without the feature `schema` of the pillarbox crate it derives nothing, so it may stand on a record of a firmware,
/// where it costs nothing.
#[proc_macro_derive(Schema)]
pub fn schema(input: TokenStream) -> TokenStream {
    if !cfg!(feature = "schema") {
        return TokenStream::new();
    }
    let input = parse_macro_input!(input as DeriveInput);
    schema::derive(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}
