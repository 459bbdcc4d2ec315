//! Random lives with many power cuts, in every fault class and every geometry, lose nothing. A failure prints the
//! command that replays its life.

use host_tests::flash::FaultClass;
use host_tests::soak::{Tally, geometries, run_life};

/// Lives of each class in each geometry; `cargo xtask soak` runs as many as one likes.
const LIVES: u64 = 200;

fn soak(class: FaultClass) {
    let mut tally = Tally::default();
    for geometry in geometries() {
        for seed in 0..LIVES {
            match run_life(geometry, class, seed) {
                Ok(life) => tally += life,
                Err(failure) => panic!("{failure}"),
            }
        }
    }
    println!("{class}: {tally:?}");
    // A soak in which nothing happens proves nothing.
    assert!(tally.cuts >= tally.lives * 12, "{tally:?}");
    assert!(tally.cuts_in_recovery * 20 > tally.cuts, "{tally:?}");
    assert!(tally.acknowledged > tally.cuts, "{tally:?}");
    assert!(tally.delivered * 2 > tally.acknowledged, "{tally:?}");
    assert!(tally.dropped_futures > tally.lives && tally.driver_errors > tally.lives, "{tally:?}");
}

macro_rules! classes {
    ($($test:ident = $class:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            soak(FaultClass::$class);
        })+

        #[test]
        fn every_class_is_soaked() {
            assert_eq!(FaultClass::ALL, [$(FaultClass::$class),+]);
        }
    };
}

classes! {
    a_program_torn_to_a_prefix_loses_nothing = ProgramPrefix,
    a_program_torn_to_random_bits_loses_nothing = ProgramRandomBits,
    an_erase_torn_to_random_bits_loses_nothing = EraseRandomBits,
    an_erase_with_blank_markers_loses_nothing = EraseMarkersBlank,
    an_erase_torn_to_a_prefix_loses_nothing = ErasePrefix,
    an_erase_torn_from_the_end_loses_nothing = EraseSuffix,
    an_erase_cut_while_all_zero_loses_nothing = EraseAllZero,
    weak_bits_of_a_program_lose_nothing = WeakProgram,
    weak_bits_of_an_erase_lose_nothing = WeakErase,
    all_faults_mixed_lose_nothing = Mixed,
}

#[test]
fn lives_that_once_broke_a_promise_keep_it() {
    // A word that the boot check spent was cut, wavered, and was taken for the tail in front of younger records.
    let spent = ("32-32-256", FaultClass::WeakProgram, 2908516025505255848);
    // The zeroing of a header was cut: its ones could not be made good again, and its length wavered ever after.
    let header = ("1-1-2048", FaultClass::WeakProgram, 12418479126480475038);
    // A spent header and a spent tail were zeroed by one program; it was cut, and both wavered.
    let both = ("4-1-256", FaultClass::Mixed, 91386924667723265);
    // A weak header stood before data whose zeroing was cut.
    let weak = ("1-1-256", FaultClass::Mixed, 3608011110727319189);
    let once = [spent, header, both, weak];
    for (geometry, class, seed) in once {
        if let Err(failure) = run_life(geometry, class, seed) {
            panic!("{failure}");
        }
    }
}
