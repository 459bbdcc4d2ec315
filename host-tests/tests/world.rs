//! Everything together keeps the promise: in thousands of small worlds, each from one seed, every acknowledged record is in the
//! server exactly once or accounted for by reason, in order, and every ledger equals its device's own truth.

use host_tests::world::{Model, run_all};

/// Worlds that are run with every test; `cargo xtask world` runs more.
const SEEDS: u64 = 3_000;

#[test]
fn every_acknowledged_record_arrives_once_or_is_accounted_for() {
    let (total, failures) = run_all(0..SEEDS, Model::new, |_| ());
    println!("{total:#?}");
    failures.iter().for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} worlds broke a promise", failures.len());
    // The worlds are as bad as they should be.
    assert!(total.cuts > SEEDS && total.faults > SEEDS && total.disputed > SEEDS / 10);
    assert!(total.explained > 0 && total.aside > 0 && total.undone > 0 && total.uncertain > 0);
}
