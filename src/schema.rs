//! What the bytes of a record mean, for those who read them without having the type: an application writes the schemas
//! of its records to a *kinds file*, and the receiver and the program `pillarbox` show every record of a known kind as
//! JSON, with the names that it has in the source.
//!
//! A record derives `Schema` beside the others. Without the feature `schema` that derives nothing, so the firmware stays
//! as small as it was. The feature is switched on where the file is written, for example for the application's examples
//! alone:
//!
//! ```toml
//! [dev-dependencies]
//! pillarbox = { version = "0.1", default-features = false, features = ["schema"] }
//! ```
//!
//! and `examples/kinds.rs` is:
//!
//! ```
//! use pillarbox::schema::{Described, KindsFile};
//! use pillarbox::{EncodedSize, Record, Schema};
//! use serde::Serialize;
//!
//! #[derive(Serialize, EncodedSize, Record, Schema)]
//! #[record(kind = 7)]
//! struct Reading {
//!     meter: heapless::String<12>,
//!     watt_hours: u64,
//! }
//!
//! const KINDS: KindsFile = KindsFile::new(&[Described::of::<Reading>()]);
//!
//! fn main() {
//! #   assert!(KINDS.to_string().contains("watt_hours: u64"));
//!     print!("{KINDS}");
//! }
//! ```
//!
//! Then `cargo run --example kinds > kinds.toml` writes the file. (Where the application builds for a chip by default, it needs
//! `--target` with the name of the machine that it runs on.)

mod text;

use core::marker::PhantomData;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZero;
use core::time::Duration;

pub use postcard_schema::schema::{DataModelType, DataModelVariant, NamedType, NamedValue, NamedVariant};

use crate::{Kind, Record};

/// A type of which it is known how postcard encodes it.
///
/// Every type that has an [`EncodedSize`](crate::EncodedSize) in this crate has one. Derive it for your own. A type with
/// postcard-schema's trait of the same name needs one line:
///
/// ```
/// # struct Mine;
/// # impl postcard_schema::Schema for Mine {
/// #     const SCHEMA: &'static postcard_schema::schema::NamedType = <u8 as postcard_schema::Schema>::SCHEMA;
/// # }
/// impl pillarbox::Schema for Mine {
///     const SCHEMA: &'static pillarbox::schema::NamedType = <Mine as postcard_schema::Schema>::SCHEMA;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "it is not known how `{Self}` is encoded",
    note = "add `#[derive(Schema)]` to your own types"
)]
pub trait Schema {
    /// How postcard encodes a value of this type.
    const SCHEMA: &'static NamedType;
}

/// A kind of record: its number, its name and its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    kind: Kind,
    name: Option<&'static str>,
    schema: &'static NamedType,
}

impl Described {
    /// The kind of this record. It is called like the type, in snake case.
    pub const fn of<R: Record + Schema>() -> Self {
        Self::new(R::KIND, R::SCHEMA)
    }

    /// A kind with this schema, for example postcard-schema's own. It is called like the schema, in snake case.
    pub const fn new(kind: Kind, schema: &'static NamedType) -> Self {
        Self { kind, name: None, schema }
    }

    /// The same kind under another name.
    pub const fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }
}

/// The kinds file of an application, to be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindsFile(&'static [Described]);

impl KindsFile {
    /// The file of these kinds. As the value of a `const`, it fails the build when two of them have one number, or when
    /// one holds something that readers of a schema do not know.
    pub const fn new(kinds: &'static [Described]) -> Self {
        let mut rest = kinds;
        while let [one, others @ ..] = rest {
            assert!(
                is_legible(one.schema),
                "a record with a char cannot be read by its schema: make it a u32"
            );
            let mut behind = others;
            while let [other, more @ ..] = behind {
                assert!(one.kind.0 != other.kind.0, "two of these records have the same kind");
                behind = more;
            }
            rest = others;
        }
        Self(kinds)
    }
}

/// Whether nothing in a schema is a `char` or a schema in turn: postcard-dyn and those who build on it stop there.
const fn is_legible(schema: &NamedType) -> bool {
    match schema.ty {
        DataModelType::Char | DataModelType::Schema => false,
        DataModelType::Option(ty) | DataModelType::NewtypeStruct(ty) | DataModelType::Seq(ty) => {
            is_legible(ty)
        }
        DataModelType::Map { key, val } => is_legible(key) && is_legible(val),
        DataModelType::Tuple(types) | DataModelType::TupleStruct(types) => are_legible(types),
        DataModelType::Struct(fields) => are_fields_legible(fields),
        DataModelType::Enum(variants) => {
            let mut rest = *variants;
            while let [variant, others @ ..] = rest {
                let is_legible = match variant.ty {
                    DataModelVariant::UnitVariant => true,
                    DataModelVariant::NewtypeVariant(ty) => is_legible(ty),
                    DataModelVariant::TupleVariant(types) => are_legible(types),
                    DataModelVariant::StructVariant(fields) => are_fields_legible(fields),
                };
                if !is_legible {
                    return false;
                }
                rest = others;
            }
            true
        }
        _ => true,
    }
}

