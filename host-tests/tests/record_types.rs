//! Claim: `EncodedSize::MAX` is the truth about postcard's encoding. If it were too small, an enqueue could
//! fail in the field; if it were too large, flash would be wasted for ever. So for each type here random
//! values never exceed it, the largest value reaches it exactly, and every value survives the way through
//! bytes.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZero;
use std::time::Duration;

use fastrand::Rng;
use pillarbox::{EncodedSize, Kind, Record, varint_max};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const VALUES_PER_TYPE: usize = 2_000;

/// A type that can be tested: its largest value by encoding, and any value.
trait Sample: EncodedSize + Serialize + DeserializeOwned + Debug {
    fn largest() -> Self;
    fn random(rng: &mut Rng) -> Self;
}

fn check<T: Sample>() {
    let name = std::any::type_name::<T>();
    assert_eq!(encoded_len(&T::largest()), T::MAX, "{name}: MAX is not tight");
    let mut rng = Rng::with_seed(0x9e37_79b9);
    for _ in 0..VALUES_PER_TYPE {
        let value = T::random(&mut rng);
        let len = encoded_len(&value);
        assert!(len <= T::MAX, "{name}: {value:?} takes {len} bytes, MAX says {}", T::MAX);
    }
}

/// Encodes, and proves on the way that the bytes decode to the same value. Compared as text: NaN is not equal
/// to NaN.
fn encoded_len<T: Sample>(value: &T) -> usize {
    let bytes = postcard::to_stdvec(value).unwrap();
    let (decoded, rest) = postcard::take_from_bytes::<T>(&bytes).unwrap();
    assert!(rest.is_empty(), "{value:?} left {rest:?} undecoded");
    assert_eq!(format!("{decoded:?}"), format!("{value:?}"));
    bytes.len()
}

macro_rules! sample {
    ($($ty:ty { $largest:expr, $random:expr })+) => {
        $(impl Sample for $ty {
            fn largest() -> Self {
                $largest
            }
            fn random(rng: &mut Rng) -> Self {
                let random: fn(&mut Rng) -> Self = $random;
                random(rng)
            }
        })+
    };
}

// A random number of bits, so that varints of every length occur.
macro_rules! integers {
    ($($ty:ident, $largest:ident;)+) => {
        $(sample! {
            $ty { $ty::$largest, |rng| rng.$ty(..) >> rng.u32(..$ty::BITS) }
            NonZero<$ty> {
                NonZero::new($ty::$largest).unwrap(),
                |rng| NonZero::new($ty::random(rng)).unwrap_or(NonZero::<$ty>::MIN)
            }
        })+
    };
}

// Zigzag makes the smallest signed number the largest varint.
integers! {
    u8, MAX; u16, MAX; u32, MAX; u64, MAX; u128, MAX; usize, MAX;
    i8, MIN; i16, MIN; i32, MIN; i64, MIN; i128, MIN; isize, MIN;
}

sample! {
    () { (), |_| () }
    bool { true, |rng| rng.bool() }
    f32 { f32::MAX, |rng| f32::from_bits(rng.u32(..)) }
    f64 { f64::MIN, |rng| f64::from_bits(rng.u64(..)) }
    char { char::MAX, |rng| rng.char(..) }
    Duration { Duration::MAX, |rng| Duration::new(u64::random(rng), rng.u32(..1_000_000_000)) }
    Ipv4Addr { Ipv4Addr::BROADCAST, |rng| Ipv4Addr::from_bits(rng.u32(..)) }
    Ipv6Addr { Ipv6Addr::LOCALHOST, |rng| Ipv6Addr::from_bits(rng.u128(..)) }
    IpAddr {
        Ipv6Addr::LOCALHOST.into(),
        |rng| if rng.bool() { Ipv4Addr::random(rng).into() } else { Ipv6Addr::random(rng).into() }
    }
}

impl<T> Sample for PhantomData<T> {
    fn largest() -> Self {
        PhantomData
    }
    fn random(_: &mut Rng) -> Self {
        PhantomData
    }
}

