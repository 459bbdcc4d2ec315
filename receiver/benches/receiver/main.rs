//! What a record costs at the store's interface, beside a naive peer that keeps a row for every key, in one run: `cargo xtask bench
//! receiver`. Rates are compared only inside of a run, in slices that take turns; what is counted holds anywhere. Ends with an error
//! where a bar is missed.

mod batches;
mod crowd;
mod lanes;
mod naive_postgres;
mod naive_sqlite;
mod rates;
mod state;
mod sync_calls;
mod wear;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// What a record costs the receiver, beside a naive peer.
#[derive(Parser)]
struct Arguments {
    /// Fewer of everything: for a look in two minutes, not for numbers to quote.
    #[arg(long)]
    quick: bool,
    /// Only this store.
    #[arg(long, value_name = "STORE")]
    only: Option<StoreName>,
    /// Only this part.
    #[arg(long)]
    part: Option<Part>,
    /// Takes so many batches into a new file and says what was written: what the bench starts itself as, to be watched.
    #[arg(long, hide = true, value_name = "BATCHES")]
    once: Option<usize>,
    #[arg(long, hide = true, default_value = "ours")]
    who: wear::Who,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreName {
    Sqlite,
    Postgres,
}

impl StoreName {
    fn title(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Records a second.
    Rates,
    /// Fsyncs, bytes and statements.
    Wear,
    /// What is kept of a lane.
    State,
    /// Many devices and connections.
    Crowd,
}

/// How much is done.
#[derive(Clone, Copy)]
struct Effort {
    /// Turns that ours and the peers take.
    slices: usize,
    /// Records of a slice.
    slice_records: usize,
    /// Batches that are counted.
    counted_batches: usize,
    /// Batches of a crowd.
    crowd_batches: usize,
}

impl Effort {
    fn new(is_quick: bool) -> Self {
        if is_quick {
            Self { slices: 7, slice_records: 25_600, counted_batches: 320, crowd_batches: 500 }
        } else {
            Self { slices: 15, slice_records: 51_200, counted_batches: 640, crowd_batches: 2_000 }
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("there are threads");
    if let Some(batches) = arguments.once {
        runtime.block_on(wear::once(arguments.who, batches));
        return ExitCode::SUCCESS;
    }
    let missed = runtime.block_on(run(&arguments));
    if missed.is_empty() {
        println!("Every bar that was looked at is met.");
        return ExitCode::SUCCESS;
    }
    for bar in missed {
        println!("MISSED: {bar}");
    }
    ExitCode::FAILURE
}

/// Prints the tables. Gives the bars that are missed, in words.
async fn run(arguments: &Arguments) -> Vec<String> {
    let effort = Effort::new(arguments.quick);
    let is_wanted = |part| arguments.part.is_none_or(|only| only == part);
    let mut stores = vec![StoreName::Sqlite, StoreName::Postgres];
    stores.retain(|store| arguments.only.is_none_or(|only| only == *store));
    let mut missed = Vec::new();
    if is_wanted(Part::Rates) {
        missed.extend(rates::run(&stores, effort).await);
    }
    if is_wanted(Part::Wear) {
        missed.extend(wear::run(&stores, effort).await);
    }
    if is_wanted(Part::State) {
        missed.extend(state::run());
    }
    if is_wanted(Part::Crowd) {
        missed.extend(crowd::run(effort).await);
    }
    missed
}
