//! Back-off is exponential with full jitter between its minimum and its maximum, is reset by success, and is neither defeated by a
//! storm of posts nor stretched for ever by a link that flaps. Triggers cut it short; only the application overrules the receiver.

use core::time::Duration;

use host_tests::link::Outage;
use host_tests::middle::{World, tagged, world};
use host_tests::station::Station;
use pillarbox::wire::AnswerDraft;
use pillarbox::{Failure, LaneConfig, Pace};

/// The pauses after so many failures in a row, of one boot.
fn pauses(station: &mut Station<1>, count: usize) -> Vec<u64> {
    let pause = |station: &mut Station<1>| {
        assert!(station.flush_within(4_000_000).expect("it tries again").is_err());
        station.pause().unwrap()
    };
    (0..count).map(|_| pause(station)).collect()
}

fn pace() -> Pace {
    Pace::new()
        .spread(Duration::from_secs(5))
        .backoff(Duration::from_secs(1), Duration::from_secs(64))
        .long(Duration::from_secs(3600))
}

/// Boots that fail so many times in a row each.
fn draws(boots: usize, count: usize) -> Vec<Vec<u64>> {
    let mut world = World::new([LaneConfig::new(16)]);
    world.link.take_down(Outage::Reset);
    let run = |_| {
        let mut station = world.boot().with([pillarbox::Policy::urgent()], pace());
        station.post(0, 0);
        let drawn = pauses(&mut station, count);
        station.time.block_on(station.outbox.clear()).unwrap();
        drawn
    };
    (0..boots).map(run).collect()
}

#[test]
fn the_range_doubles_up_to_the_maximum_and_all_of_it_is_used() {
    let drawn = draws(400, 9);
    for failures in 0..9 {
        let widest = (1000u64 << failures).min(64_000);
        let mut of_this: Vec<u64> = drawn.iter().map(|pauses| pauses[failures]).collect();
        of_this.sort();
        assert!(of_this[0] >= 1000 && of_this[399] <= widest, "{failures}: {of_this:?}");
        if failures == 0 {
            continue;
        }
        let range = (widest - 1000) as f64;
        let place = |pause: u64| (pause - 1000) as f64 / range;
        let mean = of_this.iter().map(|pause| place(*pause)).sum::<f64>() / 400.0;
        assert!((0.44..0.56).contains(&mean), "{failures}: mean {mean}");
        for (quantile, at) in [(0.1, 40), (0.25, 100), (0.5, 200), (0.75, 300), (0.9, 360)] {
            let found = place(of_this[at]);
            assert!((found - quantile).abs() < 0.09, "{failures}: quantile {quantile} is {found}");
        }
    }
}

#[test]
fn devices_draw_differently() {
    let drawn = draws(50, 6);
    let mut last: Vec<u64> = drawn.iter().map(|pauses| pauses[5]).collect();
    last.sort();
    last.dedup();
    assert!(last.len() > 45, "{}", last.len());
}

#[test]
fn success_resets_it() {
    let (world, mut station) = world();
    world.middle.borrow_mut().set_plain(503, None);
    station.post(0, 0);
    let longest = pauses(&mut station, 8).into_iter().max().unwrap();
    assert!(longest > 8_000, "{longest}");
    world.middle.borrow_mut().clear();
    assert_eq!(station.flush_within(120_000), Some(Ok(())));
    world.middle.borrow_mut().set_plain(503, None);
    station.post(0, 1);
    assert!(station.step().unwrap().is_err());
    assert!(station.pause().unwrap() <= 1000);
}

#[test]
fn the_first_attempt_after_boot_is_jittered() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut first: Vec<u64> = (0..200)
        .map(|_| {
            let mut station = world.boot().with([pillarbox::Policy::urgent()], pace());
            station.post(0, 0);
            let at = station.next_wakeup().unwrap();
            station.time.block_on(station.outbox.clear()).unwrap();
            at
        })
        .collect();
    first.sort();
    assert!(first[199] <= 5000, "{first:?}");
    let mean = first.iter().sum::<u64>() / 200;
    assert!((2150..2850).contains(&mean), "mean {mean}");
    assert!(first[20] < 1000 && first[180] > 4000, "{first:?}");
}

