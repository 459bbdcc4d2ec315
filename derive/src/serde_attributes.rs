//! What serde's attributes do to an encoding: most do nothing, `skip` leaves a field out, and some make a
//! size wrong or an encoding that postcard cannot read back. Those are refused, and so is every attribute we
//! do not know.

use proc_macro2::TokenStream;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Expr, Result, Token, parenthesized};

/// Whether serde encodes a field or a variant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Encoded,
    /// `skip_serializing`: left out of the encoding; the reader, if there is one, is another type.
    NotEncoded,
    /// `skip`: left out of the encoding and not expected by the reader.
    Skipped,
}

/// Names and messages are not encoded, defaults and conversions at the reader's end do not change the
/// encoding, and postcard writes a struct of one field like that field.
const HARMLESS: [&str; 15] = [
    "alias",
    "borrow",
    "bound",
    "crate",
    "default",
    "deny_unknown_fields",
    "deserialize_with",
    "expecting",
    "from",
    "other",
    "rename",
    "rename_all",
    "rename_all_fields",
    "transparent",
    "try_from",
];

/// Reads the serde attributes of a type, a variant or a field.
pub(crate) fn presence(attributes: &[Attribute]) -> Result<Presence> {
    let mut is_written = true;
    let mut not_read = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            if matches!(name.as_str(), "skip" | "skip_serializing") {
                is_written = false;
            }
            match name.as_str() {
                "skip" | "skip_deserializing" => not_read = Some(meta.error(refusal(&name))),
                "skip_serializing" => {}
                harmless if HARMLESS.contains(&harmless) => {}
                _ => return Err(meta.error(refusal(&name))),
            }
            pass_over_value(&meta)
        })?;
    }
    match (is_written, not_read) {
        (true, None) => Ok(Presence::Encoded),
        (true, Some(error)) => Err(error),
        (false, None) => Ok(Presence::NotEncoded),
        (false, Some(_)) => Ok(Presence::Skipped),
    }
}

fn refusal(name: &str) -> String {
    let reason = match name {
        "flatten" => "it makes the struct a map of unknown length, which postcard cannot encode",
        "skip_deserializing" => {
            "it would be encoded, but postcard finds fields by their position, \
             and the reader would take it for the next one; use `skip`"
        }
        "skip_serializing_if" => {
            "postcard finds fields by their position, so one that is sometimes left out cannot be decoded; \
             use an Option, whose None is one byte"
        }
        "tag" | "content" | "untagged" => {
            "postcard cannot decode it; leave it out, and the variant is encoded as a number"
        }
        "with" | "serialize_with" | "into" | "remote" | "getter" => {
            "the encoding, and so the size, is then that of another type; \
             write `impl EncodedSize` by hand, or give the field a type of its own that does"
        }
        _ => "EncodedSize does not know what it does to the encoding; write `impl EncodedSize` by hand",
    };
    format!("#[serde({name})] does not work in a record: {reason}")
}

/// Steps over `= value` or `(...)`, so that the next attribute in the list can be read.
fn pass_over_value(meta: &ParseNestedMeta) -> Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        let content;
        parenthesized!(content in meta.input);
        content.parse::<TokenStream>()?;
    }
    Ok(())
}
