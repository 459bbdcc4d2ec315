//! What is in `golden/wire-vectors.json`, and why each of it is there.

use serde::{Deserialize, Serialize};

use crate::plain::{
    PlainAnswer, PlainBatch, PlainEntry, PlainRecord, answer_bytes, batch_bytes, fingerprint, from_hex,
    seal_answer, seal_batch, to_hex, varint,
};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Vectors {
    pub(crate) about: String,
    pub(crate) batches: Vec<BatchVector>,
    pub(crate) answers: Vec<AnswerVector>,
    pub(crate) fingerprints: Vec<FingerprintVector>,
    pub(crate) invalid_batches: Vec<InvalidVector>,
    pub(crate) invalid_answers: Vec<InvalidVector>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BatchVector {
    pub(crate) name: String,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) secret: Vec<u8>,
    pub(crate) batch: PlainBatch,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) envelope: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AnswerVector {
    pub(crate) name: String,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) secret: Vec<u8>,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) batch_tag: Vec<u8>,
    pub(crate) answer: PlainAnswer,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) envelope: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FingerprintVector {
    pub(crate) record: PlainRecord,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) fingerprint: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InvalidVector {
    pub(crate) name: String,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) secret: Vec<u8>,
    /// Of an answer only; else empty.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) batch_tag: Vec<u8>,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) envelope: Vec<u8>,
    /// `Tag` if the tag is wrong; else the tag is right, and this is the `WireError`.
    pub(crate) error: String,
}

const ABOUT: &str = "Envelopes of Pillarbox, version 1, as SPEC.md lays them down. Byte strings are in hex; \
    numbers go up to 2^64 - 1; issued is absolute; reasons and verdicts are numbers. Every envelope here must be \
    read as what stands beside it, and written from it byte for byte. Those that are invalid must be refused; \
    the error is the name of this implementation for it.";

const SECRET: [u8; 32] = *b"0123456789abcdef0123456789abcdef";
const OTHER_SECRET: [u8; 32] = [0xff; 32];
const BATCH_TAG: [u8; 16] = *b"tag of the batch";

pub(crate) fn vectors() -> Vectors {
    Vectors {
        about: ABOUT.into(),
        batches: batches(),
        answers: answers(),
        fingerprints: fingerprints(),
        invalid_batches: invalid_batches(),
        invalid_answers: invalid_answers(),
    }
}

fn meter() -> PlainBatch {
    PlainBatch {
        device: "meter-0042".into(),
        incarnation: 0x8badf00d,
        lane: 1,
        floor: 300,
        issued: 310,
        boot: 5,
        boot_nonce: 0x0102_0304,
        attempt_nonce: 0x1112_1314_1516_1718,
        uptime_ms: 3_600_000,
        ..Default::default()
    }
}

fn record(counter: u64, uptime_ms: u64, body: &[u8]) -> PlainRecord {
    PlainRecord { counter, kind: 7, boot: 5, uptime_ms, body: body.into(), ..Default::default() }
}

fn letter(incarnation: u32, lane: u8, record: PlainRecord) -> PlainRecord {
    PlainRecord { incarnation: Some(incarnation), lane: Some(lane), ..record }
}

fn entry(reason: u8, first: u64, len: u64) -> PlainEntry {
    PlainEntry { reason, first, len }
}

