//! Claim: what the outbox says about itself is true, and where it does not know, it says so. People decide by these
//! numbers whether a fleet is healthy; a wrong one is worse than none.

use embassy_futures::block_on;
use host_tests::device::{
    Flash, METADATA, Meter, PAGE, boot, boot_counted, chip, config, corrupt, for_every_cut,
    for_every_failure, keys,
};
use host_tests::flash::Chip;
use pillarbox::{Cause, Config, Depth, Entry, Event, Key, LaneConfig, Reason};

fn one_lane() -> Config<1> {
    config([LaneConfig::new(4).max_attempts(2)])
}

fn entry(key: Key, reason: Reason) -> Entry {
    Entry { incarnation: key.incarnation, lane: key.lane, reason, first: key.counter, len: 1 }
}

/// Rejects a record as often as the lane allows.
fn reject_for_good(meter: &mut Meter<'_>, key: Key) {
    meter.reject(0, &[key]);
    assert_eq!(meter.reject(0, &[key]).parked, 1);
}

/// Asserts that a depth is what it claims to be: exact, or an upper bound.
fn assert_true(meter: &Meter<'_>) {
    let depth = meter.depth(0);
    let pending = meter.pending(0).len() as u32;
    if depth.is_exact {
        assert_eq!(depth.records, pending);
    } else {
        assert!(depth.records >= pending, "at most {}, but {pending} are", depth.records);
    }
}

/// Asserts that the depth is exact, and that counting gives the same in records and in bytes.
fn assert_exact(meter: &mut Meter<'_>) {
    let depth = meter.depth(0);
    assert!(depth.is_exact);
    meter.window(0);
    assert_eq!(meter.depth(0), depth);
}

#[test]
fn a_blank_device_knows_that_nothing_is_pending() {
    let chip = chip();
    let nothing = Depth { records: 0, bytes: 0, is_exact: true };
    assert_eq!(boot(&chip, &one_lane()).depth(0), nothing);
}

#[test]
fn depth_is_exact_while_the_device_lives() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &one_lane());
    assert_eq!((meter.depth(0).records, meter.depth(0).bytes), (0, 0));
    let posted = meter.post_all(0..10);
    assert_eq!(meter.depth(0).records, 10);
    assert_exact(&mut meter);
    meter.settle(0, &[posted[3], posted[0]]);
    assert_eq!(meter.depth(0).records, 8);
    assert_exact(&mut meter);
    reject_for_good(&mut meter, posted[1]);
    assert_eq!(meter.depth(0).records, 7);
    assert_exact(&mut meter);
    meter.try_post_once(1, 10).unwrap();
    meter.try_post_once(1, 11).unwrap();
    assert_eq!(meter.depth(0).records, 8);
    assert_exact(&mut meter);
    meter.deliver(usize::MAX);
    assert_eq!((meter.depth(0).records, meter.depth(0).bytes), (0, 0));
    assert_exact(&mut meter);
    block_on(meter.outbox.clear()).unwrap();
    assert_exact(&mut meter);
}

#[test]
fn depth_is_exact_after_a_clean_stop() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &one_lane());
    meter.post_all(0..12);
    meter.deliver(5);
    let depth = meter.depth(0);
    meter.suspend();
    drop(meter);
    let mut meter = boot(&chip, &one_lane());
    assert_eq!(meter.depth(0), depth);
    assert_exact(&mut meter);
}

#[test]
fn depth_is_an_upper_bound_after_an_unclean_stop_and_exact_after_a_full_pass() {
    let chip = chip();
    let meter = boot_counted(&chip, &one_lane());
    let posted = meter.fill(0).len() as u32;
    drop(meter);
    let mut meter = boot(&chip, &one_lane());
    let depth = meter.depth(0);
    assert!(!depth.is_exact);
    assert!(depth.records >= posted);
    // A pass that ends early has not counted.
    block_on(meter.drain.window(0, |_| false)).unwrap();
    assert!(!meter.depth(0).is_exact);
    meter.window(0);
    assert!(meter.depth(0).is_exact);
    assert_eq!(meter.depth(0).records, posted);
}