impl<T: Sample> Sample for Option<T> {
    fn largest() -> Self {
        Some(T::largest())
    }
    fn random(rng: &mut Rng) -> Self {
        rng.bool().then(|| T::random(rng))
    }
}

impl<T: Sample, E: Sample> Sample for Result<T, E> {
    fn largest() -> Self {
        if T::MAX > E::MAX { Ok(T::largest()) } else { Err(E::largest()) }
    }
    fn random(rng: &mut Rng) -> Self {
        if rng.bool() { Ok(T::random(rng)) } else { Err(E::random(rng)) }
    }
}

impl<T: Sample, const N: usize> Sample for [T; N]
where
    [T; N]: Serialize + DeserializeOwned,
{
    fn largest() -> Self {
        std::array::from_fn(|_| T::largest())
    }
    fn random(rng: &mut Rng) -> Self {
        std::array::from_fn(|_| T::random(rng))
    }
}

impl<T: Sample, const N: usize, LenT: heapless::LenType> Sample for heapless::Vec<T, N, LenT> {
    fn largest() -> Self {
        std::iter::repeat_with(T::largest).take(N).collect()
    }
    fn random(rng: &mut Rng) -> Self {
        let len = rng.usize(..=N);
        (0..len).map(|_| T::random(rng)).collect()
    }
}

impl<const N: usize, LenT: heapless::LenType> Sample for heapless::String<N, LenT> {
    fn largest() -> Self {
        "x".repeat(N).as_str().try_into().unwrap()
    }
    fn random(rng: &mut Rng) -> Self {
        let mut text = Self::new();
        for _ in 0..rng.usize(..=N) {
            // Characters are of one to four bytes; the last may not fit.
            let _ = text.push(rng.char(..));
        }
        text
    }
}

macro_rules! tuples {
    ($($(($name:ident))+),+ $(,)?) => {
        $(impl<$($name: Sample),+> Sample for ($($name,)+) {
            fn largest() -> Self {
                ($($name::largest(),)+)
            }
            fn random(rng: &mut Rng) -> Self {
                ($($name::random(rng),)+)
            }
        })+
    };
}

tuples! { (A), (A)(B), (A)(B)(C), (A)(B)(C)(D), (A)(B)(C)(D)(E)(F)(G)(H) }

#[derive(Debug, Serialize, Deserialize, EncodedSize, Record)]
#[record(kind = 7)]
struct Reading {
    meter: heapless::String<12>,
    at: Position,
    phases: [Phase; 3],
    history: heapless::Vec<i32, 200, u8>,
    alarm: Option<Alarm>,
}

sample! { Reading {
    Reading {
        meter: Sample::largest(),
        at: Sample::largest(),
        phases: Sample::largest(),
        history: Sample::largest(),
        alarm: Sample::largest(),
    },
    |rng| Reading {
        meter: Sample::random(rng),
        at: Sample::random(rng),
        phases: Sample::random(rng),
        history: Sample::random(rng),
        alarm: Sample::random(rng),
    }
} }

#[derive(Debug, Serialize, Deserialize, EncodedSize)]
struct Position(f64, f64, Option<i16>);

#[derive(Debug, Serialize, Deserialize, EncodedSize)]
#[serde(transparent)]
struct Phase {
    volts: f32,
}

#[derive(Debug, Serialize, Deserialize, EncodedSize)]
struct Unit;

sample! {
    Position {
        Position(0.0, 0.0, Sample::largest()),
        |rng| Position(Sample::random(rng), Sample::random(rng), Sample::random(rng))
    }
    Phase { Phase { volts: 0.0 }, |rng| Phase { volts: Sample::random(rng) } }
    Unit { Unit, |_| Unit }
}