fn batches() -> Vec<BatchVector> {
    let wall = 1_790_000_000_000;
    let with_wall = |record: PlainRecord, wall_ms| PlainRecord { wall_ms: Some(wall_ms), ..record };
    let vector = |name: &str, secret: [u8; 32], batch: PlainBatch| BatchVector {
        name: name.into(),
        secret: secret.into(),
        envelope: seal_batch(&secret, batch_bytes(&batch)),
        batch,
    };
    vec![
        vector("nothing to say", SECRET, PlainBatch { device: "d".into(), ..Default::default() }),
        vector("another secret", OTHER_SECRET, meter()),
        vector(
            "closing, with an account and a report",
            SECRET,
            PlainBatch {
                closing: true,
                wall_ms: Some(wall),
                account: (0..10).map(|reason| entry(reason, 290 - 20 * u64::from(reason), 10)).collect(),
                report: vec![10, 4096, 127, 128, 16_383, 16_384, 0, u32::MAX],
                ..meter()
            },
        ),
        vector(
            "records that have everything in common",
            SECRET,
            PlainBatch {
                wall_ms: Some(wall),
                records: (0..3)
                    .map(|n| {
                        let uptime = 900_000 * (n + 1);
                        with_wall(record(300 + n, uptime, &[n as u8; 4]), wall - 3_600_000 + uptime)
                    })
                    .collect(),
                ..meter()
            },
        ),
        vector(
            "records that have nothing in common",
            SECRET,
            PlainBatch {
                records: vec![
                    PlainRecord { kind: 0, body: vec![], ..record(300, 3_600_000, &[]) },
                    PlainRecord { boot: 4, ..record(302, 86_400_000, b"an earlier boot") },
                    PlainRecord { kind: 65_535, boot: 4, ..record(303, 86_399_999, b"a step back") },
                    with_wall(record(306, 10, b"the first with a wall clock"), wall),
                    record(307, 20, b"none again"),
                    with_wall(record(308, 30, b"as before"), wall + 20),
                    with_wall(record(309, 40, b"the clock was set back"), 5),
                ],
                ..meter()
            },
        ),
        vector(
            "dead letters after records",
            SECRET,
            PlainBatch {
                wall_ms: Some(wall),
                records: vec![record(309, 3_599_000, b"nine")],
                late: vec![
                    letter(0x8badf00d, 1, record(17, 3_599_000, b"like")),
                    letter(0x0000_0001, 0, PlainRecord { boot: 1, ..record(1 << 40, 77, b"long ago") }),
                ],
                ..meter()
            },
        ),
        vector(
            "dead letters alone",
            SECRET,
            PlainBatch { late: vec![letter(3, 2, record(0, 1, &[0; 200]))], ..meter() },
        ),
        vector(
            "the end of all numbers",
            OTHER_SECRET,
            PlainBatch {
                device: "abcdefghijklmnopqrstuvwxyz_-0189".into(),
                incarnation: u32::MAX,
                lane: 255,
                closing: true,
                in_order: true,
                floor: (1 << 63) - 2,
                issued: 1 << 63,
                boot: u32::MAX,
                boot_nonce: u32::MAX,
                attempt_nonce: u64::MAX,
                uptime_ms: u64::MAX,
                wall_ms: Some(u64::MAX),
                account: vec![entry(9, 0, 1 << 63)],
                report: vec![u32::MAX; 32],
                records: vec![
                    PlainRecord {
                        boot: u32::MAX,
                        wall_ms: Some(1 << 63),
                        ..record((1 << 63) - 2, 1 << 63, b"")
                    },
                    PlainRecord { wall_ms: Some(0), ..record((1 << 63) - 1, i64::MAX as u64, b"") },
                ],
                late: vec![letter(0, 0, record((1 << 63) - 1, 0, &[1]))],
            },
        ),
        vector(
            "the far side of the window",
            SECRET,
            PlainBatch {
                issued: 5_000,
                records: vec![record(300, 0, b"first"), record(1323, 0, b"last")],
                ..meter()
            },
        ),
    ]
}

