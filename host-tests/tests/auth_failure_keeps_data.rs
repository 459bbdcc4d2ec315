//! A wrong secret, an unknown device, a revoked one: everything is kept for as long as it takes, with long pauses and an event, and is
//! delivered when the secret is right.

use host_tests::middle::{World, meter, world};
use host_tests::server::ModelServer;
use host_tests::station::{Station, secret_of};
use pillarbox::{Event, LaneConfig};

const DAY_MS: u64 = 86_400_000;

/// Some days of refusals, then the receiver knows the device.
fn assert_kept_and_delivered(world: &World<1>, station: &mut Station<1>, count: u32, days: usize) {
    let keys = station.pending(0);
    station.events();
    for day in 0..days {
        let before = world.requests();
        station.run_for(DAY_MS);
        let requests = world.requests() - before;
        // Pauses of half an hour to an hour.
        assert!((24..=49).contains(&requests), "{requests} requests on day {day}");
        let events = station.events();
        assert!(events.contains(&Event::Refused { status: 401 }), "day {day}: {events:?}");
    }
    assert_eq!(station.pending(0), keys);
    assert_eq!((station.dead_letters(), station.account()), (vec![], vec![]));
    let stats = station.stats();
    assert_eq!(stats.lanes[0].retried, 0, "no attempts are counted");
    world.middle.borrow_mut().server.register(meter(), &secret_of("meter-1"));
    station.run_for(2 * 3_600_000);
    assert_eq!(world.stored(), (0..count).collect::<Vec<_>>());
    assert_eq!(station.pending(0), []);
    world.middle.borrow().server.check();
}

#[test]
fn a_wrong_secret_costs_nothing() {
    let (world, mut station) = world();
    world.middle.borrow_mut().server.register(meter(), &secret_of("another"));
    station.post_all(0..20);
    assert_kept_and_delivered(&world, &mut station, 20, 7);
}

#[test]
fn an_unknown_device_keeps_everything() {
    let (world, mut station) = world();
    world.middle.borrow_mut().server = ModelServer::new(1);
    station.post_all(0..20);
    assert_kept_and_delivered(&world, &mut station, 20, 7);
}

#[test]
fn a_device_that_is_revoked_for_a_month_keeps_everything() {
    let (world, mut station) = world();
    station.post_all(0..5);
    station.run_for(10_000);
    assert_eq!(world.stored().len(), 5);
    // The receiver keeps its books and does not know the device's secret any more.
    let backup = world.middle.borrow().server.clone();
    world.middle.borrow_mut().set_plain(401, None);
    station.post_all(5..30);
    let keys = station.pending(0);
    let before = world.requests();
    station.run_for(30 * DAY_MS);
    let requests = world.requests() - before;
    assert!((24 * 30..=49 * 30).contains(&requests), "{requests} requests in a month");
    assert_eq!(station.pending(0), keys);
    assert_eq!(backup.log().len(), world.middle.borrow().server.log().len());
    world.middle.borrow_mut().clear();
    station.run_for(2 * 3_600_000);
    assert_eq!(world.stored(), (0..30).collect::<Vec<_>>());
}

#[test]
fn reboots_do_not_help_a_refused_device_to_forget() {
    let mut world = World::new([LaneConfig::new(16).max_attempts(1)]);
    world.middle.borrow_mut().server = ModelServer::new(1);
    let mut station = world.boot();
    station.post_all(0..20);
    station.suspend();
    for _ in 0..10 {
        station = world.boot();
        station.run_for(DAY_MS);
        station.suspend();
    }
    assert_eq!((station.pending(0).len(), station.dead_letters()), (20, vec![]));
    world.middle.borrow_mut().server.register(meter(), &secret_of("meter-1"));
    station.run_for(2 * 3_600_000);
    assert_eq!(world.stored(), (0..20).collect::<Vec<_>>());
}

#[test]
fn posts_do_not_make_a_refused_device_ask_more_often() {
    let (world, mut station) = world();
    world.middle.borrow_mut().server = ModelServer::new(1);
    for number in 0..24 * 6 {
        station.post(0, number);
        station.run_for(600_000);
    }
    let requests = world.requests();
    assert!((20..=49).contains(&requests), "{requests} requests in a day");
}
