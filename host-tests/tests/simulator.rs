//! The simulated flash does what it says: every other proof stands on this.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::collections::BTreeSet;

use embassy_futures::block_on;
use embedded_storage_async::nor_flash::{NorFlash, NorFlashError, NorFlashErrorKind, ReadNorFlash};
use host_tests::flash::{
    Chip, Counts, EraseTear, FaultClass, FlashError, MutatingOp, ProgramTear, Tear, WEAK_RATES,
};

/// Pages of two program chunks, so that erases and programs both have parts.
type Small = Chip<4, 4, 512>;
const PAGE: usize = 512;
const PAGES: usize = 4;

fn read<const R: usize, const W: usize, const E: usize>(
    mut chip: &Chip<R, W, E>,
    addr: u32,
    len: usize,
) -> Result<Vec<u8>, FlashError> {
    let mut bytes = vec![0xAA; len];
    block_on(chip.read(addr, &mut bytes)).map(|()| bytes)
}

fn program<const R: usize, const W: usize, const E: usize>(
    mut chip: &Chip<R, W, E>,
    addr: u32,
    bytes: &[u8],
) -> Result<(), FlashError> {
    block_on(chip.write(addr, bytes))
}

fn erase<const R: usize, const W: usize, const E: usize>(
    mut chip: &Chip<R, W, E>,
    from: u32,
    to: u32,
) -> Result<(), FlashError> {
    block_on(chip.erase(from, to))
}

/// A chip whose every byte is 0x0F, to see both what goes to 0 and what goes to 1.
fn half_programmed(seed: u64) -> Small {
    Small::from_image(&[0x0F; PAGES * PAGE], seed)
}

/// The image after the erase of pages 1 and 2 of [`half_programmed`] is torn like this.
fn torn_erase(tear: EraseTear, seed: u64) -> Vec<u8> {
    let chip = half_programmed(seed);
    chip.cut_after(0, Tear::erase(tear));
    assert_eq!(erase(&chip, 512, 1536), Err(FlashError::PowerCut));
    let image = chip.image();
    assert!(image[..512].iter().chain(&image[1536..]).all(|&byte| byte == 0x0F), "only the range changes");
    assert_eq!(chip.weak_bits(), 0);
    image
}

/// The torn page of [`torn_erase`], after checking the page before or after it.
fn torn_page(tear: EraseTear, seed: u64) -> Vec<u8> {
    let image = torn_erase(tear, seed);
    let (first, second) = (&image[512..1024], &image[1024..1536]);
    if second.iter().all(|&byte| byte == 0x0F) {
        return first.to_vec();
    }
    assert!(first.iter().all(|&byte| byte == 0xFF), "the page before the torn one is complete");
    second.to_vec()
}

#[test]
fn a_program_clears_bits_only_and_an_erase_sets_them() {
    let chip = Small::new(PAGES, 1);
    assert_eq!(read(&chip, 0, 8), Ok(vec![0xFF; 8]));
    program(&chip, 4, &[0xF0, 0x0F, 0xFF, 0x00]).unwrap();
    program(&chip, 4, &[0x3C, 0xFF, 0x7F, 0xFF]).unwrap();
    assert_eq!(
        read(&chip, 0, 12).unwrap(),
        [0xFF, 0xFF, 0xFF, 0xFF, 0x30, 0x0F, 0x7F, 0, 0xFF, 0xFF, 0xFF, 0xFF]
    );
    program(&chip, 512, &[0; 4]).unwrap();
    erase(&chip, 0, 512).unwrap();
    assert_eq!(read(&chip, 0, 512), Ok(vec![0xFF; 512]));
    assert_eq!(read(&chip, 512, 4), Ok(vec![0; 4]), "the next page is untouched");
}

