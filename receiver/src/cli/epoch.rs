//! `pillarbox epoch`: the name that devices know the database by.

use super::output::Reader;
use super::target::{Given, Missing, Target, TargetArgs};
use super::{Ended, Result};
use crate::admin::{RenewEpoch, ShowEpoch};

/// Show or renew the name that devices know the database by
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A database that was put back has forgotten what it was told since. With another name, its devices repeat what they explained. \
What `pillarbox backup` made takes another name by itself; after any other way to restore, renew it before devices come.

Examples:
  pillarbox epoch
  pillarbox epoch --renew")]
pub(super) struct EpochArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    reader: Reader,
    /// Take another name: devices repeat their accounts
    #[arg(long)]
    renew: bool,
}

pub(super) async fn run(args: EpochArgs, given: Given) -> Result<Ended> {
    let target = Target::open(args.target, given, Missing::Refuse).await?;
    let epoch = match args.renew {
        true => target.ask(RenewEpoch {}).await?,
        false => target.ask(ShowEpoch {}).await?,
    };
    args.reader.tell(&epoch, || epoch.epoch.clone())?;
    Ok(Ended::Well)
}