fn answers() -> Vec<AnswerVector> {
    let vector = |name: &str, secret: [u8; 32], answer: PlainAnswer| AnswerVector {
        name: name.into(),
        secret: secret.into(),
        batch_tag: BATCH_TAG.into(),
        envelope: seal_answer(&secret, &BATCH_TAG, answer_bytes(&answer)),
        answer,
    };
    let usual =
        PlainAnswer { server_time_ms: 1_790_000_000_123, epoch: 0x0102_0304_0506_0708, ..Default::default() };
    vec![
        vector("nothing to say", SECRET, PlainAnswer::default()),
        vector("all of nine records", SECRET, PlainAnswer { settled: vec![0xff, 0x01], ..usual.clone() }),
        vector("another secret", OTHER_SECRET, usual.clone()),
        vector("stale", SECRET, PlainAnswer { stale: true, renew: true, settled: vec![1], ..usual.clone() }),
        vector(
            "everything",
            SECRET,
            PlainAnswer {
                renew: true,
                stale: false,
                closed: true,
                server_time_ms: u64::MAX,
                epoch: u64::MAX,
                confirmed: u32::MAX,
                settled: vec![0x80; 128],
                late_settled: vec![0x01, 0x80],
                verdicts: vec![(0, 0), (127, 1), (128, 2), (1039, 3)],
                explain: vec![(0, 1), (300, 128), ((1 << 63) - 1, 1)],
                retry_after_s: Some(3_600),
                preferred_size: Some(u32::MAX),
            },
        ),
        vector("come back at once", SECRET, PlainAnswer { retry_after_s: Some(0), ..usual }),
    ]
}

fn fingerprints() -> Vec<FingerprintVector> {
    let records = [
        PlainRecord::default(),
        record(1, 900_000, b"body"),
        PlainRecord { wall_ms: Some(1_790_000_000_000), ..record(1, 900_000, b"body") },
        PlainRecord { wall_ms: Some(0), ..record(1, 900_000, b"body") },
    ];
    records.map(|record| FingerprintVector { fingerprint: fingerprint(&record), record }).into()
}

/// A batch with these sections in place of its own.
fn with(sections: &[u8]) -> Vec<u8> {
    [batch_bytes(&meter()), sections.to_vec()].concat()
}

fn section(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number];
    varint(&mut bytes, content.len() as u64);
    bytes.extend(content);
    bytes
}

fn changed(mut bytes: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
    bytes[at] = to;
    bytes
}

