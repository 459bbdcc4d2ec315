//! A schema as the receiver keeps it: what is encoded, without the names of types, which say nothing about bytes.

/// How something is encoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Bool,
    /// A whole number of so many bits.
    Unsigned(u32),
    /// The same with a sign.
    Signed(u32),
    F32,
    F64,
    Text,
    Bytes,
    Ipv4,
    Ipv6,
    /// Either of them.
    Ip,
    /// No bytes at all.
    Unit,
    Option(Box<Shape>),
    List(Box<Shape>),
    /// So many of a kind, without their number.
    Array(Box<Shape>, u32),
    Tuple(Vec<Shape>),
    Map(MapKey, Box<Shape>),
    Struct(Vec<Field>),
    Enum(Vec<Variant>),
}

/// What can be a key of a JSON object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MapKey {
    Text,
    Bool,
    Unsigned(u32),
    Signed(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) shape: Shape,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Variant {
    pub(super) name: String,
    /// What follows its number; of some, nothing that would be worth a word.
    pub(super) holds: Option<Shape>,
}

/// Something is not what its schema says: where, and why.
pub(super) struct Misfit {
    /// From the inside out.
    place: Vec<String>,
    why: String,
}

impl Misfit {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { place: Vec::new(), why: why.into() }
    }

    /// It was found inside of this.
    pub(super) fn inside(mut self, place: impl ToString) -> Self {
        self.place.push(place.to_string());
        self
    }

    pub(super) fn into_sentence(self) -> String {
        if self.place.is_empty() {
            return self.why;
        }
        let place: Vec<_> = self.place.into_iter().rev().collect();
        format!("{}: {}", place.join("."), self.why)
    }
}

/// The smallest and the largest whole number of so many bits, in words that fit in a sentence.
pub(super) fn range_of(bits: u32, is_signed: bool) -> String {
    match (bits, is_signed) {
        (128, true) => format!("from {} to {}", i128::MIN, i128::MAX),
        (128, false) => format!("from 0 to {}", u128::MAX),
        (bits, true) => format!("from -{} to {}", 1u128 << (bits - 1), (1u128 << (bits - 1)) - 1),
        (bits, false) => format!("from 0 to {}", (1u128 << bits) - 1),
    }
}