#[derive(Debug, Serialize, Deserialize, EncodedSize)]
#[serde(rename_all = "kebab-case", bound(serialize = "", deserialize = ""), deny_unknown_fields)]
enum Alarm {
    Cleared,
    #[serde(rename(serialize = "a", deserialize = "b"), alias = "c")]
    Overload(u32),
    Tamper {
        #[serde(default, rename = "when")]
        since: Duration,
        cover: Result<u8, char>,
    },
    Reserved(#[serde(skip)] u64),
    #[serde(skip)]
    #[expect(dead_code, reason = "larger than all others, which must not count")]
    Internal([u64; 9]),
}

sample! { Alarm {
    Alarm::Tamper { since: Sample::largest(), cover: Sample::largest() },
    |rng| match rng.u8(..4) {
        0 => Alarm::Cleared,
        1 => Alarm::Overload(Sample::random(rng)),
        2 => Alarm::Tamper { since: Sample::random(rng), cover: Sample::random(rng) },
        _ => Alarm::Reserved(0),
    }
} }

#[derive(Debug, Serialize, Deserialize, EncodedSize)]
struct WithCache {
    before: u16,
    #[serde(skip)]
    cache: u64,
    after: u16,
}

sample! { WithCache {
    WithCache { before: u16::MAX, cache: 0, after: u16::MAX },
    |rng| WithCache { before: Sample::random(rng), cache: 0, after: Sample::random(rng) }
} }

struct Metres;

/// A type parameter that is encoded, one that only marks, and a length.
#[derive(Debug, Serialize, Deserialize, EncodedSize)]
struct Series<T, U, const N: usize> {
    values: heapless::Vec<Option<T>, N>,
    unit: PhantomData<U>,
}

impl<T: Sample, U: Debug, const N: usize> Sample for Series<T, U, N> {
    fn largest() -> Self {
        Self { values: Sample::largest(), unit: PhantomData }
    }
    fn random(rng: &mut Rng) -> Self {
        Self { values: Sample::random(rng), unit: PhantomData }
    }
}

impl Debug for Metres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("m")
    }
}

#[test]
fn numbers_and_characters() {
    check::<()>();
    check::<bool>();
    check::<(u8, i8)>();
    check::<u16>();
    check::<u32>();
    check::<u64>();
    check::<u128>();
    check::<usize>();
    check::<i16>();
    check::<i32>();
    check::<i64>();
    check::<i128>();
    check::<isize>();
    check::<f32>();
    check::<f64>();
    check::<char>();
    check::<(NonZero<u8>, NonZero<u16>, NonZero<u32>, NonZero<u64>)>();
    check::<(NonZero<i8>, NonZero<i16>, NonZero<i32>, NonZero<i64>)>();
    check::<(NonZero<u128>, NonZero<i128>, NonZero<usize>, NonZero<isize>)>();
    check::<Duration>();
    check::<(Ipv4Addr, Ipv6Addr, IpAddr)>();
}

#[test]
fn containers() {
    check::<Option<Option<u64>>>();
    check::<Result<u8, f64>>();
    check::<Result<(u64, u64), ()>>();
    check::<[u16; 0]>();
    check::<[i64; 32]>();
    check::<(u8,)>();
    check::<(u8, u16, u32, u64, i8, i16, i32, i64)>();
    check::<PhantomData<u8>>();
    check::<heapless::Vec<[Option<char>; 2], 5>>();
    check::<heapless::Vec<heapless::String<3>, 4, u16>>();
    // The length takes one byte up to 127, then two, then three.
    check::<heapless::String<0>>();
    check::<heapless::String<127>>();
    check::<heapless::String<128, u8>>();
    check::<heapless::Vec<u8, 127, u8>>();
    check::<heapless::Vec<u8, 128>>();
    assert_eq!(encoded_len(&heapless::Vec::<u8, 16_383>::largest()), heapless::Vec::<u8, 16_383>::MAX);
    assert_eq!(encoded_len(&heapless::Vec::<u8, 16_384>::largest()), heapless::Vec::<u8, 16_384>::MAX);
}

#[test]
fn derived_types() {
    check::<Unit>();
    check::<Position>();
    check::<Phase>();
    check::<Alarm>();
    check::<WithCache>();
    check::<Series<u32, Metres, 6>>();
    check::<Series<Alarm, Metres, 200>>();
    check::<Reading>();
}

