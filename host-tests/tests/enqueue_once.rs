//! Claim: of the records with one tag only the last is pending, and what it superseded is accounted for. A bug here
//! sends an old setting after a new one, or drops a setting that nobody has replaced.

use std::collections::BTreeMap;

use embassy_futures::block_on;
use host_tests::device::{
    Flash, Kept, Meter, Note, boot, chip, config, for_every_cut, for_every_failure, numbers, poll_times,
};
use pillarbox::{Config, EnqueueError, Key, LaneConfig, Reason, Tag};

const TAGS: u32 = 16;

fn one_lane() -> Config<1> {
    config([LaneConfig::new(4).max_attempts(1)])
}

fn with_tag(meter: &Meter<'_>, tag: Tag) -> Vec<Kept> {
    let mut pending = meter.pending(0);
    pending.retain(|kept| kept.tag == Some(tag));
    pending
}

#[test]
fn a_newer_record_takes_the_place_of_a_pending_one_with_its_tag() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    meter.post(0);
    let old = meter.try_post_once(7, 1).unwrap();
    let other = meter.try_post_once(8, 2).unwrap();
    meter.post(3);
    let new = meter.try_post_once(7, 4).unwrap();
    assert_eq!(numbers(&meter.pending(0)), [0, 2, 3, 4]);
    assert_eq!(meter.explanation(old), Some(Reason::Superseded));
    assert_eq!((meter.explanation(other), meter.explanation(new)), (None, None));
    assert_eq!(meter.stats().lanes[0].given_up.of(Reason::Superseded), 1);
    drop(meter);
    let mut meter = boot(&chip, &one_lane());
    assert_eq!(numbers(&meter.pending(0)), [0, 2, 3, 4]);
    assert_eq!(meter.explanation(old), Some(Reason::Superseded));
    meter.try_post_once(7, 5).unwrap();
    assert_eq!(numbers(&meter.pending(0)), [0, 2, 3, 5], "tags survive a reboot");
}

#[test]
fn a_tag_is_a_matter_of_its_lane() {
    let chip = chip();
    let meter: Meter<2> = boot(&chip, &config([LaneConfig::new(2), LaneConfig::new(2)]));
    meter.try_post_once(7, 1).unwrap();
    block_on(meter.outbox.enqueue_once_in(1, 7, &Note::new(2))).unwrap();
    assert_eq!(numbers(&meter.pending(0)), [1]);
    assert_eq!(numbers(&meter.pending(1)), [2]);
}

#[test]
fn what_was_delivered_is_not_superseded() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let old = meter.try_post_once(7, 1).unwrap();
    meter.settle(0, &[old]);
    meter.try_post_once(7, 2).unwrap();
    assert_eq!(meter.explained_as(Reason::Superseded), []);
    meter.deliver(1);
    drop(meter);
    let mut meter = boot(&chip, &one_lane());
    meter.try_post_once(7, 3).unwrap();
    assert_eq!(numbers(&meter.pending(0)), [3]);
    assert_eq!(meter.explained_as(Reason::Superseded), []);
}

/// A chip on which every tag is taken.
fn all_tags_taken() -> Flash {
    let chip = chip();
    let meter = boot(&chip, &one_lane());
    for tag in 0..TAGS {
        meter.try_post_once(tag, tag).unwrap();
    }
    assert_eq!(meter.try_post_once(TAGS, 100), Err(EnqueueError::TooManyTags));
    drop(meter);
    chip
}

#[test]
fn sixteen_tags_may_be_live_and_the_next_is_refused_without_a_trace() {
    let chip = all_tags_taken();
    let mut meter = boot(&chip, &one_lane());
    meter.suspend();
    let counter = meter.post(50).counter;
    for _ in 0..5 {
        assert_eq!(meter.try_post_once(TAGS, 100), Err(EnqueueError::TooManyTags));
    }
    assert_eq!(meter.post(51).counter, counter + 1, "a refusal takes no counter");
    meter.try_post_once(3, 52).unwrap();
    let expected: Vec<u32> = (0..TAGS).filter(|&tag| tag != 3).chain([50, 51, 52]).collect();
    assert_eq!(numbers(&meter.pending(0)), expected, "a tag that is live may be used");
    assert_eq!(meter.explained_as(Reason::Superseded).len(), 1);
}

#[test]
fn a_delivery_frees_its_tag_whether_or_not_there_was_a_reboot() {
    for reboot in [false, true] {
        let chip = all_tags_taken();
        let mut meter = boot(&chip, &one_lane());
        meter.deliver(1);
        if reboot {
            drop(meter);
            meter = boot(&chip, &one_lane());
        }
        meter.try_post_once(TAGS, 100).unwrap();
        assert_eq!(meter.try_post_once(TAGS + 1, 101), Err(EnqueueError::TooManyTags));
    }
}

