//! One content has one envelope: what SPEC.md says of batches and answers, what the golden vectors hold and
//! what the library writes and reads are the same, and whatever else comes over the wire is refused without
//! harm.
//!
//! The vectors in `golden/wire-vectors.json` are for other implementations too. They are written by a second,
//! plain encoder in `wire_format/plain.rs`, which shares no code with the library. A change of the format is
//! a decision; when it was made: `BLESS=1 cargo test -p host-tests --test wire_format` writes the file anew.
//!
//! A failing random case prints its seed: `SEED=<seed> cargo test -p host-tests --test wire_format` runs it
//! alone.

#[path = "wire_format/plain.rs"]
mod plain;
#[path = "wire_format/random.rs"]
mod random;
#[path = "wire_format/vectors.rs"]
mod vectors;

use pillarbox::wire::{
    Answer, AnswerDraft, Batch, BatchWriter, ENVELOPE_MAX, Head, Secret, TAG_LEN, TagKeys, Verdict,
    WireError, fingerprint,
};
use pillarbox::{DeviceId, Entry, Key, Kind, Reason, Stored, Timestamp};
use plain::{PlainAnswer, PlainBatch, PlainEntry, PlainRecord};
use random::seeds;
use vectors::Vectors;

const SECRET: [u8; 32] = *b"thirty-two bytes that nobody has";

fn keys() -> TagKeys {
    TagKeys::new(&Secret::new(SECRET))
}

/// The record as it would lie in the flash. A late one says itself whose it is.
fn stored<'a>(record: &'a PlainRecord, batch: &PlainBatch) -> Stored<'a> {
    Stored {
        key: Key {
            incarnation: record.incarnation.unwrap_or(batch.incarnation),
            lane: record.lane.unwrap_or(batch.lane),
            counter: record.counter,
        },
        kind: Kind(record.kind),
        time: Timestamp { boot: record.boot, uptime_ms: record.uptime_ms, wall_ms: record.wall_ms },
        tag: None,
        cause: None,
        body: &record.body,
    }
}

fn head(batch: &PlainBatch) -> Head {
    Head {
        device: DeviceId::new(&batch.device).unwrap(),
        incarnation: batch.incarnation,
        lane: batch.lane,
        is_closing: batch.closing,
        is_in_order: batch.in_order,
        floor: batch.floor,
        issued: batch.issued,
        boot: batch.boot,
        boot_nonce: batch.boot_nonce,
        attempt_nonce: batch.attempt_nonce,
        uptime_ms: batch.uptime_ms,
        wall_ms: batch.wall_ms,
    }
}

fn account(batch: &PlainBatch) -> Vec<Entry> {
    let entry = |entry: &PlainEntry| Entry {
        incarnation: batch.incarnation,
        lane: batch.lane,
        reason: Reason::ALL[usize::from(entry.reason)],
        first: entry.first,
        len: entry.len,
    };
    batch.account.iter().map(entry).collect()
}

/// What the library writes.
fn encode(batch: &PlainBatch, keys: &TagKeys) -> Vec<u8> {
    let mut buffer = vec![0xa5; ENVELOPE_MAX + 1000];
    // A report that is longer than those of today takes the room of six entries more.
    let room_for = batch.account.len() + 6;
    let mut writer = BatchWriter::new(&mut buffer, batch.boot, batch.uptime_ms, batch.wall_ms, room_for);
    writer.set_floor(batch.floor);
    for record in &batch.records {
        assert!(writer.record(&stored(record, batch), usize::MAX), "{record:?} fits");
    }
    for record in &batch.late {
        assert!(writer.late(&stored(record, batch), usize::MAX), "{record:?} fits");
    }
    let (envelope, entries) = writer.finish(&mut head(batch), &account(batch), &batch.report, keys).unwrap();
    let envelope = &buffer[envelope];
    assert_eq!(entries, batch.account.len());
    envelope.to_vec()
}

