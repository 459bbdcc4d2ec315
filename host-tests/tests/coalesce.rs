//! Any number of triggers and posts that come together make one flush, those that come during a flush at most one more; a policy says when
//! a flush is worth it, `next_wakeup` says exactly when that is, and `suspend` leaves nothing uncertain.

use core::time::Duration;

use host_tests::device::Note;
use host_tests::middle::{World, meter, world};
use host_tests::station::quick;
use pillarbox::{Clock, LaneConfig, Policy};

#[test]
fn concurrent_posts_and_triggers_make_one_flush() {
    let (world, mut station) = world();
    for number in 0..50 {
        let outbox = station.outbox;
        let trigger = station.trigger();
        world.time.spawn(async move {
            trigger.link_up();
            outbox.enqueue(&Note::new(number)).await.expect("there is room");
            trigger.wake();
            trigger.flush();
        });
    }
    world.time.run_until(0);
    station.run_for(60_000);
    let counts = world.link.counts();
    assert_eq!((counts.connections, world.stored().len()), (1, 50));
    // As many records as fit make one request.
    let sizes = world.middle.borrow().sizes();
    assert!(sizes.len() <= 2 && sizes.iter().sum::<usize>() == 50, "{sizes:?}");
}

#[test]
fn triggers_without_work_make_no_flush() {
    let (world, mut station) = world();
    for _ in 0..20 {
        station.trigger().flush();
        station.trigger().link_up();
        station.run_for(1000);
    }
    assert_eq!(world.link.counts().connections, 0);
    assert_eq!(station.next_wakeup(), None);
}

#[test]
fn triggers_during_a_flush_make_at_most_one_more() {
    for count in [1, 2, 30] {
        let (world, mut station) = world();
        station.post_all(0..10);
        world.middle.borrow_mut().set_plain(503, None);
        // A flush takes 60 ms, and its back-off at least a second: all triggers come during the first.
        world.link.set_latency_ms(10..=10);
        let (trigger, time) = (station.trigger(), world.time.clone());
        world.time.spawn(async move {
            time.sleep(10).await;
            for _ in 0..count {
                trigger.flush();
                time.sleep(1).await;
            }
        });
        station.run_for(900);
        assert_eq!(world.requests(), 2, "{count} triggers");
    }
}

#[test]
fn what_is_posted_during_a_flush_goes_along() {
    let (world, mut station) = world();
    station.post(0, 0);
    let (outbox, time) = (station.outbox, world.time.clone());
    world.time.spawn(async move {
        for number in 1..20 {
            time.sleep(10).await;
            outbox.enqueue(&Note::new(number)).await.expect("there is room");
        }
    });
    station.run_for(10_000);
    assert_eq!(world.stored(), (0..20).collect::<Vec<_>>());
    assert!(world.link.counts().connections <= 2, "{}", world.link.counts().connections);
}

#[test]
fn a_lane_gathers_bytes() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.policies = [Policy::gather(600, Duration::from_secs(3600))];
    let mut station = world.boot();
    station.run_for(1);
    let mut posted = 0;
    while station.stats().lanes[0].depth.bytes < 600 {
        station.run_for(10);
        assert_eq!(world.link.counts().connections, 0, "{posted} records are not worth it");
        station.post(0, posted);
        posted += 1;
    }
    assert!(posted > 5);
    assert_eq!(station.pause(), Some(0));
    station.run_for(2000);
    assert_eq!(world.stored().len(), posted as usize);
    assert_eq!(world.link.counts().connections, 1);
}

#[test]
fn a_record_waits_no_longer_than_its_lane_says() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.policies = [Policy::gather(u32::MAX, Duration::from_secs(600))];
    let mut station = world.boot();
    station.run_for(5_000);
    station.post(0, 0);
    let posted = station.clock.uptime_ms();
    assert_eq!(station.next_wakeup(), Some(posted + 600_000));
    station.run_for(100_000);
    station.post(0, 1);
    assert_eq!(station.next_wakeup(), Some(posted + 600_000), "the oldest counts");
    station.run_for(posted + 599_999 - station.clock.uptime_ms());
    assert_eq!(world.requests(), 0);
    station.run_for(1_000);
    assert_eq!((world.stored(), world.requests()), (vec![0, 1], 1));
    assert_eq!(station.next_wakeup(), None);
    assert!(world.middle.borrow().times()[0] >= posted + 600_000);
}

#[test]
fn an_urgent_record_takes_the_others_along() {
    let mut world = World::new([LaneConfig::new(8), LaneConfig::new(16)]);
    world.policies = [Policy::urgent(), Policy::gather(u32::MAX, Duration::from_secs(86_400))];
    let mut station = world.boot();
    station.run_for(1);
    for number in 0..10 {
        station.post(1, number);
    }
    station.run_for(3_600_000);
    assert_eq!(world.requests(), 0);
    station.post(0, 10);
    station.run_for(2_000);
    assert_eq!(world.stored()[0], 10);
    assert_eq!((world.stored().len(), world.link.counts().connections), (11, 1));
}

#[test]
fn next_wakeup_is_the_moment_of_the_next_request() {
    let (world, mut station) = world();
    world.middle.borrow_mut().set_plain(503, None);
    world.link.set_latency_ms(0..=0);
    station.post(0, 0);
    assert!(station.step().is_some());
    for _ in 0..10 {
        let at = station.next_wakeup().unwrap();
        world.time.run_until(at - 1);
        assert_eq!(station.step(), None, "a millisecond before, nothing is due");
        world.time.run_until(at);
        assert!(station.step().is_some());
        assert_eq!(world.middle.borrow().times().last(), Some(&at));
    }
}

#[test]
fn an_idle_device_may_sleep_for_ever() {
    let (world, mut station) = world();
    assert_eq!(station.next_wakeup(), None);
    station.post(0, 0);
    assert_eq!(station.step(), Some(Ok(())));
    assert_eq!(station.next_wakeup(), None);
    let polls = world.time.polls();
    station.run_for(30 * 86_400_000);
    assert!(world.time.polls() - polls < 10, "nothing wakes it");
}

#[test]
fn suspend_leaves_nothing_uncertain() {
    let mut world = World::new([LaneConfig::new(16)]);
    for boot in 0..5 {
        let mut station = world.boot();
        station.post_all(boot * 10..boot * 10 + 10);
        if boot % 2 == 0 {
            station.run_for(60_000);
        }
        station.suspend();
    }
    let mut station = world.boot();
    assert_eq!(station.account(), []);
    station.run_for(60_000);
    assert_eq!(world.stored(), (0..50).collect::<Vec<_>>());
    let middle = world.middle.borrow();
    let incarnation = middle.server.log()[0].key.incarnation;
    let ledger = middle.server.ledger(&meter(), incarnation, 0).unwrap();
    assert_eq!((ledger.received, ledger.issued, ledger.uncertain(), ledger.lost()), (50, 50, 0, 0));
}

#[test]
fn a_post_after_suspend_is_still_safe() {
    let mut world = World::new([LaneConfig::new(16)]);
    let station = world.boot().with([Policy::urgent()], quick());
    station.post(0, 0);
    station.suspend();
    station.post(0, 1);
    drop(station);
    let mut station = world.boot();
    assert_eq!(station.pending(0).len(), 2);
    assert_eq!(station.account().len(), 1, "the lease that was not given back");
    station.run_for(60_000);
    assert_eq!(world.stored(), [0, 1]);
    world.middle.borrow().server.check();
}
