//! What an inspection has found, as programs read it in JSON and as the tables show it.

use serde::Serialize;

use crate::admin::IncarnationName;
use crate::moment::Moment;

/// Everything that a dump tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Nothing is damaged. What a power cut leaves is no damage.
    pub is_sound: bool,
    /// Bytes of the dump.
    pub bytes: u64,
    /// Whose region it is, if the metadata can be read.
    pub region: Option<RegionView>,
    /// The lanes, if the metadata can be read.
    pub lanes: Vec<LaneView>,
    /// Every record: lane by lane, then the dead letters, in each the oldest first.
    pub records: Vec<RecordView>,
    /// What will not arrive, and why.
    pub account: Vec<EntryView>,
    /// Dead letters that are to be sent again.
    pub late: Vec<String>,
    /// Incarnations that take no more records, and whose books may still be open.
    pub former: Vec<FormerView>,
    /// The halves of the metadata.
    pub metadata: Vec<HalfView>,
    /// Every page of every ring.
    pub pages: Vec<PageView>,
    /// How much of everything there is.
    pub totals: Totals,
    /// What power cuts have left and the next boot brings in order, and what else is worth knowing.
    pub notes: Vec<Finding>,
    /// What is damaged or missing.
    pub problems: Vec<Finding>,
}

/// Something that is to be said, and the address in the dump that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where in the dump.
    pub address: Option<u64>,
    /// A sentence.
    pub says: String,
}

/// Whose region it is, and how it is laid out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegionView {
    /// Whose.
    pub device: String,
    /// Where in the dump it begins.
    pub origin: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes that are erased at once.
    pub page: u32,
    /// Bytes that are programmed at once.
    pub word: u32,
    /// The largest stored record that may be in it.
    pub record_max: u16,
    /// Number of the newest snapshot.
    pub sequence: u32,
    /// The incarnation of new records.
    pub incarnation: IncarnationName,
    /// How often the region was opened.
    pub boot: u32,
    /// What has begun and is to be finished by the next boot.
    pub unfinished: Option<String>,
    /// First page and number of pages of the dead-letter ring.
    pub dead_letters: (u16, u16),
}

/// A lane's counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneView {
    /// Its number.
    pub lane: u8,
    /// First page and number of pages of its ring.
    pub pages: (u16, u16),
    /// Every counter below was handed out, as the metadata say.
    pub next: u64,
    /// No counter from here on was handed out.
    pub ceiling: u64,
    /// Counters that may have been handed out and lost: the first, and how many at most.
    pub uncertain: Option<(u64, u64)>,
    /// Records that wait.
    pub pending: u64,
    /// Records and bytes that waited at the last clean stop, if nothing happened since.
    pub at_stop: Option<(u32, u32)>,
    /// The newest record of each tag: tag and key.
    pub tags: Vec<(u32, String)>,
    /// Records that were rejected and not given up: key and how often.
    pub attempts: Vec<(String, u16)>,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It waits to be sent.
    Pending,
    /// It is a dead letter.
    Dead,
    /// It waits or is a dead letter, and the next boot removes it: `leaving` says why.
    Leaving,
    /// It was delivered or given up.
    Removed,
    /// It is whole, and lies where the device does not look.
    Stray,
}

impl Fate {
    /// Its name, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Dead => "dead",
            Self::Leaving => "leaving",
            Self::Removed => "removed",
            Self::Stray => "stray",
        }
    }
}

