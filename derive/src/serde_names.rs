//! The names that serde gives to fields and variants: whoever reads a record as JSON, by its schema or because a device
//! sent it so, is to find the same ones.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, Ident, LitStr, Result, Token, parenthesized};

/// What the serde attributes of a type, a variant or a field say about names.
#[derive(Default)]
pub(crate) struct Names {
    rename: Option<String>,
    /// Of the fields of this struct or variant, or of the variants of this enum.
    pub(crate) rename_all: Option<Case>,
    /// Of the fields of every variant of this enum.
    pub(crate) rename_all_fields: Option<Case>,
    /// A struct of one field that stands for that field.
    pub(crate) is_transparent: bool,
}

impl Names {
    /// Reads them. What else serde's attributes may say was found to be right before.
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut names = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| {
                let value = written_name(&meta)?;
                let case = || value.as_ref().map(|(name, span)| Case::new(name, *span)).transpose();
                if meta.path.is_ident("rename") {
                    names.rename = value.map(|(name, _)| name);
                } else if meta.path.is_ident("rename_all") {
                    names.rename_all = case()?;
                } else if meta.path.is_ident("rename_all_fields") {
                    names.rename_all_fields = case()?;
                } else if meta.path.is_ident("transparent") {
                    names.is_transparent = true;
                }
                Ok(())
            })?;
        }
        Ok(names)
    }

    pub(crate) fn of_field(&self, ident: &Ident, all: Option<Case>) -> String {
        self.renamed_or(ident, all, Case::of_field)
    }

    pub(crate) fn of_variant(&self, ident: &Ident, all: Option<Case>) -> String {
        self.renamed_or(ident, all, Case::of_variant)
    }

    fn renamed_or(&self, ident: &Ident, all: Option<Case>, apply: fn(Case, &str) -> String) -> String {
        let name = ident.unraw().to_string();
        let in_case = || all.map(|case| apply(case, &name));
        self.rename.clone().or_else(in_case).unwrap_or(name)
    }
}

/// `rename = "name"`, or what `rename(serialize = "name", ..)` says for those who write.
fn written_name(meta: &ParseNestedMeta) -> Result<Option<(String, Span)>> {
    let mut name = None;
    if meta.input.peek(Token![=]) {
        let value: Expr = meta.value()?.parse()?;
        name = text(&value);
    } else if meta.input.peek(syn::token::Paren) {
        let content;
        parenthesized!(content in meta.input);
        while !content.is_empty() {
            let ident = content.call(Ident::parse_any)?;
            if content.peek(Token![=]) {
                content.parse::<Token![=]>()?;
                let value: Expr = content.parse()?;
                if ident == "serialize" {
                    name = text(&value);
                }
            }
            if !content.is_empty() {
                content.parse::<Token![,]>()?;
            }
        }
    }
    Ok(name)
}

fn text(value: &Expr) -> Option<(String, Span)> {
    let literal: LitStr = syn::parse2(quote::ToTokens::to_token_stream(value)).ok()?;
    Some((literal.value(), literal.span()))
}

/// A way to write a name of several words, by serde's name for it.
#[derive(Clone, Copy)]
pub(crate) enum Case {
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

impl Case {
    fn new(name: &str, span: Span) -> Result<Self> {
        Ok(match name {
            "lowercase" => Self::Lower,
            "UPPERCASE" => Self::Upper,
            "PascalCase" => Self::Pascal,
            "camelCase" => Self::Camel,
            "snake_case" => Self::Snake,
            "SCREAMING_SNAKE_CASE" => Self::ScreamingSnake,
            "kebab-case" => Self::Kebab,
            "SCREAMING-KEBAB-CASE" => Self::ScreamingKebab,
            _ => return Err(Error::new(span, "serde knows no such way to write names")),
        })
    }

    /// A field is written in snake case in Rust.
    fn of_field(self, name: &str) -> String {
        match self {
            Self::Lower | Self::Snake => name.to_owned(),
            Self::Upper | Self::ScreamingSnake => name.to_ascii_uppercase(),
            Self::Pascal => pascal(name),
            Self::Camel => first_lower(&pascal(name)),
            Self::Kebab => name.replace('_', "-"),
            Self::ScreamingKebab => name.to_ascii_uppercase().replace('_', "-"),
        }
    }

    /// A variant is written in Pascal case in Rust.
    fn of_variant(self, name: &str) -> String {
        match self {
            Self::Pascal => name.to_owned(),
            Self::Lower => name.to_ascii_lowercase(),
            Self::Upper => name.to_ascii_uppercase(),
            Self::Camel => first_lower(name),
            Self::Snake => snake(name),
            Self::ScreamingSnake => snake(name).to_ascii_uppercase(),
            Self::Kebab => snake(name).replace('_', "-"),
            Self::ScreamingKebab => snake(name).to_ascii_uppercase().replace('_', "-"),
        }
    }
}

fn pascal(field: &str) -> String {
    let word = |word: &str| {
        let mut rest = word.chars();
        rest.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(rest).collect::<String>()
    };
    field.split('_').map(word).collect()
}

fn first_lower(name: &str) -> String {
    let mut rest = name.chars();
    rest.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(rest).collect()
}

fn snake(variant: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in variant.char_indices() {
        if at > 0 && letter.is_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
