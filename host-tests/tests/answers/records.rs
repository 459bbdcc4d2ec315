//! What the receiver says about single records: settled by name, retried, rejected up to the dead letters, and the brake.

use std::collections::BTreeSet;

use host_tests::middle::{World, edited, meter, tagged, world};
use host_tests::server::Refusal;
use pillarbox::wire::AnswerDraft;
use pillarbox::{Cause, Event, Failure, LaneConfig, Policy, Reason};

#[test]
fn exactly_the_records_that_the_answer_names_are_settled() {
    for settled in [0b1_0101u8, 0b0_0001, 0b1_0000, 0b0_1110, 0b1_1111] {
        let (world, mut station) = world();
        let keys = station.post_all(0..5);
        let mut is_first = true;
        world.middle.borrow_mut().set(move |server, now_ms, body| {
            // Bits beyond the batch name nobody.
            let names = [settled | 0b1110_0000, 0xff];
            if core::mem::take(&mut is_first) {
                return tagged(200, body, &AnswerDraft { settled: &names, epoch: 1, ..Default::default() });
            }
            edited(server, now_ms, body, |draft| draft.settled = &[])
        });
        assert_eq!(station.step().unwrap().is_ok(), settled == 0b1_1111);
        let left: Vec<_> = (0..5).filter(|n| settled & (1 << n) == 0).map(|n| keys[n]).collect();
        assert_eq!(station.pending(0), left, "{settled:b}");
        assert_eq!(station.stats().lanes[0].delivered, settled.count_ones());
        assert_eq!(station.dead_letters(), []);
        // The rest goes on with its keys.
        world.middle.borrow_mut().clear();
        station.trigger().flush();
        station.run_for(10_000);
        let stored: BTreeSet<_> = world.middle.borrow().server.log().iter().map(|one| one.key).collect();
        assert!(left.iter().all(|key| stored.contains(key)), "{settled:b}");
        assert_eq!(station.pending(0), []);
    }
}

#[test]
fn a_record_that_is_not_named_is_kept_and_costs_no_attempt() {
    let (world, mut station) = world();
    let keys = station.post_all(0..3);
    world
        .middle
        .borrow_mut()
        .set(|_, _, body| tagged(200, body, &AnswerDraft { epoch: 1, ..Default::default() }));
    assert_eq!(station.step(), Some(Err(Failure::NoProgress)));
    assert_eq!(station.pending(0), keys);
    assert_eq!(station.stats().lanes[0].retried, 0);
    assert!((1000..=2000).contains(&station.pause().unwrap()));
}

#[test]
fn retry_keeps_a_record_and_counts_nothing() {
    let (world, mut station) = world();
    let keys = station.post_all(0..3);
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), keys[1]), Refusal::Retry);
    station.events();
    station.run_for(86_400_000);
    assert_eq!(
        station.pending(0),
        keys[1..],
        "in a strict lane it holds up those behind it, in its own batch too"
    );
    assert_eq!(station.dead_letters(), []);
    assert_eq!(station.stats().lanes[0].retried, 0);
    world.middle.borrow_mut().server.knobs.refused.clear();
    station.run_for(3_600_000);
    assert_eq!(world.stored(), [0, 1, 2]);
}

#[test]
fn a_rejected_record_is_tried_so_many_times_and_then_parked() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(3)]);
    let mut station = world.boot();
    let keys = station.post_all(0..3);
    station.suspend();
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), keys[1]), Refusal::Rejected);
    station.events();
    let mut pauses = Vec::new();
    for attempts in 1..=2 {
        assert!(station.flush_within(120_000).is_some(), "it is due");
        let events = station.events();
        assert!(events.contains(&Event::Retrying { key: keys[1], attempts }), "{events:?}");
        assert_eq!((station.pending(0), station.dead_letters()), (keys[1..].to_vec(), vec![]));
        pauses.push(station.pause().unwrap());
    }
    assert!((1000..=2000).contains(&pauses[0]) && (1000..=4000).contains(&pauses[1]), "{pauses:?}");
    assert!(station.flush_within(120_000).is_some(), "it is due");
    assert!(station.events().contains(&Event::Parked { key: keys[1], cause: Cause::Rejected }));
    assert_eq!((station.pending(0), station.dead_letters()), (vec![], vec![keys[1]]));
    let sent = world.middle.borrow().seen.iter().filter(|seen| seen.keys().contains(&keys[1])).count();
    assert_eq!(sent, 3);
    // The receiver is told.
    station.run_for(60_000);
    let ledger = world.middle.borrow().server.ledger(&meter(), keys[0].incarnation, 0).unwrap();
    assert_eq!((ledger.received, ledger.explained_as(Reason::Parked)), (2, 1), "{ledger:?}");
    assert_eq!(station.account(), []);
    assert_eq!(station.next_wakeup(), None);
}