#[test]
fn the_caller_s_mistakes_are_refused_and_counted() {
    let chip = Chip::<4, 8, 512>::new(2, 1);
    let not_aligned = [
        read(&chip, 2, 4).map(drop),
        read(&chip, 4, 3).map(drop),
        program(&chip, 4, &[0; 8]),
        program(&chip, 8, &[0; 4]),
        erase(&chip, 256, 512),
        erase(&chip, 0, 256),
    ];
    let out_of_bounds = [
        read(&chip, 1020, 8).map(drop),
        program(&chip, 1024, &[0; 8]),
        program(&chip, u32::MAX - 7, &[0; 8]),
        erase(&chip, 512, 1536),
        erase(&chip, 512, 0),
    ];
    assert!(not_aligned.iter().all(|result| *result == Err(FlashError::NotAligned)), "{not_aligned:?}");
    assert!(out_of_bounds.iter().all(|result| *result == Err(FlashError::OutOfBounds)), "{out_of_bounds:?}");
    assert_eq!(chip.violations(), 11);
    assert_eq!(chip.counts(), Counts::default(), "a refused operation has not begun");
    assert_eq!(chip.mutating_ops(), 0);
    assert_eq!(chip.image(), [0xFF; 1024]);
    assert_eq!(FlashError::NotAligned.kind(), NorFlashErrorKind::NotAligned);
    assert_eq!(FlashError::OutOfBounds.kind(), NorFlashErrorKind::OutOfBounds);
    assert_eq!(FlashError::PowerCut.kind(), NorFlashErrorKind::Other);
}

#[test]
fn a_cut_hits_the_operation_it_is_armed_for_and_the_chip_is_dead_until_power_returns() {
    let chip = Small::new(PAGES, 1);
    chip.cut_after(2, Tear::BEFORE);
    program(&chip, 0, &[1; 4]).unwrap();
    read(&chip, 0, 4).unwrap();
    erase(&chip, 512, 1024).unwrap();
    assert_eq!(program(&chip, 8, &[2; 8]), Err(FlashError::PowerCut));
    assert!(!chip.is_powered());
    assert_eq!(chip.last_op(), Some(MutatingOp::Program { addr: 8, len: 8 }));
    assert_eq!(chip.mutating_ops(), 3);

    let (image, counts) = (chip.image(), chip.counts());
    assert_eq!(read(&chip, 0, 4), Err(FlashError::PowerCut));
    assert_eq!(program(&chip, 0, &[0; 4]), Err(FlashError::PowerCut));
    assert_eq!(erase(&chip, 0, 512), Err(FlashError::PowerCut));
    assert_eq!((chip.image(), chip.counts(), chip.mutating_ops()), (image, counts, 3));

    // A cut may be armed before power returns, and happens once.
    chip.cut_after(0, Tear::AFTER);
    chip.power_on();
    assert_eq!(read(&chip, 8, 4), Ok(vec![0xFF; 4]));
    assert_eq!(erase(&chip, 0, 512), Err(FlashError::PowerCut));
    assert_eq!(chip.last_op(), Some(MutatingOp::Erase { from: 0, to: 512 }));
    chip.power_on();
    assert_eq!(read(&chip, 0, 4), Ok(vec![0xFF; 4]), "a cut after the operation leaves it complete");
    program(&chip, 0, &[3; 4]).unwrap();

    chip.cut_after(0, Tear::BEFORE);
    chip.cancel_cut();
    program(&chip, 4, &[3; 4]).unwrap();
    chip.power_off();
    assert_eq!(read(&chip, 0, 4), Err(FlashError::PowerCut));
}

#[test]
fn a_program_torn_to_a_prefix_is_exact_to_the_byte() {
    for at in 0..=600 {
        let chip = half_programmed(at);
        chip.cut_after(0, Tear::program_prefix(at as usize));
        assert_eq!(program(&chip, 100, &[0xA5; 600]), Err(FlashError::PowerCut));
        let mut expected = [0x0F; PAGES * PAGE];
        expected[100..][..at as usize].fill(0x05);
        assert_eq!(chip.image(), expected);
    }
}

#[test]
fn a_random_prefix_can_be_nothing_everything_and_anything_between() {
    let lengths: BTreeSet<usize> = (0..200)
        .map(|seed| {
            let chip = Small::new(PAGES, seed);
            chip.cut_after(0, Tear::program(ProgramTear::RandomPrefix));
            assert_eq!(program(&chip, 0, &[0; 8]), Err(FlashError::PowerCut));
            let image = chip.image();
            let length = image.iter().take_while(|&&byte| byte == 0).count();
            assert!(image[length..].iter().all(|&byte| byte == 0xFF));
            length
        })
        .collect();
    assert!(lengths.into_iter().eq(0..=8));
}