#[test]
fn what_serde_skips_is_not_encoded() {
    let bytes = postcard::to_stdvec(&WithCache { before: 1, cache: u64::MAX, after: 2 }).unwrap();
    assert_eq!(bytes, [1, 2]);
    assert_eq!(postcard::from_bytes::<WithCache>(&bytes).unwrap().cache, 0);
    assert!(postcard::to_stdvec(&Alarm::Internal([0; 9])).is_err());
}

/// Why the derive refuses a skipped variant that is not at the end: serde's two derives number the rest
/// differently. If this test fails, serde has mended it, and the derive may allow it.
#[test]
fn serde_cannot_decode_a_variant_behind_a_skipped_one() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Gap {
        First,
        #[serde(skip)]
        Skipped,
        Second,
        Third,
    }
    let decode = |variant| postcard::from_bytes::<Gap>(&postcard::to_stdvec(&variant).unwrap());
    assert_eq!(decode(Gap::First), Ok(Gap::First));
    assert_eq!(decode(Gap::Second), Ok(Gap::Third));
    assert!(decode(Gap::Third).is_err());
    assert!(postcard::to_stdvec(&Gap::Skipped).is_err());
}

#[test]
fn a_reference_is_as_large_as_what_it_refers_to() {
    #[derive(Serialize, EncodedSize, Record)]
    #[record(kind = Self::NUMBER)]
    struct Borrowed<'a, const N: usize> {
        text: &'a heapless::String<N>,
    }
    impl<const N: usize> Borrowed<'_, N> {
        const NUMBER: u16 = 0xffff;
    }
    let text = Sample::largest();
    assert_eq!(postcard::to_stdvec(&Borrowed::<20> { text: &text }).unwrap().len(), Borrowed::<20>::MAX);
    assert_eq!(Borrowed::<20>::KIND, Kind(65_535));
}

#[test]
fn the_kind_is_the_number_in_the_attribute() {
    assert_eq!(Reading::KIND, Kind::new(7));
    assert_eq!(Reading::KIND.to_string(), "7");
    assert_eq!(postcard::to_stdvec(&Kind(300)).unwrap(), postcard::to_stdvec(&300u16).unwrap());
}

#[test]
fn a_length_takes_as_many_bytes_as_postcard_gives_it() {
    let edges = (0..usize::BITS).flat_map(|bit| [(1usize << bit) - 1, 1 << bit]);
    for n in edges.chain([usize::MAX]) {
        assert_eq!(varint_max(n), postcard::to_stdvec(&n).unwrap().len(), "{n}");
    }
}

/// Numbers of variants are varints too: the 129th takes two bytes. The payload of the first is the larger.
#[test]
fn a_variant_behind_the_128th_takes_two_bytes() {
    macro_rules! many {
        ($($padding:ident)+) => {
            #[derive(Debug, Serialize, Deserialize, EncodedSize)]
            enum Many {
                First(u32),
                $($padding,)+
                Last(u32),
            }
            const PADDINGS: usize = [$(stringify!($padding)),+].len();
        };
    }
    #[rustfmt::skip]
    many! {
        A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 AA AB AC AD AE AF B0 B1 B2 B3 B4 B5 B6 B7 B8 B9 BA BB BC BD BE BF
        C0 C1 C2 C3 C4 C5 C6 C7 C8 C9 CA CB CC CD CE CF D0 D1 D2 D3 D4 D5 D6 D7 D8 D9 DA DB DC DD DE DF
        E0 E1 E2 E3 E4 E5 E6 E7 E8 E9 EA EB EC ED EE EF F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 FA FB FC FD FE FF
        G0 G1 G2 G3 G4 G5 G6 G7 G8 G9 GA GB GC GD GE GF H0 H1 H2 H3 H4 H5 H6 H7 H8 H9 HA HB HC HD HE
    }
    sample! { Many { Many::Last(u32::MAX), |rng| Many::First(Sample::random(rng)) } }
    assert_eq!(PADDINGS, 127);
    check::<Many>();
    assert_eq!(encoded_len(&Many::First(u32::MAX)) + 1, Many::MAX);
    assert_eq!(encoded_len(&Many::HE), 1);
}