#[test]
fn a_storm_of_posts_makes_no_more_attempts() {
    let attempts = |posts: u32| {
        let (world, mut station) = world();
        world.middle.borrow_mut().set_plain(503, None);
        station.post(0, 0);
        for number in 0..600 {
            for _ in 0..posts {
                let posted = station
                    .time
                    .block_on(station.outbox.enqueue_once(1, &host_tests::device::Note::new(number)));
                assert!(posted.is_ok());
            }
            station.run_for(1000);
        }
        world.requests()
    };
    let (quiet, stormy) = (attempts(0), attempts(8));
    assert!((10..50).contains(&quiet), "{quiet} attempts in ten minutes");
    assert!(stormy <= quiet + quiet / 2 + 5, "{stormy} attempts instead of {quiet}");
}

#[test]
fn link_up_and_wake_cut_a_back_off_short() {
    for is_wake in [false, true] {
        let (world, station) = world();
        let mut station = station.with([pillarbox::Policy::urgent()], pace());
        world.middle.borrow_mut().set_plain(401, None);
        station.post(0, 0);
        assert!(station.flush_within(10_000).unwrap().is_err());
        assert!(station.pause().unwrap() >= 1_800_000);
        let trigger = station.trigger();
        if is_wake {
            trigger.wake()
        } else {
            trigger.link_up()
        }
        let pause = station.pause().unwrap();
        assert!(pause <= 5000, "{pause}");
        world.middle.borrow_mut().clear();
        station.run_for(5_500);
        assert_eq!(world.stored(), [0]);
    }
}

#[test]
fn link_up_never_makes_a_wait_longer() {
    let mut world = World::new([LaneConfig::new(16)]);
    world.middle.borrow_mut().set_plain(503, None);
    for _ in 0..50 {
        let mut station = world.boot().with([pillarbox::Policy::urgent()], pace());
        station.post(0, 0);
        assert!(station.flush_within(10_000).unwrap().is_err());
        let before = station.pause().unwrap();
        station.trigger().link_up();
        let after = station.pause().unwrap();
        assert!(after <= before, "{after} instead of {before}");
        station.time.block_on(station.outbox.clear()).unwrap();
    }
}

#[test]
fn only_the_application_overrules_the_receiver() {
    let (world, mut station) = world();
    station.post(0, 0);
    world.middle.borrow_mut().set(|_, _, body| {
        tagged(200, body, &AnswerDraft { retry_after_s: Some(600), epoch: 1, ..Default::default() })
    });
    assert_eq!(station.step(), Some(Err(Failure::Asked { retry_after_s: 600 })));
    station.trigger().link_up();
    station.trigger().wake();
    station.post(0, 1);
    assert!(station.pause().unwrap() >= 600_000);
    assert_eq!(station.step(), None);
    world.middle.borrow_mut().clear();
    station.trigger().flush();
    assert_eq!(station.pause(), Some(0));
    assert_eq!(station.step(), Some(Ok(())));
    assert_eq!(world.stored(), [0, 1]);
}

#[test]
fn a_flush_that_is_asked_for_cuts_every_wait() {
    for status in [503, 401, 413, 200] {
        let (world, mut station) = world();
        world.middle.borrow_mut().set_plain(status, Some(100));
        station.post(0, 0);
        assert!(station.step().unwrap().is_err());
        world.middle.borrow_mut().clear();
        station.trigger().flush();
        assert_eq!(station.step(), Some(Ok(())), "{status}");
    }
}

#[test]
fn a_link_that_flaps_does_not_postpone_for_ever() {
    for every_ms in [100, 700, 3000, 4900] {
        let (world, station) = world();
        let mut station = station.with([pillarbox::Policy::urgent()], pace());
        world.link.take_down(Outage::Reset);
        station.post(0, 0);
        station.run_for(60_000);
        world.link.bring_up();
        let (trigger, time) = (station.trigger(), world.time.clone());
        world.time.spawn(async move {
            for _ in 0..200 {
                trigger.link_up();
                time.sleep(every_ms).await;
            }
        });
        station.run_for(6_000);
        assert_eq!(station.pending(0), [], "every {every_ms} ms");
    }
}
