//! What a record costs in flash operations stays within its budget, whatever the backlog. `cargo xtask bench` prints
//! the numbers.

use host_tests::bench::{PerRecord, Report, run};

fn grows(little: &PerRecord, much: &PerRecord) -> bool {
    much.reads > little.reads * 1.1 + 1.0 || much.programs > little.programs + 0.1
}

#[test]
fn the_costs_stay_within_their_budgets() {
    let report = run();
    println!("{report}");
    let Report { ours, raw, backlogs, boots, .. } = report;
    assert!(ours.enqueue.programs <= 3.0, "{:?}", ours.enqueue);
    assert!(ours.settle.programs <= 1.1, "{:?}", ours.settle);
    // Every page is erased once a round, and the metadata now and then; the raw queue's items are smaller.
    let erases = ours.enqueue.erases + ours.read.erases + ours.settle.erases;
    let raw_erases = raw.enqueue.erases + raw.read.erases + raw.settle.erases;
    assert!(erases < 2.0 * raw_erases, "{erases} erases per record, the raw queue {raw_erases}");

    let (_, few) = backlogs[0];
    for (backlog, costs) in &backlogs {
        for (little, much) in
            [(few.enqueue, costs.enqueue), (few.read, costs.read), (few.settle, costs.settle)]
        {
            assert!(!grows(&little, &much), "with {backlog} pending: {much:?}, with 10: {little:?}");
        }
    }

    // Opening: so much per page and so much besides, however many records there are.
    for boot in boots {
        assert!(boot.counts.reads < 700 + 40 * u64::from(boot.pages), "{boot:?}");
        assert!(boot.counts.erases <= 1, "the metadata's other half: {boot:?}");
    }
}
