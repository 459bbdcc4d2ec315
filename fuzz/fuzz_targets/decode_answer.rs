//! Whatever comes over the wire, reading it as an answer never panics and never loops, and what can be read
//! can be written and read again.
//!
//! Run it with `RUSTC_BOOTSTRAP=1 cargo fuzz run decode_answer --sanitizer none -- -max_len=4096`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pillarbox::wire::{Answer, AnswerDraft, ENVELOPE_MAX, Secret, TagKeys};

const BATCH_TAG: [u8; 16] = [3; 16];

fuzz_target!(|bytes: &[u8]| {
    let Ok(answer) = Answer::decode(bytes) else { return };
    let settled = bitmap(|n| answer.is_settled(n), bytes.len());
    let late_settled = bitmap(|n| answer.is_late_settled(n), bytes.len());
    let verdicts: Vec<_> = answer.verdicts().collect();
    let explain: Vec<_> = answer.explain().collect();
    let draft = AnswerDraft {
        is_renew: answer.is_renew,
        is_stale: answer.is_stale,
        is_closed: answer.is_closed,
        server_time_ms: answer.server_time_ms,
        epoch: answer.epoch,
        confirmed: answer.confirmed,
        settled: &settled,
        late_settled: &late_settled,
        verdicts: &verdicts,
        explain: &explain,
        retry_after_s: answer.retry_after_s,
        preferred_size: answer.preferred_size,
    };
    let keys = TagKeys::new(&Secret::new([7; 32]));
    let mut buffer = vec![0; ENVELOPE_MAX + 16];
    let len = draft.encode(&mut buffer, &keys, &BATCH_TAG).expect("it was an answer before");
    let again = keys.open_answer(&BATCH_TAG, &buffer[..len]).expect("the tag is right");
    let read = Answer::decode(again).expect("what was written can be read");
    // Sections without meaning and bits that are clear at the end are gone, so it is compared by what it
    // says.
    assert!(again.len() <= bytes.len());
    let says = |answer: &Answer| {
        let flags = (answer.is_renew, answer.is_stale, answer.is_closed);
        let options = (answer.retry_after_s, answer.preferred_size);
        (flags, answer.server_time_ms, answer.epoch, answer.confirmed, options)
    };
    assert_eq!(says(&read), says(&answer));
    assert!(read.verdicts().eq(verdicts) && read.explain().eq(explain));
    let most = bytes.len() * 8;
    assert!((0..most).all(|n| read.is_settled(n) == answer.is_settled(n)));
    assert!((0..most).all(|n| read.is_late_settled(n) == answer.is_late_settled(n)));
});

fn bitmap(is_set: impl Fn(usize) -> bool, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|byte| (0..8).map(|bit| u8::from(is_set(byte * 8 + bit)) << bit).sum()).collect()
}
