//! `#[derive(EncodedSize)]`: adds up fields, and takes the largest of variants, as serde hands them to
//! postcard.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Data, DataEnum, DeriveInput, Error, Fields, Generics, Ident, Result, Type, TypeParamBound, parse_quote,
};

use crate::serde_attributes::{Presence, presence};

pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    presence(&input.attrs)?;
    let (max, encoded) = match &input.data {
        Data::Struct(data) => {
            let types = encoded_types(&data.fields)?;
            (sum(&types), types)
        }
        Data::Enum(data) => largest_variant(data)?,
        Data::Union(data) => {
            return Err(Error::new(
                data.union_token.span,
                "a union has no EncodedSize: serde cannot encode it, for nothing says which field is in use",
            ));
        }
    };
    let name = &input.ident;
    let generics = bounded(input.generics.clone(), &encoded, &parse_quote!(::pillarbox::EncodedSize));
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::pillarbox::EncodedSize for #name #ty_generics #where_clause {
            const MAX: usize = #max;
        }
    })
}

/// The expression for the largest variant, and the types in all of them.
fn largest_variant(data: &DataEnum) -> Result<(TokenStream, Vec<&Type>)> {
    let mut encoded = Vec::new();
    let mut sizes = Vec::new();
    let mut skipped = None;
    for (index, variant) in data.variants.iter().enumerate() {
        match presence(&variant.attrs)? {
            Presence::Encoded => {}
            Presence::NotEncoded => continue,
            Presence::Skipped => {
                skipped = Some(variant);
                continue;
            }
        }
        // Serde's Serialize counts skipped variants and its Deserialize does not: behind one, variants change
        // places.
        if let Some(skipped) = skipped {
            return Err(Error::new_spanned(
                skipped,
                "serde cannot decode the variants behind a skipped one: move the skipped variant to the end",
            ));
        }
        let types = encoded_types(&variant.fields)?;
        let index = varint_size(index);
        let fields = sum(&types);
        sizes.push(quote!(#index + #fields));
        encoded.extend(types);
    }
    let largest = quote!({
        let largest = 0usize;
        #(
            let variant = #sizes;
            let largest = if variant > largest { variant } else { largest };
        )*
        largest
    });
    Ok((largest, encoded))
}

fn encoded_types(fields: &Fields) -> Result<Vec<&Type>> {
    let mut types = Vec::new();
    for field in fields {
        if presence(&field.attrs)? == Presence::Encoded {
            types.push(&field.ty);
        }
    }
    Ok(types)
}

fn sum(types: &[&Type]) -> TokenStream {
    // The type's own span lets the compiler point at the field when its size is not known.
    let sizes = types.iter().map(|ty| quote_spanned!(ty.span()=> <#ty as ::pillarbox::EncodedSize>::MAX));
    quote!(0usize #(+ #sizes)*)
}

fn varint_size(index: usize) -> usize {
    let mut bytes = 1;
    let mut rest = index >> 7;
    while rest > 0 {
        bytes += 1;
        rest >>= 7;
    }
    bytes
}

/// Requires a trait of the type parameters that are encoded. Like serde, not of those that only mark a type
/// (`PhantomData<Unit>`), which need no size and often are empty.
pub(crate) fn bounded(mut generics: Generics, encoded: &[&Type], required: &TypeParamBound) -> Generics {
    for parameter in generics.type_params_mut() {
        let is_encoded =
            encoded.iter().any(|ty| !is_phantom(ty) && mentions(ty.to_token_stream(), &parameter.ident));
        if is_encoded {
            parameter.bounds.push(required.clone());
        }
    }
    generics
}

fn is_phantom(ty: &Type) -> bool {
    matches!(ty, Type::Path(ty) if ty.path.segments.last().is_some_and(|last| last.ident == "PhantomData"))
}

fn mentions(tokens: TokenStream, parameter: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *parameter,
        TokenTree::Group(group) => mentions(group.stream(), parameter),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}
