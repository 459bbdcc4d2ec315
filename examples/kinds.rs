//! Writes the kinds file of an application, so that its receiver can show records as JSON:
//!
//! ```sh
//! cargo run --example kinds --features schema > kinds.toml
//! ```
//!
//! An application has its records in a library that its firmware uses too, switches the feature on for its examples
//! (`pillarbox = { .., features = ["schema"] }` under `[dev-dependencies]`), and needs only what stands below `KINDS`.

use pillarbox::schema::{Described, KindsFile};
use pillarbox::{EncodedSize, Record, Schema};
use serde::Serialize;

/// What a meter says every quarter of an hour.
#[derive(Serialize, EncodedSize, Record, Schema)]
#[record(kind = 7)]
pub struct Reading {
    /// Which of the meters on this device.
    pub meter: heapless::String<12>,
    /// What it shows.
    pub watt_hours: u64,
    /// Volts of each phase.
    pub phases: [f32; 3],
    /// What somebody may have done to it.
    pub tamper: Option<Tamper>,
}

/// What somebody may do to a meter.
#[derive(Serialize, EncodedSize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Tamper {
    /// Somebody opened it.
    CoverOpen,
    /// Somebody holds a magnet to it.
    Magnet {
        /// How strong a magnet.
        millitesla: u16,
    },
}

/// A line of the device's own journal.
#[derive(Serialize, EncodedSize, Record, Schema)]
#[record(kind = 8)]
pub struct JournalLine {
    /// What happened.
    pub text: heapless::String<60, u8>,
    /// Where in the firmware.
    pub place: (heapless::String<16, u8>, u16),
    /// What else was measured then.
    pub samples: heapless::Vec<i16, 8, u8>,
}

const KINDS: KindsFile =
    KindsFile::new(&[Described::of::<Reading>(), Described::of::<JournalLine>().named("journal")]);

fn main() {
    print!("{KINDS}");
}