#[test]
fn a_program_torn_to_random_bits_tears_one_chunk_and_clears_only_what_it_should() {
    let mut torn_chunks = BTreeSet::new();
    let mut partial = 0;
    for seed in 0..200 {
        let chip = half_programmed(seed);
        chip.cut_after(0, Tear::program(ProgramTear::RandomBits));
        // Chunks at 128..256, 256..512 and 512..640.
        assert_eq!(program(&chip, 128, &[0xF0; 512]), Err(FlashError::PowerCut));
        let image = chip.image();
        assert!(image.iter().all(|byte| byte & 0xF0 == 0), "bits that were 0 stay 0");
        let chunks = [&image[128..256], &image[256..512], &image[512..640]];
        let complete = chunks.iter().take_while(|chunk| chunk.iter().all(|&byte| byte == 0)).count();
        let untouched =
            chunks.iter().rev().take_while(|chunk| chunk.iter().all(|&byte| byte == 0x0F)).count();
        assert!(complete + untouched >= 2, "at most one chunk is torn");
        torn_chunks.insert(complete);
        partial += usize::from(complete + untouched == 2);
        assert!(image[..128].iter().chain(&image[640..]).all(|&byte| byte == 0x0F), "nothing else changes");
    }
    assert!(partial > 180 && torn_chunks.is_superset(&BTreeSet::from([0, 1, 2])));
}

#[test]
fn an_erase_torn_to_a_prefix_or_suffix_is_exact_to_the_byte() {
    for n in [0, 1, 100, 511, 512, 513, 1023, 1024, usize::MAX] {
        let image = torn_erase(EraseTear::Prefix(n), 1);
        let blank = n.min(1024);
        assert!(image[512..512 + blank].iter().all(|&byte| byte == 0xFF));
        assert!(image[512 + blank..].iter().all(|&byte| byte == 0x0F));
    }
    for (seed, n) in [1, 2, 100, 511].into_iter().enumerate() {
        let page = torn_page(EraseTear::Suffix(n), seed as u64);
        assert!(page[..PAGE - n].iter().all(|&byte| byte == 0x0F));
        assert!(page[PAGE - n..].iter().all(|&byte| byte == 0xFF));
    }
    for seed in 0..50 {
        let prefix = torn_page(EraseTear::RandomPrefix, seed);
        assert!(prefix.is_sorted_by(|a, b| a >= b));
        let suffix = torn_page(EraseTear::RandomSuffix, seed);
        assert!(suffix.is_sorted());
    }
}

#[test]
fn the_other_torn_erases_leave_what_they_are_named_for() {
    assert!(torn_erase(EraseTear::None, 1).iter().all(|&byte| byte == 0x0F));
    assert!(torn_erase(EraseTear::Complete, 1)[512..1536].iter().all(|&byte| byte == 0xFF));
    for seed in 0..50 {
        assert!(torn_page(EraseTear::AllZero, seed).iter().all(|&byte| byte == 0));

        let page = torn_page(EraseTear::MarkersBlank, seed);
        assert!(page[..64].iter().chain(&page[448..]).all(|&byte| byte == 0xFF));
        assert!(page[64..448].iter().all(|&byte| byte == 0x0F));

        let page = torn_page(EraseTear::AllZeroThenPrefix, seed);
        assert!(page.iter().all(|&byte| byte == 0 || byte == 0xFF) && page.is_sorted_by(|a, b| a >= b));

        let page = torn_page(EraseTear::RandomBits, seed);
        assert!(page.iter().all(|&byte| byte & 0x0F == 0x0F), "bits that were 1 stay 1");
    }
    let raised: u32 =
        (0..50).flat_map(|seed| torn_page(EraseTear::RandomBits, seed)).map(|b| (b >> 4).count_ones()).sum();
    let share = f64::from(raised) / f64::from(50 * 512 * 4);
    assert!((0.3..0.7).contains(&share), "{share}");
}

