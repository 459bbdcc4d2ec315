//! What the receiver says about books and incarnations: explain, stale, conflict, closed.

use host_tests::device::Note;
use host_tests::middle::{World, edited, meter, world};
use host_tests::server::Refusal;
use pillarbox::{Event, Failure, LaneConfig, Reason};

#[test]
fn what_the_receiver_has_no_explanation_for_is_explained() {
    let (world, mut station) = world();
    let keys = station.post_all(0..10);
    assert_eq!(station.step(), Some(Ok(())));
    // The receiver forgets all of it: an empty database with the same name.
    let empty = {
        let mut server = host_tests::server::ModelServer::new(1);
        server.register(meter(), &host_tests::station::secret_of("meter-1"));
        server
    };
    world.middle.borrow_mut().server = empty;
    station.post_all(10..12);
    assert_eq!(station.step(), Some(Ok(())));
    let middle = world.middle.borrow();
    let ledger = middle.server.ledger(&meter(), keys[0].incarnation, 0).unwrap();
    assert_eq!((ledger.received, ledger.lost(), ledger.unexplained, ledger.pending), (2, 10, 0, 0));
    drop(middle);
    assert_eq!((station.account(), station.pending(0)), (vec![], vec![]));
    assert_eq!(station.next_wakeup(), None);
}

#[test]
fn a_receiver_that_asks_for_ever_does_not_keep_the_radio_on() {
    let (world, mut station) = world();
    station.post_all(0..10);
    world.middle.borrow_mut().set(|server, now_ms, body| {
        edited(server, now_ms, body, |draft| (draft.explain, draft.confirmed) = (&[(0, 3)], 0))
    });
    world.time.set_limits(3_000_000, 5_000);
    station.run_for(86_400_000);
    let requests = world.requests();
    assert!(requests < 4 * 24 * 60, "{requests} requests in a day");
}

#[test]
fn an_entry_that_is_never_confirmed_is_repeated_ever_more_rarely() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.boot().post(0, 0);
    // A boot after an unclean stop: its lease is uncertain.
    let mut station = world.boot();
    assert_eq!(station.account().len(), 1);
    world
        .middle
        .borrow_mut()
        .set(|server, now_ms, body| edited(server, now_ms, body, |draft| draft.confirmed = 0));
    station.run_for(3_600_000);
    assert_eq!(station.pending(0), []);
    let requests = world.requests();
    // The pace's longest pause is a minute, and half of that on average.
    assert!((60..200).contains(&requests), "{requests} requests in an hour");
    world.middle.borrow_mut().clear();
    station.run_for(120_000);
    assert_eq!(station.account(), []);
}

#[test]
fn a_stale_device_renews_for_new_records_and_pending_ones_keep_their_keys() {
    let (world, mut station) = world();
    let keys = station.post_all(0..3);
    let old = keys[0].incarnation;
    world.middle.borrow_mut().server.fence(&meter(), old);
    // Nothing is taken while it is told, so that it stays pending.
    let mut told = 0;
    world.middle.borrow_mut().set(move |server, now_ms, body| {
        told += 1;
        edited(server, now_ms, body, |draft| {
            if told == 1 {
                (draft.settled, draft.verdicts) = (&[], &[]);
            }
        })
    });
    station.events();
    let _ = station.step();
    let events = station.events();
    let Some(Event::Renewed { incarnation }) =
        events.iter().find(|event| matches!(event, Event::Renewed { .. }))
    else {
        panic!("{events:?}")
    };
    assert_ne!(*incarnation, old);
    let new = station.post(0, 3);
    assert_eq!((new.incarnation, new.counter), (*incarnation, 0));
    let middle = world.middle.borrow();
    assert!(middle.seen.iter().skip(1).filter(|seen| !seen.keys().is_empty()).all(|seen| {
        let sent = seen.keys();
        sent == keys || sent == [new]
    }));
    drop(middle);
    station.run_for(600_000);
    assert_eq!((station.pending(0), station.account(), station.next_wakeup()), (vec![], vec![], None));
    let middle = world.middle.borrow();
    assert_eq!(middle.server.log().iter().map(|one| one.key).collect::<Vec<_>>(), [new]);
    let mut aside: Vec<_> = middle.server.quarantine().map(|one| one.key).collect();
    aside.sort();
    assert_eq!(aside, keys, "what a stale device says is kept aside");
}

