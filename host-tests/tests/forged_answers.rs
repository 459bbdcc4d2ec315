//! Nobody on the wire can make a device forget, park, count, renew or learn a time: not with made-up answers, altered ones, answers to other
//! requests or of other devices, replays, or a captive portal. And everything arrives once the wire is honest.

use host_tests::link::{Fault, LinkFaults};
use host_tests::middle::{World, edited, tag_of, tagged, world};
use host_tests::server::{Reply, Server};
use host_tests::station::{Station, secret_of};
use pillarbox::wire::{AnswerDraft, TagKeys, Verdict};
use pillarbox::{Entry, Key, LaneConfig, Stats};

/// All that an answer could change.
#[derive(Debug, PartialEq)]
struct Memory {
    pending: Vec<Key>,
    dead: Vec<Key>,
    account: Vec<Entry>,
    incarnation: u32,
    wall_ms: Option<u64>,
    flash: Vec<u8>,
    stats: Stats<1>,
}

fn memory(world: &World<1>, station: &mut Station<1>) -> Memory {
    let mut stats = station.stats();
    stats.lanes[0].oldest_ms = None;
    let dispatcher = &mut station.dispatcher;
    let (incarnation, ..) = world.time.block_on(dispatcher.identity());
    let wall_ms = world.time.block_on(dispatcher.wall_ms());
    Memory {
        incarnation,
        wall_ms,
        stats,
        pending: station.pending(0),
        dead: station.dead_letters(),
        account: station.account(),
        flash: world.chip.image(),
    }
}

/// A device with records and an open account, before it has ever been answered; and what it remembers.
fn begun() -> (World<1>, Station<1>, Memory) {
    let mut world = World::new([LaneConfig::new(16).max_attempts(1)]);
    world.boot().post_all(0..3);
    let mut station = world.boot();
    station.post_all(3..6);
    count(&world, &mut station);
    let before = memory(&world, &mut station);
    assert_eq!((before.pending.len(), before.account.len(), before.wall_ms), (6, 1, None));
    (world, station, before)
}

/// After one attempt that nobody answers a device knows exactly how much it has.
fn count(world: &World<1>, station: &mut Station<1>) {
    world.middle.borrow_mut().set_plain(504, None);
    assert!(station.step().is_some_and(|flushed| flushed.is_err()));
    world.middle.borrow_mut().clear();
    station.trigger().flush();
}

/// Tries once, and nothing has changed.
fn assert_unmoved(world: &World<1>, station: &mut Station<1>, before: &Memory, what: &str) {
    station.trigger().flush();
    let flushed = station.step();
    assert!(matches!(flushed, Some(Err(_))), "{what}: {flushed:?}");
    assert!(memory(world, station) == *before, "{what}: {:?}", memory(world, station).stats);
}

fn assert_arrives(world: &World<1>, station: &mut Station<1>) {
    world.middle.borrow_mut().clear();
    world.link.set_faults(LinkFaults::none());
    station.trigger().flush();
    station.run_for(120_000);
    assert_eq!(world.stored(), (0..6).collect::<Vec<_>>());
    assert_eq!((station.pending(0), station.account()), (vec![], vec![]));
    world.middle.borrow().server.check();
}

/// Everything that could do harm, in one answer.
fn poison<'a>() -> AnswerDraft<'a> {
    AnswerDraft {
        is_renew: true,
        is_stale: true,
        is_closed: true,
        server_time_ms: 1_900_000_000_000,
        epoch: 666,
        confirmed: u32::MAX,
        settled: &[0b0001_1111],
        verdicts: &[(5, Verdict::Rejected)],
        explain: &[(0, 2)],
        retry_after_s: Some(3600),
        preferred_size: Some(1),
        ..Default::default()
    }
}

#[test]
fn the_poison_works_if_it_is_tagged() {
    let (world, mut station, before) = begun();
    world.middle.borrow_mut().set(|_, _, body| tagged(200, body, &poison()));
    let _ = station.step();
    let after = memory(&world, &mut station);
    assert!(after.pending.is_empty() && after.dead.len() == 1 && after.wall_ms.is_some());
    assert_ne!(after.incarnation, before.incarnation);
}

#[test]
fn made_up_answers_change_nothing() {
    let (world, mut station, before) = begun();
    let other = TagKeys::new(&secret_of("meter-2"));
    for kind in 0..6 {
        let other = other.clone();
        world.middle.borrow_mut().set(move |_, _, body| {
            let mut bytes = vec![0; 1024];
            let tag = tag_of(body);
            let len = match kind {
                // The secret of another device, the tag of another batch, a tag of zeros or of the batch, none.
                0 => poison().encode(&mut bytes, &other, &tag).unwrap(),
                1 => poison().encode(&mut bytes, &host_tests::middle::keys(), &[0; 16]).unwrap(),
                _ => poison().encode(&mut bytes, &other, &tag).unwrap(),
            };
            bytes.truncate(len);
            match kind {
                2 => bytes[len - 16..].fill(0),
                3 => bytes[len - 16..].copy_from_slice(&tag),
                4 => bytes.truncate(len - 16),
                5 => bytes.clear(),
                _ => {}
            }
            Reply { status: 200, body: bytes, retry_after_s: None }
        });
        assert_unmoved(&world, &mut station, &before, &format!("kind {kind}"));
    }
    assert_arrives(&world, &mut station);
}

