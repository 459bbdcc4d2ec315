//! Retry-After is honoured, capped and jittered, whoever says it; the receiver's own word binds more than a header; and only seconds are
//! understood, because a date would have to be believed.

use host_tests::middle::{World, tagged, world};
use host_tests::station::quick;
use pillarbox::wire::AnswerDraft;
use pillarbox::{Failure, LaneConfig, Policy};

/// Pauses of many boots after a header, or after a tagged word.
fn pauses(seconds: u32, is_tagged: bool) -> Vec<u64> {
    let mut world = World::new([LaneConfig::new(16)]);
    world.middle.borrow_mut().set(move |_, _, body| match is_tagged {
        true => {
            tagged(200, body, &AnswerDraft { retry_after_s: Some(seconds), epoch: 1, ..Default::default() })
        }
        false => host_tests::middle::plain(503, Some(seconds)),
    });
    let pace = quick().spread(core::time::Duration::from_secs(5));
    let run = |_| {
        let mut station = world.boot().with([Policy::urgent()], pace);
        station.post(0, 0);
        assert!(station.flush_within(10_000).unwrap().is_err());
        let pause = station.pause().unwrap();
        station.time.block_on(station.outbox.clear()).unwrap();
        pause
    };
    (0..100).map(run).collect()
}

#[test]
fn it_is_honoured_and_jittered() {
    for is_tagged in [false, true] {
        let mut pauses = pauses(300, is_tagged);
        pauses.sort();
        assert!(pauses[0] >= 300_000 && pauses[99] <= 305_000, "{is_tagged}: {pauses:?}");
        assert!(pauses[90] - pauses[10] > 3000, "{is_tagged}: they do not all come back at once");
    }
}

#[test]
fn nobody_silences_a_device_for_longer_than_an_hour() {
    for is_tagged in [false, true] {
        for seconds in [3601, 86_400, u32::MAX] {
            let pauses = pauses(seconds, is_tagged);
            assert!(pauses.iter().all(|pause| (3_600_000..=3_605_000).contains(pause)), "{seconds}");
        }
    }
}

#[test]
fn a_short_one_does_not_shorten_the_back_off() {
    let (world, mut station) = world();
    world.middle.borrow_mut().set_plain(503, Some(0));
    station.post(0, 0);
    let mut total = 0;
    for _ in 0..12 {
        assert!(station.flush_within(120_000).unwrap().is_err());
        total += station.pause().unwrap();
    }
    assert!(total > 60_000, "{total}");
}

#[test]
fn a_header_gives_way_to_the_link_and_the_receiver_does_not() {
    for is_tagged in [false, true] {
        let (world, mut station) = world();
        world.middle.borrow_mut().set(move |_, _, body| match is_tagged {
            true => {
                let draft = AnswerDraft { retry_after_s: Some(500), ..Default::default() };
                tagged(503, body, &draft)
            }
            false => host_tests::middle::plain(503, Some(500)),
        });
        station.post(0, 0);
        assert!(station.step().unwrap().is_err());
        assert!(station.pause().unwrap() >= 500_000);
        station.trigger().link_up();
        assert_eq!(station.pause().unwrap() >= 400_000, is_tagged);
    }
}

#[test]
fn a_header_beside_a_tagged_answer_means_nothing() {
    let (world, mut station) = world();
    station.post(0, 0);
    world.middle.borrow_mut().set(|server, now_ms, body| {
        let reply = host_tests::server::Server::handle(server, now_ms, body);
        host_tests::server::Reply { retry_after_s: Some(900), ..reply }
    });
    assert_eq!(station.step(), Some(Ok(())));
    station.post(0, 1);
    assert_eq!(station.step(), Some(Ok(())));
}

#[test]
fn records_that_arrive_are_settled_though_the_receiver_asks_for_time() {
    let (world, mut station) = world();
    world.middle.borrow_mut().server.knobs.retry_after_s = Some(60);
    station.post_all(0..10);
    assert_eq!(station.step(), Some(Err(Failure::Asked { retry_after_s: 60 })));
    assert_eq!(station.pending(0), []);
    station.post(0, 10);
    assert!((60_000..=61_000).contains(&station.pause().unwrap()));
}

#[test]
fn only_seconds_are_understood() {
    let others = ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "1.5", "12 s", "", "99999999999", "0x10"];
    for text in others {
        let (world, mut station) = world();
        world.network.set_header(Some(&format!("Retry-After: {text}")));
        world.middle.borrow_mut().set_plain(503, None);
        station.post(0, 0);
        assert_eq!(station.step(), Some(Err(Failure::Busy { retry_after_s: None })), "{text:?}");
        assert!(station.pause().unwrap() <= 2000, "{text:?}");
    }
    let (world, mut station) = world();
    world.network.set_header(Some("retry-AFTER:   90  "));
    world.middle.borrow_mut().set_plain(503, None);
    station.post(0, 0);
    assert_eq!(station.step(), Some(Err(Failure::Busy { retry_after_s: Some(90) })));
}
