//! What an answer means on the batch path, row by row of the design's table: only a tagged answer settles, parks, counts an attempt
//! or renews; everything else keeps, backs off, and costs no record anything.
//!
//! Here are the answers that nobody believes. What the receiver says about records is in `answers/records.rs`, about books and
//! incarnations in `answers/books.rs`; lanes, order and windows are in `answers/lanes.rs`.

#[path = "answers/books.rs"]
mod books;
#[path = "answers/lanes.rs"]
mod lanes;
#[path = "answers/records.rs"]
mod records;

use host_tests::link::Fault;
use host_tests::middle::{World, plain, tagged, world};
use host_tests::server::{Reply, Server};
use host_tests::station::Station;
use pillarbox::wire::AnswerDraft;
use pillarbox::{Event, Failure, Key};

/// The device has what it had: pending records with their keys, no dead letters, no attempts, no account.
fn assert_kept(station: &mut Station<1>, keys: &[Key], what: &str) {
    assert_eq!(station.pending(0), keys, "{what}: pending");
    assert_eq!(station.dead_letters(), [], "{what}: dead letters");
    assert_eq!(station.account(), [], "{what}: account");
    let stats = station.stats();
    assert_eq!((stats.lanes[0].retried, stats.lanes[0].delivered), (0, 0), "{what}: attempts");
}

/// Once everybody is honest, everything arrives, once, in order, as it was keyed.
fn assert_arrives(world: &World<1>, station: &mut Station<1>, count: u32) {
    world.middle.borrow_mut().clear();
    station.run_for(2 * 3_600_000);
    assert_eq!(world.stored(), (0..count).collect::<Vec<_>>());
    assert_eq!(station.pending(0), []);
    world.middle.borrow().server.check();
}

#[test]
fn a_busy_status_keeps_everything_and_backs_off() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        for retry_after_s in [None, Some(0), Some(17)] {
            let (world, mut station) = world();
            let keys = station.post_all(0..5);
            station.events();
            world.middle.borrow_mut().set_plain(status, retry_after_s);
            assert_eq!(station.step(), Some(Err(Failure::Busy { retry_after_s })), "{status}");
            assert_kept(&mut station, &keys, &status.to_string());
            assert_eq!(station.events(), [], "{status}");
            let pause = station.pause().expect("it tries again");
            let asked = u64::from(retry_after_s.unwrap_or(0)) * 1000;
            assert!((asked.max(1000)..=asked + 1000).contains(&pause), "{status} {retry_after_s:?}: {pause}");
            assert_arrives(&world, &mut station, 5);
        }
    }
}

#[test]
fn a_200_without_the_right_tag_is_no_answer() {
    let bodies: [&[u8]; 4] = [b"", b"<html>Welcome</html>", &[0; 16], &[0xff; 300]];
    for body in bodies {
        for status in [200, 201, 204, 299] {
            let (world, mut station) = world();
            let keys = station.post_all(0..5);
            let reply = Reply { status, body: body.to_vec(), retry_after_s: None };
            world.middle.borrow_mut().set(move |_, _, _| reply.clone());
            // A 204 has no body, so one that has is not HTTP.
            let failed = station.step();
            assert!(matches!(failed, Some(Err(Failure::Busy { .. } | Failure::Network))), "{failed:?}");
            assert_kept(&mut station, &keys, "forged");
            assert!((1000..=2000).contains(&station.pause().unwrap()));
            assert_arrives(&world, &mut station, 5);
        }
    }
}

#[test]
fn a_200_with_the_tag_of_another_is_no_answer() {
    let (world, mut station) = world();
    let keys = station.post_all(0..5);
    world.middle.borrow_mut().set(|_, _, body| {
        let mut reply = tagged(200, body, &AnswerDraft { settled: &[0xff], epoch: 1, ..Default::default() });
        *reply.body.last_mut().expect("it has a tag") ^= 0x80;
        reply
    });
    assert_eq!(station.step(), Some(Err(Failure::Busy { retry_after_s: None })));
    assert_kept(&mut station, &keys, "wrong tag");
    assert_arrives(&world, &mut station, 5);
}

