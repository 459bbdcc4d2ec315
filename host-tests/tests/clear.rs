//! Claim: clearing gives up everything or nothing, says so, and begins anew under keys that were never used. A bug
//! here leaves a device half cleared, or lets its new records pass for old ones.

use std::collections::BTreeSet;

use embassy_futures::block_on;
use host_tests::device::{Flash, Meter, boot, chip, config, for_every_cut, keys, numbers, poll_times};
use host_tests::flash::Tear;
use pillarbox::{Config, Key, LaneConfig, Reason};

fn two_lanes() -> Config<2> {
    config([LaneConfig::new(4).max_attempts(1), LaneConfig::new(2)])
}

/// A device with records in both lanes and a dead letter; gives their keys too.
fn used() -> (Flash, BTreeSet<Key>) {
    let chip = chip();
    let mut meter: Meter<2> = boot(&chip, &two_lanes());
    let mut posted: BTreeSet<Key> = meter.post_all(0..15).into_iter().collect();
    for number in 100..103 {
        posted.insert(meter.try_post_in(1, number).unwrap());
    }
    let dead = *posted.iter().nth(5).unwrap();
    assert_eq!(meter.reject(0, &[dead]).parked, 1);
    assert!(meter.retry(dead));
    drop(meter);
    (chip, posted)
}

/// Everything that may still be sent.
fn everything(meter: &mut Meter<'_, 2>) -> BTreeSet<Key> {
    let kept = [meter.pending(0), meter.pending(1), meter.dead_letters(), meter.late()].concat();
    keys(&kept).into_iter().collect()
}

fn assert_cleared(meter: &mut Meter<'_, 2>, posted: &BTreeSet<Key>) {
    assert_eq!(everything(meter), BTreeSet::new());
    for key in posted {
        assert_eq!(meter.explanation(*key), Some(Reason::Cleared), "{key:?}");
    }
    let (incarnation, ..) = block_on(meter.drain.identity());
    assert!(posted.iter().all(|key| key.incarnation != incarnation));
}

#[test]
fn clear_gives_up_everything_and_the_account_says_so() {
    let (chip, posted) = used();
    let mut meter = boot(&chip, &two_lanes());
    let incarnation = block_on(meter.outbox.clear()).unwrap();
    assert_cleared(&mut meter, &posted);
    assert_eq!(meter.depth(0).records, 0);
    let key = meter.post(50);
    assert_eq!((key.incarnation, key.counter), (incarnation, 0));
    drop(meter);
    let mut meter = boot(&chip, &two_lanes());
    assert_eq!(numbers(&meter.pending(0)), [50]);
    assert_eq!(meter.settle(0, &[key]), 1);
    assert_cleared(&mut meter, &posted);
}

#[test]
fn the_books_of_the_cleared_incarnation_stay_open_until_they_are_closed() {
    let (chip, posted) = used();
    let former = posted.first().unwrap().incarnation;
    let meter = boot(&chip, &two_lanes());
    block_on(meter.outbox.clear()).unwrap();
    meter.suspend();
    drop(meter);
    let mut meter = boot(&chip, &two_lanes());
    let formers = |meter: &mut Meter<'_, 2>| {
        let mut formers = Vec::new();
        block_on(meter.drain.former_incarnations(|incarnation, issued| {
            formers.push((incarnation, issued.to_vec()));
        }));
        formers
    };
    let found = formers(&mut meter);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, former);
    assert!(found[0].1[0] >= 15 && found[0].1[1] >= 3, "{found:?}");
    block_on(meter.drain.close_incarnation(former));
    assert_eq!(formers(&mut meter), []);
}

#[test]
fn old_keys_are_not_used_again() {
    let chip = chip();
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        let mut meter: Meter<2> = boot(&chip, &two_lanes());
        for number in 0..5 {
            assert!(seen.insert(meter.post(number)));
        }
        block_on(meter.outbox.clear()).unwrap();
        // The receiver keeps up.
        let account = meter.account();
        block_on(meter.drain.confirm(&account));
        for number in 0..5 {
            assert!(seen.insert(meter.post(number)));
        }
    }
}