/// What the library reads.
fn decode(envelope: &[u8]) -> Result<PlainBatch, WireError> {
    let batch = Batch::decode(envelope)?;
    assert_eq!(Batch::device(envelope).as_ref(), Ok(&batch.head.device));
    let plain = |record: Stored<'_>, is_late: bool| {
        assert_eq!((record.tag, record.cause), (None, None));
        if !is_late {
            assert_eq!((record.key.incarnation, record.key.lane), (batch.head.incarnation, batch.head.lane));
        }
        PlainRecord {
            incarnation: is_late.then_some(record.key.incarnation),
            lane: is_late.then_some(record.key.lane),
            counter: record.key.counter,
            kind: record.kind.0,
            boot: record.time.boot,
            uptime_ms: record.time.uptime_ms,
            wall_ms: record.time.wall_ms,
            body: record.body.to_vec(),
        }
    };
    Ok(PlainBatch {
        device: batch.head.device.as_str().into(),
        incarnation: batch.head.incarnation,
        lane: batch.head.lane,
        closing: batch.head.is_closing,
        in_order: batch.head.is_in_order,
        floor: batch.head.floor,
        issued: batch.head.issued,
        boot: batch.head.boot,
        boot_nonce: batch.head.boot_nonce,
        attempt_nonce: batch.head.attempt_nonce,
        uptime_ms: batch.head.uptime_ms,
        wall_ms: batch.head.wall_ms,
        account: batch
            .entries()
            .map(|entry| PlainEntry { reason: entry.reason as u8, first: entry.first, len: entry.len })
            .collect(),
        report: batch.report().collect(),
        records: batch.records().map(|record| plain(record, false)).collect(),
        late: batch.late().map(|record| plain(record, true)).collect(),
    })
}

fn encode_answer(answer: &PlainAnswer, keys: &TagKeys, batch_tag: &[u8; TAG_LEN]) -> Vec<u8> {
    let verdicts: Vec<_> = answer.verdicts.iter().map(|&(n, number)| (n, verdict(number))).collect();
    let draft = AnswerDraft {
        is_renew: answer.renew,
        is_stale: answer.stale,
        is_closed: answer.closed,
        server_time_ms: answer.server_time_ms,
        epoch: answer.epoch,
        confirmed: answer.confirmed,
        settled: &answer.settled,
        late_settled: &answer.late_settled,
        verdicts: &verdicts,
        explain: &answer.explain,
        retry_after_s: answer.retry_after_s,
        preferred_size: answer.preferred_size,
    };
    let mut buffer = vec![0xa5; 2000];
    let len = draft.encode(&mut buffer, keys, batch_tag).unwrap();
    // It fits into as many bytes as it has, and into no less.
    for room in 0..=len {
        let mut small = vec![0; room];
        let written = draft.encode(&mut small, keys, batch_tag);
        assert_eq!(written, if room == len { Ok(len) } else { Err(WireError::Room) });
        assert!(room < len || small == buffer[..len]);
    }
    buffer.truncate(len);
    buffer
}

fn verdict(number: u8) -> Verdict {
    [Verdict::Retry, Verdict::Rejected, Verdict::Quarantined, Verdict::Conflict][usize::from(number)]
}

/// The bitmaps by their bits, as far as the library lets them be seen.
fn decode_answer(bytes: &[u8]) -> Result<PlainAnswer, WireError> {
    let answer = Answer::decode(bytes)?;
    let bitmap = |is_set: &dyn Fn(usize) -> bool| {
        let mut bits: Vec<u8> =
            (0..300).map(|byte| (0..8).map(|bit| u8::from(is_set(byte * 8 + bit)) << bit).sum()).collect();
        bits.truncate(bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        bits
    };
    Ok(PlainAnswer {
        renew: answer.is_renew,
        stale: answer.is_stale,
        closed: answer.is_closed,
        server_time_ms: answer.server_time_ms,
        epoch: answer.epoch,
        confirmed: answer.confirmed,
        settled: bitmap(&|n| answer.is_settled(n)),
        late_settled: bitmap(&|n| answer.is_late_settled(n)),
        verdicts: answer.verdicts().map(|(n, verdict)| (n, verdict as u8)).collect(),
        explain: answer.explain().collect(),
        retry_after_s: answer.retry_after_s,
        preferred_size: answer.preferred_size,
    })
}

#[test]
fn the_golden_vectors_are_what_they_were() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/wire-vectors.json");
    let today = serde_json::to_string_pretty(&vectors::vectors()).unwrap() + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &today).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert!(
        golden == today,
        "wire-vectors.json is not what the plain encoder writes; see the head of this file"
    );
    let golden: Vectors = serde_json::from_str(&golden).unwrap();

    for vector in &golden.batches {
        let keys = TagKeys::new(&Secret::new(vector.secret.clone().try_into().unwrap()));
        assert_eq!(
            plain::hex(&encode(&vector.batch, &keys)),
            plain::hex(&vector.envelope),
            "{}",
            vector.name
        );
        assert_eq!(decode(&vector.envelope).as_ref(), Ok(&vector.batch), "{}", vector.name);
        let tag = keys.verify_batch(&vector.envelope);
        assert_eq!(tag.as_ref(), vector.envelope.last_chunk(), "{}", vector.name);
    }
    for vector in &golden.answers {
        let keys = TagKeys::new(&Secret::new(vector.secret.clone().try_into().unwrap()));
        let batch_tag: [u8; TAG_LEN] = vector.batch_tag.clone().try_into().unwrap();
        let written = encode_answer(&vector.answer, &keys, &batch_tag);
        assert_eq!(plain::hex(&written), plain::hex(&vector.envelope), "{}", vector.name);
        let opened = keys.open_answer(&batch_tag, &vector.envelope).expect("the tag is right");
        assert_eq!(decode_answer(opened).as_ref(), Ok(&vector.answer), "{}", vector.name);
    }
    for vector in &golden.fingerprints {
        let batch = PlainBatch::default();
        let found = fingerprint(&stored(&vector.record, &batch));
        assert_eq!(plain::hex(&found), plain::hex(&vector.fingerprint));
    }
}

