//! Lanes by priority, strict and any order, and heads that are stuck: nobody blocks whom they need not block.

use host_tests::device::{Flash, Note};
use host_tests::flash::Chip;
use host_tests::middle::{World, meter};
use host_tests::server::{Refusal, Server as _};
use host_tests::station::Station;
use pillarbox::{Cause, Event, Key, LaneConfig, Policy};

fn refuse(world: &World<1>, key: Key, refusal: Refusal) {
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), key), refusal);
}

/// At most so many bytes in a batch, so that most have one record.
fn small_batches<const LANES: usize>(world: &World<LANES>) {
    world.middle.borrow_mut().server.knobs.preferred_size = Some(1);
}

fn sent_before(world: &World<1>, count: usize) -> Vec<Vec<u64>> {
    let middle = world.middle.borrow();
    middle.seen[count..].iter().map(|seen| seen.keys().iter().map(|key| key.counter).collect()).collect()
}

#[test]
fn in_a_strict_lane_what_is_behind_a_record_that_waits_waits_too() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    small_batches(&world);
    station.post(0, 0);
    assert_eq!(station.step(), Some(Ok(())));
    let keys = station.post_all(1..40);
    refuse(&world, keys[0], Refusal::Retry);
    let before = world.requests();
    let _ = station.step();
    let sent = sent_before(&world, before);
    assert_eq!(sent.len(), 1, "one request, and then it waits: {sent:?}");
    assert_eq!(station.pending(0)[0], keys[0]);
    assert!((1000..=2000).contains(&station.pause().unwrap()));
}

#[test]
fn in_an_any_order_lane_the_others_go_on() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.policies = [Policy::urgent().any_order()];
    let mut station = world.boot();
    small_batches(&world);
    station.post(0, 0);
    assert_eq!(station.step(), Some(Ok(())));
    let keys = station.post_all(1..60);
    refuse(&world, keys[0], Refusal::Retry);
    refuse(&world, keys[1], Refusal::Retry);
    let _ = station.step();
    assert!(station.pending(0) == keys[..2], "all others are delivered in the same flush");
    assert!((1000..=2000).contains(&station.pause().unwrap()));
    world.middle.borrow_mut().server.knobs.refused.clear();
    station.run_for(60_000);
    assert_eq!(station.pending(0), []);
}

#[test]
fn a_whole_batch_that_has_to_wait_does_not_stop_the_next() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.policies = [Policy::urgent().any_order()];
    let mut station = world.boot();
    small_batches(&world);
    station.post(0, 0);
    assert_eq!(station.step(), Some(Ok(())));
    // The first batch holds several of these, and nothing else.
    let keys = station.post_all(1..40);
    keys[..7].iter().for_each(|key| refuse(&world, *key, Refusal::Retry));
    let _ = station.step();
    assert_eq!(station.pending(0).len(), 7);
}

#[test]
fn a_lane_that_has_to_wait_does_not_hold_up_another() {
    let mut world = World::new([LaneConfig::new(16), LaneConfig::new(8)]);
    let mut station = world.boot();
    let (first, second) = (station.post(0, 0), station.post(1, 1));
    world.middle.borrow_mut().server.knobs.refused.insert((meter(), first), Refusal::Retry);
    let _ = station.step();
    assert_eq!((station.pending(0), station.pending(1)), (vec![first], vec![]), "{second:?} is delivered");
}

#[test]
fn new_records_do_not_wear_out_the_attempts_of_one_that_waits() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(4)]);
    world.policies = [Policy::urgent().any_order()];
    world.link.set_latency_ms(0..=0);
    let mut station = world.boot();
    let key = station.post(0, 0);
    refuse(&world, key, Refusal::Rejected);
    let _ = station.step();
    // A storm within its pause of at least a second.
    for number in 1..20 {
        station.post(0, number);
        let _ = station.step();
    }
    assert!(world.time.now_ms() < 1000);
    let sent = world.middle.borrow().seen.iter().filter(|seen| seen.keys().contains(&key)).count();
    assert_eq!(sent, 1, "its pause is not over");
    assert_eq!((world.stored().len(), station.pending(0)), (19, vec![key]));
    station.run_for(3_000);
    let sent = world.middle.borrow().seen.iter().filter(|seen| seen.keys().contains(&key)).count();
    assert!((2..=4).contains(&sent), "sent {sent} times");
}

