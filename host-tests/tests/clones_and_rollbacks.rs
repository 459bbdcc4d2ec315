//! Copies of a device's flash, flash that is set back, a receiver restored from a backup, and requests that come late or again across
//! reboots: nothing is stored twice, and every record that was acknowledged is in the log, in quarantine, or explained.

use std::collections::BTreeMap;

use host_tests::device::{Flash, Note};
use host_tests::link::{Fault, LinkFaults};
use host_tests::middle::{World, meter, world};
use host_tests::server::Server;
use host_tests::station::{BEGIN_MS, Station};
use pillarbox::{Event, Key, LaneConfig, Reason};

fn copy(chip: &Flash) -> &'static Flash {
    Box::leak(Box::new(chip.clone()))
}

/// How often each note is at the receiver: in the log, and aside.
fn found(world: &World<1>) -> BTreeMap<u32, (usize, usize)> {
    let middle = world.middle.borrow();
    let number = |body: &[u8]| postcard::from_bytes::<Note>(body).expect("a note").number;
    let mut found = BTreeMap::<u32, (usize, usize)>::new();
    middle.server.log().iter().for_each(|one| found.entry(number(&one.body)).or_default().0 += 1);
    let aside = middle.server.quarantine().chain(middle.server.conflicts());
    aside.for_each(|one| found.entry(number(&one.body)).or_default().1 += 1);
    found
}

/// Every one of these is at the receiver, none is in the log twice, and no books are wrong.
fn assert_all(world: &World<1>, numbers: impl IntoIterator<Item = u32>) {
    let found = found(world);
    for number in numbers {
        assert!(found.contains_key(&number), "{number} is nowhere: {found:?}");
    }
    assert!(found.values().all(|(logged, _)| *logged <= 1), "stored twice: {found:?}");
    world.middle.borrow().server.check();
}

fn incarnation(station: &mut Station<1>) -> u32 {
    let Station { time, dispatcher, .. } = station;
    time.block_on(dispatcher.identity()).0
}

#[test]
fn a_copy_that_runs_beside_the_original_loses_nothing_of_either() {
    let mut world = World::new([LaneConfig::new(16)]);
    let original = world.boot();
    original.post_all(0..5);
    drop(original);
    let chip = world.chip;
    world.chip = copy(chip);
    let mut clone = world.boot();
    world.chip = chip;
    let mut original = world.boot();
    let same = incarnation(&mut original);
    assert_eq!(incarnation(&mut clone), same);
    // They take turns, with records of their own under the same keys.
    for round in 0..10 {
        original.post(0, 100 + round);
        clone.post(0, 200 + round);
        original.run_for(120_000);
        clone.run_for(120_000);
    }
    for station in [&mut original, &mut clone] {
        station.run_for(600_000);
        assert_eq!((station.pending(0), station.account()), (vec![], vec![]));
        assert_eq!(station.next_wakeup(), None, "they have come to rest");
    }
    assert_all(&world, (0..5).chain(100..110).chain(200..210));
    // The one that was heard second goes on under another name; the two never meet again.
    assert_ne!(incarnation(&mut original), incarnation(&mut clone));
    let requests = world.requests();
    original.post(0, 300);
    clone.post(0, 301);
    original.run_for(60_000);
    clone.run_for(60_000);
    assert_eq!(world.requests() - requests, 2);
    let found = found(&world);
    assert_eq!((found[&300], found[&301]), ((1, 0), (1, 0)));
}

#[test]
fn a_flash_that_is_set_back_loses_nothing_and_repeats_nothing() {
    for suspended in [false, true] {
        let mut world = World::new([LaneConfig::new(16)]);
        let mut station = world.boot();
        station.post_all(0..5);
        station.run_for(60_000);
        if suspended {
            station.suspend();
        }
        let image = world.chip.image();
        for boot in 1..4 {
            station = world.boot();
            station.post_all(boot * 10..boot * 10 + 5);
            station.run_for(60_000);
        }
        drop(station);
        world.chip.set_image(&image);
        let mut station = world.boot();
        let old = incarnation(&mut station);
        station.post_all(100..105);
        station.events();
        let mut renewed = false;
        for _ in 0..20 {
            station.flush_within(60_000);
            renewed |= station.events().iter().any(|event| matches!(event, Event::Renewed { .. }));
        }
        assert!(renewed, "{suspended}: the receiver notices");
        assert_ne!(incarnation(&mut station), old);
        station.post_all(105..110);
        station.run_for(600_000);
        assert_eq!((station.pending(0), station.next_wakeup()), (vec![], None));
        assert_all(&world, (0..5).chain(10..15).chain(20..25).chain(30..35).chain(100..110));
    }
}

#[test]
fn what_a_restored_receiver_has_lost_is_lost_in_its_ledger_exactly() {
    let (world, mut station) = world();
    let before = station.post_all(0..20);
    station.run_for(10_000);
    let backup = world.middle.borrow().server.snapshot();
    station.post_all(20..50);
    station.run_for(10_000);
    world.middle.borrow_mut().server.restore(&backup, 2);
    station.post_all(50..55);
    station.run_for(600_000);
    let middle = world.middle.borrow();
    let ledger = middle.server.ledger(&meter(), before[0].incarnation, 0).unwrap();
    assert_eq!((ledger.received, ledger.lost(), ledger.issued), (25, 30, 55), "{ledger:?}");
    assert_eq!((ledger.pending, ledger.unexplained), (0, 0));
    middle.server.check();
    drop(middle);
    assert_eq!((station.account(), station.next_wakeup()), (vec![], None));
    assert_eq!(world.stored(), (0..20).chain(50..55).collect::<Vec<_>>());
}

