//! Claim: a record of a known kind is shown as the JSON that serde_json would have written for it, whatever its fields
//! are; everything else is shown raw. The judge is postcard: what it decodes we decode, to the same value, and what it
//! refuses we refuse. No body and no kinds file makes the reader panic, or take more memory than a bound, and what is
//! wrong with a kinds file is said in a sentence.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fastrand::Rng;
use pillarbox::schema::{Described, KindsFile};
use pillarbox::{Kind, Schema};
use pillarbox_receiver::kinds::{Decoded, Kinds, KindsError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/kinds.rs"]
mod example;

/// The kinds of an application with this one type, written and read as an application and a receiver do.
fn kinds_of<T: Schema>() -> Kinds {
    let described: &'static [Described] = vec![Described::new(Kind(1), T::SCHEMA).named("it")].leak();
    let text = KindsFile::new(described).to_string();
    Kinds::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn kinds_with(schema: &str) -> Kinds {
    Kinds::parse(&file_with(schema)).unwrap()
}

fn file_with(schema: &str) -> String {
    format!("[[kind]]\nnumber = 7\nname = \"reading\"\nschema = '''{schema}'''\n")
}

/// The sentence with which a schema is refused.
fn refusal_of(schema: &str) -> String {
    Kinds::parse(&file_with(schema)).unwrap_err().to_string()
}

fn as_serde_json_writes<T: Serialize>(value: &T) -> Value {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

fn check<T: Schema + Serialize + Debug>(value: T) {
    let kinds = kinds_of::<T>();
    let body = postcard::to_stdvec(&value).unwrap();
    let expected = as_serde_json_writes(&value);
    assert_eq!(kinds.decode(1, &body), Decoded::Json(expected.clone()), "{value:?}");
    assert!(kinds.is_readable(1, &body));
    assert_eq!(kinds.check_json(1, &expected), Ok(()), "{value:?}");
}

fn text<const N: usize, L: heapless::LenType>(text: &str) -> heapless::String<N, L> {
    text.try_into().unwrap()
}

#[derive(Serialize, Debug, Schema)]
struct Everything {
    flag: bool,
    bytes: (u8, i8),
    short: (u16, i16),
    word: (u32, i32),
    long: (u64, i64),
    widest: (u128, i128),
    machine: (usize, isize),
    float: (f32, f64),
    text: heapless::String<100>,
    small_text: heapless::String<100, u8>,
    list: heapless::Vec<u16, 100>,
    small_list: heapless::Vec<heapless::String<100, u8>, 100, u8>,
    array: [i16; 3],
    one: [u8; 1],
    none: [u8; 0],
    maybe: Option<u32>,
    result: Result<u8, heapless::String<100>>,
    shape: Shape,
    unit: (),
    marker: Marker,
    phantom: PhantomData<u8>,
    wrapped: Wrapped,
    pair: Pair,
    clear: Transparent,
    nested: Nested,
    many: (u8, u8, u8, u8, u8, u8, u8, bool),
}

#[derive(Serialize, Deserialize, Debug, Schema)]
enum Shape {
    Empty,
    One(u32),
    Two(u32, bool),
    Fields { a: u8, b: Option<i64> },
    NoFields {},
}

#[derive(Serialize, Debug, Schema)]
struct Marker;

#[derive(Serialize, Deserialize, Debug, Schema)]
struct Wrapped(u64);

#[derive(Serialize, Deserialize, Debug, Schema)]
struct Pair(u8, i32);

#[derive(Serialize, Debug, Schema)]
#[serde(transparent)]
struct Transparent {
    inside: u16,
}

#[derive(Serialize, Debug, Schema)]
struct Nested {
    list: heapless::Vec<Option<Shape>, 20>,
}

#[derive(Serialize, Debug, Schema)]
#[serde(rename_all = "camelCase")]
struct Renamed {
    watt_hours: u64,
    #[serde(rename = "it's \"odd\" \\ né")]
    odd: u8,
    #[serde(rename(serialize = "written"))]
    read: u8,
    r#type: Cased,
}

#[derive(Serialize, Debug, Schema)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE", rename_all_fields = "PascalCase")]
enum Cased {
    CoverOpen,
    HeavyMagnet {
        milli_tesla: u16,
    },
    #[serde(rename_all = "kebab-case")]
    OtherThing {
        some_field: u8,
    },
    #[serde(rename = "plain")]
    Odd(u8),
}

#[derive(Serialize, Debug, Schema)]
struct Skipping {
    before: u8,
    #[serde(skip)]
    _left_out: u32,
    after: (u8, Partly, Partly),
}

#[derive(Serialize, Debug, Schema)]
enum Partly {
    #[serde(skip_serializing)]
    #[allow(dead_code)]
    NeverWritten(u32),
    Tuple(u8, #[serde(skip)] u8, u8),
    #[serde(skip)]
    #[allow(dead_code)]
    Skipped,
}

#[derive(Serialize, Debug, Schema)]
struct Addresses {
    four: Ipv4Addr,
    six: Ipv6Addr,
    either: (IpAddr, IpAddr),
    time: Duration,
    nonzero: NonZero<u16>,
}

/// Generic types are fields of records too.
#[derive(Serialize, Debug, Schema)]
struct Measured<T, Unit> {
    value: T,
    unit: PhantomData<Unit>,
}

#[test]
fn every_type_of_field_becomes_the_json_of_serde_json() {
    let shapes = [
        Shape::Empty,
        Shape::One(5),
        Shape::Two(6, true),
        Shape::Fields { a: 1, b: None },
        Shape::NoFields {},
    ];
    check(Everything {
        flag: true,
        bytes: (255, -128),
        short: (65535, -32768),
        word: (u32::MAX, i32::MIN),
        long: (u64::MAX, i64::MIN),
        widest: (u128::from(u64::MAX), i128::from(i64::MIN)),
        machine: (usize::MAX, isize::MIN),
        float: (21.3, -1e300),
        text: text("grüße"),
        small_text: text(""),
        list: [1, 300].into_iter().collect(),
        small_list: [text("a"), text("b")].into_iter().collect(),
        array: [1, -2, 3],
        one: [9],
        none: [],
        maybe: Some(70_000),
        result: Err(text("no")),
        shape: Shape::Fields { a: 1, b: Some(-9) },
        unit: (),
        marker: Marker,
        phantom: PhantomData,
        wrapped: Wrapped(5),
        pair: Pair(1, -70_000),
        clear: Transparent { inside: 700 },
        nested: Nested { list: shapes.into_iter().map(Some).chain([None]).collect() },
        many: (1, 2, 3, 4, 5, 6, 7, true),
    });
    check(Addresses {
        four: Ipv4Addr::new(10, 0, 0, 7),
        six: "fe80::7".parse().unwrap(),
        either: ("1.2.3.4".parse().unwrap(), "::1".parse().unwrap()),
        time: Duration::new(90, 5),
        nonzero: NonZero::new(3).unwrap(),
    });
    check(Measured { value: -5i16, unit: PhantomData::<String> });
    check(Shape::Two(1, false));
    check(7u16);
}

#[test]
fn names_and_skipped_fields_are_those_of_serde() {
    check(Renamed { watt_hours: 1, odd: 2, read: 3, r#type: Cased::HeavyMagnet { milli_tesla: 4 } });
    check([Cased::CoverOpen, Cased::OtherThing { some_field: 1 }, Cased::Odd(3)]);
    check(Skipping { before: 1, _left_out: 99, after: (2, Partly::Tuple(3, 4, 5), Partly::Tuple(6, 7, 8)) });
}

#[test]
fn fields_stay_in_the_order_of_the_record() {
    let kinds = kinds_with("{ zebra: u8, ant: u8, middle: u8 }");
    assert_eq!(kinds.show(7, &[1, 2, 3])["data"].to_string(), r#"{"zebra":1,"ant":2,"middle":3}"#);
}

#[test]
fn what_json_cannot_say_is_still_read() {
    let kinds = kinds_of::<(f32, f64, f32)>();
    let body = postcard::to_stdvec(&(f32::NAN, f64::NEG_INFINITY, 0.1f32)).unwrap();
    assert_eq!(kinds.decode(1, &body), Decoded::Json(json!([null, null, 0.1])));

    let kinds = kinds_of::<(u128, i128)>();
    let body = postcard::to_stdvec(&(u128::MAX, i128::MIN)).unwrap();
    let widest = json!([u128::MAX.to_string(), i128::MIN.to_string()]);
    assert_eq!(kinds.decode(1, &body), Decoded::Json(widest.clone()));
    assert_eq!(kinds.check_json(1, &widest), Ok(()));

    let kinds = kinds_with("{ by_number: Map<u16, bool>, by_name: Map<String, bytes>, signed: Map<i8, ()> }");
    let maps = (
        BTreeMap::from([(300u16, true)]),
        BTreeMap::from([("k", vec![1u8, 2])]),
        BTreeMap::from([(-3i8, ())]),
    );
    let shown = json!({ "by_number": { "300": true }, "by_name": { "k": [1, 2] }, "signed": { "-3": null } });
    assert_eq!(kinds.decode(7, &postcard::to_stdvec(&maps).unwrap()), Decoded::Json(shown.clone()));
    assert_eq!(kinds.check_json(7, &shown), Ok(()));
    let twice = kinds_with("Map<u8, u8>").decode(7, &[2, 5, 1, 5, 2]);
    assert_eq!(twice, Decoded::Unreadable("5: this key is there twice".into()));
}

#[test]
fn records_are_shown_decoded_raw_or_raw_with_the_reason() {
    let kinds = Kinds::parse(
        "[[kind]]\nnumber = 7\nname = \"reading\"\nschema = \"{ watt_hours: u64 }\"\n\
         [[kind]]\nnumber = 8\nname = \"photo\"\n",
    )
    .unwrap();
    let shown = json!({ "kind": 7, "name": "reading", "data": { "watt_hours": 5 } });
    assert_eq!(kinds.show(7, &[5]), shown);
    let shown = json!({ "kind": 8, "name": "photo", "hex": "05ff", "base64": "Bf8=" });
    assert_eq!(kinds.show(8, &[5, 255]), shown);
    assert_eq!(kinds.show(9, &[]), json!({ "kind": 9, "hex": "", "base64": "" }));
    let shown = json!({
        "kind": 7, "name": "reading", "hex": "0506", "base64": "BQY=",
        "unreadable": "a byte of the 2 follows what the schema describes",
    });
    assert_eq!(kinds.show(7, &[5, 6]), shown);
    assert_eq!(kinds.decode(8, &[1]), Decoded::Unknown);
    assert!(kinds.is_readable(8, &[1]) && kinds.is_readable(9, &[1]) && !kinds.is_readable(7, &[5, 6]));
    assert_eq!((kinds.name(7), kinds.name(9)), (Some("reading"), None));
    let texts = ["reading", "photo", "7", "9", "65536", "alarm", "", "-1", "+7"];
    let numbers = texts.map(|text| kinds.number(text));
    assert_eq!(numbers, [Some(7), Some(8), Some(7), Some(9), None, None, None, None, None]);
    assert_eq!(kinds.iter().collect::<Vec<_>>(), [(7, "reading"), (8, "photo")]);
    let nothing = Kinds::default();
    assert_eq!((nothing.decode(7, &[1]), nothing.number("7")), (Decoded::Unknown, Some(7)));
    assert_eq!(nothing.check_json(7, &json!(1)), Ok(()));
}

#[test]
fn a_body_that_does_not_fit_is_unreadable_and_the_reason_says_where() {
    let kinds = kinds_with(
        "{ meter: String, watt_hours: u16, tamper: Option<enum { Open, Magnet { millitesla: u16 } }>, list: Vec<bool> }",
    );
    let cases: [(&[u8], &str); 9] = [
        (&[], "meter: the body ends after 0 bytes, before this text"),
        (&[5, b'a'], "meter: this text should have 5 bytes, and only 1 of the 2 are left"),
        (&[1, 0xff], "meter: this text is not UTF-8"),
        (&[0, 0xff, 0xff, 0x04], "watt_hours: this number has more than 16 bits"),
        (&[0, 1, 2], "tamper: this option is 2, and should be 0 or 1"),
        (&[0, 1, 1, 2], "tamper: there is no variant 2, the schema has 2"),
        (&[0, 1, 1, 1], "tamper.Magnet.millitesla: the body ends after 4 bytes, before this number"),
        (&[0, 1, 0, 2, 1, 7], "list.1: this bool is 7, and should be 0 or 1"),
        (&[0, 1, 0, 0, 7, 7], "2 bytes of the 6 follow what the schema describes"),
    ];
    for (body, why) in cases {
        assert_eq!(kinds.decode(7, body), Decoded::Unreadable(why.into()), "{body:?}");
    }
}

#[test]
fn json_is_checked_and_the_reason_says_where() {
    let kinds = kinds_with(
        "{ meter: String, level: i8, tamper: Option<enum { Open, Magnet { millitesla: u16 } }>, at: [f32; 2] }",
    );
    let good =
        json!({ "meter": "m", "level": -5, "tamper": { "Magnet": { "millitesla": 5 } }, "at": [1, null] });
    assert_eq!(kinds.check_json(7, &good), Ok(()));
    assert_eq!(kinds.check_json(7, &json!({ "meter": "m", "level": 0, "at": [0.5, 2] })), Ok(()));
    let cases = [
        ("meter", json!(5), "meter: expected text, found 5"),
        ("level", json!(200), "level: expected a whole number from -128 to 127, found 200"),
        ("level", json!(1.5), "level: expected a whole number from -128 to 127, found 1.5"),
        ("level", json!("5"), "level: expected a whole number from -128 to 127, found \"5\""),
        ("tamper", json!("Magnet"), "tamper.Magnet: this variant holds something, which is missing"),
        ("tamper", json!({ "Open": 1 }), "tamper.Open: this variant holds nothing: write its name alone"),
        ("tamper", json!("Gone"), "tamper: there is no variant \"Gone\" in the schema"),
        (
            "tamper",
            json!({}),
            "tamper: expected the name of a variant, or an object with one as its only key",
        ),
        ("at", json!([1]), "at: expected a list of 2, found a list of 1"),
        ("at", json!([1, 1e300]), "at.1: expected a number that an f32 can hold, or null for NaN"),
        ("extra", json!(1), "extra: there is no such field in the schema"),
    ];
    for (field, value, why) in cases {
        let mut bad = good.clone();
        bad[field] = value;
        let found = kinds.check_json(7, &bad).unwrap_err();
        assert!(found.starts_with(why), "expected: {why}\nfound: {found}");
    }
    assert_eq!(kinds.check_json(7, &json!({ "meter": "m" })), Err("level: this field is missing".into()));
    assert_eq!(kinds.check_json(7, &json!([1])), Err("expected an object, found a list of 1".into()));
    let by_number = kinds_with("Map<i8, u8>");
    assert_eq!(by_number.check_json(7, &json!({ "-128": 1 })), Ok(()));
    for key in ["128", "x", "", "+1", "1.0"] {
        assert!(by_number.check_json(7, &json!({ key: 1 })).is_err(), "{key}");
    }
}

/// Postcard's verdict about any bytes is ours.
fn agrees_with_postcard<T: Serialize + DeserializeOwned>(kinds: &Kinds, body: &[u8], seed: u64) -> bool {
    let theirs = postcard::take_from_bytes::<T>(body).ok().filter(|(_, rest)| rest.is_empty());
    match (theirs, kinds.decode(1, body)) {
        (Some((value, _)), Decoded::Json(ours)) => {
            assert_eq!(ours, as_serde_json_writes(&value), "seed {seed}, body {body:02x?}");
            true
        }
        (None, Decoded::Unreadable(_)) => false,
        (theirs, ours) => panic!("seed {seed}, body {body:02x?}: postcard {}, we {ours:?}", theirs.is_some()),
    }
}

fn fuzz<T: Schema + Serialize + DeserializeOwned>(example: Option<&T>) {
    let seed = fastrand::u64(..);
    println!("{}: seed {seed}", std::any::type_name::<T>());
    let mut rng = Rng::with_seed(seed);
    let kinds = kinds_of::<T>();
    let whole = example.map(|example| postcard::to_stdvec(example).unwrap()).unwrap_or_default();
    let mut readable = 0;
    for _ in 0..20_000 {
        let mut body = whole.clone();
        if body.is_empty() || rng.u8(..4) == 0 {
            body = (0..rng.usize(..24)).map(|_| if rng.bool() { rng.u8(..4) } else { rng.u8(..) }).collect();
        }
        for _ in 0..rng.usize(..4) {
            let at = rng.usize(..=body.len());
            match rng.u8(..4) {
                0 => body.truncate(at),
                1 => body.insert(at, rng.u8(..)),
                _ => {
                    if let Some(byte) = body.get_mut(at) {
                        *byte ^= 1 << rng.u8(..8);
                    }
                }
            }
        }
        readable += usize::from(agrees_with_postcard::<T>(&kinds, &body, seed));
    }
    assert!(readable > 100, "only {readable} bodies were readable: this shows nothing");
}

/// What serde_json cannot write is left out: numbers beyond 64 bits.
#[derive(Serialize, Deserialize, Schema)]
struct Sample {
    text: heapless::String<300>,
    numbers: (u8, i8, u16, i16, u32, i32, u64, i64),
    floats: (f32, f64),
    list: heapless::Vec<Option<Shape>, 300>,
    flags: [bool; 2],
    either: Result<Wrapped, Pair>,
}

#[test]
fn hostile_bodies_are_judged_as_postcard_judges_them() {
    fuzz::<Sample>(Some(&Sample {
        text: text("meter-7"),
        numbers: (1, -1, 300, -300, 70_000, -70_000, 1 << 40, -(1 << 40)),
        floats: (1.5, -2.25),
        list: [Some(Shape::Empty), None, Some(Shape::Two(5, true))].into_iter().collect(),
        flags: [true, false],
        either: Err(Pair(1, 2)),
    }));
    fuzz::<heapless::Vec<Shape, 300>>(None);
    fuzz::<(u64, i64)>(None);
    fuzz::<(u16, i16)>(None);
    fuzz::<(u32, i32)>(None);
    fuzz::<heapless::Vec<heapless::String<300>, 300>>(None);
    fuzz::<(IpAddr, Option<f32>)>(Some(&(IpAddr::from([10, 0, 0, 7]), Some(0.1))));
}

#[test]
fn a_length_takes_no_memory_and_no_time() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 0, 0];
    let schemas = [
        "Vec<()>",
        "Vec<{}>",
        "Vec<[u8; 0]>",
        "Vec<[(); 4000000000]>",
        "Vec<u8>",
        "String",
        "bytes",
        "Map<String, ()>",
        "Vec<Vec<Vec<()>>>",
        "[[[[(); 4000000000]; 4000000000]; 4000000000]; 4000000000]",
        "([(); 4000000000], u8)",
    ];
    let start = Instant::now();
    for schema in schemas {
        let decoded = kinds_with(schema).decode(7, &huge);
        assert!(matches!(decoded, Decoded::Unreadable(_)), "{schema}: {decoded:?}");
    }
    // A body as long as a record can be, each byte of which would become a thousand values.
    let fields: String = (0..1000).map(|number| format!("f{number}: (), ")).collect();
    let mut body = vec![0xff, 0xff, 0x03];
    body.resize(65_535, 0);
    let decoded = kinds_with(&format!("Vec<{{ {fields} b: u8 }}>")).decode(7, &body);
    let Decoded::Unreadable(why) = decoded else { panic!("this took a lot of memory") };
    assert!(why.contains("more than 262144 values"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_schema_that_cannot_be_read_is_refused_wherever_it_hides() {
    let places = [
        "char",
        "{ a: u8, b: char }",
        "Option<Vec<(u8, char)>>",
        "enum { A, B(char) }",
        "enum { A { x: [char; 3] } }",
        "Map<String, char>",
        "enum { A(u8, char) }",
    ];
    for hidden in places {
        let sentence = refusal_of(hidden);
        let expected = "the kind \"reading\" (number 7) has a schema that cannot be used. Line 1";
        assert!(sentence.starts_with(expected), "{sentence}");
        assert!(sentence.contains("make it a `u32`"), "{sentence}");
    }
    assert!(refusal_of("Vec<Schema>").contains("a schema inside of a record cannot be read"));
}

#[test]
fn an_application_with_such_a_schema_learns_it_at_once() {
    #[derive(Schema)]
    #[allow(dead_code)]
    enum Hiding {
        A,
        B { x: heapless::Vec<Option<[char; 2]>, 3> },
    }
    let one = Described::new(Kind(1), Hiding::SCHEMA);
    let described: &'static [Described] = vec![one].leak();
    assert!(std::panic::catch_unwind(|| KindsFile::new(described)).is_err());
    let one = Described::new(Kind(1), u8::SCHEMA);
    let described: &'static [Described] = vec![one, one.named("other")].leak();
    assert!(std::panic::catch_unwind(|| KindsFile::new(described)).is_err());
}

#[test]
fn hostile_schemas_end_in_a_sentence() {
    for open in ["Option<", "(", "[", "{a:", "Vec<", "Map<u8,", "enum{a(", "enum{a{b:"] {
        let sentence = refusal_of(&open.repeat(100_000));
        assert!(sentence.contains("nested more than 32 deep"), "{sentence}");
    }
    let wide: String = (0..5000).map(|number| format!("f{number}: u8,")).collect();
    assert!(refusal_of(&format!("{{{wide}}}")).contains("more than 4096"));
    assert!(refusal_of("[u8; 99999999999]").contains("more than a record can hold"));
    let long = format!("{{ {}: u8 }}", "x".repeat(129));
    assert!(refusal_of(&long).contains("longer than 128 bytes"));
    let large = Kinds::parse(&"#".repeat(2 << 20)).unwrap_err().to_string();
    assert!(large.contains("longer than 1048576 bytes"), "{large}");
    assert!(Kinds::parse(&format!("kind = {}", "[".repeat(100_000))).is_err());

    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let words =
        "Option Vec Map enum struct u8 char String bytes a b < > { } ( ) [ ] , : ; 3 \" # é \\u0041 \n";
    let words: Vec<_> = words.split(' ').collect();
    let mut understood = 0;
    for _ in 0..100_000 {
        let text: String =
            (0..rng.usize(1..8)).flat_map(|_| [words[rng.usize(..words.len())], " "]).collect();
        if let Ok(kinds) = Kinds::parse(&file_with(&text)) {
            understood += 1;
            let body: Vec<u8> = (0..rng.usize(..20)).map(|_| rng.u8(..)).collect();
            let _ = kinds.show(7, &body);
        }
    }
    assert!(understood > 100, "{understood}");
}

#[test]
fn what_is_wrong_with_a_kinds_file_is_said_in_a_sentence() {
    let two = |one: &str, other: &str| format!("[[kind]]\n{one}\n[[kind]]\n{other}\n");
    let cases = [
        (
            two("number = 7\nname = \"a\"", "number = 7\nname = \"b\""),
            "the kind \"b\" (number 7) has the number of the kind \"a\": a number stands for one encoding, so give \
             one of them another.",
        ),
        (
            two("number = 7\nname = \"a\"", "number = 8\nname = \"a\""),
            "the kind \"a\" (number 8) has the name of kind 7: give one of them another.",
        ),
        (
            "[[kind]]\nnumber = 65536\nname = \"a\"".into(),
            "the kind \"a\" (number 65536) has a number that is none: kinds are numbered from 0 to 65535.",
        ),
        (
            "[[kind]]\nnumber = 7\nname = \"8\"".into(),
            "the kind \"8\" (number 7) has a number for a name, which would be taken for a kind's number: add a letter.",
        ),
        (
            "[[kind]]\nnumber = 7\nname = \"a\\u001b[2Jb\"".into(),
            "has a name that is hard to type: use letters, digits, '_', '-' and '.'.",
        ),
        ("[[kind]]\nnumber = 7\nname = \"\"".into(), "needs a name of 1 to 64 bytes."),
        ("[[kind]]\nnumber = 7\nnmae = \"a\"".into(), "unknown field `nmae`"),
        ("[[kind]]\nname = \"a\"".into(), "missing field `number`"),
        ("[[kind]]\nnumber = \"7\"\nname = \"a\"".into(), "expected i64"),
        ("this is no TOML".into(), "it does not read as a kinds file"),
        (file_with("{ a: u8, a: u16 }"), "Line 1, column 10 of the schema: there are two fields \"a\""),
        (file_with("enum { A, A }"), "there are two variants \"A\""),
        (
            file_with("\n{\n  a: u8,\n  b: strng,\n}"),
            "Line 3, column 6 of the schema: there is no type `strng`",
        ),
        (file_with("{ a: string }"), "there is no type `string`; text is a `String`"),
        (file_with("{ a: heapless::String<12> }"), "leave out the path and the capacity"),
        (file_with("{ a: u8 b: u8 }"), "expected `,`, found `b`"),
        (file_with("{ a: u8 } u8"), "the schema is complete, but `u8` follows"),
        (file_with("Vec<u8"), "the schema ends here, and `>` is missing"),
        (file_with(""), "the schema ends here, and a type is missing"),
        (file_with("{ a = u8 }"), "'=' does not belong in a schema"),
        (file_with("Map<f32, u8>"), "the key of a `Map` must be"),
    ];
    for (text, sentence) in cases {
        let error = Kinds::parse(&text).unwrap_err().to_string();
        assert!(error.contains(sentence), "expected: {sentence}\nfound: {error}");
    }
}

#[test]
fn a_pasted_rust_type_is_understood() {
    let kinds = kinds_with(
        "\n# As in the firmware.\nstruct Reading {\n    meter: String, // which\n    tamper: Option<enum Tamper { Open }>\n}\n",
    );
    assert_eq!(kinds.decode(7, &[0, 1, 0]), Decoded::Json(json!({ "meter": "", "tamper": "Open" })));
}

#[test]
fn a_file_that_is_not_there_or_not_text_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kinds.toml");
    let missing = Kinds::load(&path).unwrap_err();
    assert!(matches!(missing, KindsError::File { .. }));
    assert!(missing.to_string().contains("kinds.toml cannot be read"), "{missing}");
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    let binary = Kinds::load(&path).unwrap_err().to_string();
    assert!(binary.contains("kinds.toml cannot be used: it is not a text file"), "{binary}");
    std::fs::write(&path, file_with("u8")).unwrap();
    assert_eq!(Kinds::load(&path).unwrap(), kinds_with("u8"));
    assert_eq!(Kinds::parse("").unwrap(), Kinds::default());
}

/// The whole way: the command that an application's engineer types, and what comes of its output.
#[test]
fn an_application_writes_its_kinds_with_one_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args([
            "run",
            "--locked",
            "--quiet",
            "--example",
            "kinds",
            "--no-default-features",
            "--features",
            "schema",
        ])
        // As the tests were built, so that not everything is built again.
        .args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] })
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = String::from_utf8(output.stdout).unwrap();
    assert!(written.contains("    watt_hours: u64,\n"), "{written}");
    let kinds = Kinds::parse(&written).unwrap();
    assert_eq!(kinds.iter().collect::<Vec<_>>(), [(7, "reading"), (8, "journal")]);

    let reading = example::Reading {
        meter: text("main"),
        watt_hours: 18_204,
        phases: [229.9, 230.0, f32::NAN],
        tamper: Some(example::Tamper::Magnet { millitesla: 40 }),
    };
    let expected = json!({
        "kind": 7,
        "name": "reading",
        "data": {
            "meter": "main",
            "watt_hours": 18_204,
            "phases": [229.9, 230.0, null],
            "tamper": { "magnet": { "millitesla": 40 } },
        },
    });
    assert_eq!(kinds.show(7, &postcard::to_stdvec(&reading).unwrap()), expected);
    let line = example::JournalLine {
        text: text("brown-out"),
        place: (text("main.rs"), 42),
        samples: [-3, 700].into_iter().collect(),
    };
    let expected = json!({ "text": "brown-out", "place": ["main.rs", 42], "samples": [-3, 700] });
    assert_eq!(kinds.decode(8, &postcard::to_stdvec(&line).unwrap()), Decoded::Json(expected));
}
