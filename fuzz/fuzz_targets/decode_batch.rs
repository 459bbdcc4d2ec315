//! Whatever comes over the wire, reading it as a batch never panics and never loops, and what can be read can
//! be written and read again.
//!
//! Run it with `RUSTC_BOOTSTRAP=1 cargo fuzz run decode_batch --sanitizer none -- -max_len=4096`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pillarbox::wire::{Batch, BatchWriter, ENVELOPE_MAX, Secret, TAG_LEN, TagKeys};
use pillarbox::{Entry, Stored};

/// Times below this differ by no more than the format can tell, whichever record comes before which.
const TIME_LIMIT: u64 = 1 << 62;

fuzz_target!(|bytes: &[u8]| {
    let _ = Batch::device(bytes);
    // Tags are not guessed: every input has one.
    let envelope = [bytes, &[0; TAG_LEN]].concat();
    let Ok(batch) = Batch::decode(&envelope) else { return };
    let account: Vec<Entry> = batch.entries().collect();
    let report: Vec<u32> = batch.report().collect();
    let records: Vec<Stored> = batch.records().collect();
    let late: Vec<Stored> = batch.late().collect();

    let head = &batch.head;
    let times =
        records.iter().chain(&late).flat_map(|record| [Some(record.time.uptime_ms), record.time.wall_ms]);
    if times.chain([Some(head.uptime_ms), head.wall_ms]).flatten().any(|time| time >= TIME_LIMIT) {
        return;
    }
    let keys = TagKeys::new(&Secret::new([7; 32]));
    let mut buffer = vec![0; 2 * ENVELOPE_MAX];
    // The writer reserves the most that can stand before the records: near the limit it takes less than a
    // reader.
    let reserve = BatchWriter::HEAD_MAX + 40 * BatchWriter::ENTRY_MAX;
    if envelope.len() + reserve > ENVELOPE_MAX {
        return;
    }
    let mut writer = BatchWriter::new(&mut buffer, head.boot, head.uptime_ms, head.wall_ms, 40);
    writer.set_floor(head.floor);
    for record in &records {
        assert!(writer.record(record, ENVELOPE_MAX), "{record:?} was in a batch before");
    }
    for record in &late {
        assert!(writer.late(record, ENVELOPE_MAX), "{record:?} was in a batch before");
    }
    let (again, entries) =
        writer.finish(&mut head.clone(), &account, &report, &keys).expect("it was a batch before");
    let again = &buffer[again];
    assert_eq!(entries, account.len());
    assert!(keys.verify_batch(again).is_some());

    let read = Batch::decode(again).expect("what was written can be read");
    assert_eq!(&read.head, head);
    assert!(read.entries().eq(account) && read.report().eq(report));
    assert!(read.records().eq(records) && read.late().eq(late));
});
