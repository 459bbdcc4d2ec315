//! `#[derive(Record)]`: gives a type its kind number.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Data, DeriveInput, Error, Expr, ExprLit, Lit, Result};

const MISSING: &str =
    "this record has no kind: add #[record(kind = ...)], a number that is unique in this firmware";
const RANGE: &str = "a kind is a whole number from 0 to 65535";

pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    if let Data::Union(union) = &input.data {
        return Err(Error::new(union.union_token.span, "a union cannot be a record: serde cannot encode it"));
    }
    if let Some(parameter) = input.generics.type_params().next() {
        return Err(Error::new_spanned(
            parameter,
            "a kind stands for one encoding, and a type parameter makes several: \
             derive Record for a concrete type, for example a struct that holds this one",
        ));
    }
    let kind = kind(input)?;
    let name = &input.ident;
    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::pillarbox::Record for #name #ty_generics #where_clause {
            const KIND: ::pillarbox::Kind = ::pillarbox::Kind::new(#kind);
        }
    })
}

fn kind(input: &DeriveInput) -> Result<TokenStream> {
    let mut kind = None;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("record")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("kind") {
                return Err(meta.error("the record attribute knows only `kind`: #[record(kind = ...)]"));
            }
            let value = number(meta.value()?.parse()?)?;
            match kind.replace(value) {
                None => Ok(()),
                Some(_) => Err(meta.error("this record has two kinds: keep one")),
            }
        })?;
    }
    kind.ok_or_else(|| Error::new(input.ident.span(), MISSING))
}

/// Literals are checked here, for a better message than the compiler's; a constant is left to the compiler.
fn number(value: Expr) -> Result<TokenStream> {
    match &value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => match number.base10_parse::<u16>() {
            Ok(number) => Ok(number.into_token_stream()),
            Err(_) => Err(Error::new_spanned(value, RANGE)),
        },
        Expr::Lit(_) | Expr::Unary(_) => Err(Error::new_spanned(value, RANGE)),
        _ => Ok(value.into_token_stream()),
    }
}
