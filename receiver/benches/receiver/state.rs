//! What a lane costs for ever, however much it has sent.

use comfy_table::Table;
use pillarbox_receiver::store::sqlite::Core;

use crate::batches::{Sender, secret};
use crate::lanes::{Kept, scatter};

const BATCH: usize = 100;

/// Prints the table. Gives the lanes of which too much is kept.
pub(crate) fn run() -> Vec<String> {
    let mut table = Table::new();
    table.set_header(["lane", "open ranges", "bytes of its books", "bytes of its row in all", "at most"]);
    let mut missed = Vec::new();
    let mut add = |what: String, kept: Kept| {
        let numbers = [kept.ranges, kept.books, kept.row, kept.max()].map(|number| number.to_string());
        table.add_row([what.clone()].into_iter().chain(numbers));
        if kept.row > kept.max() {
            missed.push(format!("a lane ({what}) takes {} bytes, not {}", kept.row, kept.max()));
        }
    };
    let (mut core, mut sender) = lane();
    let mut sent = 0;
    for upto in [100, 10_000, 300_000] {
        while sent < upto {
            core.take(sender.id, &sender.post(BATCH)).expect("there is room");
            sent += BATCH;
        }
        add(format!("{sent} records in order"), Kept::of(&core, sender.id));
    }
    for ranges in [0, 1, 8, 32, 64] {
        let (mut core, mut sender) = lane();
        scatter(&mut core, &mut sender, ranges);
        let what = format!("{ranges} ranges of 1,000,000 given up, then every other record of a window");
        add(what, Kept::of(&core, sender.id));
    }
    println!("What is kept of a device's lane, for ever:\n{table}\n");
    missed
}

fn lane() -> (Core, Sender) {
    let mut core = Core::in_memory().expect("there is memory");
    let mut sender = Sender::stranger(0);
    sender.id = core.add_device(&sender.device, &secret()).expect("it is new");
    (core, sender)
}