#[test]
fn invalid_envelopes_are_refused_for_the_reason_that_the_vectors_give() {
    let vectors = vectors::vectors();
    for vector in &vectors.invalid_batches {
        let keys = TagKeys::new(&Secret::new(vector.secret.clone().try_into().unwrap()));
        let error = match keys.verify_batch(&vector.envelope) {
            None => "Tag".into(),
            Some(_) => decode(&vector.envelope).map_or_else(|error| format!("{error:?}"), |_| "none".into()),
        };
        assert_eq!(error, vector.error, "{}", vector.name);
    }
    for vector in &vectors.invalid_answers {
        let keys = TagKeys::new(&Secret::new(vector.secret.clone().try_into().unwrap()));
        let batch_tag: [u8; TAG_LEN] = vector.batch_tag.clone().try_into().unwrap();
        let error = match keys.open_answer(&batch_tag, &vector.envelope) {
            None => "Tag".into(),
            Some(bytes) => decode_answer(bytes).map_or_else(|error| format!("{error:?}"), |_| "none".into()),
        };
        assert_eq!(error, vector.error, "{}", vector.name);
    }
}

#[test]
fn an_envelope_of_more_than_65535_bytes_is_refused() {
    for (extra, is_refused) in [(0, false), (1, true)] {
        let mut bytes = plain::batch_bytes(&PlainBatch { device: "d".into(), ..Default::default() });
        let len = ENVELOPE_MAX - TAG_LEN - bytes.len() - 4 + extra;
        bytes.push(0x80);
        plain::varint(&mut bytes, len as u64);
        bytes.resize(bytes.len() + len, 0);
        let envelope = plain::seal_batch(&SECRET, bytes);
        assert_eq!(envelope.len(), ENVELOPE_MAX + extra);
        assert_eq!(decode(&envelope).err(), is_refused.then_some(WireError::Rule));
    }
}

#[test]
fn sections_that_may_be_skipped_are() {
    let batch = vectors::vectors().batches.pop().unwrap().batch;
    let mut bytes = plain::batch_bytes(&batch);
    bytes.extend([0x80, 0, 0x81, 3, 1, 2, 3, 0xff, 1, 0]);
    assert_eq!(decode(&plain::seal_batch(&SECRET, bytes)), Ok(batch));

    let answer = PlainAnswer { server_time_ms: 7, retry_after_s: Some(3), ..Default::default() };
    let mut bytes = plain::answer_bytes(&answer);
    bytes.extend([0x80, 0, 0xff, 1, 0]);
    assert_eq!(decode_answer(&bytes), Ok(answer));
}

#[test]
fn random_batches_come_back_as_they_went() {
    let keys = keys();
    for (_guard, mut random) in seeds(1500) {
        let batch = random::batch(&mut random);
        let envelope = encode(&batch, &keys);
        assert!(envelope == plain::seal_batch(&SECRET, plain::batch_bytes(&batch)), "two encoders agree");
        assert_eq!(decode(&envelope).as_ref(), Ok(&batch));
        assert_eq!(keys.verify_batch(&envelope).as_ref(), envelope.last_chunk());
    }
}