#[test]
fn new_records_do_not_put_off_one_that_waits() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.policies = [Policy::urgent().any_order()];
    let mut station = world.boot();
    let key = station.post(0, 0);
    refuse(&world, key, Refusal::Retry);
    station.run_for(500);
    // Others come within its pause of a second, are taken or have to wait too: that is nothing to it.
    world.middle.borrow_mut().server.knobs.refused.clear();
    let is_odd = |counter: u64| counter % 2 == 1;
    world.middle.borrow_mut().server.knobs.judge =
        Some(std::sync::Arc::new(move |_, stored| is_odd(stored.key.counter).then_some(Refusal::Retry)));
    for number in 1..9 {
        station.post(0, number);
        station.run_for(450);
    }
    assert!(!station.pending(0).contains(&key), "{:?}", station.pending(0));
}

#[test]
fn lanes_are_drained_in_order_of_priority() {
    let mut world = World::new([LaneConfig::new(8), LaneConfig::new(8), LaneConfig::new(8)]);
    let mut station = world.boot();
    for number in 0..30 {
        station.post(2 - (number % 3) as u8, number);
    }
    assert_eq!(station.step(), Some(Ok(())));
    let lanes: Vec<u8> = world.middle.borrow().server.log().iter().map(|one| one.key.lane).collect();
    assert!(lanes.is_sorted() && lanes.len() == 30, "{lanes:?}");
    assert_eq!(world.link.counts().connections, 1);
}

#[test]
fn an_urgent_record_that_is_posted_while_the_bulk_lane_drains_goes_next() {
    let mut world = World::new([LaneConfig::new(8), LaneConfig::new(32)]);
    let mut station = world.boot();
    small_batches(&world);
    station.post(1, 0);
    assert_eq!(station.step(), Some(Ok(())));
    for number in 1..100 {
        station.post(1, number);
    }
    let outbox = station.outbox;
    let time = world.time.clone();
    world.time.spawn(async move {
        time.sleep(500).await;
        outbox.enqueue_in(0, &Note::new(1000)).await.expect("there is room");
    });
    let posted_at = world.time.now_ms() + 500;
    assert_eq!(station.step(), Some(Ok(())));
    let middle = world.middle.borrow();
    let after: Vec<_> = middle.seen.iter().filter(|seen| seen.at_ms > posted_at).collect();
    let at = after.iter().position(|seen| seen.keys()[0].lane == 0).expect("it was sent");
    assert!(at <= 1, "at most the batch that was on its way is before it: {at}");
    assert!(after.len() > 5, "and the bulk went on: {}", after.len());
}

#[test]
fn a_record_that_fits_in_no_batch_does_not_block() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    // An uplink with too little room for a note, and one with enough for a short one.
    #[derive(serde::Serialize, serde::Deserialize, pillarbox::EncodedSize, pillarbox::Record)]
    #[record(kind = 2)]
    struct Short(u8);
    let long = station.post(0, 0);
    for number in 0..5 {
        world.time.block_on(station.outbox.enqueue(&Short(number))).unwrap();
    }
    let mut uplink = None;
    for tx in (64..512).step_by(4) {
        let mut narrow = host_tests::station::uplink(&world.link, station.clock.clone(), "meter-1", tx);
        station.trigger().flush();
        let Station { dispatcher, .. } = &mut station;
        let _ = world.time.block_on(dispatcher.step(&mut narrow));
        if station.pending(0).len() < 6 {
            uplink = Some(narrow);
            break;
        }
    }
    let mut narrow = uplink.expect("some width takes the short ones");
    let Station { dispatcher, .. } = &mut station;
    host_tests::station::run_for(&world.time, dispatcher, &mut narrow, 60_000);
    assert_eq!(station.pending(0), [long], "those behind it are delivered");
    let before = world.requests();
    let Station { dispatcher, .. } = &mut station;
    host_tests::station::run_for(&world.time, dispatcher, &mut narrow, 3_600_000);
    assert!(world.requests() - before < 5, "it costs no radio");
    assert_eq!(station.dead_letters(), []);
    station.run_for(120_000);
    assert_eq!(station.pending(0), []);
}

