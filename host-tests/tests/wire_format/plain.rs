//! The envelopes a second time, after SPEC.md and as plainly as can be, so that not one reading of it makes
//! the format.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainBatch {
    pub(crate) device: String,
    pub(crate) incarnation: u32,
    pub(crate) lane: u8,
    pub(crate) closing: bool,
    pub(crate) in_order: bool,
    pub(crate) floor: u64,
    /// Not as its distance from the floor.
    pub(crate) issued: u64,
    pub(crate) boot: u32,
    pub(crate) boot_nonce: u32,
    pub(crate) attempt_nonce: u64,
    pub(crate) uptime_ms: u64,
    pub(crate) wall_ms: Option<u64>,
    pub(crate) account: Vec<PlainEntry>,
    pub(crate) report: Vec<u32>,
    pub(crate) records: Vec<PlainRecord>,
    pub(crate) late: Vec<PlainRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainEntry {
    pub(crate) reason: u8,
    pub(crate) first: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainRecord {
    /// Of a late one only; the others have the batch's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incarnation: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<u8>,
    pub(crate) counter: u64,
    pub(crate) kind: u16,
    pub(crate) boot: u32,
    pub(crate) uptime_ms: u64,
    pub(crate) wall_ms: Option<u64>,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainAnswer {
    pub(crate) renew: bool,
    pub(crate) stale: bool,
    pub(crate) closed: bool,
    pub(crate) server_time_ms: u64,
    pub(crate) epoch: u64,
    pub(crate) confirmed: u32,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) settled: Vec<u8>,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) late_settled: Vec<u8>,
    pub(crate) verdicts: Vec<(u16, u8)>,
    pub(crate) explain: Vec<(u64, u64)>,
    pub(crate) retry_after_s: Option<u32>,
    pub(crate) preferred_size: Option<u32>,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn to_hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex(bytes))
}

pub(crate) fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).map_err(serde::de::Error::custom);
    (0..text.len()).step_by(2).map(byte).collect()
}

pub(crate) fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 127 {
        bytes.push(number as u8 | 128);
        number /= 128;
    }
    bytes.push(number as u8);
}

fn zigzag(bytes: &mut Vec<u8>, number: i128) {
    let number = i64::try_from(number).expect("an i64");
    let positive = if number >= 0 { 2 * i128::from(number) } else { -2 * i128::from(number) - 1 };
    varint(bytes, positive as u64);
}

fn section(bytes: &mut Vec<u8>, number: u8, content: Vec<u8>) {
    if !content.is_empty() {
        bytes.push(number);
        varint(bytes, content.len() as u64);
        bytes.extend(content);
    }
}

/// Everything before the tag.
pub(crate) fn batch_bytes(batch: &PlainBatch) -> Vec<u8> {
    let mut bytes = head_bytes(batch);
    let mut content = Vec::new();
    for entry in &batch.account {
        content.push(entry.reason);
        varint(&mut content, entry.first);
        varint(&mut content, entry.len);
    }
    section(&mut bytes, 1, content);

    let mut content = Vec::new();
    batch.report.iter().for_each(|number| varint(&mut content, (*number).into()));
    section(&mut bytes, 2, content);

    // The head stands for the record before the first.
    let mut last = PlainRecord {
        counter: batch.floor.wrapping_sub(1),
        boot: batch.boot,
        uptime_ms: batch.uptime_ms,
        wall_ms: batch.wall_ms,
        ..Default::default()
    };
    let mut last_clock = clock(&last);
    let mut content = Vec::new();
    for record in &batch.records {
        let gap = record.counter - last.counter.wrapping_add(1);
        record_bytes(&mut content, record, gap, &last, &mut last_clock);
        last = record.clone();
    }
    section(&mut bytes, 3, content);

    let mut content = Vec::new();
    for record in &batch.late {
        content.extend(record.incarnation.unwrap().to_le_bytes());
        content.push(record.lane.unwrap());
        varint(&mut content, record.counter);
        record_bytes(&mut content, record, 0, &last, &mut last_clock);
        last = record.clone();
    }
    section(&mut bytes, 4, content);
    bytes
}