#[test]
fn a_count_from_a_clean_stop_is_not_believed_when_something_has_changed_since() {
    // What a device may do that stays awake after all. Any of it may be cut, so nobody asks how it went.
    type Change = fn(&mut Meter<'_>, &[Key]);
    let changes: [Change; 4] = [
        |meter, posted| {
            let _ = block_on(meter.drain.settle(0, &posted[..2]));
        },
        |meter, _| {
            let _ = (meter.try_post(50), meter.try_post(51));
        },
        |meter, posted| {
            for _ in 0..2 {
                let _ = block_on(meter.drain.reject(0, &posted[1..2]));
            }
        },
        |meter, _| {
            let _ = meter.try_post_once(1, 60);
        },
    ];
    let before = chip();
    let meter = boot(&before, &one_lane());
    let posted = meter.post_all(0..10);
    meter.try_post_once(1, 10).unwrap();
    drop(meter);
    for change in changes {
        for_every_cut(
            &before,
            |chip| {
                let Ok(mut meter) = Meter::open(chip, &one_lane()) else {
                    return;
                };
                let counted = block_on(meter.drain.window(0, |_| true));
                if counted.is_ok() && block_on(meter.outbox.suspend()).is_ok() {
                    change(&mut meter, &posted);
                }
            },
            |chip| assert_true(&boot(chip, &one_lane())),
        );
    }
}

#[test]
fn a_driver_error_while_settling_leaves_a_depth_that_is_true() {
    let before = chip();
    let posted = boot(&before, &one_lane()).post_all(0..10);
    for_every_failure(&before, |chip, operation| {
        let mut meter = boot_counted(chip, &one_lane());
        chip.fail_after(operation);
        let failed = block_on(meter.drain.settle(0, &posted[2..5])).is_err();
        chip.cancel_failure();
        println!("driver error at operation {operation}");
        assert_true(&meter);
        failed
    });
}

#[test]
fn a_driver_error_while_enqueuing_leaves_a_depth_that_is_true() {
    let before = chip();
    boot(&before, &one_lane()).post_all(0..10);
    for_every_failure(&before, |chip, operation| {
        let mut meter = boot_counted(chip, &one_lane());
        chip.fail_after(operation);
        let failed = meter.try_post(100).is_err();
        chip.cancel_failure();
        println!("driver error at operation {operation}");
        meter.pending(0);
        assert_true(&meter);
        meter.window(0);
        assert_exact(&mut meter);
        failed
    });
}

#[test]
fn the_age_of_the_oldest_record_is_told() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &one_lane());
    let oldest = |meter: &Meter<'_>| meter.stats().lanes[0].oldest_ms;
    assert_eq!(oldest(&meter), None);
    meter.uptime.advance(1000);
    meter.post(0);
    meter.uptime.advance(300);
    meter.post(1);
    meter.uptime.advance(200);
    assert_eq!(oldest(&meter), Some(500));
    meter.deliver(1);
    meter.window(0);
    assert_eq!(oldest(&meter), Some(200));
    meter.deliver(1);
    assert_eq!(oldest(&meter), None);
    meter.uptime.advance(1000);
    meter.post(2);
    meter.uptime.advance(10);
    assert_eq!(oldest(&meter), Some(10));
}

#[test]
fn the_age_of_a_record_that_is_gone_is_not_told() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &one_lane());
    meter.post(0);
    meter.uptime.advance(1000);
    meter.post(1);
    meter.deliver(1);
    // It may not know the age before the next pass, but it must not tell that of a delivered record.
    let oldest = meter.stats().lanes[0].oldest_ms;
    assert!(matches!(oldest, None | Some(0)), "{oldest:?}");
}

#[test]
fn counts_since_boot_are_those_of_what_happened() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &one_lane());
    let posted = meter.post_all(0..6);
    reject_for_good(&mut meter, posted[0]);
    meter.deliver(2);
    let stats = meter.stats();
    let lane = stats.lanes[0];
    assert_eq!((lane.enqueued, lane.delivered, lane.retried), (6, 2, 1));
    assert_eq!(lane.given_up.of(Reason::Parked), 1);
    assert_eq!((stats.boot, stats.corrupt), (1, 0));
    drop(meter);
    let stats = boot(&chip, &one_lane()).stats();
    assert_eq!((stats.boot, stats.lanes[0].enqueued), (2, 0));
}

#[test]
fn what_was_cleared_is_counted_record_by_record() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &one_lane());
    let posted = meter.post_all(0..10);
    meter.settle(0, &posted[3..7]);
    block_on(meter.outbox.clear()).unwrap();
    assert_eq!(meter.stats().lanes[0].given_up.of(Reason::Cleared), 6);
}

#[test]
fn a_record_s_way_is_announced() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    meter.events();
    let first = meter.post(0);
    assert_eq!(meter.events(), [Event::Queued(first)]);
    let second = meter.post(1);
    meter.events();
    meter.settle(0, &[first]);
    assert_eq!(meter.events(), [Event::Delivered(first)]);
    meter.reject(0, &[second]);
    let retrying = Event::Retrying { key: second, attempts: 1 };
    assert_eq!(meter.events(), [retrying]);
    meter.reject(0, &[second]);
    let parked = Event::Parked { key: second, cause: Cause::Rejected };
    assert_eq!(meter.events(), [parked]);
    meter.discard(second);
    assert_eq!(meter.events(), [Event::Dropped(entry(second, Reason::Rejected))]);
}