#[test]
fn random_answers_come_back_as_they_went() {
    let keys = keys();
    for (_guard, mut random) in seeds(300) {
        let answer = random::answer(&mut random);
        let mut batch_tag = [0; TAG_LEN];
        random.fill(&mut batch_tag);
        let envelope = encode_answer(&answer, &keys, &batch_tag);
        assert!(envelope == plain::seal_answer(&SECRET, &batch_tag, plain::answer_bytes(&answer)));
        let bytes = keys.open_answer(&batch_tag, &envelope).expect("the tag is right");
        assert_eq!(decode_answer(bytes).as_ref(), Ok(&answer));
        batch_tag[random.usize(..TAG_LEN)] ^= 1 << random.u8(..8);
        assert_eq!(keys.open_answer(&batch_tag, &envelope), None, "an answer belongs to one batch");
    }
}

#[test]
fn flipped_and_cut_envelopes_are_refused_without_harm() {
    let keys = keys();
    for (_guard, mut random) in seeds(1500) {
        let batch = random::batch(&mut random);
        let envelope = encode(&batch, &keys);
        let mut flipped = envelope.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..flipped.len());
            flipped[at] ^= 1 << random.u8(..8);
        }
        if flipped != envelope {
            assert_eq!(keys.verify_batch(&flipped), None);
        }
        let _ = decode(&flipped);

        let cut = &envelope[..random.usize(..envelope.len())];
        assert_eq!(keys.verify_batch(cut), None);
        let _ = decode(cut);
        // Even with a right tag: between two sections it is another batch, elsewhere none.
        let cut = &cut[..cut.len().saturating_sub(TAG_LEN)];
        if let Ok(less) = decode(&plain::seal_batch(&SECRET, cut.to_vec())) {
            assert_eq!(less.device, batch.device);
            for (one, other) in less.records.iter().zip(&batch.records) {
                assert_eq!(one, other);
            }
            assert!(less.records.is_empty() || less.records.len() == batch.records.len());
        }

        let answer = random::answer(&mut random);
        let mut bytes = plain::answer_bytes(&answer);
        let at = random.usize(..bytes.len());
        let _ = decode_answer(&bytes[..at]);
        bytes[at] ^= 1 << random.u8(..8);
        let _ = decode_answer(&bytes);
    }
}

#[test]
fn random_bytes_are_read_without_harm() {
    for (_guard, mut random) in seeds(5000) {
        let mut bytes = vec![0; random.usize(..200)];
        random.fill(&mut bytes);
        let _ = (decode(&bytes), decode_answer(&bytes), Batch::device(&bytes));
        // The same behind a head that is right, so that it is looked at.
        let mut behind = plain::batch_bytes(&random::head(&mut random));
        behind.push(random.u8(1..5));
        plain::varint(&mut behind, bytes.len() as u64);
        behind.extend(bytes);
        let _ = decode(&plain::seal_batch(&SECRET, behind));
    }
}

#[test]
fn a_batch_is_never_larger_than_allowed_and_a_refused_record_changes_nothing() {
    let keys = keys();
    for (_guard, mut random) in seeds(1500) {
        let mut batch = random::batch(&mut random);
        let at_most = random.usize(BatchWriter::HEAD_MAX..3000);
        let room_for = random.usize(..batch.account.len() + 1);
        let mut buffer = vec![0; random.usize(..4000)];
        let size = buffer.len();
        let mut writer = BatchWriter::new(&mut buffer, batch.boot, batch.uptime_ms, batch.wall_ms, room_for);
        writer.set_floor(batch.floor);
        let (records, late) = (std::mem::take(&mut batch.records), std::mem::take(&mut batch.late));
        for record in records {
            if writer.record(&stored(&record, &batch), at_most) {
                batch.records.push(record);
            }
        }
        for record in late {
            if writer.late(&stored(&record, &batch), at_most) {
                batch.late.push(record);
            }
        }
        assert_eq!((writer.records(), writer.lates()), (batch.records.len(), batch.late.len()));
        batch.report.truncate(BatchWriter::REPORT_LEN);
        match writer.finish(&mut head(&batch), &account(&batch), &batch.report, &keys) {
            Ok((envelope, entries)) => {
                let envelope = &buffer[envelope];
                let max = BatchWriter::HEAD_MAX + room_for * BatchWriter::ENTRY_MAX;
                if !batch.records.is_empty() || !batch.late.is_empty() {
                    assert!(envelope.len() <= at_most, "{} of {at_most}", envelope.len());
                }
                if batch.records.is_empty() && batch.late.is_empty() {
                    assert!(envelope.len() <= max);
                }
                if size >= max {
                    assert!(entries >= room_for, "{entries} of {room_for}");
                    assert_eq!(decode(envelope).unwrap().report, batch.report);
                }
                let read = decode(envelope).unwrap();
                batch.account.truncate(entries);
                batch.report.truncate(read.report.len());
                assert_eq!(read, batch);
            }
            Err(error) => {
                assert_eq!(error, WireError::Room);
                assert!(size < BatchWriter::HEAD_MAX, "{size}");
            }
        }
    }
}

