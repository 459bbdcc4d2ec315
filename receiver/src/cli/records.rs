//! `pillarbox records`: reads what came.

use std::path::PathBuf;

use clap::Subcommand;
use pillarbox::DeviceId;

use super::output::{Reader, facts, tamed, wrapped};
use super::target::{Given, Missing, Target, TargetArgs};
use super::{CliError, Ended, Result, export, tail};
use crate::admin::{GetRecord, ListAsides, ListRecords, Place, RecordPage, RecordStory, RecordView, Tenant};
use crate::moment::Moment;
use crate::store::Position;

/// Read records: as they come, by key, or all of them
#[derive(Debug, clap::Args)]
pub(super) struct RecordsArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    reader: Reader,
    #[command(subcommand)]
    command: RecordsCommand,
}

#[derive(Debug, Subcommand)]
enum RecordsCommand {
    /// Show the youngest records, and those that come, until Ctrl-C
    #[command(after_help = "\
Examples:
  pillarbox records tail
  pillarbox records tail --device meter-1 --last 100
  pillarbox records tail --json | jq .data")]
    Tail {
        #[command(flatten)]
        filter: Filter,
        /// So many of those that are there already
        #[arg(long, short = 'n', default_value_t = 10, value_name = "NUMBER")]
        last: usize,
        /// Do not wait for more
        #[arg(long)]
        no_follow: bool,
    },
    /// Show a record by its key or its place, and what is known of it if it is not here
    #[command(after_help = "\
Examples:
  pillarbox records get meter-1.9f3c1a77.0.18204
  pillarbox records get 3-1200")]
    Get {
        /// A device's key, device.incarnation.lane.counter, or a place in the log, shard-number
        key: String,
    },
    /// Write records as JSON lines or CSV, the oldest of each shard first
    #[command(after_help = "\
A record whose time is not exactly known is in a span of time if it may be.

Examples:
  pillarbox records export > records.jsonl
  pillarbox records export --out records.csv --device meter-1
  pillarbox records export --kind reading --since 2026-03-01 --until 2026-04-01 --format csv
  pillarbox records export --asides")]
    Export {
        #[command(flatten)]
        filter: Filter,
        /// Made then or later: 2026-03-01, or 2026-03-01T12:30:00Z
        #[arg(long, value_name = "TIME")]
        since: Option<Moment>,
        /// Made before then
        #[arg(long, value_name = "TIME")]
        until: Option<Moment>,
        /// What is kept aside instead of the log: unreadable, quarantined, in conflict
        #[arg(long)]
        asides: bool,
        /// How it is written: csv or jsonl [default: csv if --out says so, else jsonl]
        #[arg(long, hide_possible_values = true)]
        format: Option<export::Format>,
        /// Write to this file; it has its name when it is complete
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// Which records.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Filter {
    /// Only of this device
    #[arg(long)]
    pub(super) device: Option<DeviceId>,
    /// Only of this tenant
    #[arg(long)]
    pub(super) tenant: Option<Tenant>,
    /// Only of this kind: its name or number
    #[arg(long)]
    pub(super) kind: Option<String>,
}

impl Filter {
    /// A page of the log: of one shard or all, behind a place.
    pub(super) fn log(&self, shard: Option<u16>, after: Option<Place>) -> ListRecords {
        let Self { device, tenant, kind } = self.clone();
        ListRecords { device, tenant, kind, shard, after, limit: None }
    }

    /// A page of what is kept aside.
    pub(super) fn asides(&self, after: Option<Place>) -> ListAsides {
        let Self { device, tenant, kind } = self.clone();
        ListAsides { device, tenant, kind, after, limit: None }
    }
}

pub(super) async fn run(args: RecordsArgs, given: Given) -> Result<Ended> {
    let RecordsArgs { target, reader, command } = args;
    let target = Target::open(target, given, Missing::Refuse).await?;
    match command {
        RecordsCommand::Tail { filter, last, no_follow } => {
            tail::run(&target, reader, &filter, last, no_follow).await?;
        }
        RecordsCommand::Get { key } => get(&target, reader, key).await?,
        RecordsCommand::Export { filter, since, until, asides, format, out } => {
            let wanted = export::Wanted { filter, since, until, asides };
            let by_name =
                || if reader.json { export::Format::Jsonl } else { export::Format::of(out.as_deref()) };
            let format = format.unwrap_or_else(by_name);
            match out {
                Some(path) => export::to_file(&target, &wanted, format, &path).await?,
                None => drop(export::write(&target, &wanted, format, std::io::stdout()).await?),
            }
        }
    }
    Ok(Ended::Well)
}

async fn get(target: &Target, reader: Reader, key: String) -> Result<()> {
    let story = match key.parse::<Place>() {
        Ok(place) => at(target, place).await?,
        Err(_) => target.ask(GetRecord { key }).await?,
    };
    reader.tell(&story, || words(&story))?;
    // Scripts ask whether a record is here; people have read why it is not.
    match story.records.is_empty() {
        true if reader.json => Err(CliError::Refused(format!("{} is {}", story.key, story.state))),
        true => Err(CliError::Refused("no record is stored under this key".into())),
        false => Ok(()),
    }
}

/// The record at a place in the log.
async fn at(target: &Target, place: Place) -> Result<RecordStory> {
    let nothing = || CliError::Refused(format!("nothing is at {place} in the log"));
    let shard = place.0.shard();
    let before = place.0.n().checked_sub(1).ok_or_else(nothing)?;
    let after = Some(Place(Position::new(shard, before)));
    let request = ListRecords { shard: Some(shard), after, limit: Some(1), ..ListRecords::default() };
    let RecordPage { mut records, .. } = target.ask(request).await?;
    records.retain(|record| record.place == Some(place));
    let key = records.first().map(|record| record.key.clone()).ok_or_else(nothing)?;
    Ok(RecordStory { key, state: "received".into(), records })
}

fn words(story: &RecordStory) -> String {
    let mut text = wrapped(&format!("{}: {}", story.key, meaning(&story.state)), "", "  ");
    for record in &story.records {
        text += &format!("\n{}", facts(facts_of(record)));
    }
    text
}

/// What a state means.
fn meaning(state: &str) -> String {
    match state {
        "received" => "it is here".into(),
        "pending" => "the device has it, and will send it".into(),
        "unexplained" => "it is missing, and the device has not said why; it was asked".into(),
        "not issued" => "as far as is known, the device has not numbered a record so high".into(),
        "not known" => "nothing was ever heard of this incarnation and lane".into(),
        "settled" => "the books are done with it: it was received, or explained long ago".into(),
        "uncertain" => "perhaps there never was one: the device lost power around it, and cannot know".into(),
        "lost" => "it was handed out and is gone; the device cannot say why".into(),
        "parked" => "it is among the device's dead letters, and may still come".into(),
        reason => format!("it will not come; the device says why: {reason}"),
    }
}

fn facts_of(record: &RecordView) -> Vec<(&'static str, String)> {
    let kind = match &record.name {
        Some(name) => format!("{} ({name})", record.kind),
        None => record.kind.to_string(),
    };
    let place = record.place.map(|place| place.to_string());
    let facts = [
        ("kept aside", record.aside.clone()),
        ("place", place),
        ("device", record.device.clone()),
        ("tenant", Some(record.tenant.clone())),
        ("kind", Some(kind)),
        ("made", Some(record.time.words())),
        ("received", Some(record.received_at.to_string())),
        ("content type", record.content_type.clone()),
        ("unreadable", record.unreadable.clone()),
        ("body", Some(record.body())),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name, tamed(&fact?)))).collect()
}