#[test]
fn a_refusal_keeps_everything_with_an_event_and_a_long_pause() {
    for status in [401, 403, 404, 405] {
        let (world, mut station) = world();
        let keys = station.post_all(0..5);
        station.events();
        world.middle.borrow_mut().set_plain(status, None);
        assert_eq!(station.step(), Some(Err(Failure::Refused { status })));
        assert_kept(&mut station, &keys, &status.to_string());
        assert_eq!(station.events(), [Event::Refused { status }]);
        let pause = station.pause().unwrap();
        assert!((1_800_000..=3_600_000).contains(&pause), "{status}: {pause}");
        assert_arrives(&world, &mut station, 5);
    }
}

#[test]
fn redirects_and_other_statuses_keep_everything() {
    for status in [300, 301, 302, 304, 307, 402, 406, 409, 410, 415, 418, 422, 451, 501, 505, 599] {
        let (world, mut station) = world();
        let keys = station.post_all(0..3);
        world.middle.borrow_mut().set_plain(status, None);
        assert!(matches!(station.step(), Some(Err(Failure::Busy { .. } | Failure::Network))), "{status}");
        assert_kept(&mut station, &keys, &status.to_string());
        assert!((1000..=2000).contains(&station.pause().unwrap()), "{status}");
        assert_arrives(&world, &mut station, 3);
    }
}

#[test]
fn a_batch_that_is_too_large_is_halved_until_it_passes() {
    for status in [413, 400] {
        let (world, mut station) = world();
        let keys = station.post_all(0..40);
        world.middle.borrow_mut().set(move |server, now_ms, body| {
            let count = pillarbox::wire::Batch::decode(body).unwrap().records().count();
            if count > 3 { plain(status, None) } else { server.handle(now_ms, body) }
        });
        assert_eq!(station.step(), Some(Ok(())), "{status}");
        let sizes = world.middle.borrow().sizes();
        assert_eq!(sizes[..4], [40, 20, 10, 5], "{status}: each is half of the one before");
        assert_eq!(sizes[4], 2, "{status}");
        let middle = world.middle.borrow();
        assert_eq!(middle.server.log().iter().map(|one| one.key).collect::<Vec<_>>(), keys);
        drop(middle);
        assert_eq!(station.pending(0), []);
        assert_eq!(station.dead_letters(), []);
        assert_eq!(station.stats().lanes[0].retried, 0);
    }
}

#[test]
fn after_a_while_a_larger_batch_is_tried_again() {
    let (world, mut station) = world();
    station.post_all(0..40);
    let limit = std::rc::Rc::new(core::cell::Cell::new(2));
    let limit_here = limit.clone();
    world.middle.borrow_mut().set(move |server, now_ms, body| {
        let count = pillarbox::wire::Batch::decode(body).unwrap().records().count();
        if count > limit_here.get() { plain(413, None) } else { server.handle(now_ms, body) }
    });
    assert_eq!(station.step(), Some(Ok(())));
    limit.set(1000);
    for round in 0..20 {
        station.post_all(40 + round * 20..60 + round * 20);
        assert_eq!(station.step(), Some(Ok(())));
    }
    assert_eq!(world.middle.borrow().sizes().last(), Some(&20), "it has grown again");
}

#[test]
fn a_single_record_that_is_too_large_is_kept_with_an_event_and_a_long_pause() {
    for status in [413, 400] {
        let (world, mut station) = world();
        let keys = station.post_all(0..4);
        station.events();
        world.middle.borrow_mut().set_plain(status, None);
        assert_eq!(station.step(), Some(Err(Failure::Refused { status })));
        assert_eq!(world.middle.borrow().sizes(), [4, 2, 1]);
        assert_kept(&mut station, &keys, &status.to_string());
        assert_eq!(station.events(), [Event::Refused { status }]);
        assert!((1_800_000..=3_600_000).contains(&station.pause().unwrap()));
        assert_arrives(&world, &mut station, 4);
    }
}

