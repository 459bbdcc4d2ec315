//! What a record costs in flash operations and on the wire, printed as the README shows it.

use anyhow::{Context, Result};

use crate::{Outcome, tools};

/// Counts flash operations per record, beside the raw queue in the same run, and bytes on the wire, beside JSON requests.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench")]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<Outcome> {
    tools::complete(&[tools::OPENSSL])?;
    println!("{}", host_tests::bench::run());
    println!("{}", host_tests::wire_costs::run().context("cannot count the bytes on the wire")?);
    Ok(Outcome::Good)
}
