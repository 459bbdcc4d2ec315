//! Claim: no key is ever given to two contents, whatever happens to the power, the driver or the caller's futures. The
//! receiver takes the second for a duplicate of the first: a bug here loses records that everybody believes delivered.

use std::collections::HashMap;

use embassy_futures::block_on;
use host_tests::device::{
    Flash, Kept, METADATA, Meter, Note, PAGE, boot, chip, config, for_every_cut, for_every_failure,
    poll_times,
};
use host_tests::flash::{EraseTear, ProgramTear, Tear};
use pillarbox::{Config, Key, LaneConfig, Reason};

/// Counters that a device leases at once: after a cut so many may be uncertain.
const LEASE: u64 = 64;

fn one_lane() -> Config<1> {
    config([LaneConfig::new(4).evict_oldest()])
}

/// Which content each key was seen with.
#[derive(Clone, Default)]
struct Contents(HashMap<Key, u32>);

impl Contents {
    fn see(&mut self, key: Key, number: u32) {
        let known = *self.0.entry(key).or_insert(number);
        assert_eq!(known, number, "{key:?} has two contents");
    }

    /// Notes posted by futures that never returned show up here.
    fn see_all(&mut self, meter: &Meter<'_>) {
        for Kept { key, number, .. } in [meter.pending(0), meter.dead_letters()].concat() {
            self.see(key, number);
        }
    }
}

/// Posts some notes after whatever happened, over another reboot too, and sees that their keys are new.
fn assert_new_keys_are_new(chip: &Flash, meter: Meter<'_>, contents: &mut Contents) {
    contents.see_all(&meter);
    for number in 5000..5005 {
        contents.see(meter.post(number), number);
    }
    contents.see_all(&meter);
    drop(meter);
    let meter = boot(chip, &one_lane());
    for number in 6000..6005 {
        contents.see(meter.post(number), number);
    }
    contents.see_all(&meter);
}

/// A chip with ten notes, the last lease given up or not.
fn used(suspended: bool) -> (Flash, Contents) {
    let chip = chip();
    let meter = boot(&chip, &one_lane());
    let mut contents = Contents::default();
    for number in 0..10 {
        contents.see(meter.post(number), number);
    }
    if suspended {
        meter.suspend();
    }
    drop(meter);
    (chip, contents)
}

#[test]
fn after_a_clean_stop_the_counter_goes_on_without_a_gap() {
    let chip = chip();
    for life in 0..50 {
        let mut meter = boot(&chip, &one_lane());
        for post in 0..3 {
            assert_eq!(meter.post(0).counter, life * 3 + post);
        }
        assert_eq!(meter.explained_as(Reason::Uncertain), []);
        meter.suspend();
    }
}

#[test]
fn after_an_unclean_stop_at_most_a_lease_is_uncertain_and_the_account_says_so() {
    for posted in [0, 1, 63, 64, 65, 100] {
        let chip = chip();
        boot(&chip, &one_lane()).post_all(0..posted);
        let mut meter = boot(&chip, &one_lane());
        let uncertain = meter.explained_as(Reason::Uncertain);
        let next = meter.post(1000).counter;
        let posted = u64::from(posted);
        assert!(next >= posted && next - posted <= LEASE, "{next} after {posted}");
        let explained: Vec<u64> = uncertain.iter().flat_map(|entry| entry.first..entry.end()).collect();
        assert_eq!(explained, (posted..next).collect::<Vec<_>>());
        assert_eq!(u64::from(meter.stats().lanes[0].given_up.of(Reason::Uncertain)), next - posted);
    }
}

/// Where the lane lies: behind the metadata and the dead letters.
const LANE: core::ops::Range<usize> = METADATA + 2 * PAGE..METADATA + 6 * PAGE;

#[test]
fn no_fault_in_a_ring_makes_a_counter_repeat() {
    // What the ring says about the youngest counter must not matter, so it says nothing, or nonsense.
    let faults: [fn(&mut [u8]); 3] =
        [|lane| lane.fill(0xff), |lane| lane.fill(0), |lane| fastrand::Rng::with_seed(1).fill(lane)];
    for (suspended, fault) in [false, true].into_iter().flat_map(|suspended| faults.map(|f| (suspended, f))) {
        let (chip, mut contents) = used(suspended);
        let mut image = chip.image();
        fault(&mut image[LANE]);
        chip.set_image(&image);
        let meter = boot(&chip, &one_lane());
        assert_new_keys_are_new(&chip, meter, &mut contents);
    }
}

#[test]
fn boots_that_post_nothing_use_up_nothing() {
    let chip = chip();
    boot(&chip, &one_lane()).post_all(0..10);
    for _ in 0..100 {
        boot(&chip, &one_lane());
    }
    assert!(boot(&chip, &one_lane()).post(11).counter <= 10 + LEASE);
}

#[test]
fn a_suspend_that_is_not_followed_by_sleep_gives_up_its_lease() {
    let chip = chip();
    let mut contents = Contents::default();
    for life in 0..20 {
        let meter = boot(&chip, &one_lane());
        for number in 0..3 {
            contents.see(meter.post(life * 100 + number), life * 100 + number);
        }
        meter.suspend();
        // The device stays awake after all, and then loses power without another suspend.
        for number in 50..53 {
            contents.see(meter.post(life * 100 + number), life * 100 + number);
        }
        contents.see_all(&meter);
    }
}

