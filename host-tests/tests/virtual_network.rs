//! The ground of the world tests is sound: each fault of the simulated network does what its name says and nothing
//! else, the same seed is the same world, and what was counted is what happened.

#[path = "virtual_network/world.rs"]
mod world;

use std::cell::RefCell;
use std::rc::Rc;

use embedded_io_async::{ErrorKind, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use host_tests::link::http::{WORLD_BEGAN_S, date};
use host_tests::link::{Event, Fault, Link, LinkFaults, Outage, PLAIN_STATUSES, Stage, What};

use world::{Outcome, World, connect, exchange, patiently, post, send, world};

#[test]
fn without_faults_a_request_is_answered_and_every_byte_counted() {
    let world = world(1);
    world.link.set_latency_ms(10..=10);
    let (first, second) = world.time.block_on(async {
        let mut connection = connect(&world.link).await.unwrap();
        let long = vec![7; 2000];
        (send(&mut connection, b"abc").await, send(&mut connection, &long).await)
    });
    let Outcome::Answer { status, head, body } = &first else { panic!("{first:?}") };
    assert_eq!((*status, body.as_slice()), (200, &b"cba"[..]));
    let date_line = head.lines().find_map(|line| line.strip_prefix("Date: ")).unwrap();
    assert_eq!(date_line, "Thu, 01 Jan 2026 00:00:00 GMT");
    let Outcome::Answer { head: second_head, body: second_body, .. } = &second else { panic!("{second:?}") };
    assert_eq!(second_body.len(), 2000);
    // A lookup, a connection and the way there: five ways of ten milliseconds.
    assert_eq!(world.server.borrow().seen[0], (50, b"abc".to_vec()));
    assert!(world.network.last_head().starts_with("POST /v1/batch HTTP/1.1\r\n"));

    let counts = world.link.counts();
    assert_eq!(counts.sent_bytes as usize, post(b"abc").len() + post(&vec![7; 2000]).len());
    assert_eq!(counts.received_bytes as usize, head.len() + 3 + second_head.len() + 2000);
    assert_eq!((counts.connections, counts.requests, counts.handled, counts.answers), (1, 2, 2, 2));
    assert_eq!(counts.all_faults(), 0);
}

#[test]
fn dates_are_right() {
    assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(date(951_827_696), "Tue, 29 Feb 2000 12:34:56 GMT");
    assert_eq!(date(WORLD_BEGAN_S - 1), "Wed, 31 Dec 2025 23:59:59 GMT");
}

#[test]
fn what_is_no_post_is_refused_and_the_connection_closed() {
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "405"),
        ("POST / HTTP/1.1\r\n\r\n", "411"),
        ("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", "413"),
        ("\u{1}\u{2}\r\n\r\n", "400"),
    ] {
        let world = world(1);
        let bytes = world.time.block_on(async {
            let mut connection = connect(&world.link).await.unwrap();
            connection.write_all(request.as_bytes()).await.unwrap();
            let (mut bytes, mut buffer) = (Vec::new(), [0; 64]);
            loop {
                match connection.read(&mut buffer).await.unwrap() {
                    0 => return bytes,
                    count => bytes.extend_from_slice(&buffer[..count]),
                }
            }
        });
        assert_eq!(&bytes[9..12], status.as_bytes(), "{request}");
        assert!(world.seen().is_empty());
    }
}

#[test]
fn lookups_and_connections_fail() {
    let world = world(1);
    assert_eq!(world.exchange_with(Fault::DnsFailure, b"a"), Outcome::Failed(ErrorKind::NotFound));
    assert_eq!(
        world.exchange_with(Fault::ConnectionRefused, b"a"),
        Outcome::Failed(ErrorKind::ConnectionRefused)
    );
    let other = world.time.block_on(world.link.get_host_by_name("elsewhere.test", AddrType::IPv4));
    assert_eq!(other, Err(ErrorKind::NotFound));
    let other = world.time.block_on(world.link.connect(([192, 0, 2, 9], 80).into()));
    assert_eq!(other.err(), Some(ErrorKind::ConnectionRefused));
    assert!(world.seen().is_empty());
}

