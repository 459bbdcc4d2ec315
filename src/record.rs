//! What an application may post: a type with a kind number and a largest encoded size that is known to the
//! compiler, so that a record which does not fit is a build error and not a surprise in the field.

use core::fmt;
use core::marker::PhantomData;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZero;
use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use pillarbox_derive::{EncodedSize, Record};

/// The number that says of which type a record is.
///
/// It is stored and sent with every record; the receiver and the device's handlers choose by it how to decode
/// and deliver the body. Give a type another kind when its encoding changes: records of the old kind may
/// still be in the flash of a device that was switched off for a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Kind(pub u16);

impl Kind {
    /// The kind with this number.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that an application posts: a reading, an alarm, a line of a journal.
///
/// A record is encoded with [postcard](https://docs.rs/postcard) when it is enqueued. From then on it is
/// bytes with a [`Kind`]: the outbox never sees the type again, and the receiver needs a type of the same
/// shape to read it.
///
/// ```
/// use pillarbox::{EncodedSize, Kind, Record};
/// use serde::Serialize;
///
/// #[derive(Serialize, EncodedSize, Record)]
/// #[record(kind = 7)]
/// struct Reading {
///     meter: heapless::String<12>,
///     watt_hours: u64,
///     tamper: Option<Tamper>,
/// }
///
/// #[derive(Serialize, EncodedSize)]
/// enum Tamper {
///     CoverOpen,
///     Magnet { millitesla: u16 },
/// }
///
/// assert_eq!(Reading::KIND, Kind(7));
/// assert_eq!(Reading::MAX, (1 + 12) + 10 + (1 + 1 + 3));
/// ```
///
/// Within one firmware no two types may share a kind. That is why the derive refuses types with type
/// parameters: `Reading<f32>` and `Reading<u8>` would share one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a record",
    note = "add `#[derive(Serialize, EncodedSize, Record)]` and `#[record(kind = ...)]` to the type"
)]
pub trait Record: Serialize + EncodedSize {
    /// The number of this type, unique in the firmware.
    const KIND: Kind;
}

/// A type of which the compiler knows the largest encoding.
///
/// Derive it beside serde's `Serialize`; the derive understands serde's attributes and refuses those under
/// which the size would be wrong or postcard could not decode what it encoded. Text and lists are bounded by
/// their type: `heapless::String<N>` and `heapless::Vec<T, N>`.
///
/// If you implement it by hand: `MAX` must hold for every value, on pain of an enqueue that fails in the
/// field. On a number type `u32::MAX` still means the largest number; write `<u32 as EncodedSize>::MAX` for
/// the bytes.
#[diagnostic::on_unimplemented(
    message = "the largest encoding of `{Self}` is not known",
    note = "add `#[derive(EncodedSize)]` to your own types",
    note = "text and lists need a bound: use `heapless::String<N>` and `heapless::Vec<T, N>`"
)]
pub trait EncodedSize {
    /// The largest number of bytes that postcard needs for any value of this type.
    const MAX: usize;
}

/// The number of bytes of the longest varint among `0..=n`, as postcard writes them before text and lists.
pub const fn varint_max(n: usize) -> usize {
    match n {
        0 => 1,
        _ => (usize::BITS - n.leading_zeros()).div_ceil(7) as usize,
    }
}

/// Fails the build when a record of type `R` might not fit in `RECORD` bytes.
///
/// Call it as `const { assert_fits::<R, RECORD>() }`, as enqueueing does: the compiler then evaluates it for
/// each `R` that is really enqueued. That happens when code is generated, so `cargo build` reports it and
/// `cargo check` does not.
pub const fn assert_fits<R: Record, const RECORD: usize>() {
    assert!(
        R::MAX <= RECORD,
        "this record's largest encoding is larger than the outbox's RECORD size: \
         raise RECORD or shrink the record"
    );
}

macro_rules! fixed {
    ($($ty:ty = $max:expr),+ $(,)?) => {
        $(impl EncodedSize for $ty {
            const MAX: usize = $max;
        })+
    };
}

macro_rules! integers {
    ($($ty:ty = $max:expr),+ $(,)?) => {
        $(fixed! { $ty = $max, NonZero<$ty> = $max })+
    };
}

// Serde widens `usize` and `isize` to 64 bits, but a varint is as long as the value, which the target's width
// bounds.
integers! {
    u8 = 1,
    u16 = 3,
    u32 = 5,
    u64 = 10,
    u128 = 19,
    usize = usize::BITS.div_ceil(7) as usize,
    i8 = 1,
    i16 = 3,
    i32 = 5,
    i64 = 10,
    i128 = 19,
    isize = isize::BITS.div_ceil(7) as usize,
}

fixed! {
    () = 0,
    bool = 1,
    f32 = 4,
    f64 = 8,
    // Postcard writes a character as text: its length, then UTF-8.
    char = 1 + 4,
    // Seconds and nanoseconds.
    Duration = <u64 as EncodedSize>::MAX + <u32 as EncodedSize>::MAX,
    Ipv4Addr = 4,
    Ipv6Addr = 16,
    IpAddr = 1 + 16,
}

impl<T: ?Sized> EncodedSize for PhantomData<T> {
    const MAX: usize = 0;
}

impl<T: EncodedSize + ?Sized> EncodedSize for &T {
    const MAX: usize = T::MAX;
}

impl<T: EncodedSize> EncodedSize for Option<T> {
    const MAX: usize = 1 + T::MAX;
}

impl<T: EncodedSize, E: EncodedSize> EncodedSize for Result<T, E> {
    const MAX: usize = 1 + if T::MAX > E::MAX { T::MAX } else { E::MAX };
}

// The length is part of the type, so it is not encoded.
impl<T: EncodedSize, const N: usize> EncodedSize for [T; N] {
    const MAX: usize = N * T::MAX;
}

impl<LenT: heapless::LenType, const N: usize> EncodedSize for heapless::String<N, LenT> {
    const MAX: usize = varint_max(N) + N;
}

impl<T: EncodedSize, LenT: heapless::LenType, const N: usize> EncodedSize for heapless::Vec<T, N, LenT> {
    const MAX: usize = varint_max(N) + N * T::MAX;
}

macro_rules! tuples {
    ($($(($name:ident))+),+ $(,)?) => {
        $(impl<$($name: EncodedSize),+> EncodedSize for ($($name,)+) {
            const MAX: usize = 0 $(+ $name::MAX)+;
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
