//! The outbox's numbers go along with a batch at a bounded rate, and say what SPEC.md says at each place.

use host_tests::middle::World;
use pillarbox::LaneConfig;
use pillarbox::wire::Batch;

/// When the numbers came, and which.
fn reports(world: &World<1>) -> Vec<(u64, Vec<u32>)> {
    let middle = world.middle.borrow();
    let read =
        |body: &[u8]| Batch::decode(body).expect("a device sends batches").report().collect::<Vec<_>>();
    let reports = middle.seen.iter().map(|seen| (seen.at_ms, read(&seen.body)));
    reports.filter(|(_, report)| !report.is_empty()).collect()
}

#[test]
fn numbers_come_with_the_first_batch_and_then_every_quarter_of_an_hour_at_most() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    for number in 0..120 {
        station.post(0, number);
        station.run_for(60_000);
    }
    let times: Vec<u64> = reports(&world).into_iter().map(|(at_ms, _)| at_ms).collect();
    assert_eq!(world.middle.borrow().seen.len(), 120, "a batch a minute");
    assert!((7..=8).contains(&times.len()), "two hours: {times:?}");
    assert!(times[0] < 10_000, "the first comes at once");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 15 * 60_000), "{times:?}");
}

#[test]
fn the_numbers_are_those_of_the_lane() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    station.post_all(0..7);
    let stats = station.stats();
    station.run_for(10_000);
    let [(_, report)] = &reports(&world)[..] else { panic!("one report") };
    let depth = stats.lanes[0].depth;
    assert_eq!(report[..], [7, depth.bytes, stats.erases, 0, 7, 0, 0, 0]);
}

#[test]
fn numbers_whose_batch_was_not_answered_come_again() {
    let mut world = World::new([LaneConfig::new(16)]);
    let mut station = world.boot();
    world.middle.borrow_mut().set_plain(503, None);
    station.post(0, 1);
    station.run_for(10_000);
    world.middle.borrow_mut().clear();
    station.run_for(120_000);
    let reports = reports(&world);
    let requests = world.middle.borrow().seen.len();
    assert!(requests > 1 && reports.len() == requests, "{reports:?}");
    let (_, last) = &reports[reports.len() - 1];
    assert_eq!(last[7] as usize, requests - 1, "the failures are counted");
}