#[test]
fn a_lost_request_is_not_seen_and_a_lost_answer_is() {
    let world = world(1);
    assert_eq!(world.exchange_with(Fault::RequestLost, b"a"), Outcome::TimedOut);
    world.settle();
    assert!(world.seen().is_empty());
    assert_eq!(world.exchange_with(Fault::AnswerLost, b"b"), Outcome::TimedOut);
    assert_eq!(world.seen(), [b"b"]);
    let counts = world.link.counts();
    assert_eq!((counts.requests, counts.handled, counts.answers, counts.received_bytes), (2, 1, 0, 0));
}

#[test]
fn a_reset_in_the_request_hides_it_from_the_server() {
    for seed in 0..50 {
        let world = world(seed);
        for length in [1, 300, 3000] {
            let outcome = world.exchange_with(Fault::ResetInRequest, &vec![1; length]);
            assert_eq!(outcome, Outcome::Failed(ErrorKind::ConnectionReset));
        }
        world.settle();
        assert!(world.seen().is_empty());
        assert_eq!(world.link.counts().requests, 0);
        assert!(world.link.counts().sent_bytes <= 3 * 600);
    }
}

#[test]
fn a_reset_in_the_answer_shows_a_part_of_it() {
    let (mut resets, mut ends) = (0, 0);
    for seed in 0..50 {
        let world = world(seed);
        match world.exchange_with(Fault::ResetInAnswer, b"abc") {
            Outcome::Failed(ErrorKind::ConnectionReset) => resets += 1,
            Outcome::Ended(part) => {
                assert_eq!(part.len() as u64, world.link.counts().received_bytes);
                ends += 1;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((world.seen().len(), world.link.counts().answers), (1, 0));
    }
    assert!(resets > 0 && ends > 0);
}

#[test]
fn a_duplicate_is_handled_twice_at_once_or_later() {
    let (mut at_once, mut later) = (0, 0);
    for seed in 0..50 {
        let world = world(seed);
        assert_eq!(world.exchange_with(Fault::RequestDuplicated, b"abc").body(), b"cba");
        world.settle();
        let seen = world.server.borrow().seen.clone();
        assert_eq!((seen.len(), &seen[0].1), (2, &seen[1].1));
        if seen[0].0 == seen[1].0 { at_once += 1 } else { later += 1 }
    }
    assert!(at_once > 0 && later > 0);
}

#[test]
fn a_late_request_is_handled_although_the_device_is_long_gone() {
    let world = world(3);
    let device = world.time.spawn({
        let (time, link) = (world.time.clone(), world.link.clone());
        async move {
            link.inject(Fault::RequestLate);
            exchange(&time, &link, b"late").await;
        }
    });
    world.time.run_until(1000);
    world.time.kill(device);
    assert!(world.seen().is_empty());
    world.settle();
    assert_eq!(world.seen(), [b"late"]);
    assert!(world.server.borrow().seen[0].0 > 1000);
    assert_eq!(world.link.counts().received_bytes, 0);
}

#[test]
fn an_old_request_is_replayed_around_another() {
    for seed in 0..30 {
        let world = world(seed);
        assert_eq!(world.time.block_on(exchange(&world.time, &world.link, b"old")).body(), b"dlo");
        assert_eq!(world.exchange_with(Fault::OldRequestReplayed, b"new").body(), b"wen");
        world.settle();
        let mut seen = world.seen();
        seen.sort();
        assert_eq!(seen, [b"new", b"old", b"old"]);
    }
}

#[test]
fn an_altered_answer_differs_and_has_the_same_length() {
    for seed in 0..50 {
        let world = world(seed);
        world.exchange_with(Fault::AnswerAltered, b"abcdefgh");
        world.settle();
        assert_eq!(world.seen(), [b"abcdefgh"]);
        let altered = world.link.counts().received_bytes;
        let outcome = world.time.block_on(exchange(&world.time, &world.link, b"abcdefgh"));
        assert_eq!(outcome.body(), b"hgfedcba");
        assert_eq!(world.link.counts().received_bytes, 2 * altered);
    }
    let differs = |seed| {
        !matches!(world(seed).exchange_with(Fault::AnswerAltered, b"abcdefgh"),
        Outcome::Answer { status: 200, ref head, ref body }
            if body == b"hgfedcba" && head.contains("Content-Length: 8\r\n") && head.ends_with("GMT\r\n\r\n")
                && head.contains("application/octet-stream"))
    };
    assert!((0..50).filter(|seed| differs(*seed)).count() > 40);
}

#[test]
fn answers_are_made_up_by_others() {
    let (mut seen, mut unseen) = (0, 0);
    let mut statuses = std::collections::BTreeSet::new();
    let mut with_retry_after = 0;
    for seed in 0..200 {
        let world = world(seed);
        let forged = world.exchange_with(Fault::AnswerForged, b"abc");
        assert!(matches!(&forged, Outcome::Answer { status: 200, body, .. } if body != b"cba"), "{forged:?}");
        let plain = world.exchange_with(Fault::PlainStatus, b"abc");
        let Outcome::Answer { status, head, .. } = plain else { panic!("{plain:?}") };
        statuses.insert(status);
        with_retry_after += u32::from(head.contains("Retry-After: "));
        match world.seen().len() {
            0 => unseen += 1,
            _ => seen += 1,
        }
        let before = world.seen().len();
        let portal = world.exchange_with(Fault::CaptivePortal, b"abc");
        assert!(
            matches!(&portal, Outcome::Answer { status: 200, body, .. } if body.starts_with(b"<!DOCTYPE"))
        );
        assert_eq!(world.seen().len(), before);
    }
    assert!(seen > 0 && unseen > 0);
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), PLAIN_STATUSES);
    assert!((50..150).contains(&with_retry_after));
}