#[test]
fn reading_announces_nothing() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    meter.post_all(0..5);
    meter.events();
    meter.window(0);
    meter.pending(0);
    meter.dead_letters();
    meter.suspend();
    assert_eq!(meter.events(), []);
}

#[test]
fn what_is_superseded_is_announced() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let old = meter.try_post_once(1, 0).unwrap();
    meter.events();
    let new = meter.try_post_once(1, 1).unwrap();
    assert_eq!(meter.events(), [Event::Queued(new), Event::Dropped(entry(old, Reason::Superseded))]);
}

#[test]
fn what_is_cleared_is_announced() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let first = meter.post_all(0..3)[0];
    meter.events();
    block_on(meter.outbox.clear()).unwrap();
    let cleared = Entry { len: 3, ..entry(first, Reason::Cleared) };
    assert_eq!(meter.events(), [Event::Dropped(cleared)]);
}

#[test]
fn a_dead_letter_that_comes_after_all_is_announced() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let key = meter.post(0);
    reject_for_good(&mut meter, key);
    meter.retry(key);
    meter.events();
    block_on(meter.drain.settle_late(&[key])).unwrap();
    assert_eq!(meter.events(), [Event::Delivered(key)]);
}

#[test]
fn an_enqueue_that_failed_is_announced_as_aborted_or_as_queued() {
    let before = chip();
    boot(&before, &one_lane()).post_all(0..3);
    for_every_failure(&before, |chip, operation| {
        let mut meter = boot(chip, &one_lane());
        chip.fail_after(operation);
        let failed = meter.try_post(100).is_err();
        chip.cancel_failure();
        let pending = meter.pending(0);
        let events = meter.events();
        let queued: Vec<Event> = pending[3..].iter().map(|kept| Event::Queued(kept.key)).collect();
        match events[..] {
            // It failed before it had a counter.
            [] => assert_eq!(queued, []),
            [Event::Dropped(Entry { reason: Reason::Aborted, .. })] => assert_eq!(queued, []),
            _ => assert_eq!(events, queued, "driver error at operation {operation}"),
        }
        failed
    });
}

#[test]
fn corruption_is_announced_and_counted_once() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    meter.post_all(0..5);
    corrupt(&chip, 2);
    meter.events();
    assert_eq!(meter.pending(0).len(), 4);
    let corruption = Event::Corruption { lane: Some(0), count: 1 };
    assert_eq!(meter.events(), [corruption]);
    for _ in 0..5 {
        meter.pending(0);
    }
    assert_eq!(meter.events(), [], "the same corruption is announced again and again");
    assert_eq!(meter.stats().corrupt, 1);
}

#[test]
fn formatting_is_announced() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let (incarnation, ..) = block_on(meter.drain.identity());
    assert_eq!(meter.events(), [Event::Formatted { incarnation }]);
    drop(meter);
    assert_eq!(boot(&chip, &one_lane()).events(), [], "it is announced once");
}

#[test]
fn corruption_found_at_boot_is_announced() {
    let before = chip();
    let posted = boot(&before, &one_lane()).fill(0);
    // Two pages in the middle of the ring that say they take records: no power cut leaves that.
    let chip: Flash = Chip::from_image(&before.image(), 1);
    let lane = METADATA + 2 * PAGE;
    for page in [1, 2] {
        let end_mark = lane + (page + 1) * PAGE - 8;
        for byte in 0..8 {
            (0..8).for_each(|bit| chip.flip_bit((end_mark + byte) as u32, bit));
        }
    }
    let mut meter = boot(&chip, &one_lane());
    assert!(meter.stats().corrupt > 0);
    assert_eq!(meter.pending(0).len(), posted.len(), "nothing was lost by it");
    let announced = |event: &Event| matches!(event, Event::Corruption { lane: Some(0), .. });
    assert!(meter.events().iter().any(announced));
}

#[test]
fn two_may_listen_and_a_third_is_told_that_it_cannot() {
    let chip = chip();
    let meter = boot(&chip, &one_lane());
    // The first is the device's own.
    let second = block_on(meter.outbox.subscribe());
    assert!(second.is_some());
    assert!(block_on(meter.outbox.subscribe()).is_none());
    drop(second);
    assert!(block_on(meter.outbox.subscribe()).is_some());
    assert_eq!(keys(&meter.pending(0)), []);
}