/// Which part of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// The ring of this lane.
    Lane(u8),
    /// The ring of the dead letters.
    DeadLetters,
    /// A page of which nobody can say.
    Unknown,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordView {
    /// Its name, with `?` for the device if nobody knows whose it is.
    pub key: String,
    /// Of its name: the incarnation.
    pub incarnation: IncarnationName,
    /// Of its name: the lane.
    pub lane: u8,
    /// Of its name: the counter.
    pub counter: u64,
    /// What becomes of it.
    pub state: Fate,
    /// Why the next boot removes it.
    pub leaving: Option<&'static str>,
    /// Why it is a dead letter.
    pub cause: Option<&'static str>,
    /// How often it was rejected, as far as the metadata count it.
    pub attempts: Option<u16>,
    /// It is to be sent again.
    pub is_late: bool,
    /// What it is about, if it was enqueued to supersede.
    pub tag: Option<u32>,
    /// What its body is.
    pub kind: u16,
    /// What that is called.
    pub name: Option<String>,
    /// When it was enqueued, if the device knew the time.
    pub at: Option<Moment>,
    /// During which boot.
    pub boot: u32,
    /// Milliseconds since that boot.
    pub uptime_ms: u64,
    /// The body, decoded, if its kind is known.
    pub data: Option<serde_json::Value>,
    /// Why a body of a known kind could not be decoded.
    pub unreadable: Option<String>,
    /// The body as it is, if it was not decoded.
    pub hex: Option<String>,
    /// Where it lies.
    pub ring: Where,
    /// The page of that ring.
    pub page: u16,
    /// Where in the dump.
    pub address: u32,
}

/// An entry of the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryView {
    /// Whose counters.
    pub incarnation: IncarnationName,
    /// Which lane's.
    pub lane: u8,
    /// Why they will not arrive.
    pub reason: &'static str,
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// An incarnation that takes no more records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormerView {
    /// Its number.
    pub incarnation: IncarnationName,
    /// For each lane, the counter after its last.
    pub issued: Vec<u64>,
}

/// A half of the metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HalfView {
    /// Where in the dump it begins.
    pub address: u32,
    /// Its magic is as it should be.
    pub has_magic: bool,
    /// Whole snapshots.
    pub snapshots: u32,
    /// The newest of them.
    pub newest: Option<u32>,
    /// Bytes behind the last whole one that were written to.
    pub broken: u32,
    /// Blank bytes.
    pub free: u32,
}

/// How a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageHealth {
    /// As it should be.
    Sound,
    /// A power cut has left something that the next boot brings in order.
    Cut,
    /// Damaged.
    Damaged,
    /// Some of it, or all, is not in the dump.
    Missing,
}

/// A page of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PageView {
    /// The ring.
    pub ring: Where,
    /// Its place in that ring.
    pub page: u16,
    /// Where in the dump it begins.
    pub address: u64,
    /// What it is: `open`, `in use`, `closed`, `erasing`, `senseless` or `missing`.
    pub state: &'static str,
    /// What stands in the place of its magic: `exact`, `blank`, `zeroed` or `other`.
    pub magic: Option<&'static str>,
    /// How it is.
    pub health: PageHealth,
    /// Records that wait, or dead letters.
    pub pending: u32,
    /// Records that were removed.
    pub removed: u32,
    /// Appends that were cut, and that a boot has zeroed.
    pub void: u32,
    /// Items that are damaged.
    pub corrupt: u32,
    /// Appends that were cut, and that the next boot zeroes.
    pub unfinished: u32,
    /// Whole records where the device does not look.
    pub strays: u32,
    /// Words that boots have spent.
    pub spent_words: u32,
    /// Bytes in which it can take records.
    pub free: u32,
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Records that wait.
    pub pending: u64,
    /// Dead letters.
    pub dead: u64,
    /// Records that the next boot removes.
    pub leaving: u64,
    /// Records that were removed.
    pub removed: u64,
    /// Whole records where the device does not look.
    pub strays: u64,
    /// Appends that were cut, and that a boot has zeroed.
    pub void: u64,
    /// Appends that were cut, and that the next boot zeroes.
    pub unfinished: u64,
    /// Items that are damaged.
    pub corrupt: u64,
    /// Pages.
    pub pages: u64,
    /// Pages that are damaged or missing.
    pub bad_pages: u64,
    /// Bytes in which records can be taken without an erase.
    pub free: u64,
}
