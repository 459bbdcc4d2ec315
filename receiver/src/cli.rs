//! The program's commands: what can be written, what is done for it, and what the shell is told.

// Where commands find what they work on, and where their words go.
mod options;
mod output;
mod remote;
mod secret_file;
mod target;

// The commands.
mod backup;
mod check;
mod device;
mod device_words;
mod epoch;
mod export;
mod records;
mod serve;
mod tail;
mod token;

use std::io;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use self::target::Given;
use crate::admin::AdminError;
use crate::inspect::Inspect;
use crate::store::StoreError;

const EXAMPLES: &str = "\
Begin like this:
  pillarbox serve                      stores in ./pillarbox.db, listens on 127.0.0.1:8080
  pillarbox device add meter-1         lets a device in, and tells its secret once
  pillarbox device list                what every device has sent, and what is missing
  pillarbox records tail               the records as they come

The same commands ask a receiver on another machine:
  pillarbox token add --role viewer    there: makes a token
  pillarbox device list --server https://receiver.example --token-file viewer.token

Exit status: 0 all is well, 1 something is wrong or was refused, 2 the command makes no sense.";

/// Takes what devices post, exactly once in effect, stores it, and can say what is missing.
#[derive(Debug, Parser)]
#[command(name = "pillarbox", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the receiver
    Serve(serve::ServeArgs),
    /// Let devices in and out, and see what became of their records
    Device(device::DeviceArgs),
    /// Make and revoke the tokens that programs and people prove themselves with
    Token(token::TokenArgs),
    /// Read records: as they come, by key, or all of them
    Records(records::RecordsArgs),
    /// Verify that books and log agree, and that nothing is missing or stored twice
    Check(check::CheckArgs),
    /// Copy a SQLite store to a file while the receiver goes on
    Backup(backup::BackupArgs),
    /// Show or renew the name that devices know the database by
    Epoch(epoch::EpochArgs),
    Inspect(Inspect),
    /// Print what a shell needs to complete commands
    #[command(after_help = "\
Examples:
  pillarbox completions bash > /etc/bash_completion.d/pillarbox
  pillarbox completions zsh > ~/.zfunc/_pillarbox
  pillarbox completions fish > ~/.config/fish/completions/pillarbox.fish")]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// How a command ended that did what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Well,
    /// It was done, and something is wrong with what was looked at.
    FoundWrong,
}

/// Why a command was not done, in a sentence.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// It makes no sense as it was written.
    #[error("{0}")]
    Usage(String),
    /// It makes sense, and could not be done.
    #[error("{0}")]
    Refused(String),
    /// Nobody reads what is said any more, which is for the reader to decide.
    #[error("nobody reads this")]
    NobodyReads,
}

type Result<T> = std::result::Result<T, CliError>;

impl From<AdminError> for CliError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Invalid(sentence) => Self::Usage(sentence),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> Self {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        match kind {
            Some(io::ErrorKind::BrokenPipe) => Self::NobodyReads,
            _ => Self::Refused(format!("{error:#}")),
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::NobodyReads,
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            // Help, or what is wrong with the arguments. Nobody may read it.
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match run(&matches) {
        Ok(Ended::Well) | Err(CliError::NobodyReads) => ExitCode::SUCCESS,
        Ok(Ended::FoundWrong) => ExitCode::FAILURE,
        Err(error) => {
            output::complain(&format!("error: {error}"));
            ExitCode::from(if matches!(error, CliError::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn run(matches: &ArgMatches) -> Result<Ended> {
    let cli = Cli::from_arg_matches(matches).map_err(|error| CliError::Usage(error.to_string()))?;
    let given = Given::of(matches);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Device(args) => device::run(args, given).await,
            Command::Token(args) => token::run(args, given).await,
            Command::Records(args) => records::run(args, given).await,
            Command::Check(args) => check::run(args).await,
            Command::Backup(args) => backup::run(args).await,
            Command::Epoch(args) => epoch::run(args, given).await,
            Command::Inspect(args) => inspect(&args),
            Command::Completions { shell } => completions(shell),
        }
    });
    // What still waits for a terminal or a network that is gone must not keep the program.
    runtime.shutdown_background();
    ended
}

fn inspect(args: &Inspect) -> Result<Ended> {
    let (words, is_sound) = args.run().map_err(|error| CliError::Refused(format!("{error:#}")))?;
    output::text(words.trim_end())?;
    Ok(if is_sound { Ended::Well } else { Ended::FoundWrong })
}

fn completions(shell: Shell) -> Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pillarbox", &mut script);
    output::bytes(&script)?;
    Ok(Ended::Well)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_sound_and_each_has_help() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        command.build();
        let mut open = vec![command];
        while let Some(command) = open.pop() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty(), "{} says nothing about itself", command.get_name());
            let is_leaf = command.get_subcommands().next().is_none();
            let is_ours = command.get_name() != "help";
            if is_leaf && is_ours {
                let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(after.contains("pillarbox "), "{} has no example", command.get_name());
            }
            open.extend(command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned());
        }
    }
}