#[test]
fn what_is_remembered_of_the_account_is_told_again() {
    let (world, mut station) = world();
    station.post_all(0..5);
    station.run_for(10_000);
    let backup = world.middle.borrow().server.snapshot();
    // Two records take each other's place, and the receiver hears why.
    for number in 5..8 {
        let note = Note::new(number);
        world.time.block_on(station.outbox.enqueue_once(9, &note)).unwrap();
    }
    station.run_for(10_000);
    let of = |reason| {
        let middle = world.middle.borrow();
        let incarnation = middle.server.log()[0].key.incarnation;
        middle.server.ledger(&meter(), incarnation, 0).unwrap().explained_as(reason)
    };
    assert_eq!(of(Reason::Superseded), 2);
    world.middle.borrow_mut().server.restore(&backup, 2);
    assert_eq!(of(Reason::Superseded), 0);
    station.post(0, 8);
    station.run_for(600_000);
    assert_eq!((of(Reason::Superseded), of(Reason::Lost)), (2, 1), "note 7 was in the database that is gone");
    assert_eq!((station.account(), station.next_wakeup()), (vec![], None));
    world.middle.borrow().server.check();
}

#[test]
fn a_receiver_that_lost_everything_is_told_what_is_gone() {
    let (world, mut station) = world();
    let keys = station.post_all(0..10);
    station.run_for(10_000);
    let mut empty = host_tests::server::ModelServer::new(7);
    empty.register(meter(), &host_tests::station::secret_of("meter-1"));
    world.middle.borrow_mut().server = empty;
    station.post_all(10..20);
    station.run_for(600_000);
    let ledger = world.middle.borrow().server.ledger(&meter(), keys[0].incarnation, 0).unwrap();
    assert_eq!((ledger.received, ledger.lost(), ledger.unexplained), (10, 10, 0), "{ledger:?}");
}

#[test]
fn requests_that_come_late_or_again_across_reboots_store_nothing_twice() {
    for seed in 0..6 {
        let mut world = World::new([LaneConfig::new(16)]);
        let faults = LinkFaults::none()
            .with(Fault::RequestLate, 0.15)
            .with(Fault::RequestDuplicated, 0.2)
            .with(Fault::OldRequestReplayed, 0.3)
            .with(Fault::AnswerLost, 0.1);
        world.link.set_faults(faults);
        let mut posted = 0;
        for boot in 0..12 {
            let mut station = world.boot();
            station.post_all(posted..posted + 5 + seed);
            posted += 5 + seed;
            station.run_for(20_000 + boot * 9_000);
        }
        world.link.set_faults(LinkFaults::none());
        let mut station = world.boot();
        station.run_for(3_600_000);
        assert_eq!(station.pending(0), []);
        assert_all(&world, 0..posted);
        let stale = world.middle.borrow().server.conflicts().count();
        assert_eq!(stale, 0, "seed {seed}: nothing is in dispute");
    }
}

#[test]
fn a_request_of_an_earlier_boot_is_stale_and_changes_no_books() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    let keys = station.post_all(0..5);
    world.link.inject(Fault::RequestLost);
    assert!(station.step().unwrap().is_err());
    // The bytes of that request, as somebody on the way recorded them.
    world.middle.borrow_mut().set_plain(503, None);
    station.trigger().flush();
    assert!(station.step().unwrap().is_err());
    let recorded = world.middle.borrow().seen.last().unwrap().body.clone();
    world.middle.borrow_mut().clear();
    drop(station);
    let mut station = world.boot();
    station.post_all(5..8);
    station.run_for(60_000);
    assert_eq!(world.stored(), (0..8).collect::<Vec<_>>());
    let ledger = world.middle.borrow().server.ledger(&meter(), keys[0].incarnation, 0);
    world.middle.borrow_mut().server.handle(BEGIN_MS, &recorded);
    assert_eq!(world.middle.borrow().server.ledger(&meter(), keys[0].incarnation, 0), ledger);
    assert_eq!(world.middle.borrow().server.quarantine().count(), 0, "the log has them");
    assert_eq!(world.stored().len(), 8);
}

#[test]
fn a_fenced_incarnation_is_left_and_nothing_is_dropped() {
    let (world, mut station) = world();
    let keys = station.post_all(0..5);
    station.run_for(10_000);
    world.middle.borrow_mut().server.fence(&meter(), keys[0].incarnation);
    let after: Vec<Key> = station.post_all(5..10);
    station.run_for(10_000);
    let new = station.post_all(10..15);
    station.run_for(600_000);
    assert_eq!(after[0].incarnation, keys[0].incarnation);
    assert_ne!(new[0].incarnation, keys[0].incarnation);
    let found = found(&world);
    assert!((0..5).chain(10..15).all(|number| found[&number] == (1, 0)), "{found:?}");
    assert!((5..10).all(|number| found[&number] == (0, 1)), "{found:?}");
    assert_eq!((station.pending(0), station.account(), station.next_wakeup()), (vec![], vec![], None));
    let mut formers = 0;
    world.time.block_on(station.dispatcher.former_incarnations(|_, _| formers += 1));
    assert_eq!(formers, 0, "its books are left alone");
}