#[test]
fn clearing_an_empty_outbox_explains_nothing() {
    let chip = chip();
    let mut meter: Meter<2> = boot(&chip, &two_lanes());
    block_on(meter.outbox.clear()).unwrap();
    assert_eq!(meter.account(), []);
}

/// Whether what is there was cleared; it must be all of it or nothing, and the account must tell.
fn is_cleared(meter: &mut Meter<'_, 2>, posted: &BTreeSet<Key>) -> bool {
    if everything(meter).is_empty() {
        assert_cleared(meter, posted);
        return true;
    }
    assert_eq!(everything(meter), *posted, "a part of it is gone");
    assert_eq!(meter.explained_as(Reason::Cleared), []);
    false
}

#[test]
fn a_cut_at_every_operation_clears_everything_or_nothing() {
    let (before, posted) = used();
    let outcomes = std::cell::RefCell::new(BTreeSet::new());
    for_every_cut(
        &before,
        |chip| {
            if let Ok(meter) = Meter::<2>::open(chip, &two_lanes()) {
                let _ = block_on(meter.outbox.clear());
            }
        },
        |chip| {
            let mut meter = boot(chip, &two_lanes());
            outcomes.borrow_mut().insert(is_cleared(&mut meter, &posted));
            let key = meter.post(50);
            assert!(!posted.contains(&key));
            drop(meter);
            assert!(numbers(&boot(chip, &two_lanes()).pending(0)).contains(&50));
        },
    );
    assert_eq!(outcomes.into_inner().len(), 2, "both happen, depending on the cut");
}

#[test]
fn a_cut_while_a_cut_clear_is_finished_changes_nothing_about_that() {
    let (before, posted) = used();
    // The first cut comes in the middle of the erases, so that the next boot has to finish.
    let middle = before.clone();
    middle.cut_after(30, Tear::BEFORE);
    if let Ok(meter) = Meter::<2>::open(&middle, &two_lanes()) {
        assert!(block_on(meter.outbox.clear()).is_err());
    }
    middle.power_on();
    for_every_cut(
        &middle,
        |chip| drop(Meter::<2>::open(chip, &two_lanes())),
        |chip| assert!(is_cleared(&mut boot(chip, &two_lanes()), &posted)),
    );
}

#[test]
fn a_dropped_clear_clears_everything_or_nothing() {
    let (before, posted) = used();
    for polls in 1.. {
        let chip = before.clone();
        let mut meter = boot(&chip, &two_lanes());
        chip.set_yields(true);
        let finished = poll_times(meter.outbox.clear(), polls).is_some();
        chip.set_yields(false);
        println!("dropped after {polls} polls");
        let cleared = is_cleared(&mut meter, &posted);
        drop(meter);
        let mut meter = boot(&chip, &two_lanes());
        assert_eq!(is_cleared(&mut meter, &posted), cleared, "the reboot sees it otherwise");
        if finished {
            assert!(cleared);
            return;
        }
    }
}

#[test]
fn clearing_more_often_than_the_account_has_entries_is_survived() {
    // Nobody confirms anything, so every incarnation wants an entry of its own.
    let chip = chip();
    let mut meter: Meter<2> = boot(&chip, &two_lanes());
    let mut last = None;
    for number in 0..40 {
        last = Some(meter.post(number));
        meter.try_post_in(1, number).unwrap();
        block_on(meter.outbox.clear()).unwrap();
    }
    assert_eq!(everything(&mut meter), BTreeSet::new());
    assert_eq!(meter.explanation(last.unwrap()), Some(Reason::Cleared), "the latest is told");
    meter.post(100);
    drop(meter);
    assert_eq!(numbers(&boot(&chip, &two_lanes()).pending(0)), [100]);
}
