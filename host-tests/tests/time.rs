//! A record carries the time of the world if its device knows it, else boot and uptime. The device learns it from authenticated answers only,
//! allows for half the round trip, survives jumps, and what it wrote down in earlier boots stays what it was.

use core::time::Duration;

use host_tests::middle::{World, tagged, world};
use host_tests::server::Received;
use host_tests::station::{BEGIN_MS, Station};
use pillarbox::wire::AnswerDraft;
use pillarbox::{Clock, LaneConfig, Timestamp};

fn wall(station: &mut Station<1>) -> Option<u64> {
    let Station { time, dispatcher, .. } = station;
    time.block_on(dispatcher.wall_ms())
}

/// The time of the world.
fn truth(world: &World<1>) -> u64 {
    BEGIN_MS + world.time.now_ms()
}

fn log(world: &World<1>) -> Vec<Received> {
    world.middle.borrow().server.log().to_vec()
}

#[test]
fn before_the_first_answer_records_carry_boot_and_uptime() {
    let (world, mut station) = world();
    world.time.run_until(5_000);
    station.post(0, 0);
    station.run_for(60_000);
    let posted_at = station.clock.uptime_ms();
    station.post(0, 1);
    let now = truth(&world);
    station.run_for(60_000);
    let log = log(&world);
    assert_eq!(log[0].time, Timestamp { boot: 1, uptime_ms: 5_000, wall_ms: None });
    assert_eq!((log[1].time.boot, log[1].time.uptime_ms), (1, posted_at));
    assert!(log[1].time.wall_ms.unwrap().abs_diff(now) < 100, "{:?}", log[1].time);
}

#[test]
fn half_the_round_trip_is_allowed_for() {
    for latency_ms in [0, 10, 500, 3000, 4500] {
        let (world, mut station) = world();
        world.link.set_latency_ms(latency_ms..=latency_ms);
        station.post(0, 0);
        assert_eq!(station.step(), Some(Ok(())));
        let error = wall(&mut station).unwrap().abs_diff(truth(&world));
        assert!(error <= 2, "{latency_ms} ms each way: wrong by {error} ms");
    }
}

#[test]
fn nobody_else_teaches_the_time() {
    for status in [200, 401, 503] {
        let (world, mut station) = world();
        station.post(0, 0);
        world.middle.borrow_mut().set(move |_, _, body| {
            let draft = AnswerDraft { server_time_ms: BEGIN_MS, ..Default::default() };
            let mut reply = tagged(status, body, &draft);
            *reply.body.last_mut().unwrap() ^= 1;
            reply
        });
        station.run_for(3_600_000);
        assert_eq!(wall(&mut station), None, "{status}");
    }
}

#[test]
fn a_date_header_is_not_a_time() {
    // Every answer of the simulated server has one.
    let (world, mut station) = world();
    world.middle.borrow_mut().set_plain(503, None);
    station.post(0, 0);
    station.run_for(60_000);
    assert!(world.requests() > 2);
    assert_eq!(wall(&mut station), None);
}

#[test]
fn the_time_is_forgotten_by_a_reboot_and_learned_again() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    station.post(0, 0);
    station.run_for(10_000);
    assert!(wall(&mut station).is_some());
    drop(station);
    let mut station = world.boot();
    assert_eq!(wall(&mut station), None);
    station.post(0, 1);
    station.run_for(10_000);
    assert!(wall(&mut station).unwrap().abs_diff(truth(&world)) < 100);
}

#[test]
fn records_of_earlier_boots_stay_what_they_were() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut expected = Vec::new();
    world.link.take_down(host_tests::link::Outage::Reset);
    for boot in 1..=3u32 {
        let mut station = world.boot();
        station.run_for(u64::from(boot) * 1_000);
        let uptime_ms = station.clock.uptime_ms();
        expected.push(Timestamp { boot, uptime_ms, wall_ms: None });
        station.post(0, boot);
    }
    world.link.bring_up();
    // One boot learns the time and posts offline; the next one delivers.
    let mut station = world.boot();
    station.post(0, 4);
    expected.push(Timestamp { boot: 4, uptime_ms: station.clock.uptime_ms(), wall_ms: None });
    world.middle.borrow_mut().set(|_, now_ms, body| {
        // It is told the time, and nothing is taken.
        tagged(200, body, &AnswerDraft { server_time_ms: now_ms, epoch: 1, ..Default::default() })
    });
    assert!(station.step().is_some());
    let learned = wall(&mut station).unwrap();
    assert!(learned.abs_diff(truth(&world)) < 100);
    station.post(0, 5);
    expected.push(Timestamp { boot: 4, uptime_ms: station.clock.uptime_ms(), wall_ms: Some(learned) });
    drop(station);
    world.middle.borrow_mut().clear();
    world.time.run_until(world.time.now_ms() + 86_400_000);
    let mut station = world.boot();
    station.run_for(60_000);
    let times: Vec<Timestamp> = log(&world).iter().map(|one| one.time).collect();
    assert_eq!(times, expected);
}

#[test]
fn a_jump_of_the_receivers_clock_is_followed() {
    let (world, mut station) = world();
    for (number, offset_ms) in [0, 86_400_000, -86_400_000, 1_000, 0].into_iter().enumerate() {
        world.middle.borrow_mut().server.knobs.clock_offset_ms = offset_ms;
        station.post(0, number as u32);
        station.run_for(10_000);
        let error = wall(&mut station).unwrap() as i64 - truth(&world) as i64 - offset_ms;
        assert!(error.abs() < 100, "{offset_ms}: {error}");
    }
}

#[test]
fn a_jump_expires_nothing_until_a_second_answer_agrees() {
    let age = Duration::from_secs(3600);
    let mut world = World::new([LaneConfig::new(16).max_age(age)]);
    // A boot that knows the time, and leaves a record behind.
    let mut station = world.boot();
    station.post(0, 0);
    station.run_for(10_000);
    let refused = station.post(0, 1);
    drop(station);
    let mut station = world.boot();
    // The first answer is a year ahead: a single one expires nothing.
    let answers = std::rc::Rc::new(core::cell::Cell::new(0));
    let seen = answers.clone();
    world.middle.borrow_mut().set(move |_, now_ms, body| {
        seen.set(seen.get() + 1);
        let ahead = if seen.get() == 1 { 365 * 86_400_000 } else { 0 };
        tagged(200, body, &AnswerDraft { server_time_ms: now_ms + ahead, epoch: 1, ..Default::default() })
    });
    station.run_for(120_000);
    assert!(answers.get() > 3);
    assert_eq!((station.pending(0), station.dead_letters()), (vec![refused], vec![]));
    // Two that agree do: it has really grown old.
    let ahead = 2 * 3_600_000;
    world.middle.borrow_mut().set(move |_, now_ms, body| {
        tagged(200, body, &AnswerDraft { server_time_ms: now_ms + ahead, epoch: 1, ..Default::default() })
    });
    station.run_for(300_000);
    assert_eq!((station.pending(0), station.dead_letters()), (vec![], vec![refused]));
}
