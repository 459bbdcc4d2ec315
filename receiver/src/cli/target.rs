//! Where a command is done: on the store itself, or by a receiver that runs somewhere.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::options::{DEFAULT_STORE, Options};
use super::remote::Remote;
use super::{CliError, Result, output};
use crate::admin::{Asker, Desk, Request, ask};
use crate::kinds::Kinds;
use crate::moment::now_ms;
use crate::store::{self, Store};

/// Where the store is.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store: a SQLite file, or postgres://user@host/database [default: pillarbox.db]
    #[arg(long, env = "PILLARBOX_STORE", hide_env_values = true, global = true, help_heading = "Where")]
    pub(super) store: Option<String>,
    /// Where the store and the kinds are named [default: pillarbox.toml, if it is there]
    #[arg(long, env = "PILLARBOX_CONFIG", value_name = "FILE", global = true, help_heading = "Where")]
    pub(super) config: Option<PathBuf>,
}

/// Where a command is done.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct TargetArgs {
    #[command(flatten)]
    pub(super) at: StoreArgs,
    /// The kinds file: what records are, by number and name
    #[arg(long, env = "PILLARBOX_KINDS", value_name = "FILE", global = true, help_heading = "Where")]
    pub(super) kinds: Option<PathBuf>,
    /// Ask this receiver instead of opening a store, for example https://receiver.example
    #[arg(long, env = "PILLARBOX_SERVER", value_name = "URL", global = true, help_heading = "Where")]
    pub(super) server: Option<String>,
    /// A file with the token for --server, or - for standard input; else PILLARBOX_TOKEN holds the token itself
    #[arg(long, env = "PILLARBOX_TOKEN_FILE", value_name = "FILE", global = true, help_heading = "Where")]
    pub(super) token_file: Option<PathBuf>,
    /// Also believe this certificate authority, in PEM
    #[arg(long, env = "PILLARBOX_CA", value_name = "FILE", global = true, help_heading = "Where")]
    pub(super) ca: Option<PathBuf>,
    /// Send the token over plain HTTP to another machine
    #[arg(long, global = true, help_heading = "Where")]
    pub(super) insecure: bool,
}

/// What of it was written in the command, and is not only in the environment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    store: bool,
    server: bool,
}

impl Given {
    pub(super) fn of(matches: &ArgMatches) -> Self {
        let mut given = Self::default();
        let mut open = Some(matches);
        while let Some(matches) = open {
            let is_given = |name| {
                let has = matches.try_contains_id(name).unwrap_or(false);
                has && matches.value_source(name) == Some(ValueSource::CommandLine)
            };
            given.store |= is_given("store");
            given.server |= is_given("server");
            open = matches.subcommand().map(|(_, sub)| sub);
        }
        given
    }
}

/// Whether a store that is not there is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Refuse,
}

/// Who does what a command asks for.
pub(super) enum Target {
    Store { store: Arc<dyn Store>, kinds: Arc<Kinds> },
    Server(Remote),
}

impl Target {
    pub(super) async fn open(args: TargetArgs, given: Given, missing: Missing) -> Result<Self> {
        if given.store && given.server {
            let sentence =
                "--store and --server exclude each other: a command works on a store or asks a receiver";
            return Err(CliError::Usage(sentence.into()));
        }
        if let Some(server) = args.server.as_deref().filter(|_| !given.store) {
            return Ok(Self::Server(Remote::new(server, &args)?));
        }
        let file = Options::load(args.at.config.as_deref())?;
        let kinds = Arc::new(load_kinds(args.kinds.or(file.kinds))?);
        let store = args.at.store.or(file.store).unwrap_or_else(|| DEFAULT_STORE.into());
        Ok(Self::Store { store: open_store(&store, missing).await?, kinds })
    }

    /// Asks, and gives the answer. If the future is dropped, it may have been done all the same.
    pub(super) async fn ask<R: Request>(&self, request: R) -> Result<R::Answer> {
        match self {
            Self::Server(remote) => remote.ask(request).await,
            Self::Store { store, kinds } => {
                let desk = Desk { store: store.clone(), kinds: kinds.clone(), now_ms: now_ms() };
                Ok(ask(&desk, &Asker::operator(), request).await?)
            }
        }
    }
}

/// What records are; without a file nothing is known of them.
pub(super) fn load_kinds(path: Option<PathBuf>) -> Result<Kinds> {
    let loaded = path.map(|path| Kinds::load(&path)).transpose();
    Ok(loaded.map_err(|error| CliError::Usage(error.to_string()))?.unwrap_or_default())
}

/// The store that a command without `--server` works on.
pub(super) async fn store_of(args: StoreArgs) -> Result<(String, Arc<dyn Store>)> {
    let file = Options::load(args.config.as_deref())?;
    let name = args.store.or(file.store).unwrap_or_else(|| DEFAULT_STORE.into());
    let store = open_store(&name, Missing::Refuse).await?;
    Ok((name, store))
}

pub(super) async fn open_store(name: &str, missing: Missing) -> Result<Arc<dyn Store>> {
    if !is_postgres(name) {
        let path = Path::new(name);
        match (path.try_exists(), missing) {
            (Ok(true), _) => warn_of_readers(path),
            (_, Missing::Make) => output::complain(&format!("making a new store in {}", absolute(path))),
            (_, Missing::Refuse) => {
                return Err(CliError::Refused(format!(
                    "there is no store in {}: name it with --store, or ask a receiver with --server",
                    absolute(path)
                )));
            }
        }
    }
    store::open(name).await.map_err(|error| CliError::Refused(format!("{}: {error}", shown(name))))
}

/// Secrets of devices are in there.
fn warn_of_readers(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0o600, |known| known.permissions().mode());
    if mode & 0o077 != 0 {
        let path = path.display();
        output::complain(&format!("warning: others than its owner can read {path}: chmod 600 {path}"));
    }
}

pub(super) fn is_postgres(store: &str) -> bool {
    store.starts_with("postgres://") || store.starts_with("postgresql://")
}

pub(super) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// A store's name for people: where the file is, or the URL without its password.
pub(super) fn shown(store: &str) -> String {
    if !is_postgres(store) {
        return absolute(Path::new(store));
    }
    match reqwest::Url::parse(store) {
        Ok(mut url) => {
            let has_password = url.password().is_some();
            // Parameters may hold a password too, and say nothing about where the store is.
            url.set_query(None);
            if has_password && url.set_password(Some("***")).is_err() {
                return "PostgreSQL".into();
            }
            url.to_string()
        }
        Err(_) => "PostgreSQL".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_password_is_not_shown() {
        let shown_as = [
            ("postgres://u:hunter2@db:5432/fleet", "postgres://u:***@db:5432/fleet"),
            ("postgresql://u@db/fleet?password=hunter2", "postgresql://u@db/fleet"),
            ("postgres://u:hunter2@[db/fleet", "PostgreSQL"),
            ("/var/lib/pillarbox.db", "/var/lib/pillarbox.db"),
        ];
        for (store, expected) in shown_as {
            assert_eq!(shown(store), expected);
        }
    }
}
