//! `#[derive(Schema)]`: says which fields and variants serde hands to postcard, in which order and under which names.
//!
//! postcard-schema has a derive of its own, but that takes skipped fields for encoded ones, and then every field behind
//! one is read as something that it is not.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DataEnum, DeriveInput, Error, Field, Fields, Result, Type, Variant, parse_quote};

use crate::serde_attributes::{Presence, presence};
use crate::serde_names::{Case, Names};
use crate::size::bounded;

pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    presence(&input.attrs)?;
    let names = Names::read(&input.attrs)?;
    let mut types = Vec::new();
    let shape = match &input.data {
        Data::Struct(data) => structure(&data.fields, &names, &mut types)?,
        Data::Enum(data) => enumeration(data, &names, &mut types)?,
        Data::Union(data) => {
            return Err(Error::new(
                data.union_token.span,
                "a union has no Schema: serde cannot encode it, for nothing says which field is in use",
            ));
        }
    };
    let name = &input.ident;
    let text = name.to_string();
    let generics = bounded(input.generics.clone(), &types, &parse_quote!(::pillarbox::Schema));
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::pillarbox::Schema for #name #ty_generics #where_clause {
            const SCHEMA: &'static ::pillarbox::schema::NamedType = &::pillarbox::schema::NamedType {
                name: #text,
                ty: &::pillarbox::schema::DataModelType::#shape,
            };
        }
    })
}

fn structure<'a>(fields: &'a Fields, names: &Names, types: &mut Vec<&'a Type>) -> Result<TokenStream> {
    let encoded = encoded(fields, types)?;
    Ok(match (fields, encoded.as_slice()) {
        (Fields::Unit, _) => quote!(UnitStruct),
        (_, [only]) if names.is_transparent || (fields.len() == 1 && only.ident.is_none()) => {
            let ty = schema_of(&only.ty);
            quote!(NewtypeStruct(#ty))
        }
        (Fields::Named(_), _) => {
            let fields = named(&encoded, names.rename_all)?;
            quote!(Struct(&[#(#fields),*]))
        }
        (Fields::Unnamed(_), _) => {
            let types = encoded.iter().map(|field| schema_of(&field.ty));
            quote!(TupleStruct(&[#(#types),*]))
        }
    })
}

fn enumeration<'a>(data: &'a DataEnum, names: &Names, types: &mut Vec<&'a Type>) -> Result<TokenStream> {
    let mut variants = Vec::new();
    for variant in &data.variants {
        let own = Names::read(&variant.attrs)?;
        let name = own.of_variant(&variant.ident, names.rename_all);
        let shape = match presence(&variant.attrs)? {
            Presence::Encoded => variant_shape(variant, own.rename_all.or(names.rename_all_fields), types)?,
            // It is never written, but its number is counted.
            Presence::NotEncoded => quote!(UnitVariant),
            // Stands at the end, as `EncodedSize` sees to.
            Presence::Skipped => continue,
        };
        variants.push(quote! {
            &::pillarbox::schema::NamedVariant {
                name: #name,
                ty: &::pillarbox::schema::DataModelVariant::#shape,
            }
        });
    }
    Ok(quote!(Enum(&[#(#variants),*])))
}

fn variant_shape<'a>(
    variant: &'a Variant,
    all: Option<Case>,
    types: &mut Vec<&'a Type>,
) -> Result<TokenStream> {
    let encoded = encoded(&variant.fields, types)?;
    Ok(match (&variant.fields, encoded.as_slice()) {
        (Fields::Unit, _) => quote!(UnitVariant),
        (Fields::Named(_), _) => {
            let fields = named(&encoded, all)?;
            quote!(StructVariant(&[#(#fields),*]))
        }
        (Fields::Unnamed(all), []) if all.unnamed.len() == 1 => quote!(UnitVariant),
        (Fields::Unnamed(all), [only]) if all.unnamed.len() == 1 => {
            let ty = schema_of(&only.ty);
            quote!(NewtypeVariant(#ty))
        }
        (Fields::Unnamed(_), _) => {
            let types = encoded.iter().map(|field| schema_of(&field.ty));
            quote!(TupleVariant(&[#(#types),*]))
        }
    })
}

/// The fields that serde hands to postcard.
fn encoded<'a>(fields: &'a Fields, types: &mut Vec<&'a Type>) -> Result<Vec<&'a Field>> {
    let mut encoded = Vec::new();
    for field in fields {
        if presence(&field.attrs)? == Presence::Encoded {
            types.push(&field.ty);
            encoded.push(field);
        }
    }
    Ok(encoded)
}

fn named(fields: &[&Field], all: Option<Case>) -> Result<Vec<TokenStream>> {
    let mut named = Vec::new();
    for field in fields {
        let ident =
            field.ident.as_ref().ok_or_else(|| Error::new_spanned(field, "this field has no name"))?;
        let name = Names::read(&field.attrs)?.of_field(ident, all);
        let ty = schema_of(&field.ty);
        named.push(quote!(&::pillarbox::schema::NamedValue { name: #name, ty: #ty }));
    }
    Ok(named)
}

fn schema_of(ty: &Type) -> TokenStream {
    // The type's own span lets the compiler point at the field that has no schema.
    quote_spanned!(ty.span()=> <#ty as ::pillarbox::Schema>::SCHEMA)
}
