//! `pillarbox records export`: all that was asked for, as JSON lines or CSV, however long it is.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::output::{Progress, complain, grouped};
use super::records::Filter;
use super::target::{Target, absolute};
use super::{CliError, Result};
use crate::admin::RecordView;
use crate::moment::Moment;

/// How records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Comma-separated values, with a line of heads
    Csv,
    /// A JSON object on each line
    Jsonl,
}

impl Format {
    /// What the name of a file says.
    pub(super) fn of(path: Option<&Path>) -> Self {
        let is_csv = path.and_then(Path::extension).is_some_and(|end| end.eq_ignore_ascii_case("csv"));
        if is_csv { Self::Csv } else { Self::Jsonl }
    }
}

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) filter: Filter,
    pub(super) since: Option<Moment>,
    pub(super) until: Option<Moment>,
    pub(super) asides: bool,
}

impl Wanted {
    /// Whether a record was made in the span of time, or may have been.
    fn is_in_time(&self, record: &RecordView) -> bool {
        let latest = record.time.latest();
        let earliest = record.time.at.or(record.time.after);
        let is_after = self.since.is_none_or(|since| latest.is_none_or(|latest| latest >= since));
        let is_before = self.until.is_none_or(|until| earliest.is_none_or(|earliest| earliest < until));
        is_after && is_before
    }
}

/// Writes a file that has its name only when all is in it.
pub(super) async fn to_file(target: &Target, wanted: &Wanted, format: Format, path: &Path) -> Result<()> {
    let cannot = |error: io::Error| CliError::Refused(format!("cannot write {}: {error}", path.display()));
    if path.exists() {
        let sentence = format!("{} is there already: choose another name", path.display());
        return Err(CliError::Refused(sentence));
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let file = std::fs::File::create(&part).map_err(cannot)?;
    let count = write(target, wanted, format, &file).await?;
    file.sync_all().and_then(|()| std::fs::rename(&part, path)).map_err(cannot)?;
    complain(&format!("{} records in {}", grouped(count), absolute(path)));
    Ok(())
}

/// Writes all that is wanted, and says how many records that were.
pub(super) async fn write(target: &Target, wanted: &Wanted, format: Format, to: impl Write) -> Result<u64> {
    let mut lines = Lines::new(format, to)?;
    let mut progress = Progress::new();
    let (mut count, mut seen) = (0_u64, 0_u64);
    let mut after = None;
    loop {
        let page = match wanted.asides {
            true => target.ask(wanted.filter.asides(after)).await?,
            false => target.ask(wanted.filter.log(None, after)).await?,
        };
        seen += page.records.len() as u64;
        for record in page.records.iter().filter(|record| wanted.is_in_time(record)) {
            lines.add(record)?;
            count += 1;
        }
        progress.at(|| format!("{} of {} records written", grouped(count), grouped(seen)));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    lines.finish()?;
    Ok(count)
}

enum Lines<W: Write> {
    Csv(Box<csv::Writer<W>>),
    Json(BufWriter<W>),
}

/// The columns of CSV: the fields of the JSON, with the time's spread out.
const HEADS: [&str; 16] = [
    "place",
    "key",
    "device",
    "tenant",
    "kind",
    "name",
    "time",
    "time_after",
    "time_before",
    "received_at",
    "aside",
    "content_type",
    "data",
    "unreadable",
    "hex",
    "base64",
];

impl<W: Write> Lines<W> {
    fn new(format: Format, to: W) -> Result<Self> {
        match format {
            Format::Jsonl => Ok(Self::Json(BufWriter::new(to))),
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(to);
                writer.write_record(HEADS).map_err(no_csv)?;
                Ok(Self::Csv(Box::new(writer)))
            }
        }
    }

    fn add(&mut self, record: &RecordView) -> Result<()> {
        match self {
            Self::Json(to) => {
                serde_json::to_writer(&mut *to, record).map_err(io::Error::from)?;
                Ok(to.write_all(b"\n")?)
            }
            Self::Csv(to) => to.write_record(cells(record)).map_err(no_csv),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Json(mut to) => Ok(to.flush()?),
            Self::Csv(mut to) => Ok(to.flush()?),
        }
    }
}

fn no_csv(error: csv::Error) -> CliError {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => CliError::Refused(format!("a record cannot be written as CSV: {other:?}")),
    }
}

fn cells(record: &RecordView) -> [String; HEADS.len()] {
    let text = |cell: &Option<String>| cell.clone().unwrap_or_default();
    let moment = |at: Option<Moment>| at.map_or_else(String::new, |at| at.to_string());
    [
        record.place.map_or_else(String::new, |place| place.to_string()),
        record.key.clone(),
        text(&record.device),
        record.tenant.clone(),
        record.kind.to_string(),
        text(&record.name),
        moment(record.time.at),
        moment(record.time.after),
        moment(record.time.before),
        record.received_at.to_string(),
        text(&record.aside),
        text(&record.content_type),
        record.data.as_ref().map_or_else(String::new, ToString::to_string),
        text(&record.unreadable),
        text(&record.hex),
        text(&record.base64),
    ]
}
