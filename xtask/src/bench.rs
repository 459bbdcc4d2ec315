//! What a record costs in flash operations, printed as the README shows it.

use anyhow::Result;

use crate::Outcome;

/// Counts flash operations per record, beside the raw queue in the same run.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench")]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<Outcome> {
    println!("{}", host_tests::bench::run());
    Ok(Outcome::Good)
}