#[test]
fn an_old_answer_comes_instead_of_the_right_one() {
    let world = world(1);
    world.time.block_on(exchange(&world.time, &world.link, b"old"));
    assert_eq!(world.exchange_with(Fault::OldAnswer, b"new").body(), b"dlo");
    assert_eq!(world.seen(), [b"old", b"new"]);
}

#[test]
fn a_dribbled_answer_is_right_and_slow() {
    let world = world(1);
    let mut faults = LinkFaults::none();
    faults.dribble_ms_max = 50;
    world.link.set_faults(faults);
    let outcome = world.exchange_with(Fault::AnswerDribbled, b"abc");
    assert_eq!(outcome.body(), b"cba");
    assert!(world.time.now_ms() - world.server.borrow().seen[0].0 > 100);
}

#[test]
fn a_kept_connection_is_closed_between_requests() {
    let (mut announced, mut silent) = (0, 0);
    for seed in 0..30 {
        let world = world(seed);
        world.link.inject(Fault::KeepAliveClosed);
        world.time.block_on(async {
            let mut connection = connect(&world.link).await.unwrap();
            let Outcome::Answer { head, body, .. } = send(&mut connection, b"abc").await else { panic!() };
            assert_eq!(body, b"cba");
            if head.contains("Connection: close") {
                announced += 1
            } else {
                silent += 1
            }
            world.time.sleep(10_000).await;
            // The device finds out by trying.
            assert_eq!(send(&mut connection, b"next").await, Outcome::Failed(ErrorKind::ConnectionReset));
        });
        assert_eq!(world.seen(), [b"abc"]);
    }
    assert!(announced > 0 && silent > 0);
}

#[test]
fn a_closed_connection_reads_as_its_end() {
    let world = world(1);
    world.link.inject(Fault::KeepAliveClosed);
    world.time.block_on(async {
        let mut connection = connect(&world.link).await.unwrap();
        assert_eq!(send(&mut connection, b"abc").await.body(), b"cba");
        assert_eq!(connection.read(&mut [0; 8]).await, Ok(0));
    });
}