/// A world whose ring holds more than a window of records.
fn wide(policy: Policy) -> World<1> {
    let chip: &'static Flash = Box::leak(Box::new(Chip::new(256, 1)));
    let mut world = World::on(chip, [LaneConfig::new(200)]);
    world.policies = [policy];
    world
}

/// Delivers all but the first record until the window is used up.
fn overtake(station: &mut Station<1>, stuck: Key) {
    for number in 0..1023 {
        station.post(0, number + 1);
        if number % 40 == 39 {
            station.trigger().flush();
            let _ = station.step();
        }
    }
    station.trigger().flush();
    let _ = station.step();
    assert!(station.pending(0) == [stuck], "the window holds nothing else any more");
}

#[test]
fn a_stuck_head_is_parked_when_it_would_block_the_window() {
    let mut world = wide(Policy::urgent().any_order());
    let mut station = world.boot();
    let stuck = station.post(0, 0);
    refuse(&world, stuck, Refusal::Retry);
    overtake(&mut station, stuck);
    station.post_all(2000..2010);
    station.events();
    station.trigger().flush();
    let _ = station.step();
    station.run_for(120_000);
    assert_eq!((station.pending(0), station.dead_letters()), (vec![], vec![stuck]));
    world.middle.borrow().server.check();
}

#[test]
fn a_stuck_head_is_parked_after_a_reboot_too() {
    let mut world = wide(Policy::urgent().any_order());
    let mut station = world.boot();
    let stuck = station.post(0, 0);
    refuse(&world, stuck, Refusal::Retry);
    overtake(&mut station, stuck);
    station.post_all(2000..2010);
    drop(station);
    let mut station = world.boot();
    // Not before the receiver has been asked.
    world.middle.borrow_mut().set_plain(503, None);
    station.run_for(600_000);
    assert_eq!(station.dead_letters(), [], "nobody has said anything about it");
    world.middle.borrow_mut().clear();
    station.events();
    station.run_for(120_000);
    let numbers: Vec<_> = world.stored();
    assert_eq!((station.pending(0), station.dead_letters()), (vec![], vec![stuck]));
    assert_eq!(numbers.len(), 1033);
    world.middle.borrow().server.check();
}

#[test]
fn a_head_that_was_never_tried_is_not_parked() {
    // Its window is used up by records that took each other's place.
    let mut world = wide(Policy::urgent());
    let mut station = world.boot();
    world.link.take_down(host_tests::link::Outage::Reset);
    let first = station.post(0, 0);
    let tag = 7;
    for number in 1..1100 {
        world.time.block_on(station.outbox.enqueue_once(tag, &Note::new(number))).unwrap();
    }
    station.run_for(86_400_000);
    assert_eq!((station.pending(0).len(), station.dead_letters()), (2, vec![]));
    world.link.bring_up();
    station.run_for(120_000);
    assert_eq!(world.stored(), [0, 1099]);
    assert!(!station.events().contains(&Event::Parked { key: first, cause: Cause::Blocking }));
}

#[test]
fn a_judge_of_content_does_not_stop_the_rest() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(2)]);
    world.policies = [Policy::urgent().any_order()];
    let mut station = world.boot();
    let keys = station.post_all(0..30);
    world.middle.borrow_mut().set(|server, now_ms, body| server.handle(now_ms, body));
    let odd = |stored: &pillarbox::Stored<'_>| stored.key.counter % 10 == 3;
    world.middle.borrow_mut().server.knobs.judge =
        Some(std::sync::Arc::new(move |_, stored| odd(stored).then_some(Refusal::Rejected)));
    station.run_for(600_000);
    assert_eq!(station.pending(0), []);
    assert_eq!(station.dead_letters(), [keys[3], keys[13], keys[23]]);
    assert_eq!(world.stored().len(), 27);
}