/// Every number as long as it can be.
fn longest() -> PlainBatch {
    let counter = (1 << 63) - 1;
    PlainBatch {
        device: "d".repeat(32),
        incarnation: u32::MAX,
        lane: 255,
        closing: true,
        in_order: true,
        floor: counter,
        issued: 1 << 63,
        boot: u32::MAX,
        boot_nonce: u32::MAX,
        attempt_nonce: u64::MAX,
        uptime_ms: 1 << 63,
        wall_ms: Some(1 << 63),
        account: (0..32)
            .map(|n| PlainEntry { reason: 9, first: (1 << 62) + (n << 57), len: 1 << 57 })
            .collect(),
        report: vec![u32::MAX; 8],
        records: vec![],
        late: vec![],
    }
}

#[test]
fn the_bounds_that_a_buffer_is_sized_by_hold() {
    let keys = keys();
    let batch = longest();
    let time = |boot, uptime_ms, wall_ms| Timestamp { boot, uptime_ms, wall_ms: Some(wall_ms) };
    let body = [7; 20_000];
    let key = Key { incarnation: u32::MAX, lane: 255, counter: (1 << 63) - 1 };
    let far = (1 << 62) + 1;
    let record = Stored {
        key,
        kind: Kind(u16::MAX),
        time: time(u32::MAX - 1, far, 0),
        tag: None,
        cause: None,
        body: &body[..16_384],
    };
    let late = Stored { kind: Kind(16_384), time: time(u32::MAX - 2, far, far), body: &body, ..record };
    let size = BatchWriter::HEAD_MAX
        + 32 * BatchWriter::ENTRY_MAX
        + 2 * BatchWriter::RECORD_MAX
        + record.body.len()
        + late.body.len();
    let mut buffer = vec![0; size];
    let mut writer = BatchWriter::new(&mut buffer, batch.boot, batch.uptime_ms, batch.wall_ms, 32);
    writer.set_floor(batch.floor);
    assert!(writer.record(&record, size) && writer.late(&late, size));
    let (envelope, entries) =
        writer.finish(&mut head(&batch), &account(&batch), &batch.report, &keys).unwrap();
    let envelope = &buffer[envelope];
    assert_eq!(entries, 32);
    let with_late = envelope.len();
    assert_eq!(decode(envelope).unwrap().late.len(), 1);
    assert_eq!(decode(envelope).unwrap().report, batch.report);

    let mut writer = BatchWriter::new(&mut buffer, batch.boot, batch.uptime_ms, batch.wall_ms, 32);
    writer.set_floor(batch.floor);
    assert!(writer.record(&record, size));
    let (envelope, _) = writer.finish(&mut head(&batch), &account(&batch), &batch.report, &keys).unwrap();
    let envelope = &buffer[envelope];
    let without = envelope.len();
    // The longest record there is is as long as the bound says; its section has four bytes more.
    assert_eq!(with_late - without, 4 + BatchWriter::RECORD_MAX + late.body.len());
}