#[test]
fn a_link_that_goes_down_kills_or_swallows() {
    for (outage, open, new) in [
        (
            Outage::Reset,
            Outcome::Failed(ErrorKind::ConnectionReset),
            Outcome::Failed(ErrorKind::NotConnected),
        ),
        (Outage::BlackHole, Outcome::TimedOut, Outcome::TimedOut),
    ] {
        let world = world(1);
        let (time, link) = (&world.time, &world.link);
        time.block_on(async {
            let mut connection = connect(link).await.unwrap();
            link.take_down(outage);
            assert!(!link.is_up());
            assert_eq!(patiently(time, send(&mut connection, b"a")).await, open);
            assert_eq!(exchange(time, link, b"b").await, new);
            link.bring_up();
            assert_eq!(patiently(time, send(&mut connection, b"c")).await, open);
            assert_eq!(exchange(time, link, b"d").await.body(), b"d");
        });
        assert_eq!(world.seen(), [b"d"]);
    }
}

#[test]
fn a_link_that_goes_down_under_a_request_loses_only_the_answer() {
    for outage in [Outage::Reset, Outage::BlackHole] {
        let world = world(1);
        world.link.set_latency_ms(100..=100);
        let outcome = Rc::new(RefCell::new(None));
        world.time.spawn({
            let (time, link, outcome) = (world.time.clone(), world.link.clone(), outcome.clone());
            async move { *outcome.borrow_mut() = Some(exchange(&time, &link, b"a").await) }
        });
        world.time.run_until(450);
        world.link.take_down(outage);
        world.settle();
        assert_eq!(world.seen(), [b"a"]);
        assert!(!matches!(outcome.borrow().clone().unwrap(), Outcome::Answer { .. }));
        assert_eq!(world.link.counts().received_bytes, 0);
    }
}

#[test]
fn a_server_goes_down_and_restarts() {
    let world = world(1);
    let (time, link) = (&world.time, &world.link);
    let reset = Outcome::Failed(ErrorKind::ConnectionReset);
    time.block_on(async {
        let mut connection = connect(link).await.unwrap();
        world.network.server_restart();
        assert_eq!(send(&mut connection, b"a").await, reset);
        let mut connection = connect(link).await.unwrap();
        world.network.server_down();
        assert_eq!(send(&mut connection, b"b").await, reset);
        assert_eq!(exchange(time, link, b"c").await, Outcome::Failed(ErrorKind::ConnectionRefused));
        world.network.server_up();
        assert_eq!(exchange(time, link, b"d").await.body(), b"d");
    });
    assert_eq!(world.seen(), [b"d"]);

    // A request that is on its way to a server that restarts is lost.
    link.set_latency_ms(100..=100);
    let task =
        time.spawn({
            let (time, link) = (time.clone(), link.clone());
            async move {
                assert_eq!(exchange(&time, &link, b"e").await, Outcome::Failed(ErrorKind::ConnectionReset))
            }
        });
    time.run_until(time.now_ms() + 450);
    world.network.server_restart();
    world.settle();
    assert!(!time.is_alive(task));
    assert_eq!(world.seen(), [b"d"]);
}

#[test]
fn a_script_comes_before_chance() {
    let world = world(1);
    world.link.set_faults(LinkFaults::none().with(Fault::RequestLost, 1.0));
    world.link.script([None, Some(Fault::AnswerLost)]);
    let bodies = [b"a", b"b", b"c"];
    let answered = bodies.map(|body| {
        let outcome = world.time.block_on(exchange(&world.time, &world.link, body));
        matches!(outcome, Outcome::Answer { .. })
    });
    assert_eq!(answered, [true, false, false]);
    assert_eq!(world.seen(), [b"a", b"b"]);
    let counts = world.link.counts();
    assert_eq!((counts.faults(Fault::AnswerLost), counts.faults(Fault::RequestLost)), (1, 1));
}