#[test]
fn a_request_that_is_lost_costs_nothing() {
    for fault in [Fault::RequestLost, Fault::ResetInRequest, Fault::DnsFailure, Fault::ConnectionRefused] {
        let (world, mut station) = world();
        let keys = station.post_all(0..5);
        world.link.inject(fault);
        assert_eq!(station.step(), Some(Err(Failure::Network)), "{fault:?}");
        assert_kept(&mut station, &keys, &format!("{fault:?}"));
        assert!((1000..=2000).contains(&station.pause().unwrap()));
        assert!(world.stored().is_empty());
        assert_arrives(&world, &mut station, 5);
    }
}

#[test]
fn an_answer_that_is_lost_costs_nothing_and_stores_nothing_twice() {
    for fault in [Fault::AnswerLost, Fault::ResetInAnswer, Fault::RequestLate] {
        let (world, mut station) = world();
        let keys = station.post_all(0..5);
        world.link.inject(fault);
        assert_eq!(station.step(), Some(Err(Failure::Network)), "{fault:?}");
        assert_kept(&mut station, &keys, &format!("{fault:?}"));
        assert_arrives(&world, &mut station, 5);
    }
}

#[test]
fn an_exchange_that_hangs_ends_after_thirty_seconds() {
    let (world, mut station) = world();
    let keys = station.post_all(0..5);
    world.link.inject(Fault::AnswerLost);
    let begun = world.time.now_ms();
    assert_eq!(station.step(), Some(Err(Failure::Network)));
    let took = world.time.now_ms() - begun;
    assert!((30_000..31_000).contains(&took), "{took}");
    assert_kept(&mut station, &keys, "timeout");
    assert_arrives(&world, &mut station, 5);
}

#[test]
fn a_tagged_answer_with_another_status_settles_nothing() {
    for status in [100, 301, 400, 401, 404, 413, 429, 500, 503] {
        let (world, mut station) = world();
        let keys = station.post_all(0..5);
        let (incarnation, ..) = station.time.block_on(station.dispatcher.identity());
        world.middle.borrow_mut().set(move |_, _, body| {
            tagged(
                status,
                body,
                &AnswerDraft { settled: &[0xff], is_renew: true, epoch: 1, ..Default::default() },
            )
        });
        let failed = station.step();
        assert!(matches!(failed, Some(Err(Failure::Busy { .. } | Failure::Network))), "{status}: {failed:?}");
        assert_kept(&mut station, &keys, &format!("tagged {status}"));
        assert_eq!(station.time.block_on(station.dispatcher.identity()).0, incarnation);
        assert_arrives(&world, &mut station, 5);
    }
}

#[test]
fn a_tagged_refusal_may_ask_for_time() {
    let (world, mut station) = world();
    let keys = station.post_all(0..5);
    world
        .middle
        .borrow_mut()
        .set(|_, _, body| tagged(503, body, &AnswerDraft { retry_after_s: Some(120), ..Default::default() }));
    assert_eq!(station.step(), Some(Err(Failure::Asked { retry_after_s: 120 })));
    assert_kept(&mut station, &keys, "asked");
    assert!((120_000..=121_000).contains(&station.pause().unwrap()));
    assert_arrives(&world, &mut station, 5);
}

#[test]
fn days_offline_cost_no_attempts() {
    let (world, mut station) = world();
    world.link.take_down(host_tests::link::Outage::Reset);
    let keys = station.post_all(0..5);
    station.run_for(3 * 86_400_000);
    assert_kept(&mut station, &keys, "offline");
    world.link.bring_up();
    assert_arrives(&world, &mut station, 5);
}