const fn are_legible(mut types: &[&NamedType]) -> bool {
    while let [ty, others @ ..] = types {
        if !is_legible(ty) {
            return false;
        }
        types = others;
    }
    true
}

const fn are_fields_legible(mut fields: &[&NamedValue]) -> bool {
    while let [field, others @ ..] = fields {
        if !is_legible(field.ty) {
            return false;
        }
        fields = others;
    }
    true
}

macro_rules! plain {
    ($($ty:ty = $name:literal $model:ident),+ $(,)?) => {
        $(impl Schema for $ty {
            const SCHEMA: &'static NamedType = &NamedType { name: $name, ty: &DataModelType::$model };
        })+
    };
}

macro_rules! integers {
    ($($ty:ty = $name:literal $model:ident),+ $(,)?) => {
        $(plain! { $ty = $name $model, NonZero<$ty> = $name $model })+
    };
}

integers! {
    u8 = "u8" U8,
    u16 = "u16" U16,
    u32 = "u32" U32,
    u64 = "u64" U64,
    u128 = "u128" U128,
    usize = "usize" Usize,
    i8 = "i8" I8,
    i16 = "i16" I16,
    i32 = "i32" I32,
    i64 = "i64" I64,
    i128 = "i128" I128,
    isize = "isize" Isize,
}

plain! {
    () = "()" Unit,
    bool = "bool" Bool,
    f32 = "f32" F32,
    f64 = "f64" F64,
    char = "char" Char,
}

macro_rules! known_to_postcard_schema {
    ($($ty:ty),+) => {
        $(impl Schema for $ty {
            const SCHEMA: &'static NamedType = <$ty as postcard_schema::Schema>::SCHEMA;
        })+
    };
}

known_to_postcard_schema! { Duration, Ipv4Addr, Ipv6Addr, IpAddr }

impl<T: ?Sized> Schema for PhantomData<T> {
    const SCHEMA: &'static NamedType = &NamedType { name: "PhantomData", ty: &DataModelType::UnitStruct };
}

impl<T: Schema + ?Sized> Schema for &T {
    const SCHEMA: &'static NamedType = T::SCHEMA;
}

impl<T: Schema> Schema for Option<T> {
    const SCHEMA: &'static NamedType = &NamedType { name: "Option", ty: &DataModelType::Option(T::SCHEMA) };
}

impl<T: Schema, E: Schema> Schema for Result<T, E> {
    const SCHEMA: &'static NamedType = &NamedType {
        name: "Result",
        ty: &DataModelType::Enum(&[
            &NamedVariant { name: "Ok", ty: &DataModelVariant::NewtypeVariant(T::SCHEMA) },
            &NamedVariant { name: "Err", ty: &DataModelVariant::NewtypeVariant(E::SCHEMA) },
        ]),
    };
}

impl<T: Schema, const N: usize> Schema for [T; N] {
    const SCHEMA: &'static NamedType =
        &NamedType { name: "array", ty: &DataModelType::Tuple(&[T::SCHEMA; N]) };
}

impl<LenT: heapless::LenType, const N: usize> Schema for heapless::String<N, LenT> {
    const SCHEMA: &'static NamedType = &NamedType { name: "String", ty: &DataModelType::String };
}

impl<T: Schema, LenT: heapless::LenType, const N: usize> Schema for heapless::Vec<T, N, LenT> {
    const SCHEMA: &'static NamedType = &NamedType { name: "Vec", ty: &DataModelType::Seq(T::SCHEMA) };
}

macro_rules! tuples {
    ($($(($name:ident))+),+ $(,)?) => {
        $(impl<$($name: Schema),+> Schema for ($($name,)+) {
            const SCHEMA: &'static NamedType =
                &NamedType { name: "tuple", ty: &DataModelType::Tuple(&[$($name::SCHEMA),+]) };
        })+
    };
}

tuples! {
    (A),
    (A)(B),
    (A)(B)(C),
    (A)(B)(C)(D),
    (A)(B)(C)(D)(E),
    (A)(B)(C)(D)(E)(F),
    (A)(B)(C)(D)(E)(F)(G),
    (A)(B)(C)(D)(E)(F)(G)(H),
}
