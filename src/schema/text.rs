//! A kinds file as text. Schemas are written like Rust types, in one string each: the order of fields and variants is
//! their encoding, and the order of a TOML table means nothing.

use core::fmt::{self, Display, Formatter, Write};

use super::{DataModelType, DataModelVariant, Described, KindsFile, NamedType, NamedValue, NamedVariant};

/// A struct or an enum with no more leaves than this is written on one line.
const LEAVES_ON_A_LINE: usize = 3;

impl Display for KindsFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(
            "# What the records of an application are, by their kinds: for `pillarbox`, which shows them as JSON.\n\
             # Written by the application (pillarbox::schema::KindsFile). The order of fields and variants matters.\n",
        )?;
        self.0.iter().try_for_each(|kind| kind.fmt(f))
    }
}

impl Display for Described {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "\n[[kind]]\nnumber = {}\nname = \"", self.kind)?;
        match self.name {
            Some(name) => Escaped(name).fmt(f)?,
            None => snake(f, self.schema.name)?,
        }
        f.write_str("\"\nschema = '''\n")?;
        let mut text = Text { f, indent: 0 };
        text.whole(self.schema)?;
        f.write_str("\n'''\n")
    }
}

fn snake(f: &mut Formatter<'_>, name: &str) -> fmt::Result {
    let mut was_lower = false;
    for letter in name.chars() {
        if letter.is_uppercase() && was_lower {
            f.write_char('_')?;
        }
        was_lower = !letter.is_uppercase() && letter != '_';
        letter.to_lowercase().try_for_each(|letter| f.write_char(letter))?;
    }
    Ok(())
}

/// A name between quotation marks: nothing in it ends a string of TOML or of a schema.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' | '\'' => write!(f, "\\u{:04x}", u32::from(letter))?,
                _ if letter.is_control() => write!(f, "\\u{:04x}", u32::from(letter))?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// A name of a field or a variant.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_plain =
            self.0.chars().all(is_word) && !self.0.starts_with(|first: char| first.is_ascii_digit());
        if is_plain && !self.0.is_empty() {
            f.write_str(self.0)
        } else {
            write!(f, "\"{}\"", Escaped(self.0))
        }
    }
}

struct Text<'t, 'f> {
    f: &'t mut Formatter<'f>,
    indent: usize,
}

impl Text<'_, '_> {
    /// A record: its fields on a line each, however few.
    fn whole(&mut self, schema: &NamedType) -> fmt::Result {
        match schema.ty {
            DataModelType::Struct(fields) => self.fields(fields, false),
            DataModelType::Enum(variants) => self.variants(variants, false),
            _ => self.ty(schema),
        }
    }

    fn ty(&mut self, schema: &NamedType) -> fmt::Result {
        let is_short = leaves(schema) <= LEAVES_ON_A_LINE;
        match schema.ty {
            _ if is_ip(schema) => self.f.write_str(schema.name),
            DataModelType::Option(ty) => self.around("Option<", ty, ">"),
            DataModelType::Seq(ty) => self.around("Vec<", ty, ">"),
            DataModelType::NewtypeStruct(ty) => self.ty(ty),
            DataModelType::Map { key, val } => {
                self.around("Map<", key, ", ")?;
                self.around("", val, ">")
            }
            DataModelType::Tuple(types) | DataModelType::TupleStruct(types) => self.tuple(types),
            DataModelType::Struct(fields) => self.fields(fields, is_short),
            DataModelType::Enum(variants) => self.variants(variants, is_short),
            leaf => self.f.write_str(leaf_name(leaf)),
        }
    }

    fn around(&mut self, before: &str, ty: &NamedType, after: &str) -> fmt::Result {
        self.f.write_str(before)?;
        self.ty(ty)?;
        self.f.write_str(after)
    }

    fn tuple(&mut self, types: &[&NamedType]) -> fmt::Result {
        match types {
            [] => self.f.write_str("[(); 0]"),
            [first, others @ ..] if others.iter().all(|other| other == first) => {
                self.around("[", first, "; ")?;
                write!(self.f, "{}]", types.len())
            }
            _ => self.list("(", types, ")"),
        }
    }

    fn list(&mut self, before: &str, types: &[&NamedType], after: &str) -> fmt::Result {
        self.f.write_str(before)?;
        for (at, ty) in types.iter().enumerate() {
            self.f.write_str(if at == 0 { "" } else { ", " })?;
            self.ty(ty)?;
        }
        // A comma tells a list of one from the one.
        self.f.write_str(if types.len() == 1 { "," } else { "" })?;
        self.f.write_str(after)
    }