#[test]
fn weak_bits_flicker_at_their_rate_and_only_they() {
    for rate in WEAK_RATES {
        let chip = half_programmed(1);
        chip.cut_after(0, Tear::program(ProgramTear::Prefix(usize::MAX)).weak(rate));
        // In transition: bit 0 of each byte.
        assert_eq!(program(&chip, 0, &[0xFE; 200]), Err(FlashError::PowerCut));
        assert_eq!(chip.weak_bits(), 200);
        chip.power_on();
        let reads = 1_000;
        let mut flipped = 0;
        for _ in 0..reads {
            for byte in read(&chip, 0, 204).unwrap().chunks(200).next().unwrap() {
                assert_eq!(byte & 0xFE, 0x0E, "solid bits are solid");
                flipped += u32::from(byte & 1);
            }
        }
        let measured = f64::from(flipped) / f64::from(reads * 200);
        assert!((measured / rate - 1.0).abs() < 0.25, "{measured} for {rate}");
        assert_eq!(read(&chip, 200, 4), Ok(vec![0x0F; 4]));
    }
}

#[test]
fn a_weak_bit_is_healed_by_programming_zero_or_by_an_erase_but_not_by_programming_ones() {
    let flickers = |chip: &Small, addr| {
        (0..100).map(|_| read(chip, addr, 4).unwrap()).collect::<BTreeSet<_>>().len() > 1
    };
    // Nominally nothing happened, or everything: either way the bits are weak.
    for nominal in [0, usize::MAX] {
        let chip = half_programmed(1);
        chip.cut_after(0, Tear::program_prefix(nominal).weak(0.5));
        assert_eq!(program(&chip, 0, &[0; 8]), Err(FlashError::PowerCut));
        chip.power_on();
        assert_eq!(chip.weak_bits(), 32);
        program(&chip, 0, &[0xFF; 8]).unwrap();
        assert!(flickers(&chip, 0) && flickers(&chip, 4));
        program(&chip, 0, &[0x03, 0, 0, 0]).unwrap();
        assert_eq!(chip.weak_bits(), 18, "the zeros are solid, the ones as weak as before");
        program(&chip, 0, &[0; 4]).unwrap();
        assert!(!flickers(&chip, 0) && flickers(&chip, 4));
        assert_eq!(read(&chip, 0, 4), Ok(vec![0; 4]));
        erase(&chip, 0, 512).unwrap();
        assert_eq!(chip.weak_bits(), 0);
        assert_eq!(read(&chip, 0, 8), Ok(vec![0xFF; 8]));
    }
}

#[test]
fn a_torn_erase_weakens_the_zeros_of_the_torn_page() {
    let chip = half_programmed(1);
    chip.cut_after(0, Tear::erase(EraseTear::Prefix(512 + 100)).weak(0.5));
    assert_eq!(erase(&chip, 512, 1536), Err(FlashError::PowerCut));
    chip.power_on();
    assert_eq!(chip.weak_bits(), 512 * 4, "those of one page, though the first was erased on the way");
    assert_eq!(read(&chip, 512, 512), Ok(vec![0xFF; 512]));
    let read_twice = [read(&chip, 1024, 512).unwrap(), read(&chip, 1024, 512).unwrap()];
    assert_ne!(read_twice[0], read_twice[1]);
    assert!(read_twice.iter().flatten().all(|byte| byte & 0x0F == 0x0F), "ones are not in transition");

    // Pre-programming puts the ones in transition too.
    chip.set_image(&[0x0F; PAGES * PAGE]);
    assert_eq!(chip.weak_bits(), 0);
    chip.cut_after(0, Tear::erase(EraseTear::AllZero).weak(0.5));
    assert_eq!(erase(&chip, 512, 1024), Err(FlashError::PowerCut));
    assert_eq!(chip.weak_bits(), 512 * 8);

    // A torn operation on weak bits may settle them as it may any other.
    chip.power_on();
    chip.cut_after(0, Tear::program_prefix(4));
    assert_eq!(program(&chip, 512, &[0; 8]), Err(FlashError::PowerCut));
    assert_eq!(chip.weak_bits(), 508 * 8);
}

#[test]
fn a_clean_cut_leaves_no_weak_bits() {
    for clean in [Tear::BEFORE.weak(0.5), Tear::AFTER.weak(0.5)] {
        let chip = half_programmed(1);
        chip.cut_after(0, clean);
        assert_eq!(program(&chip, 0, &[0; 8]), Err(FlashError::PowerCut));
        chip.power_on();
        chip.cut_after(0, clean);
        assert_eq!(erase(&chip, 0, 512), Err(FlashError::PowerCut));
        assert_eq!(chip.weak_bits(), 0);
    }
}

