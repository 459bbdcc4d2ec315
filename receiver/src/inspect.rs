//! `pillarbox inspect`: what lies in the flash of a device, read from a dump of it. For the day on which a device comes back from the
//! field and does not start any more: whatever can be read is shown, what cannot is said, and nothing is changed.

mod dump;
mod findings;
mod region;
mod survey;
mod tables;
mod told;
mod view;

use std::path::PathBuf;

use anyhow::Context;

use crate::kinds::Kinds;

pub use view::{
    Fate, Finding, HalfView, Inspection, LaneView, PageHealth, PageView, RecordView, RegionView, Totals,
    Where,
};

/// Show what lies in a dump of a device's flash
///
/// Reads a raw binary dump of a device's outbox region, or of its whole flash, and shows whose it is, its counters, every
/// record that waits, the dead letters, what is given up and why, and the health of every page. The dump may be damaged or
/// cut off: whatever can be read is shown. Nothing is written.
///
/// The exit status is 0 if the region is sound, and 1 if something is damaged or there is no such file. What a power cut leaves
/// is no damage.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  probe-rs read b8 0x10180000 0x80000 --output dump.bin
  pillarbox inspect dump.bin
  pillarbox inspect dump.bin --kinds kinds.toml --lane 0
  pillarbox inspect flash.bin --origin 0x180000 --all
  pillarbox inspect dump.bin --json | jq '.records[] | select(.state == \"pending\")'")]
pub struct Inspect {
    /// The dump: the bytes of the flash as they are, no Intel HEX, ELF or UF2
    image: PathBuf,

    /// Where in the dump the region begins, such as 4096 or 0x1000; without it, it is looked for
    #[arg(long, value_name = "OFFSET", value_parser = parse_offset)]
    origin: Option<u32>,

    /// What the kinds are called and what their bodies mean, as the application writes it
    #[arg(long, value_name = "FILE")]
    kinds: Option<PathBuf>,

    /// Show this lane's records only
    #[arg(long, value_name = "N")]
    lane: Option<u8>,

    /// Show what was removed, too, as long as it is legible, and every page
    #[arg(long)]
    all: bool,

    /// Write JSON, for programs
    #[arg(long)]
    json: bool,
}

impl Inspect {
    /// Does it: what is to be said, and whether all is sound.
    pub fn run(&self) -> anyhow::Result<(String, bool)> {
        let kinds = self.kinds.as_deref().map(Kinds::load).transpose()?.unwrap_or_default();
        let bytes = dump::load(&self.image)?;
        let mut found = look(&bytes, self.origin, &kinds);
        found.records.retain(|record| self.shows(record));
        let text = if self.json {
            serde_json::to_string_pretty(&found).context("what was found could not be written as JSON")?
        } else {
            tables::write(&found, self.all)
        };
        Ok((text, found.is_sound))
    }

    fn shows(&self, record: &RecordView) -> bool {
        let is_of_lane = self.lane.is_none_or(|lane| lane == record.lane);
        is_of_lane && (self.all || record.state != Fate::Removed)
    }
}

/// Looks at a dump: the region that begins at `origin`, or the one that is found in it.
pub fn look(dump: &[u8], origin: Option<u32>, kinds: &Kinds) -> Inspection {
    survey::look(dump, origin, kinds)
}

fn parse_offset(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no offset: write it as 4096 or 0x1000, and below 4 GiB"))
}