fn invalid_batches() -> Vec<InvalidVector> {
    let bytes = || batch_bytes(&meter());
    let minimal = || batch_bytes(&PlainBatch { device: "d".into(), ..Default::default() });
    let many = |each: &[u8], count: usize| each.repeat(count);
    let entries = |count: u8| -> Vec<u8> { (0..count).flat_map(|n| [9, n, 1]).collect() };
    let end = 2_u64.pow(63);
    let far = |floor, issued| {
        let mut bytes = vec![1, 0, 1, b'd', 0, 0, 0, 0, 0];
        varint(&mut bytes, floor);
        varint(&mut bytes, issued);
        bytes.extend([0; 14]);
        bytes
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing before the tag", vec![], "Malformed"),
        ("version 0", changed(bytes(), 0, 0), "Version(0)"),
        ("version 2", changed(bytes(), 0, 2), "Version(2)"),
        ("an unknown flag", changed(bytes(), 1, 0x09), "Unknown(8)"),
        ("cut in the head", bytes()[..30].to_vec(), "Malformed"),
        ("no device", changed(minimal(), 2, 0), "Malformed"),
        ("a device of 33", [&[1, 0, 33][..], &[b'a'; 33], &[0; 30]].concat(), "Malformed"),
        ("a device with a blank", changed(minimal(), 3, b' '), "Malformed"),
        (
            "length of the device not the shortest",
            [&[1, 0, 0x81, 0, b'd'][..], &[0; 24]].concat(),
            "Malformed",
        ),
        (
            "floor not the shortest",
            [&[1, 0, 1, b'd', 0, 0, 0, 0, 0, 0x80, 0][..], &[0; 16]].concat(),
            "Malformed",
        ),
        ("floor of more than 64 bits", [&minimal()[..9], &[0xff; 9], &[2], &[0; 16]].concat(), "Malformed"),
        (
            "boot of more than 32 bits",
            [&minimal()[..11], &[0xff, 0xff, 0xff, 0xff, 0x10], &[0; 13]].concat(),
            "Malformed",
        ),
        ("issued beyond 2^63", far(1, end), "Rule"),
        ("issued beyond 2^64", far(2, u64::MAX), "Rule"),
        ("floor beyond 2^63", far(end + 1, 0), "Rule"),
        ("a section without a length", with(&[3]), "Malformed"),
        ("a section longer than the envelope", with(&[0x80, 1]), "Malformed"),
        ("a section's length not the shortest", with(&[0x80, 0x81, 0, 7]), "Malformed"),
        ("a section's length of more than 32 bits", with(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x10]), "Malformed"),
        ("section 00", with(&[0, 0]), "Unknown(0)"),
        ("section 05", with(&[5, 0]), "Unknown(5)"),
        ("section 7f", with(&[0x7f, 1, 0]), "Unknown(127)"),
        ("a section twice", with(&[2, 0, 2, 0]), "Rule"),
        ("a section that may be skipped twice", with(&[0x80, 0, 0x80, 0]), "Rule"),
        ("sections out of order", with(&[0x80, 0, 3, 0]), "Rule"),
        ("an entry cut short", with(&section(1, &[9, 5])), "Malformed"),
        ("an unknown reason", with(&section(1, &[10, 5, 1])), "Unknown(10)"),
        ("an entry about nothing", with(&section(1, &[9, 5, 0])), "Rule"),
        ("entries that overlap", with(&section(1, &[9, 5, 2, 8, 6, 1])), "Rule"),
        ("an entry beyond 2^63", with(&section(1, &[&[9, 1][..], &[0x80; 9], &[1]].concat())), "Rule"),
        ("an entry beyond 2^64", with(&section(1, &[&[9, 1][..], &[0xff; 9], &[1]].concat())), "Rule"),
        ("33 entries", with(&section(1, &entries(33))), "Rule"),
        ("an entry's first not the shortest", with(&section(1, &[9, 0x85, 0, 1])), "Malformed"),
        ("33 numbers in a report", with(&section(2, &[0; 33])), "Rule"),
        (
            "a report's number of more than 32 bits",
            with(&section(2, &[0xff, 0xff, 0xff, 0xff, 0x10])),
            "Malformed",
        ),
        ("a report cut short", with(&section(2, &[0x80])), "Malformed"),
        ("a report's number not the shortest", with(&section(2, &[0x80, 0])), "Malformed"),
        ("a record cut short", with(&section(3, &[0x20, 0, 5, 1, 2])), "Malformed"),
        ("a record without uptime", with(&section(3, &[0])), "Malformed"),
        ("a record with flag 40", with(&section(3, &[0x40, 0])), "Unknown(64)"),
        ("a record with flag 80", with(&section(3, &[0x80, 0])), "Unknown(128)"),
        ("a record with both 08 and 10", with(&section(3, &[0x18, 0, 0])), "Rule"),
        ("a gap not the shortest", with(&section(3, &[1, 0x81, 0, 0])), "Malformed"),
        ("an uptime not the shortest", with(&section(3, &[0, 0x80, 0])), "Malformed"),
        ("a kind of more than 16 bits", with(&section(3, &[2, 0x80, 0x80, 4, 0])), "Malformed"),
        ("a length of more than 16 bits", with(&section(3, &[0x20, 0, 0x80, 0x80, 4])), "Malformed"),
        ("a counter that was not issued", with(&section(3, &[1, 10, 0])), "Rule"),
        ("more records than were issued", with(&section(3, &many(&[0, 0], 11))), "Rule"),
        ("a gap beyond 2^64", with(&section(3, &[&[1][..], &[0xff; 9], &[1, 0]].concat())), "Rule"),
        ("an uptime below 0", with(&section(3, &[4, 1, 1])), "Malformed"),
        ("a wall clock below 0", with(&section(3, &[0x0c, 1, 0, 1])), "Malformed"),
        ("a late record with a gap", with(&section(4, &[0, 0, 0, 0, 0, 7, 1, 1, 0])), "Rule"),
        ("a late record cut short", with(&section(4, &[0, 0, 0, 0, 0, 7])), "Malformed"),
        (
            "a late counter of 2^63",
            with(&section(4, &[&[0, 0, 0, 0, 0][..], &[0x80; 9], &[1, 0, 0]].concat())),
            "Rule",
        ),
        ("17 late records", with(&section(4, &many(&[0, 0, 0, 0, 0, 7, 0, 0], 17))), "Rule"),
    ];
    let invalid = |(name, bytes, error): (&str, Vec<u8>, &str)| InvalidVector {
        name: name.into(),
        secret: SECRET.into(),
        batch_tag: Vec::new(),
        envelope: seal_batch(&SECRET, bytes),
        error: error.into(),
    };
    let mut vectors: Vec<_> = cases.into_iter().map(invalid).collect();
    // Beyond the window, where the counters were issued.
    let beyond = batch_bytes(&PlainBatch { issued: 5_000, ..meter() });
    let mut gap = vec![1];
    varint(&mut gap, 1024);
    gap.push(0);
    vectors.push(invalid(("a counter beyond the window", [beyond, section(3, &gap)].concat(), "Rule")));
    let wrong = |name, at| {
        let mut vector = invalid((name, bytes(), "Tag"));
        let len = vector.envelope.len();
        vector.envelope[len - at] ^= 1;
        vector
    };
    vectors.extend([wrong("a wrong bit in the tag", 1), wrong("a wrong bit before the tag", 17)]);
    vectors
}