#[test]
fn images_bit_flips_and_random_fills_are_as_told() {
    let chip = Small::new(PAGES, 5);
    assert_eq!((chip.pages(), chip.size(), (&chip).capacity()), (PAGES, PAGES * PAGE, PAGES * PAGE));
    chip.flip_bit(513, 6);
    assert_eq!(read(&chip, 512, 4), Ok(vec![0xFF, 0xBF, 0xFF, 0xFF]));
    chip.flip_bit(513, 6);
    assert_eq!(chip.image(), [0xFF; PAGES * PAGE]);
    chip.fill_random();
    let image = chip.image();
    assert!(image.iter().collect::<BTreeSet<_>>().len() > 200);
    assert_eq!(Small::from_image(&image, 9).image(), image);
    assert_eq!(chip.counts().reads, 1, "only the read is an operation");
}

/// Everything that can be seen of a chip after many random operations and cuts.
fn history(seed: u64) -> (Vec<u8>, Counts, Vec<Vec<u8>>) {
    let chip = Small::new(PAGES, seed);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut reads = Vec::new();
    for _ in 0..500 {
        chip.power_on();
        chip.cut_after(rng.u64(..6), FaultClass::Mixed.tear(&mut rng));
        let page = rng.u32(..4) * 512;
        let _ = program(&chip, page + rng.u32(..32) * 4, &rng.u64(..).to_le_bytes());
        let _ = program(&chip, page + rng.u32(..32) * 4, &[0x5A; 64]);
        reads.extend(read(&chip, page, 128));
        if rng.u8(..8) == 0 {
            let _ = erase(&chip, page, page + 512);
        }
    }
    (chip.image(), chip.counts(), reads)
}

