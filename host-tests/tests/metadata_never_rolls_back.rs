//! Claim: what a boot has seen in the metadata stays true. A snapshot that was cut may be broken at one boot and whole at
//! the next, because a weak cell reads otherwise; by then it is old, and must not win over what was written since.

use embassy_futures::block_on;
use host_tests::device::{Flash, METADATA, boot, chip, config};
use pillarbox::{Config, LaneConfig, Reason};

fn one_lane() -> Config<1> {
    config([LaneConfig::new(4).evict_oldest()])
}

/// A bit that was programmed between two images, somewhere in the newest snapshot.
fn programmed_bit(before: &[u8], after: &[u8]) -> (u32, u8) {
    let changed = |at: &usize| before[*at] & !after[*at] != 0;
    // Not the header: a snapshot whose data do not add up is passed over in another way than one without a header.
    let at = (0..METADATA).filter(changed).nth(20).expect("a snapshot was written");
    (at as u32, (before[at] & !after[at]).trailing_zeros() as u8)
}

/// A device whose last snapshot is broken in one bit, in this half of the metadata.
fn broken(half: usize) -> (Flash, u32, u8) {
    let chip = chip();
    // Each boot begins a half.
    for _ in 0..half {
        boot(&chip, &one_lane());
    }
    let meter = boot(&chip, &one_lane());
    meter.post_all(0..10);
    let before = chip.image();
    block_on(meter.outbox.suspend()).unwrap();
    drop(meter);
    let (at, bit) = programmed_bit(&before, &chip.image());
    chip.flip_bit(at, bit);
    (chip, at, bit)
}

#[test]
fn a_snapshot_that_one_boot_has_doubted_does_not_win_at_the_next() {
    for half in 0..2 {
        doubt_once(half);
    }
}

fn doubt_once(half: usize) {
    let (chip, at, bit) = broken(half);
    assert_eq!(at as usize / (METADATA / 2), half);
    let mut doubting = boot(&chip, &one_lane());
    let (number, account) = (block_on(doubting.outbox.stats()).boot, doubting.account());
    assert!(
        account.iter().any(|entry| entry.reason == Reason::Uncertain),
        "the lease was not given up: {account:?}"
    );
    drop(doubting);

    chip.flip_bit(at, bit);
    let mut next = boot(&chip, &one_lane());
    assert_eq!(block_on(next.outbox.stats()).boot, number + 1, "no two boots have one number");
    let later = next.account();
    for entry in &account {
        assert!(later.contains(entry), "{entry:?} was durable and is gone: {later:?}");
    }
}

#[test]
fn nor_after_many_writes_that_the_flash_did_not_keep() {
    let (chip, at, bit) = broken(1);
    let meter = boot(&chip, &one_lane());
    // Each of these fails somewhere in its write; each takes a number.
    for failure in 0..40 {
        chip.fail_after(failure % 8);
        let _ = block_on(meter.outbox.suspend());
    }
    chip.cancel_failure();
    block_on(meter.outbox.suspend()).unwrap();
    let number = block_on(meter.outbox.stats()).boot;
    drop(meter);
    chip.flip_bit(at, bit);
    assert_eq!(block_on(boot(&chip, &one_lane()).outbox.stats()).boot, number + 1);
}
