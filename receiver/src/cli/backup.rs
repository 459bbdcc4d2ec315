//! `pillarbox backup`: a copy of a SQLite store, while the receiver goes on.

use std::path::{Path, PathBuf};

use super::options::{DEFAULT_STORE, Options};
use super::target::{StoreArgs, absolute, is_postgres};
use super::{CliError, Ended, Result, output};
use crate::store::sqlite::SqliteStore;

/// Copy a SQLite store to a file while the receiver goes on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The copy is whole, and only its owner can read it: it holds the devices' secrets. Served it takes another epoch, so \
that devices repeat what they explained; the records that came after it was made are lost, unless devices still have them.

Examples:
  pillarbox backup /backup/pillarbox-$(date +%F).db
  pillarbox serve --store /backup/pillarbox-2026-03-01.db")]
pub(super) struct BackupArgs {
    /// Where the copy goes: a file that is not there yet
    file: PathBuf,
    #[command(flatten)]
    at: StoreArgs,
}

pub(super) async fn run(args: BackupArgs) -> Result<Ended> {
    let options = Options::load(args.at.config.as_deref())?;
    let name = args.at.store.or(options.store).unwrap_or_else(|| DEFAULT_STORE.into());
    if is_postgres(&name) {
        let sentence = "this store is PostgreSQL, which has its own: pg_dump --format=custom, or a base backup with its log archive";
        return Err(CliError::Refused(sentence.into()));
    }
    let path = Path::new(&name);
    if !path.exists() {
        let sentence = format!("there is no store in {}: name it with --store", absolute(path));
        return Err(CliError::Refused(sentence));
    }
    SqliteStore::open(path)?.backup(&args.file).await?;
    output::text(&format!("{} is a copy of {}", absolute(&args.file), absolute(path)))?;
    Ok(Ended::Well)
}
