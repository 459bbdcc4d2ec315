//! What a record costs at the store's interface, beside a naive peer that keeps a row for every key, in one run: `cargo xtask bench
//! receiver`. Rates are compared only inside of a run, in slices that take turns; what is counted holds anywhere.

mod batches;
mod crowd;
mod naive_postgres;
mod naive_sqlite;
mod rates;
mod sync_calls;
mod wear;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("there are threads");
    let is_good = match words[..] {
        // What `sync_calls` watches from outside.
        ["once", store, who, batches] => {
            runtime.block_on(wear::once(store, who, batches.parse().expect("a number of batches")));
            true
        }
        [] => {
            let rates = runtime.block_on(rates::run());
            let wear = runtime.block_on(wear::run());
            let crowd = runtime.block_on(crowd::run());
            rates && wear && crowd
        }
        _ => {
            eprintln!("usage: cargo xtask bench receiver");
            false
        }
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
