//! The batch: what a device says about one lane of one incarnation.

use super::{TAG_LEN, TagKeys, WireError};
use crate::{DeviceId, Entry, Stored};

/// What stands at the head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Head {
    /// Who says it.
    pub device: DeviceId,
    /// Whose counters these are.
    pub incarnation: u32,
    /// The lane.
    pub lane: u8,
    /// The incarnation takes no more records.
    pub is_closing: bool,
    /// Every counter below is settled or accounted for.
    pub floor: u64,
    /// The next counter.
    pub issued: u64,
    /// Number of this boot.
    pub boot: u32,
    /// Tells this boot from another with the same number.
    pub boot_nonce: u32,
    /// Tells this envelope from every other.
    pub attempt_nonce: u64,
    /// Milliseconds since boot.
    pub uptime_ms: u64,
    /// Milliseconds since 1970, if the device knows them.
    pub wall_ms: Option<u64>,
}

/// Puts a batch together in a buffer, record by record as they are read from the flash. The head is written last, right
/// before the first record.
pub struct BatchWriter<'b> {
    buffer: &'b mut [u8],
}

impl<'b> BatchWriter<'b> {
    /// Bytes that a head takes at most, with the numbers and lengths of the sections, and the tag.
    pub const HEAD_MAX: usize = 0;
    /// Bytes that an entry of the account takes at most.
    pub const ENTRY_MAX: usize = 1 + 10 + 10;
    /// Bytes that a record takes at most beside its body.
    pub const RECORD_MAX: usize = 0;

    /// Begins a batch at this time of this boot, with room for so many entries of the account before the records.
    pub fn new(
        buffer: &'b mut [u8],
        boot: u32,
        uptime_ms: u64,
        wall_ms: Option<u64>,
        entries: usize,
    ) -> Self {
        let _ = (boot, uptime_ms, wall_ms, entries);
        Self { buffer }
    }

    /// Where the records begin: the floor. Before the first of them.
    pub fn set_floor(&mut self, floor: u64) {
        let _ = floor;
    }

    /// Adds a record; `false` if it does not fit in a batch of at most so many bytes.
    pub fn record(&mut self, record: &Stored<'_>, at_most: usize) -> bool {
        let _ = (record, at_most, &self.buffer);
        todo!()
    }

    /// Adds a dead letter, after all records; `false` if it does not fit.
    pub fn late(&mut self, record: &Stored<'_>, at_most: usize) -> bool {
        let _ = (record, at_most);
        todo!()
    }

    /// Writes the head, as many entries as there is room for, and the tag. Gives the whole envelope and the number of entries.
    pub fn finish(
        self,
        head: &mut Head,
        account: &[Entry],
        report: &[u32],
        keys: &TagKeys,
    ) -> Result<(&'b [u8], usize), WireError> {
        let _ = (head, account, report, keys, TAG_LEN);
        todo!()
    }
}

/// A batch that was read and found to keep the rules.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// Its head.
    pub head: Head,
    account: &'a [u8],
    report: &'a [u8],
    records: &'a [u8],
    late: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Whose batch this claims to be, so that its tag can be checked.
    pub fn device(envelope: &[u8]) -> Result<DeviceId, WireError> {
        let _ = envelope;
        todo!()
    }

    /// Reads an envelope whose tag was found right. Everything is checked here: what it holds can be relied on.
    pub fn decode(envelope: &'a [u8]) -> Result<Self, WireError> {
        let _ = envelope;
        todo!()
    }

    /// The account.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + 'a {
        let _ = self.account;
        core::iter::empty()
    }

    /// The report, by place.
    pub fn report(&self) -> impl Iterator<Item = u32> + 'a {
        let _ = self.report;
        core::iter::empty()
    }

    /// The records, with neither tag nor cause.
    pub fn records(&self) -> impl Iterator<Item = Stored<'a>> + 'a {
        let _ = self.records;
        core::iter::empty()
    }

    /// Dead letters that were sent again.
    pub fn late(&self) -> impl Iterator<Item = Stored<'a>> + 'a {
        let _ = self.late;
        core::iter::empty()
    }
}

/// What tells one content from another under the same key.
pub fn fingerprint(record: &Stored<'_>) -> [u8; 16] {
    let _ = record;
    todo!()
}