fn invalid_answers() -> Vec<InvalidVector> {
    let bytes = || answer_bytes(&PlainAnswer::default());
    let with = |sections: &[u8]| [bytes(), sections.to_vec()].concat();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing before the tag", vec![], "Malformed"),
        ("version 2", changed(bytes(), 0, 2), "Version(2)"),
        ("an unknown flag", changed(bytes(), 1, 0x0c), "Unknown(8)"),
        ("cut in the head", bytes()[..10].to_vec(), "Malformed"),
        ("server time not the shortest", [&[1, 0, 0x80, 0][..], &[0; 9]].concat(), "Malformed"),
        (
            "confirmed of more than 32 bits",
            [&bytes()[..11], &[0xff, 0xff, 0xff, 0xff, 0x10]].concat(),
            "Malformed",
        ),
        ("section 07", with(&[7, 0]), "Unknown(7)"),
        ("sections out of order", with(&[2, 0, 1, 0]), "Rule"),
        ("a section longer than the envelope", with(&[1, 2, 0]), "Malformed"),
        ("an unknown verdict", with(&section(3, &[0, 4])), "Unknown(4)"),
        ("a verdict cut short", with(&section(3, &[0])), "Malformed"),
        ("a verdict's number of more than 16 bits", with(&section(3, &[0x80, 0x80, 4, 0])), "Malformed"),
        ("65 verdicts", with(&section(3, &[0, 1].repeat(65))), "Rule"),
        ("a range cut short", with(&section(4, &[0])), "Malformed"),
        ("a range beyond 2^63", with(&section(4, &[&[1][..], &[0x80; 9], &[1]].concat())), "Rule"),
        ("9 ranges", with(&section(4, &[0, 1].repeat(9))), "Rule"),
        ("retry after of more than 32 bits", with(&section(5, &[0xff, 0xff, 0xff, 0xff, 0x10])), "Malformed"),
        ("retry after twice", with(&section(5, &[1, 1])), "Malformed"),
        ("retry after not the shortest", with(&section(5, &[0x81, 0])), "Malformed"),
        ("preferred size cut short", with(&section(6, &[0x80])), "Malformed"),
    ];
    let invalid = |(name, bytes, error): (&str, Vec<u8>, &str)| InvalidVector {
        name: name.into(),
        secret: SECRET.into(),
        batch_tag: BATCH_TAG.into(),
        envelope: seal_answer(&SECRET, &BATCH_TAG, bytes),
        error: error.into(),
    };
    let mut vectors: Vec<_> = cases.into_iter().map(invalid).collect();
    let mut other = invalid(("an answer to another batch", bytes(), "Tag"));
    other.envelope = seal_answer(&SECRET, &[0; 16], bytes());
    vectors.push(other);
    vectors
}
