//! The project's chores as one program, so that a fresh machine needs nothing but cargo to do any of them.

mod bench;
mod region;
mod size;
mod soak;
mod table;
mod test;
mod tools;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = "Example:\n  cargo xtask test")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    Test(test::Arguments),
    Soak(soak::Arguments),
    World(world::Arguments),
    Bench(bench::Arguments),
    Size(size::Arguments),
    Region(region::Arguments),
    Tools(tools::Arguments),
}

/// What a chore found; an error is a chore that could not be done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Good,
    Bad,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Test(arguments) => test::run(&arguments),
        Chore::Soak(arguments) => soak::run(&arguments),
        Chore::World(arguments) => world::run_worlds(&arguments),
        Chore::Bench(arguments) => bench::run(&arguments),
        Chore::Size(arguments) => size::run(&arguments),
        Chore::Region(arguments) => region::run(&arguments),
        Chore::Tools(arguments) => tools::install_missing(&arguments),
    };
    match done {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root, wherever cargo was called from.
fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The cargo that runs this program, in the repository's root.
fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}