#[test]
fn only_rejections_count_as_attempts() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(3)]);
    let mut station = world.boot();
    let key = station.post(0, 0);
    let (mut plain, mut counted) = (0, Vec::new());
    for status in [503, 500, 401, 404, 429, 408] {
        world.middle.borrow_mut().set_plain(status, None);
        station.trigger().flush();
        assert!(station.step().unwrap().is_err());
        plain += 1;
    }
    world.middle.borrow_mut().clear();
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), key), Refusal::Rejected);
    station.events();
    for _ in 0..2 {
        station.trigger().flush();
        let _ = station.step();
        counted.extend(station.events().into_iter().filter(|event| matches!(event, Event::Retrying { .. })));
    }
    assert_eq!(plain, 6);
    assert_eq!(counted, [1, 2].map(|attempts| Event::Retrying { key, attempts }));
    assert_eq!(station.pending(0), [key]);
}

#[test]
fn attempts_survive_reboots() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(4)]);
    let mut counted = Vec::new();
    let mut key = None;
    // After 1, 2 and 4 they are in flash; a clean stop writes them whatever they are.
    for boot in 0..4 {
        let mut station = world.boot();
        let key = *key.get_or_insert_with(|| station.post(0, 0));
        world.middle.borrow_mut().server.knobs.refused.insert((meter(), key), Refusal::Rejected);
        station.events();
        assert!(station.flush_within(120_000).is_some(), "it is due");
        let events = station.events();
        counted.extend(events.iter().filter_map(|event| match event {
            Event::Retrying { attempts, .. } => Some(*attempts),
            _ => None,
        }));
        if boot == 2 {
            station.suspend();
        }
        if boot == 3 {
            assert_eq!(station.dead_letters(), [key]);
        }
    }
    assert_eq!(counted, [1, 2, 3]);
}

#[test]
fn after_eight_parked_in_a_row_parking_pauses_with_an_event() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(1)]);
    world.policies = [Policy::urgent().any_order()];
    let mut station = world.boot();
    let keys = station.post_all(0..20);
    world.middle.borrow_mut().server.knobs.judge = Some(std::sync::Arc::new(|_, _| Some(Refusal::Rejected)));
    let mut paused = 0;
    station.events();
    for _ in 0..40 {
        station.flush_within(600_000);
        paused += station.events().iter().filter(|event| **event == Event::ParkingPaused { lane: 0 }).count();
    }
    assert_eq!(station.dead_letters(), keys[..8]);
    assert_eq!(station.pending(0), keys[8..]);
    assert!(paused > 0, "an event says so");
    // It goes on after a delivery.
    world.middle.borrow_mut().server.knobs.judge = None;
    station.run_for(600_000);
    assert_eq!(station.pending(0), []);
    assert_eq!(world.stored(), (8..20).collect::<Vec<_>>());
    let last = station.post(0, 20);
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), last), Refusal::Rejected);
    station.run_for(60_000);
    assert_eq!(station.dead_letters().last(), Some(&last));
}

#[test]
fn a_rejected_dead_letter_stays_dead_until_it_is_asked_for_again() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(1)]);
    let mut station = world.boot();
    let key = station.post(0, 0);
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), key), Refusal::Rejected);
    station.run_for(60_000);
    assert_eq!(station.dead_letters(), [key]);
    let before = world.requests();
    assert!(world.time.block_on(station.outbox.dead_letters().retry(key)).unwrap());
    station.run_for(86_400_000);
    let sent = world.requests() - before;
    assert!((1..=2).contains(&sent), "sent {sent} times");
    assert_eq!(station.dead_letters(), [key]);
    world.middle.borrow_mut().server.knobs.refused.clear();
    assert!(world.time.block_on(station.outbox.dead_letters().retry(key)).unwrap());
    station.run_for(60_000);
    assert_eq!((world.stored(), station.dead_letters()), (vec![0], vec![]));
    world.middle.borrow().server.check();
}

#[test]
fn a_batch_is_no_larger_than_the_receiver_prefers() {
    let (world, mut station) = world();
    world.middle.borrow_mut().server.knobs.preferred_size = Some(300);
    station.post(0, 0);
    assert_eq!(station.step(), Some(Ok(())));
    station.post_all(1..60);
    assert_eq!(station.step(), Some(Ok(())));
    let middle = world.middle.borrow();
    let longest = middle.seen.iter().map(|seen| seen.body.len()).max().unwrap();
    assert!(longest <= 300, "{longest}");
    assert!(middle.seen.len() > 5);
    drop(middle);
    assert_eq!(world.stored(), (0..60).collect::<Vec<_>>());
    // A size that holds nothing is no way to silence a device.
    world.middle.borrow_mut().server.knobs.preferred_size = Some(1);
    station.post_all(60..90);
    station.run_for(60_000);
    assert_eq!(world.stored().len(), 90);
}
