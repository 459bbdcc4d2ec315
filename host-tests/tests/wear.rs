//! Claim: the flash wears evenly, and the metadata wear slowly. A page that is erased more than its neighbours dies
//! before them, and takes the outbox with it.

use host_tests::device::{Device, RECORD, config};
use host_tests::flash::Chip;
use pillarbox::LaneConfig;

/// Pages as most chips have them, so that a half of the metadata is one page.
type Flash = Chip<4, 4, 4096>;
const LANE_PAGES: usize = 4;
/// Two pages of metadata, two of dead letters, then the lane.
const LANE: core::ops::Range<usize> = 4..4 + LANE_PAGES;
const WRAPS: u32 = 20;

type Meter<'c> = Device<'c, &'c Flash, 1, RECORD>;

fn open(chip: &Flash) -> Meter<'_> {
    Device::open(chip, &config([LaneConfig::new(LANE_PAGES as u16).evict_oldest()])).unwrap()
}

/// A chip that was opened once; only what happens from now on is counted.
fn fresh() -> Flash {
    let chip = Flash::new(LANE.end, 1);
    open(&chip);
    chip.reset_counts();
    chip
}

/// Lives until the lane has gone round so many times.
fn wear_out(chip: &Flash, mut live: impl FnMut()) {
    while chip.erases_per_page()[LANE].iter().sum::<u32>() < WRAPS * LANE_PAGES as u32 {
        live();
    }
}

fn assert_even(erases: &[u32], tolerance: u32) {
    let (min, max) = (erases.iter().min().unwrap(), erases.iter().max().unwrap());
    assert!(max - min <= tolerance, "{erases:?}");
}

#[test]
fn the_pages_of_a_lane_wear_evenly_when_it_evicts() {
    let chip = fresh();
    let meter = open(&chip);
    wear_out(&chip, || drop(meter.post_all(0..50)));
    assert_even(&chip.erases_per_page()[LANE], 1);
}

#[test]
fn the_pages_of_a_lane_wear_evenly_when_everything_is_delivered() {
    let chip = fresh();
    let mut meter = open(&chip);
    wear_out(&chip, || {
        meter.post_all(0..50);
        meter.deliver(usize::MAX);
    });
    assert_even(&chip.erases_per_page()[LANE], 1);
}

#[test]
fn the_pages_of_a_lane_wear_evenly_over_reboots() {
    let chip = fresh();
    wear_out(&chip, || {
        let mut meter = open(&chip);
        meter.post_all(0..50);
        meter.deliver(40);
    });
    assert_even(&chip.erases_per_page()[LANE], 2);
}

#[test]
fn a_reboot_erases_no_page_of_a_lane() {
    let chip = fresh();
    open(&chip).post_all(0..200);
    chip.reset_counts();
    for _ in 0..20 {
        open(&chip);
    }
    assert_eq!(chip.erases_per_page()[2..], [0; LANE_PAGES + 2]);
}

#[test]
fn the_halves_of_the_metadata_wear_evenly_and_little() {
    let chip = fresh();
    let meter = open(&chip);
    wear_out(&chip, || drop(meter.post_all(0..50)));
    let erases = chip.erases_per_page();
    assert_even(&erases[..2], 1);
    let (metadata, lane) = (erases[..2].iter().sum::<u32>(), erases[LANE].iter().sum::<u32>());
    assert!(metadata * 4 <= lane, "{metadata} erases of the metadata for {lane} of the lane");
}

#[test]
fn suspending_often_wears_both_halves_alike() {
    let chip = fresh();
    for _ in 0..200 {
        let meter = open(&chip);
        meter.post(1);
        meter.suspend();
    }
    assert_even(&chip.erases_per_page()[..2], 1);
}

#[test]
fn the_erases_that_the_stats_tell_are_those_of_the_chip() {
    let chip = fresh();
    let meter = open(&chip);
    meter.post_all(0..1000);
    let told = meter.stats().erases;
    assert_eq!(told, chip.erases_per_page().iter().sum::<u32>());
    assert!(told > 0);
}