/// Three devices that send for an hour through every fault, lose their power, their link and their server.
fn turbulent(seed: u64) -> World {
    let mut world = world(seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    let links: Vec<Link> = (0..3).map(|_| world.network.link()).collect();
    let boot = |link: &Link| {
        let (time, link) = (world.time.clone(), link.clone());
        world.time.spawn(async move {
            for number in 0u32.. {
                exchange(&time, &link, &number.to_le_bytes()).await;
                time.sleep(1000).await;
            }
        })
    };
    for link in &links {
        link.set_faults(LinkFaults::each(0.04));
    }
    let mut devices: Vec<_> = links.iter().map(boot).collect();
    for _ in 0..20 {
        world.time.run_until(world.time.now_ms() + rng.u64(1..300_000));
        let which = rng.usize(0..3);
        match rng.u8(0..5) {
            0 => links[which].take_down(Outage::Reset),
            1 => links[which].take_down(Outage::BlackHole),
            2 => links[which].bring_up(),
            3 => world.network.server_restart(),
            _ => {
                world.time.kill(devices[which]);
                devices[which] = boot(&links[which]);
            }
        }
    }
    world.link = links[0].clone();
    world
}

#[test]
fn the_same_seed_is_the_same_world() {
    let mut digests = std::collections::HashSet::new();
    for seed in 0..20 {
        let (one, other) = (turbulent(seed), turbulent(seed));
        let (one_trace, other_trace) = (one.network.trace(), other.network.trace());
        assert!(one_trace.count() > 1000);
        assert!(one_trace.latest().eq(other_trace.latest()));
        assert_eq!((one_trace.count(), one_trace.digest()), (other_trace.count(), other_trace.digest()));
        assert_eq!(one.link.counts(), other.link.counts());
        assert_eq!(one.server.borrow().seen, other.server.borrow().seen);
        digests.insert(one.network.digest());
    }
    assert_eq!(digests.len(), 20, "another seed is another world");
}

#[test]
fn every_fault_is_as_frequent_as_its_probability() {
    let world = world(5);
    world.link.set_faults(LinkFaults::each(0.04));
    let lookups = 3000;
    for _ in 0..lookups {
        world.time.block_on(exchange(&world.time, &world.link, b"abc"));
    }
    let counts = world.link.counts();
    let connects = lookups - counts.faults(Fault::DnsFailure);
    assert_eq!(counts.connections, connects - counts.faults(Fault::ConnectionRefused));
    assert_eq!(counts.requests, counts.connections - counts.faults(Fault::ResetInRequest));
    for fault in Fault::ALL {
        let opportunities = match fault.stage() {
            Stage::Lookup => lookups,
            Stage::Connect => connects,
            Stage::Request => counts.connections,
        };
        let share = counts.faults(fault) as f64 / opportunities as f64;
        assert!((0.025..0.055).contains(&share), "{fault:?}: {share}");
    }
    let suffered = |event: &&Event| matches!(event.what, What::Suffered(_));
    assert!(world.network.trace().latest().filter(suffered).count() > 100);
}

#[test]
fn a_link_that_is_down_uses_up_no_fault() {
    let world = world(1);
    world.link.inject(Fault::DnsFailure);
    world.link.take_down(Outage::Reset);
    let outcome = world.time.block_on(exchange(&world.time, &world.link, b"a"));
    assert_eq!(outcome, Outcome::Failed(ErrorKind::NotConnected));
    world.link.bring_up();
    let outcome = world.time.block_on(exchange(&world.time, &world.link, b"a"));
    assert_eq!(outcome, Outcome::Failed(ErrorKind::NotFound));
}

#[test]
fn a_world_that_is_over_is_freed() {
    let world = turbulent(1);
    let server = Rc::downgrade(&world.server);
    drop(world);
    assert!(server.upgrade().is_none());
}