#[test]
fn a_conflict_settles_and_renews() {
    let (mut world, mut station) = world();
    let key = station.post(0, 0);
    // Somebody has used this key for something else: a copy of the device, say.
    let clone = world.chip.clone();
    let clone: &'static _ = Box::leak(Box::new(clone));
    assert_eq!(station.step(), Some(Ok(())));
    world.chip = clone;
    let mut copy = world.boot();
    assert_eq!(copy.pending(0), [key]);
    let server = world.middle.borrow().server.clone();
    assert_eq!(server.conflicts().count(), 0);
    // The copy's boot is newer, so it is heard; its next record has a key of its own lease, the original's too.
    copy.run_for(60_000);
    let at_copy = copy.post_all(100..102);
    copy.run_for(60_000);
    assert_eq!(world.stored(), [0, 100, 101]);
    station.post_all(1..3);
    station.run_for(600_000);
    let middle = world.middle.borrow();
    let all: Vec<u32> = (middle.server.log().iter().chain(middle.server.quarantine()))
        .chain(middle.server.conflicts())
        .map(|one| postcard::from_bytes::<Note>(&one.body).unwrap().number)
        .collect();
    for number in [0, 1, 2, 100, 101] {
        assert!(all.contains(&number), "{number} of {all:?}");
    }
    assert_eq!(station.pending(0), []);
    assert_ne!(station.time.block_on(station.dispatcher.identity()).0, at_copy[0].incarnation);
}

#[test]
fn a_verdict_of_conflict_settles_with_an_event_and_renews() {
    let (world, mut station) = world();
    let key = station.post(0, 0);
    world.middle.borrow_mut().set(|server, now_ms, body| {
        edited(server, now_ms, body, |draft| {
            draft.is_renew = true;
            draft.verdicts = &[(0, pillarbox::wire::Verdict::Conflict)];
        })
    });
    station.events();
    let _ = station.step();
    let events = station.events();
    assert!(events.contains(&Event::Conflict(key)), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Renewed { .. })), "{events:?}");
    assert_eq!(station.pending(0), []);
    world.middle.borrow_mut().clear();
    station.run_for(60_000);
    assert_ne!(station.post(0, 1).incarnation, key.incarnation);
}

#[test]
fn the_books_of_a_former_incarnation_are_closed() {
    let mut world = World::new([LaneConfig::new(16), LaneConfig::new(8)]);
    let mut station = world.boot();
    let keys = [station.post(0, 0), station.post(1, 1)];
    world.time.block_on(station.outbox.clear()).unwrap();
    let mut formers = Vec::new();
    world.time.block_on(station.dispatcher.former_incarnations(|former, _| formers.push(former)));
    assert_eq!(formers, [keys[0].incarnation]);
    station.run_for(60_000);
    for lane in 0..2 {
        let ledger = world.middle.borrow().server.ledger(&meter(), keys[0].incarnation, lane).unwrap();
        assert!(ledger.is_closed, "{ledger:?}");
        assert_eq!((ledger.explained_as(Reason::Cleared), ledger.received, ledger.issued), (1, 0, 1));
    }
    formers.clear();
    world.time.block_on(station.dispatcher.former_incarnations(|former, _| formers.push(former)));
    assert_eq!((formers, station.account(), station.next_wakeup()), (vec![], vec![], None));
}

#[test]
fn a_record_of_an_incarnation_that_is_long_gone_does_not_spin() {
    let (world, mut station) = world();
    let key = station.post(0, 0);
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), key), Refusal::Retry);
    world.time.set_limits(300_000, 5_000);
    for _ in 0..4 {
        world.time.block_on(station.dispatcher.renew_incarnation()).unwrap();
        station.post_all(1..3);
        let _ = station.step();
    }
    station.run_for(3_600_000);
    let requests = world.requests();
    assert!(requests < 1000, "{requests} requests in an hour");
    assert!(station.pending(0).contains(&key) || station.dead_letters().contains(&key));
    world.middle.borrow_mut().server.knobs.refused.clear();
    station.run_for(3_600_000);
    assert_eq!(station.pending(0), []);
    world.middle.borrow().server.check();
}

#[test]
fn no_progress_is_a_failure() {
    let (world, mut station) = world();
    station.post(0, 0);
    world
        .middle
        .borrow_mut()
        .set(|server, now_ms, body| edited(server, now_ms, body, |draft| draft.settled = &[]));
    assert_eq!(station.step(), Some(Err(Failure::NoProgress)));
}