    fn fields(&mut self, fields: &[&NamedValue], is_short: bool) -> fmt::Result {
        self.block("{", fields, is_short, |text, field| {
            write!(text.f, "{}: ", Name(field.name))?;
            text.ty(field.ty)
        })
    }

    fn variants(&mut self, variants: &[&NamedVariant], is_short: bool) -> fmt::Result {
        self.block("enum {", variants, is_short, |text, variant| {
            Name(variant.name).fmt(text.f)?;
            match variant.ty {
                DataModelVariant::UnitVariant => Ok(()),
                DataModelVariant::NewtypeVariant(ty) => text.around("(", ty, ")"),
                DataModelVariant::TupleVariant(types) => text.list("(", types, ")"),
                DataModelVariant::StructVariant(fields) => {
                    text.f.write_char(' ')?;
                    text.fields(fields, leaves_of(fields) <= LEAVES_ON_A_LINE)
                }
            }
        })
    }

    fn block<T>(
        &mut self,
        before: &str,
        entries: &[&T],
        is_short: bool,
        each: fn(&mut Self, &T) -> fmt::Result,
    ) -> fmt::Result {
        self.f.write_str(before)?;
        self.indent += 1;
        for (at, entry) in entries.iter().enumerate() {
            match (is_short, at) {
                (true, 0) => self.f.write_char(' ')?,
                (true, _) => self.f.write_str(", ")?,
                (false, _) => self.line()?,
            }
            each(self, entry)?;
            self.f.write_str(if is_short { "" } else { "," })?;
        }
        self.indent -= 1;
        match (is_short, entries) {
            (_, []) => {}
            (true, _) => self.f.write_char(' ')?,
            (false, _) => self.line()?,
        }
        self.f.write_char('}')
    }

    fn line(&mut self) -> fmt::Result {
        self.f.write_char('\n')?;
        (0..self.indent).try_for_each(|_| self.f.write_str("    "))
    }
}

/// Addresses have a name of their own, because JSON has a text for each that everybody knows.
fn is_ip(schema: &NamedType) -> bool {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use postcard_schema::Schema;
    [Ipv4Addr::SCHEMA, Ipv6Addr::SCHEMA, IpAddr::SCHEMA].contains(&schema)
}

fn leaf_name(leaf: &DataModelType) -> &'static str {
    match leaf {
        DataModelType::Bool => "bool",
        DataModelType::I8 => "i8",
        DataModelType::U8 => "u8",
        DataModelType::I16 => "i16",
        DataModelType::I32 => "i32",
        DataModelType::I64 => "i64",
        DataModelType::I128 => "i128",
        DataModelType::U16 => "u16",
        DataModelType::U32 => "u32",
        DataModelType::U64 => "u64",
        DataModelType::U128 => "u128",
        DataModelType::Usize => "usize",
        DataModelType::Isize => "isize",
        DataModelType::F32 => "f32",
        DataModelType::F64 => "f64",
        DataModelType::Char => "char",
        DataModelType::String => "String",
        DataModelType::ByteArray => "bytes",
        DataModelType::Schema => "Schema",
        // What is left is not a leaf, but for these two.
        _ => "()",
    }
}

/// How much there is to read in a type.
fn leaves(schema: &NamedType) -> usize {
    match schema.ty {
        _ if is_ip(schema) => 1,
        DataModelType::Option(ty) | DataModelType::NewtypeStruct(ty) | DataModelType::Seq(ty) => leaves(ty),
        DataModelType::Map { key, val } => leaves(key) + leaves(val),
        DataModelType::Tuple(types) | DataModelType::TupleStruct(types) => leaves_of_tuple(types),
        DataModelType::Struct(fields) => leaves_of(fields),
        DataModelType::Enum(variants) => variants.iter().map(|variant| leaves_of_variant(variant.ty)).sum(),
        _ => 1,
    }
}

fn leaves_of_variant(variant: &DataModelVariant) -> usize {
    match variant {
        DataModelVariant::UnitVariant => 1,
        DataModelVariant::NewtypeVariant(ty) => leaves(ty),
        DataModelVariant::TupleVariant(types) => leaves_of_tuple(types),
        DataModelVariant::StructVariant(fields) => leaves_of(fields),
    }
}

fn leaves_of(fields: &[&NamedValue]) -> usize {
    fields.iter().map(|field| leaves(field.ty)).sum()
}

fn leaves_of_tuple(types: &[&NamedType]) -> usize {
    match types {
        [first, others @ ..] if others.iter().all(|other| other == first) => leaves(first),
        _ => types.iter().map(|ty| leaves(ty)).sum(),
    }
}