#[test]
fn everything_follows_from_the_seed() {
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

#[test]
fn a_clone_goes_on_as_the_original_would() {
    let chip = half_programmed(1);
    chip.cut_after(0, Tear::erase(EraseTear::RandomBits).weak(0.3));
    assert_eq!(erase(&chip, 0, 512), Err(FlashError::PowerCut));
    chip.power_on();
    let copy = chip.clone();
    assert_eq!(read(&chip, 0, 512), read(&copy, 0, 512));
    program(&copy, 0, &[0; 4]).unwrap();
    assert_ne!(chip.image(), copy.image());
}

#[test]
fn counts_time_and_energy_are_exact() {
    let chip = Small::new(PAGES, 1);
    read(&chip, 0, 100).unwrap();
    program(&chip, 0, &[0; 256]).unwrap();
    program(&chip, 252, &[0; 8]).unwrap();
    erase(&chip, 512, 2048).unwrap();
    erase(&chip, 512, 1024).unwrap();
    // Empty operations are none.
    read(&chip, 0, 0).unwrap();
    program(&chip, 0, &[]).unwrap();
    erase(&chip, 0, 0).unwrap();
    let counts = chip.counts();
    let expected = Counts {
        reads: 1,
        bytes_read: 100,
        programs: 2,
        chunks_programmed: 3,
        bytes_programmed: 264,
        erases: 4,
    };
    assert_eq!(counts, expected);
    assert_eq!(chip.erases_per_page(), [0, 2, 1, 1]);
    assert_eq!(chip.mutating_ops(), 4);
    assert_eq!(chip.violations(), 0);
    let busy_us = 1.0 + 5.0 + 3.0 * 500.0 + 4.0 * 40_000.0;
    assert!((counts.busy_us() - busy_us).abs() < 1e-6);
    assert!((counts.microjoules() - busy_us * 0.066).abs() < 1e-6);

    // A torn erase counts the pages it has begun.
    chip.reset_counts();
    chip.cut_after(0, Tear::erase(EraseTear::Prefix(513)));
    assert_eq!(erase(&chip, 0, 2048), Err(FlashError::PowerCut));
    assert_eq!(chip.counts(), Counts { erases: 2, ..Counts::default() });
    assert_eq!(chip.erases_per_page(), [1, 1, 0, 0]);
    assert_eq!(
        chip.counts() - Counts { erases: 1, ..Counts::default() },
        Counts { erases: 1, ..Counts::default() }
    );
}

#[test]
fn a_yielding_chip_is_pending_once_before_it_does_anything() {
    let chip = Small::new(PAGES, 1);
    chip.set_yields(true);
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut driver = &chip;
        let mut future = pin!(driver.write(0, &[0; 4]));
        assert_eq!(future.as_mut().poll(&mut context), Poll::Pending);
        // Dropped here: between two operations.
    }
    assert_eq!((chip.image(), chip.mutating_ops()), (vec![0xFF; PAGES * PAGE], 0));
    let mut driver = &chip;
    let mut future = pin!(driver.write(0, &[0; 4]));
    assert_eq!(future.as_mut().poll(&mut context), Poll::Pending);
    assert_eq!(future.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    assert_eq!(read(&chip, 0, 4), Ok(vec![0; 4]), "block_on wakes it again");
    chip.set_yields(false);
    let mut driver = &chip;
    assert_eq!(pin!(driver.erase(0, 512)).poll(&mut context), Poll::Ready(Ok(())));
}

#[test]
fn a_driver_error_comes_once_and_without_effect() {
    let chip = Small::new(PAGES, 1);
    chip.fail_after(2);
    read(&chip, 0, 4).unwrap();
    program(&chip, 0, &[1; 4]).unwrap();
    assert_eq!(erase(&chip, 0, 512), Err(FlashError::Io));
    assert!(chip.is_powered());
    assert_eq!((read(&chip, 0, 4), chip.mutating_ops()), (Ok(vec![1; 4]), 1));
    chip.fail_after(0);
    chip.cancel_failure();
    erase(&chip, 0, 512).unwrap();
}

#[test]
fn fault_classes_are_named_and_tear_only_their_own_kind_of_operation() {
    let mut rng = fastrand::Rng::with_seed(1);
    let names: BTreeSet<&str> = FaultClass::ALL.iter().map(|class| class.name()).collect();
    assert_eq!(names.len(), FaultClass::ALL.len());
    for &class in FaultClass::ALL {
        assert_eq!(class.to_string().parse(), Ok(class));
        assert!(class.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
        let tears: Vec<Tear> = (0..100).map(|_| class.tear(&mut rng)).collect();
        let clean_program = |tear: &Tear| matches!(tear.program, ProgramTear::None | ProgramTear::Complete);
        let clean_erase = |tear: &Tear| matches!(tear.erase, EraseTear::None | EraseTear::Complete);
        let about_programs = class.name().contains("program") || class == FaultClass::Mixed;
        let about_erases = class.name().contains("erase") || class == FaultClass::Mixed;
        assert_eq!(tears.iter().all(clean_program), !about_programs, "{class}");
        assert_eq!(tears.iter().all(clean_erase), !about_erases, "{class}");
        let weak = tears.iter().filter(|tear| tear.weak.is_some()).count();
        match class {
            FaultClass::WeakProgram | FaultClass::WeakErase => assert_eq!(weak, 100),
            FaultClass::Mixed => assert!((20..80).contains(&weak)),
            _ => assert_eq!(weak, 0),
        }
    }
    let unknown = "solar-flare".parse::<FaultClass>().unwrap_err();
    assert!(unknown.to_string().contains("solar-flare") && unknown.to_string().contains("erase-suffix"));
}

/// Programs and reads one unit on a chip of this geometry.
fn unit_works<const R: usize, const W: usize, const E: usize>() {
    let chip = Chip::<R, W, E>::new(2, 1);
    let unit = R.max(W);
    program(&chip, E as u32, &vec![0x42; unit]).unwrap();
    assert_eq!(read(&chip, E as u32, unit), Ok(vec![0x42; unit]));
    erase(&chip, E as u32, 2 * E as u32).unwrap();
    assert_eq!(read(&chip, 0, 2 * E), Ok(vec![0xFF; 2 * E]));
    assert_eq!(chip.violations(), 0);
}

#[test]
fn every_driver_s_geometry_can_be_simulated() {
    unit_works::<1, 1, 256>();
    unit_works::<1, 1, 4096>();
    unit_works::<4, 1, 4096>();
    unit_works::<4, 4, 4096>();
    unit_works::<8, 8, 2048>();
    unit_works::<16, 16, 4096>();
    unit_works::<32, 32, 256>();
}
