//! Worlds without end: fleets of devices in virtual time, until every seed has been lived, and what became of every record.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use host_tests::world::{Model, Plan, Tally, run, run_all};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Outcome;
use crate::table::Table;

/// Where there is no terminal for a bar, a line this often.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Lives many small worlds: devices, a network that loses and forges, a server that restarts and is restored.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask world --seeds 10000\n  cargo xtask world --seeds 10000 --from 500000\n  \
                        cargo xtask world --replay 1234"
)]
pub(crate) struct Arguments {
    /// How many worlds
    #[arg(long, default_value_t = 3_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this one world again
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from"])]
    replay: Option<u64>,
}

pub(crate) fn run_worlds(arguments: &Arguments) -> Result<Outcome> {
    if let Some(seed) = arguments.replay {
        println!("{:#?}", Plan::of(seed));
        return Ok(match run(seed, Model::new) {
            Ok(tally) => {
                print_tally(&tally);
                Outcome::Good
            }
            Err(failure) => {
                eprintln!("{failure}");
                Outcome::Bad
            }
        });
    }
    ensure!(arguments.seeds > 0, "--seeds must be at least 1");
    let seeds = arguments.from..arguments.from.saturating_add(arguments.seeds);
    let (total, failures) = with_progress(seeds);
    print_tally(&total);
    for failure in &failures {
        eprintln!("{failure}");
    }
    Ok(if failures.is_empty() { Outcome::Good } else { Outcome::Bad })
}

fn with_progress(seeds: Range<u64>) -> (Tally, Vec<host_tests::world::Failure>) {
    let count = seeds.end - seeds.start;
    let bar = ProgressBar::new(count).with_style(
        ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {pos}/{len} worlds, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let start = Instant::now();
    let said = std::sync::Mutex::new(start);
    let done = run_all(seeds, Model::new, |done| {
        bar.set_position(done);
        if let Ok(mut said) = said.lock()
            && bar.is_hidden()
            && said.elapsed() >= LINE_EVERY
        {
            *said = Instant::now();
            println!("{:>5} s: {done} of {count} worlds", start.elapsed().as_secs());
        }
    });
    bar.finish_and_clear();
    done
}

fn print_tally(tally: &Tally) {
    let mut table = Table::new(["what", "count"]);
    for (what, count) in [
        ("worlds", tally.worlds),
        ("of them with clones, rollbacks or restored servers", tally.disputed),
        ("devices", tally.devices),
        ("boots", tally.boots),
        ("power cuts inside a flash operation", tally.cuts),
        ("requests", tally.requests),
        ("faults of the network", tally.faults),
        ("records acknowledged", tally.acknowledged),
        ("of them in the server, once", tally.stored),
        ("of them explained", tally.explained),
        ("of them kept aside", tally.aside),
        ("of them excused, where a flash or database was cloned or put back", tally.undone),
        ("counters uncertain", tally.uncertain),
    ] {
        table.row([what.to_owned(), count.to_string()]);
    }
    println!("{table}");
}
