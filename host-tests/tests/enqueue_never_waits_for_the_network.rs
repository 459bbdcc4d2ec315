//! While a request hangs, an enqueue takes as long as without it: no time of the world, and the same operations of the flash. The storage is
//! never locked across the network.

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;

use host_tests::device::Note;
use host_tests::flash::Counts;
use host_tests::link::{Fault, Outage};
use host_tests::middle::{World, world};
use host_tests::station::{Post, Station};
use pillarbox::LaneConfig;

/// What forty posts cost, each: flash operations, milliseconds of the world.
fn cost(world: &World<1>, outbox: &Post<'static, 1>) -> Vec<(Counts, u64)> {
    let post = |number| {
        world.chip.reset_counts();
        let begun = world.time.now_ms();
        let note = Note::new(number);
        let mut posted = pin!(outbox.enqueue(&note));
        let mut polls = 0;
        // Polled by hand, so that nothing else runs meanwhile: it would not get on if it waited for anybody.
        world.time.block_on(poll_fn(|context| {
            loop {
                polls += 1;
                match posted.as_mut().poll(context) {
                    Poll::Ready(key) => return Poll::Ready(key.expect("there is room")),
                    Poll::Pending => assert!(polls < 10_000, "it waits for somebody"),
                }
            }
        }));
        (world.chip.counts(), world.time.now_ms() - begun)
    };
    (100..140).map(post).collect()
}

/// Runs the dispatcher until its request hangs, lets `act` happen meanwhile, and gives up.
fn while_it_hangs<T>(world: &World<1>, station: &mut Station<1>, act: impl FnOnce(&World<1>) -> T) -> T {
    let Station { dispatcher, uplink, .. } = station;
    let mut flush = pin!(dispatcher.step(uplink));
    let time = world.time.clone();
    let until = time.now_ms() + 5_000;
    let mut sleep = pin!(time.sleep_until(until));
    world.time.block_on(poll_fn(|context| {
        assert!(flush.as_mut().poll(context).is_pending(), "it hangs");
        sleep.as_mut().poll(context)
    }));
    act(world)
}

fn compare(yields: bool, hang: impl Fn(&World<1>)) {
    let (calm, quiet) = world();
    calm.chip.set_yields(yields);
    quiet.post_all(0..10);
    let without = cost(&calm, &quiet.outbox);

    let (world, mut station) = world();
    world.chip.set_yields(yields);
    station.post_all(0..10);
    hang(&world);
    let outbox = station.outbox;
    let with = while_it_hangs(&world, &mut station, |world| cost(world, &outbox));
    assert_eq!(without.len(), with.len());
    for (n, (without, with)) in without.iter().zip(&with).enumerate() {
        assert_eq!(with.1, 0, "post {n} took time");
        assert_eq!(without, with, "post {n}");
    }
}

#[test]
fn while_the_answer_does_not_come() {
    for yields in [false, true] {
        compare(yields, |world| world.link.inject(Fault::AnswerLost));
    }
}

#[test]
fn while_the_request_goes_nowhere() {
    for yields in [false, true] {
        compare(yields, |world| world.link.inject(Fault::RequestLost));
    }
}

#[test]
fn while_the_connection_is_not_made() {
    for yields in [false, true] {
        compare(yields, |world| world.link.take_down(Outage::BlackHole));
    }
}

#[test]
fn every_other_operation_gets_on_too() {
    let (world, mut station) = world();
    station.post_all(0..10);
    world.link.inject(Fault::AnswerLost);
    let outbox = station.outbox;
    while_it_hangs(&world, &mut station, |world| {
        let begun = world.time.now_ms();
        world.time.block_on(async {
            let mut shown = 0;
            outbox.inspect(0, |_| shown += 1).await.unwrap();
            outbox.dead_letters().list(|_| ()).await.unwrap();
            outbox.enqueue_once(1, &Note::new(1)).await.unwrap();
            outbox.suspend().await.unwrap();
            assert_eq!((shown, outbox.stats().await.lanes[0].depth.records), (10, 11));
        });
        assert_eq!(world.time.now_ms(), begun);
    });
    // The flush that was given up has broken nothing.
    station.run_for(120_000);
    assert_eq!(world.stored().len(), 11);
}

#[test]
fn posts_at_every_moment_of_a_delivery_take_no_time() {
    for yields in [false, true] {
        let mut world = World::new([LaneConfig::new(32)]);
        let mut station = world.boot();
        world.chip.set_yields(yields);
        station.post_all(0..20);
        let (outbox, time) = (station.outbox, world.time.clone());
        world.time.spawn(async move {
            for number in 20..120 {
                time.sleep(3).await;
                let begun = time.now_ms();
                outbox.enqueue(&Note::new(number)).await.expect("there is room");
                assert_eq!(time.now_ms(), begun, "post {number} took time");
            }
        });
        station.run_for(60_000);
        assert_eq!(world.stored(), (0..120).collect::<Vec<_>>());
    }
}