fn head_bytes(batch: &PlainBatch) -> Vec<u8> {
    let mut bytes = vec![
        1,
        u8::from(batch.closing) + 2 * u8::from(batch.wall_ms.is_some()) + 4 * u8::from(batch.in_order),
    ];
    varint(&mut bytes, batch.device.len() as u64);
    bytes.extend(batch.device.as_bytes());
    bytes.extend(batch.incarnation.to_le_bytes());
    bytes.push(batch.lane);
    varint(&mut bytes, batch.floor);
    varint(&mut bytes, batch.issued - batch.floor);
    varint(&mut bytes, batch.boot.into());
    bytes.extend(batch.boot_nonce.to_le_bytes());
    bytes.extend(batch.attempt_nonce.to_le_bytes());
    varint(&mut bytes, batch.uptime_ms);
    if let Some(wall_ms) = batch.wall_ms {
        varint(&mut bytes, wall_ms);
    }
    bytes
}

/// Wall clock minus uptime.
fn clock(record: &PlainRecord) -> Option<i128> {
    record.wall_ms.map(|wall_ms| i128::from(wall_ms) - i128::from(record.uptime_ms))
}

fn record_bytes(
    bytes: &mut Vec<u8>,
    record: &PlainRecord,
    gap: u64,
    last: &PlainRecord,
    last_clock: &mut Option<i128>,
) {
    let flags_at = bytes.len();
    let mut flags = 0;
    bytes.push(0);
    if gap > 0 {
        flags += 0x01;
        varint(bytes, gap);
    }
    if record.kind != last.kind {
        flags += 0x02;
        varint(bytes, record.kind.into());
    }
    if record.boot != last.boot {
        flags += 0x04;
        varint(bytes, record.boot.into());
        zigzag(bytes, record.uptime_ms.into());
    } else {
        zigzag(bytes, i128::from(record.uptime_ms) - i128::from(last.uptime_ms));
    }
    match (clock(record), *last_clock) {
        (None, None) => {}
        (None, Some(_)) => flags += 0x10,
        (Some(clock), Some(last)) if clock == last => {}
        (Some(clock), last) => {
            flags += 0x08;
            zigzag(bytes, clock - last.unwrap_or(0));
            *last_clock = Some(clock);
        }
    }
    if record.body.len() != last.body.len() {
        flags += 0x20;
        varint(bytes, record.body.len() as u64);
    }
    bytes[flags_at] = flags;
    bytes.extend(&record.body);
}

/// Everything before the tag.
pub(crate) fn answer_bytes(answer: &PlainAnswer) -> Vec<u8> {
    let flags = u8::from(answer.renew) + 2 * u8::from(answer.stale) + 4 * u8::from(answer.closed);
    let mut bytes = vec![1, flags];
    varint(&mut bytes, answer.server_time_ms);
    bytes.extend(answer.epoch.to_le_bytes());
    varint(&mut bytes, answer.confirmed.into());
    section(&mut bytes, 1, answer.settled.clone());
    section(&mut bytes, 2, answer.late_settled.clone());
    let mut content = Vec::new();
    for (n, verdict) in &answer.verdicts {
        varint(&mut content, (*n).into());
        content.push(*verdict);
    }
    section(&mut bytes, 3, content);
    let mut content = Vec::new();
    for (first, len) in &answer.explain {
        varint(&mut content, *first);
        varint(&mut content, *len);
    }
    section(&mut bytes, 4, content);
    for (number, value) in [(5, answer.retry_after_s), (6, answer.preferred_size)] {
        let mut content = Vec::new();
        value.iter().for_each(|value| varint(&mut content, (*value).into()));
        section(&mut bytes, number, content);
    }
    bytes
}

/// HMAC-SHA256 by its definition, for keys that are no longer than a block.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let pad = |with: u8| -> Vec<u8> { (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect() };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

pub(crate) fn seal_batch(secret: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
    let key = hmac(secret, b"pillarbox.v1.request");
    let tag = hmac(&key, &bytes);
    bytes.extend(&tag[..16]);
    bytes
}

pub(crate) fn seal_answer(secret: &[u8], batch_tag: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
    let key = hmac(secret, b"pillarbox.v1.answer");
    let tag = hmac(&key, &[batch_tag, &bytes].concat());
    bytes.extend(&tag[..16]);
    bytes
}

pub(crate) fn fingerprint(record: &PlainRecord) -> Vec<u8> {
    let mut bytes = record.kind.to_le_bytes().to_vec();
    bytes.extend(record.boot.to_le_bytes());
    bytes.extend(record.uptime_ms.to_le_bytes());
    match record.wall_ms {
        Some(wall_ms) => {
            bytes.push(1);
            bytes.extend(wall_ms.to_le_bytes());
        }
        None => bytes.extend([0; 9]),
    }
    bytes.extend(&record.body);
    Sha256::digest(&bytes)[..16].to_vec()
}