#[test]
fn a_dead_letter_frees_its_tag() {
    let chip = all_tags_taken();
    let mut meter = boot(&chip, &one_lane());
    let key = meter.pending(0)[4].key;
    assert_eq!(meter.reject(0, &[key]).parked, 1);
    meter.try_post_once(TAGS, 100).unwrap();
}

#[test]
fn evicted_records_free_their_tags() {
    let chip = all_tags_taken();
    let meter = boot(&chip, &config([LaneConfig::new(4).evict_oldest()]));
    meter.post_all(200..300);
    assert!(meter.pending(0).iter().all(|kept| kept.tag.is_none()));
    meter.try_post_once(TAGS, 100).unwrap();
}

/// A lane with some notes, one of which has tag 7.
fn one_tagged() -> (Flash, Key) {
    let chip = chip();
    let meter = boot(&chip, &one_lane());
    meter.post_all(0..3);
    let old = meter.try_post_once(7, 10).unwrap();
    meter.post_all(3..5);
    drop(meter);
    (chip, old)
}

fn untagged(meter: &Meter<'_>) -> Vec<u32> {
    let mut pending = meter.pending(0);
    pending.retain(|kept| kept.tag.is_none());
    numbers(&pending)
}

/// Posts another record with tag 7 after something went wrong with note 11, and looks at the books.
fn assert_one_is_left(meter: &mut Meter<'_>, old: Key) {
    let mut superseded = with_tag(meter, 7);
    superseded.retain(|kept| kept.key != old);
    let superseded: Vec<Key> = superseded.iter().map(|kept| kept.key).chain([old]).collect();
    meter.try_post_once(7, 12).unwrap();
    assert_eq!(numbers(&with_tag(meter, 7)), [12], "one record with the tag is left");
    assert_eq!(untagged(meter), [0, 1, 2, 3, 4]);
    for key in superseded {
        assert_eq!(meter.explanation(key), Some(Reason::Superseded), "{key:?}");
    }
}

#[test]
fn a_cut_at_every_operation_leaves_one_record_with_the_tag() {
    let (before, old) = one_tagged();
    for_every_cut(
        &before,
        |chip| {
            if let Ok(meter) = Meter::open(chip, &one_lane()) {
                let _ = meter.try_post_once(7, 11);
            }
        },
        |chip| {
            let mut meter = boot(chip, &one_lane());
            let tagged = with_tag(&meter, 7);
            match numbers(&tagged)[..] {
                [10] => assert_eq!(meter.explanation(old), None),
                [11] => assert_eq!(meter.explanation(old), Some(Reason::Superseded)),
                _ => panic!("not one record with the tag: {tagged:?}"),
            }
            assert_one_is_left(&mut meter, old);
        },
    );
}

#[test]
fn a_driver_error_at_every_operation_leaves_one_record_with_the_tag() {
    let (before, old) = one_tagged();
    for_every_failure(&before, |chip, operation| {
        let mut meter = boot(chip, &one_lane());
        chip.fail_after(operation);
        let failed = meter.try_post_once(7, 11).is_err();
        chip.cancel_failure();
        println!("driver error at operation {operation}");
        assert_one_is_left(&mut meter, old);
        failed
    });
}

#[test]
fn a_future_dropped_at_every_await_leaves_one_record_with_the_tag() {
    let (before, old) = one_tagged();
    for polls in 1.. {
        let chip = before.clone();
        let mut meter = boot(&chip, &one_lane());
        chip.set_yields(true);
        let finished = poll_times(meter.outbox.enqueue_once(7, &Note::new(11)), polls).is_some();
        chip.set_yields(false);
        println!("dropped after {polls} polls");
        assert_one_is_left(&mut meter, old);
        if finished {
            return;
        }
    }
}

#[test]
fn whatever_happens_the_newest_of_each_tag_is_what_is_pending() {
    let mut rng = fastrand::Rng::with_seed(17);
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let mut newest = BTreeMap::new();
    for number in 0..1500 {
        match rng.u32(0..20) {
            0 => {
                drop(meter);
                meter = boot(&chip, &one_lane());
            }
            1 => meter.suspend(),
            2 => {
                let delivered = meter.deliver(rng.usize(0..8));
                newest.retain(|_, number| !delivered.contains(number));
            }
            _ => {
                let tag = rng.u32(0..TAGS);
                match meter.try_post_once(tag, number) {
                    Ok(_) => drop(newest.insert(tag, number)),
                    // A few old settings may hold every page; that is what refusing means.
                    Err(EnqueueError::Full) => {
                        meter.deliver(usize::MAX);
                        newest.clear();
                    }
                    Err(error) => panic!("{error:?} at note {number}"),
                }
            }
        }
        let mut expected: Vec<u32> = newest.values().copied().collect();
        expected.sort();
        assert_eq!(numbers(&meter.pending(0)), expected, "after note {number}");
    }
}
