//! One scenario, cut at every flash operation and at every byte of every program, and cut again at every operation
//! of the recovery: random lives may miss a moment, this misses none.

use host_tests::flash::{EraseTear, MutatingOp, ProgramTear, Tear};
use host_tests::life::{LANES, Played, Step, play, record_max};
use pillarbox::buffer_size;

const PAYLOAD: usize = 20;
const RECORD: usize = record_max(PAYLOAD);
const BUFFER: usize = buffer_size(LANES, RECORD);

/// Enqueue, settle, evict, park, supersede, wrap both rings twice, suspend with and without sleep, reopen, clear.
fn scenario() -> Vec<Step> {
    let mut script = Vec::new();
    for round in 0..7 {
        script.extend([Step::Post(0), Step::Post(0), Step::Post(1), Step::PostTogether, Step::Post(1)]);
        script.extend([
            Step::Deliver(0),
            Step::PostOnce(round % 3),
            Step::Post(1),
            Step::Reject,
            Step::Deliver(0),
        ]);
        script.push(match round {
            0 => Step::Suspend,
            1 => Step::SwitchOff,
            2 => Step::DeadLetters,
            3 => Step::Tell,
            4 => Step::Age,
            5 => Step::Deliver(1),
            _ => Step::Renew,
        });
    }
    script.extend([Step::Post(0), Step::Deliver(1), Step::Clear, Step::Post(0), Step::PostOnce(1)]);
    script
}

fn cut<const R: usize, const W: usize>(cuts: &[(u64, Tear)]) -> Played {
    play::<R, W, 256, PAYLOAD, RECORD, BUFFER>(&scenario(), cuts)
        .unwrap_or_else(|what| panic!("{what}\nwith READ {R}, WRITE {W} and these cuts: {cuts:?}"))
}

#[test]
fn the_scenario_does_what_it_says() {
    let whole = cut::<4, 4>(&[]);
    println!("{whole:?}");
    assert_eq!(whole.cuts, 0);
    assert!(whole.mutating_ops > 250, "{whole:?}");
    assert!(whole.tally.accounted > 10, "records were evicted, superseded and parked: {whole:?}");
    assert!(whole.tally.delivered > 20, "{whole:?}");
}

#[test]
fn a_cut_at_every_byte_of_every_program_loses_nothing() {
    let ops = cut::<4, 1>(&[]).mutating_ops;
    let mut runs = 0;
    for op in 0..ops {
        let Some(MutatingOp::Program { len, .. }) = cut::<4, 1>(&[(op, Tear::BEFORE)]).cut_op else {
            continue;
        };
        for byte in 0..=len {
            cut::<4, 1>(&[(op, Tear::program_prefix(byte))]);
            runs += 1;
        }
    }
    println!("{runs} cuts in {ops} operations");
    assert!(runs > 8_000);
}

/// How the operation that is cut may end.
fn tears() -> Vec<Tear> {
    let programs = [ProgramTear::Prefix(0), ProgramTear::RandomPrefix, ProgramTear::RandomBits];
    let erases = [
        EraseTear::Prefix(0),
        EraseTear::RandomPrefix,
        EraseTear::RandomSuffix,
        EraseTear::RandomBits,
        EraseTear::AllZero,
        EraseTear::MarkersBlank,
        EraseTear::AllZeroThenPrefix,
        EraseTear::Prefix(usize::MAX),
    ];
    let mut tears = vec![Tear::BEFORE, Tear::AFTER];
    for (program, erase) in programs.into_iter().cycle().zip(erases) {
        let tear = Tear { program, erase, weak: None };
        tears.extend([tear, tear.weak(0.5), tear.weak(0.01)]);
    }
    tears
}

fn every_operation<const R: usize, const W: usize>() {
    let ops = cut::<R, W>(&[]).mutating_ops;
    for op in 0..ops {
        for tear in tears() {
            assert_eq!(cut::<R, W>(&[(op, tear)]).cuts, 1);
        }
    }
}

#[test]
fn a_cut_at_every_operation_loses_nothing_with_word_8() {
    every_operation::<1, 1>();
}

#[test]
fn a_cut_at_every_operation_loses_nothing_with_word_32() {
    every_operation::<32, 32>();
}

#[test]
fn a_second_cut_at_every_operation_of_the_recovery_loses_nothing() {
    let ops = cut::<4, 4>(&[]).mutating_ops;
    let torn = Tear { program: ProgramTear::RandomBits, erase: EraseTear::RandomBits, weak: Some(0.3) };
    let mut runs = 0;
    for op in 0..ops {
        for first in [Tear::AFTER, torn] {
            // Opening takes fewer operations than this; later ones cut what follows.
            for second in 0..20 {
                for tear in [Tear::BEFORE, torn] {
                    cut::<4, 4>(&[(op, first), (second, tear)]);
                    runs += 1;
                }
            }
        }
    }
    println!("{runs} pairs of cuts in {ops} operations");
}
