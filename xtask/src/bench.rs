//! What a record costs, at both ends: in flash operations and on the wire, printed as the README shows it; and at the receiver,
//! beside a naive one.

use anyhow::{Context, Result};

use crate::{Outcome, cargo, tools};

/// Counts flash operations per record, beside the raw queue in the same run, and bytes on the wire, beside JSON requests.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask bench\n  cargo xtask bench receiver --quick")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    end: Option<End>,
}

#[derive(clap::Subcommand)]
enum End {
    Receiver(Receiver),
}

/// Measures the receiver's stores beside a naive peer, counts what they ask of a disk, and shows what many devices and connections
/// cost. Takes some minutes; fails where a bar is missed.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask bench receiver\n  cargo xtask bench receiver --quick\n  \
                        cargo xtask bench receiver --only sqlite --part rates")]
struct Receiver {
    /// Fewer of everything: for a look in two minutes, not for numbers to quote
    #[arg(long)]
    quick: bool,
    /// Only this store: sqlite or postgres
    #[arg(long, value_name = "STORE")]
    only: Option<String>,
    /// Only this part: rates, wear, state or crowd
    #[arg(long)]
    part: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.end {
        None => run_device(),
        Some(End::Receiver(receiver)) => receiver.run(),
    }
}

fn run_device() -> Result<Outcome> {
    tools::complete(&[tools::OPENSSL])?;
    println!("{}", host_tests::bench::run());
    println!("{}", host_tests::wire_costs::run().context("cannot count the bytes on the wire")?);
    Ok(Outcome::Good)
}

impl Receiver {
    fn run(&self) -> Result<Outcome> {
        tools::complete(&[tools::POSTGRES, tools::STRACE])?;
        let mut command = cargo();
        command.args(["bench", "--quiet", "-p", "pillarbox-receiver", "--bench", "receiver", "--"]);
        command.args(self.quick.then_some("--quick"));
        for (option, value) in [("--only", &self.only), ("--part", &self.part)] {
            command.args(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        let status = command.status().context("cannot start cargo")?;
        Ok(if status.success() { Outcome::Good } else { Outcome::Bad })
    }
}