#[test]
fn an_answer_with_any_one_bit_inverted_changes_nothing() {
    let (world, mut station, before) = begun();
    let length = std::rc::Rc::new(core::cell::Cell::new(1));
    let mut bit = 0;
    while bit < length.get() * 8 {
        let length = length.clone();
        world.middle.borrow_mut().set(move |_, _, body| {
            let mut reply = tagged(200, body, &poison());
            length.set(reply.body.len());
            reply.body[bit / 8] ^= 1 << (bit % 8);
            reply
        });
        assert_unmoved(&world, &mut station, &before, &format!("bit {bit}"));
        bit += 1;
    }
    assert!(bit > 300, "{bit} bits");
    assert_arrives(&world, &mut station);
}

#[test]
fn an_answer_that_is_cut_or_longer_changes_nothing() {
    let (world, mut station, before) = begun();
    for cut in 1..40 {
        world.middle.borrow_mut().set(move |_, _, body| {
            let mut reply = tagged(200, body, &poison());
            match cut % 2 {
                0 => reply.body.truncate(reply.body.len() - cut / 2),
                _ => reply.body.extend(vec![0; cut / 2 + 1]),
            }
            reply
        });
        assert_unmoved(&world, &mut station, &before, &format!("cut {cut}"));
    }
    assert_arrives(&world, &mut station);
}

#[test]
fn answers_to_other_requests_change_nothing() {
    let (world, mut station, before) = begun();
    // The receiver's own answer to the request before, of the same records; the device never sees the right one.
    let mut last: Option<Reply> = None;
    world.middle.borrow_mut().set(move |_, _, body| {
        let reply = tagged(200, body, &poison());
        last.replace(reply).unwrap_or_else(|| host_tests::middle::plain(200, None))
    });
    for round in 0..10 {
        assert_unmoved(&world, &mut station, &before, &format!("round {round}"));
    }
    assert_arrives(&world, &mut station);
}

#[test]
fn answers_of_an_earlier_boot_change_nothing() {
    let (mut world, mut station, _) = begun();
    let mut kept: Vec<Reply> = Vec::new();
    for _ in 0..3 {
        let taken = std::rc::Rc::new(core::cell::RefCell::new(Vec::new()));
        let (here, old) = (taken.clone(), kept.clone());
        count(&world, &mut station);
        let before = memory(&world, &mut station);
        world.middle.borrow_mut().set(move |_, _, body| {
            here.borrow_mut().push(tagged(200, body, &poison()));
            old.first().cloned().unwrap_or_else(|| host_tests::middle::plain(504, None))
        });
        assert_unmoved(&world, &mut station, &before, "replayed");
        kept = taken.borrow().clone();
        drop(station);
        station = world.boot();
    }
    world.middle.borrow_mut().clear();
    station.run_for(120_000);
    assert_eq!(world.stored(), (0..6).collect::<Vec<_>>());
}

#[test]
fn a_captive_portal_changes_nothing_for_as_long_as_it_stands() {
    for fault in [Fault::CaptivePortal, Fault::AnswerForged, Fault::AnswerAltered, Fault::OldAnswer] {
        let (world, mut station, before) = begun();
        if fault == Fault::CaptivePortal {
            world.middle.borrow_mut().set(|_, _, _| panic!("the receiver sees nothing"));
        } else {
            // Also what the receiver did: nothing.
            world.middle.borrow_mut().set(|_, _, _| Reply {
                status: 200,
                body: vec![7; 60],
                retry_after_s: None,
            });
        }
        world.link.set_faults(LinkFaults::none().with(fault, 1.0));
        station.run_for(6 * 3_600_000);
        assert!(memory(&world, &mut station) == before, "{fault:?}");
        assert_arrives(&world, &mut station);
    }
}

#[test]
fn requests_that_are_replayed_change_nothing_at_the_receiver() {
    let (world, mut station) = world();
    station.post_all(0..6);
    station.run_for(60_000);
    station.post_all(6..9);
    station.run_for(60_000);
    let seen = world.middle.borrow().seen.clone();
    let mut middle = world.middle.borrow_mut();
    let ledger = |server: &host_tests::server::ModelServer| {
        let incarnation = server.log()[0].key.incarnation;
        server.ledger(&host_tests::middle::meter(), incarnation, 0).unwrap()
    };
    let before = (middle.server.log().len(), ledger(&middle.server));
    for seen in seen.iter().rev().chain(&seen) {
        let reply = middle.server.handle(host_tests::station::BEGIN_MS, &seen.body);
        assert_eq!(reply.status, 200);
    }
    assert_eq!((middle.server.log().len(), ledger(&middle.server)), before);
    middle.server.check();
}

#[test]
fn an_honest_answer_teaches_the_time() {
    let (world, mut station, _) = begun();
    world.middle.borrow_mut().set(|server, now_ms, body| edited(server, now_ms, body, |_| ()));
    station.run_for(1000);
    assert!(memory(&world, &mut station).wall_ms.is_some());
}
