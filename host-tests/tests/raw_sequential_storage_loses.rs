//! The raw queue loses acknowledged records under these faults: so a harness that reports zero is not blind.

use embassy_futures::block_on;
use host_tests::flash::{Chip, FaultClass, FlashError, Tear};
use host_tests::raw::{RawReport, run_raw};
use sequential_storage::Error;
use sequential_storage::cache::Cache;
use sequential_storage::queue::{QueueConfig, QueueStorage};

const CUTS: u64 = 6_000;
const WORDS: [usize; 3] = [1, 4, 8];

fn run(word: usize, class: FaultClass) -> RawReport {
    let seed = 0xB0C5;
    match word {
        1 => run_raw::<1>(class, CUTS, seed),
        4 => run_raw::<4>(class, CUTS, seed),
        _ => run_raw::<8>(class, CUTS, seed),
    }
}

#[test]
fn every_class_that_is_known_to_lose_is_seen_to_lose_and_no_other() {
    println!("fault                WORD   acked   lost  stranded  inversions  hard errors  wedges");
    for &class in FaultClass::ALL {
        let loses = match class {
            FaultClass::EraseRandomBits
            | FaultClass::EraseMarkersBlank
            | FaultClass::EraseSuffix
            | FaultClass::WeakProgram
            | FaultClass::WeakErase
            | FaultClass::Mixed => true,
            // A program torn to a prefix does lose, with WORD 1, but too rarely for a quick table: see below.
            FaultClass::ProgramPrefix
            | FaultClass::ProgramRandomBits
            | FaultClass::ErasePrefix
            | FaultClass::EraseAllZero => false,
        };
        for word in WORDS {
            let life = run(word, class);
            println!(
                "{class:20} {word:4} {:7} {:6} {:9} {:11} {:12} {:7}",
                life.acknowledged, life.lost, life.stranded, life.inversions, life.hard_errors, life.wedges
            );
            assert!(life.cuts >= CUTS && life.acknowledged > 3 * CUTS, "{class} {word}: {life:?}");
            assert_eq!(life.garbage, 0, "{class} {word}: the queue's checksums hold");
            if loses {
                assert!(life.lost >= 10, "{class} {word}: {life:?}");
            } else if class != FaultClass::ProgramPrefix || word != 1 {
                let RawReport { cuts, acknowledged, .. } = life;
                assert_eq!(life, RawReport { cuts, acknowledged, ..RawReport::default() }, "{class} {word}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let [once, again] = [(); 2].map(|()| run_raw::<4>(FaultClass::Mixed, 500, 1));
    assert_eq!(once, again);
    assert_ne!(once, run_raw::<4>(FaultClass::Mixed, 500, 2));
}

/// Whether the push after a header torn at this byte is acknowledged and then not found.
fn next_push_is_lost(torn_header_byte: usize, rng: &mut fastrand::Rng) -> bool {
    let chip = Chip::<1, 1, 256>::new(4, rng.u64(..));
    let open = || QueueStorage::new(&chip, const { QueueConfig::new(0..1024) }, Cache::new_uncached());
    let [mut torn, mut next, mut buf] = [[0; 32]; 3];
    rng.fill(&mut torn);
    rng.fill(&mut next);
    // The first push marks the page as in use, then writes the header.
    chip.cut_after(1, Tear::program_prefix(torn_header_byte));
    let cut = block_on(open().push(&torn, false));
    assert!(matches!(cut, Err(Error::Storage { value: FlashError::PowerCut, .. })), "{cut:?}");
    chip.power_on();
    block_on(open().push(&next, false)).expect("the push after the cut is acknowledged");
    let found = block_on(open().peek(&mut buf)).expect("the queue can be read");
    found.is_none_or(|found| *found != next)
}

#[test]
fn a_cut_at_the_last_header_byte_loses_the_next_push_when_the_bytes_happen_to_fit() {
    // The next header starts where the torn one ends and completes its length checksum once in 256 times; the
    // record that was never written then swallows the one that was.
    const TRIALS: usize = 10_000;
    let mut rng = fastrand::Rng::with_seed(136);
    let lost_at = |byte| (0..TRIALS).filter(|_| next_push_is_lost(byte, &mut rng)).count();
    let lost: Vec<usize> = (0..8).map(lost_at).collect();
    println!("lost of {TRIALS}, by the header byte of the cut: {lost:?}");
    assert!((TRIALS / 512..TRIALS / 128).contains(&lost[7]), "{lost:?}");
    assert!(lost[..7].iter().all(|&lost| lost < TRIALS / 1_000), "{lost:?}");
}
