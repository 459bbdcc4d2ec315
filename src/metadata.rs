//! The two halves of the metadata: whole snapshots, of which the newest that is whole counts.
//!
//! The half that holds the newest snapshot is never erased. After a boot, or after a write that failed or was
//! given up, the next snapshot goes to the other half, freshly erased and seen to be blank: so nothing is ever
//! written behind cells that a power cut may have left in doubt.

use crate::{
    Geometry, Layout,
    io::{Cells, Erase, Io, Job, SCRATCH},
    item::{Header, data_crc},
    layout::metadata_half,
    ledger::Ledger,
    snapshots::Found,
};

/// A snapshot that the flash does not keep is written so many times.
const TRIES: u8 = 4;

/// Where the metadata lie and where the next snapshot goes.
pub(crate) struct Metadata {
    geometry: Geometry,
    origin: u32,
    sequence: u32,
    /// The half with the newest snapshot.
    newest: Option<u32>,
    /// Where in that half the next one goes; unset while a write is under way, and after it has failed.
    append_at: Option<u32>,
    pub(crate) erases: u32,
}

impl Metadata {
    pub(crate) const fn new(geometry: Geometry, origin: u32) -> Self {
        Self { geometry, origin, sequence: 0, newest: None, append_at: None, erases: 0 }
    }

    /// This is the newest snapshot; the next one goes to the other half. Behind this one there may be another that was cut
    /// and cannot be read today: its number is not used again, or it might win on the day when it can.
    pub(crate) fn found(&mut self, newest: &Found) {
        self.sequence = newest.sequence.saturating_add(1);
        (self.newest, self.append_at) = (Some(newest.half), None);
    }

    pub(crate) const fn origin(&self) -> u32 {
        self.origin
    }

    fn address(&self, half: u32, offset: u32) -> u32 {
        self.origin + half * metadata_half(self.geometry) + offset
    }

    pub(crate) fn erase(&mut self, half: u32) -> Erase {
        let (from, to) = (self.address(half, 0), self.address(half + 1, 0));
        let mut at = from;
        while at < to {
            self.erases += 1;
            at += self.geometry.page();
        }
        Erase::new(from, to, self.geometry)
    }

    /// Puts the next snapshot together in the record's memory, to be written.
    pub(crate) fn write<const LANES: usize>(
        &mut self,
        cells: &mut Cells<'_>,
        layout: &mut Layout,
        ledger: &mut Ledger<LANES>,
    ) -> Write<'_> {
        // A write that failed may still have left its snapshot there: no number is used twice.
        self.sequence = self.sequence.saturating_add(1);
        let word = self.geometry.word();
        let (head, data) = cells.record.split_at_mut_checked(word as usize).unwrap_or_default();
        let len = ledger.encode(data, self.sequence, layout, self.geometry);
        let written = len.and_then(|len| data.get(..len)).unwrap_or_default();
        Header { crc: data_crc(written), len: written.len() as u16 }.put(head);
        // There is room for every snapshot; should there ever not be, nothing is tried.
        let tries = if written.is_empty() { 0 } else { TRIES };
        Write { len: word + written.len() as u32, tries, at: (0, 0), step: Step::Start, metadata: self }
    }
}

enum Step {
    Start,
    Program,
    /// So much of it was seen to be there; so much is being read.
    Verify(u32, u32),
}

/// Writes a snapshot and sees that it is there. On failure the one before it still counts, or this one does.
#[repr(C)]
pub(crate) struct Write<'w> {
    // The small fields first, as in `Ring`.
    tries: u8,
    step: Step,
    len: u32,
    /// Half and offset.
    at: (u32, u32),
    metadata: &'w mut Metadata,
}

impl Job for Write<'_> {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let geometry = self.metadata.geometry;
        loop {
            let (half, offset) = self.at;
            let address = self.metadata.address(half, offset);
            match &mut self.step {
                Step::Start => {
                    let Some(tries) = self.tries.checked_sub(1) else { return Some(cells.not_written()) };
                    self.tries = tries;
                    let fits = |at: &u32| at + self.len <= metadata_half(geometry);
                    let append_at = self.metadata.append_at.take().filter(fits);
                    self.step = Step::Program;
                    match (self.metadata.newest, append_at) {
                        (Some(half), Some(at)) => self.at = (half, at),
                        (newest, _) => {
                            let half = newest.map_or(0, |newest| 1 - newest);
                            self.at = (half, geometry.word());
                            return Some(self.metadata.erase(half).begin(cells));
                        }
                    }
                }
                Step::Program => {
                    self.step = Step::Verify(0, 0);
                    return Some(cells.program_record(address, self.len));
                }
                Step::Verify(seen, reading) => {
                    let end = *seen + *reading;
                    let written = cells.record(end).get(*seen as usize..).unwrap_or_default();
                    if cells.scratch(*reading) != written {
                        self.step = Step::Start;
                        continue;
                    }
                    if end == self.len {
                        self.metadata.newest = Some(half);
                        self.metadata.append_at = Some(offset + self.len);
                        return None;
                    }
                    let len = (self.len - end).min(SCRATCH as u32);
                    (*seen, *reading) = (end, len);
                    return Some(cells.read(address + end, len));
                }
            }
        }
    }
}