#[test]
fn a_day_of_readings_takes_little() {
    let keys = keys();
    let quarter_hour = 15 * 60 * 1000;
    let mut batch = PlainBatch {
        device: "meter-0042".into(),
        incarnation: 0x1234_5678,
        floor: 100_000,
        issued: 100_064,
        boot: 12,
        uptime_ms: 70 * quarter_hour,
        wall_ms: Some(1_790_000_000_000),
        report: vec![64, 4_000, 1_000, 0, 100_064, 100_000, 3, 40],
        account: vec![PlainEntry { reason: 1, first: 99_000, len: 8 }],
        ..Default::default()
    };
    let clock = batch.wall_ms.unwrap() - batch.uptime_ms;
    batch.records = (0..64)
        .map(|n| {
            let uptime_ms = (n + 1) * quarter_hour + n * n * 7;
            let wall_ms = Some(clock + uptime_ms);
            let body = vec![n as u8; 20];
            PlainRecord {
                counter: 100_000 + n,
                kind: 7,
                boot: 12,
                uptime_ms,
                wall_ms,
                body,
                ..Default::default()
            }
        })
        .collect();
    let envelope = encode(&batch, &keys);
    assert!(envelope.len() <= 1_700, "{} bytes", envelope.len());
    assert_eq!(decode(&envelope), Ok(batch));
}

#[test]
fn the_writer_takes_nothing_that_a_reader_would_refuse() {
    let keys = keys();
    let batch = PlainBatch { device: "d".into(), floor: 10, issued: 5000, ..Default::default() };
    let record = |counter| PlainRecord { counter, body: vec![1], ..Default::default() };
    let mut buffer = vec![0; ENVELOPE_MAX * 2];
    let mut add = |counters: &[u64]| -> Vec<bool> {
        let mut writer = BatchWriter::new(&mut buffer, 0, 0, None, 0);
        writer.set_floor(10);
        counters.iter().map(|counter| writer.record(&stored(&record(*counter), &batch), usize::MAX)).collect()
    };
    assert_eq!(
        add(&[9, 10, 10, 12, 11]),
        [false, true, false, true, false],
        "in their order, from the floor on"
    );
    assert_eq!(add(&[10 + 1024, 10 + 1023]), [false, true], "inside the window");
    let all: Vec<u64> = (10..10 + 1100).collect();
    assert_eq!(add(&all).iter().filter(|is_taken| **is_taken).count(), 1024);

    let mut writer = BatchWriter::new(&mut buffer, 0, 0, None, 0);
    writer.set_floor(10);
    assert!(writer.record(&stored(&record(10), &batch), usize::MAX));
    let other = PlainBatch { incarnation: 1, ..batch.clone() };
    assert!(!writer.record(&stored(&record(11), &other), usize::MAX), "one incarnation");
    let letter = PlainRecord { incarnation: Some(3), lane: Some(4), ..record(11) };
    let taken = (0..20).filter(|_| writer.late(&stored(&letter, &batch), usize::MAX)).count();
    assert_eq!(taken, 16);
    assert!(!writer.record(&stored(&record(11), &batch), usize::MAX), "records come before dead letters");
    let finished = writer.finish(&mut Head { issued: 10, ..head(&batch) }, &[], &[], &keys);
    assert_eq!(finished.map(|_| ()), Err(WireError::Rule), "a record beyond what was issued");

    // Times that are too far apart to be told.
    let mut writer = BatchWriter::new(&mut buffer, 0, 0, None, 0);
    let at = |uptime_ms, wall_ms| PlainRecord { uptime_ms, wall_ms, ..record(0) };
    for absurd in [at(1 << 63, None), at(0, Some(1 << 63)), at(u64::MAX, Some(0))] {
        assert!(!writer.record(&stored(&absurd, &batch), usize::MAX));
    }
    assert!(writer.record(&stored(&at((1 << 63) - 1, Some(0)), &batch), usize::MAX));
    let too_large = PlainRecord { body: vec![0; 65_536], ..record(1) };
    assert!(!writer.record(&stored(&too_large, &batch), usize::MAX));
    let largest = PlainRecord { body: vec![0; 65_000], ..record(1) };
    assert!(writer.record(&stored(&largest, &batch), usize::MAX));
    let next = PlainRecord { body: vec![0; 500], ..record(2) };
    assert!(!writer.record(&stored(&next, &batch), usize::MAX), "an envelope has at most 65,535 bytes");
    let mut first = Head { floor: 0, ..head(&batch) };
    let (envelope, _) = writer.finish(&mut first, &[], &[], &keys).unwrap();
    let envelope = &buffer[envelope];
    assert_eq!(decode(envelope).unwrap().records.len(), 2);
}