#[test]
fn a_cut_at_every_operation_of_an_enqueue_repeats_no_key() {
    for suspended in [false, true] {
        let (before, contents) = used(suspended);
        let posted = std::cell::RefCell::new(Vec::new());
        for_every_cut(
            &before,
            |chip| {
                posted.borrow_mut().clear();
                let Ok(meter) = Meter::open(chip, &one_lane()) else {
                    return;
                };
                for number in 100..103 {
                    match meter.try_post(number) {
                        Ok(key) => posted.borrow_mut().push((key, number)),
                        Err(_) => return,
                    }
                }
            },
            |chip| {
                let mut contents = contents.clone();
                posted.borrow().iter().for_each(|&(key, number)| contents.see(key, number));
                let meter = boot(chip, &one_lane());
                assert_new_keys_are_new(chip, meter, &mut contents);
            },
        );
    }
}

/// Lets every operation of `act` fail once, and goes on with the device that has seen it fail.
fn fail_everywhere(act: impl Fn(&mut Meter<'_>, &mut Contents) -> bool) {
    for suspended in [false, true] {
        let (before, contents) = used(suspended);
        for_every_failure(&before, |chip, operation| {
            let mut contents = contents.clone();
            let mut meter = boot(chip, &one_lane());
            chip.fail_after(operation);
            let failed = !act(&mut meter, &mut contents);
            chip.cancel_failure();
            println!("driver error at operation {operation}");
            assert_new_keys_are_new(chip, meter, &mut contents);
            failed
        });
    }
}

#[test]
fn a_driver_error_at_every_operation_of_an_enqueue_repeats_no_key() {
    fail_everywhere(|meter, contents| {
        (100..103).all(|number| {
            let key = meter.try_post(number);
            key.inspect(|key| contents.see(*key, number)).is_ok()
        })
    });
}

#[test]
fn a_driver_error_at_every_operation_of_a_suspend_repeats_no_key() {
    fail_everywhere(|meter, _| block_on(meter.outbox.suspend()).is_ok());
}

#[test]
fn a_driver_error_at_every_operation_of_a_renewal_repeats_no_key() {
    fail_everywhere(|meter, _| block_on(meter.drain.renew_incarnation()).is_ok());
}

#[test]
fn a_driver_error_at_every_operation_of_a_clear_repeats_no_key() {
    fail_everywhere(|meter, _| block_on(meter.outbox.clear()).is_ok());
}

#[test]
fn a_cut_at_every_operation_of_a_renewal_or_a_clear_repeats_no_key() {
    for clear in [false, true] {
        let (before, contents) = used(false);
        for_every_cut(
            &before,
            |chip| {
                if let Ok(mut meter) = Meter::open(chip, &one_lane()) {
                    let _ = if clear {
                        block_on(meter.outbox.clear())
                    } else {
                        block_on(meter.drain.renew_incarnation())
                    };
                }
            },
            |chip| assert_new_keys_are_new(chip, boot(chip, &one_lane()), &mut contents.clone()),
        );
    }
}

#[test]
fn a_renewed_incarnation_is_for_new_records_only() {
    let (chip, _) = used(false);
    let mut meter = boot(&chip, &one_lane());
    let before = meter.pending(0);
    let incarnation = block_on(meter.drain.renew_incarnation()).unwrap();
    let key = meter.post(100);
    assert_eq!((key.incarnation, key.counter), (incarnation, 0));
    let pending = meter.pending(0);
    assert_eq!(pending[..before.len()], before, "what is pending keeps its keys");
    let (window, shown) = meter.window(0);
    assert_eq!(shown, before, "a batch holds one incarnation");
    assert_eq!(window.incarnation, before[0].key.incarnation);
    assert!(window.has_more);
    meter.deliver(before.len());
    assert_eq!(meter.window(0).0.incarnation, incarnation);
}

/// One life of a device to which everything happens that can happen to it.
fn live(chip: &Flash, rng: &mut fastrand::Rng, contents: &mut Contents, number: &mut u32) {
    if rng.u32(0..4) == 0 {
        let tear = Tear { program: ProgramTear::RandomBits, erase: EraseTear::RandomBits, weak: Some(0.3) };
        chip.cut_after(rng.u64(0..60), tear);
    }
    let Ok(mut meter) = Meter::open(chip, &one_lane()) else {
        return;
    };
    for _ in 0..rng.usize(0..30) {
        *number += 1;
        match rng.u32(0..40) {
            0 => drop(block_on(meter.outbox.suspend())),
            1 => drop(block_on(meter.outbox.clear())),
            2 => drop(block_on(meter.drain.renew_incarnation())),
            3 => chip.fail_after(rng.u64(0..20)),
            4..8 => {
                chip.set_yields(true);
                poll_times(meter.outbox.enqueue(&Note::new(*number)), rng.usize(1..20));
                chip.set_yields(false);
            }
            _ => {
                if let Ok(key) = meter.try_post(*number) {
                    contents.see(key, *number);
                }
            }
        }
    }
    chip.cancel_failure();
    if chip.is_powered() {
        contents.see_all(&meter);
    }
}

#[test]
fn over_many_lives_no_key_repeats() {
    for seed in 0..10 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let chip = chip();
        let (mut contents, mut number) = (Contents::default(), 0);
        for _ in 0..60 {
            live(&chip, &mut rng, &mut contents, &mut number);
            chip.cancel_cut();
            chip.power_on();
        }
        contents.see_all(&boot(&chip, &one_lane()));
        assert!(contents.0.len() > 300, "only {} keys were seen", contents.0.len());
    }
}
