//! Finding the newest snapshot in the two halves of the metadata: the same for the device and for the read-only scan.

use crate::{
    Geometry,
    geometry::FORMAT,
    io::{Cells, Io, Job, SCRATCH, is_blank},
    item::{DataCrc, Header},
    layout::metadata_half,
    ledger::SnapshotHead,
};

/// How often a snapshot is read until it is whole: one that was not written to its end may be so by chance.
const READS: u8 = 16;

/// A snapshot that was whole when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) half: u32,
    offset: u32,
    header: Header,
    pub(crate) sequence: u32,
}

impl Found {
    fn len(&self) -> u32 {
        self.header.len.into()
    }

    /// The snapshot that was found, or as much of it as there was memory for.
    pub(crate) fn snapshot<'b>(&self, geometry: Geometry, cells: &'b Cells<'_>) -> &'b [u8] {
        let bytes = cells.record.get(geometry.word() as usize..).unwrap_or_default();
        bytes.get(..self.len() as usize).unwrap_or(bytes)
    }
}

enum Step {
    Look,
    Seen,
    /// A snapshot's data were read, as many of them as there is memory for.
    Data(Header),
    /// So many are done. The rest is only looked at: a region with more lanes has larger snapshots, and is to be
    /// known as such.
    More(Header, DataCrc, u32),
    /// Both halves were seen.
    Choose,
    Done,
}

/// Finds the newest whole snapshot, puts it into the record's memory behind a word for its header, and programs it
/// once more, in case a power cut has left its cells weak.
pub(crate) struct Load {
    geometry: Geometry,
    origin: u32,
    step: Step,
    half: u32,
    offset: u32,
    /// Newer ones were whole by chance only.
    below: u32,
    best: Option<Found>,
    /// Reads of the best that are left, once it is chosen.
    reads: Option<u8>,
    pub(crate) found: Option<Found>,
    /// Whole snapshots of another version of this library. One of them may be newer than ours.
    pub(crate) other_format: Option<u8>,
}

impl Load {
    pub(crate) fn new(geometry: Geometry, origin: u32) -> Self {
        Self {
            geometry,
            origin,
            step: Step::Look,
            half: 0,
            offset: geometry.word(),
            below: u32::MAX,
            best: None,
            reads: None,
            found: None,
            other_format: None,
        }
    }

    /// Looks again, for an older one.
    pub(crate) fn older_than(&mut self, found: &Found) {
        (self.step, self.half, self.offset) = (Step::Look, 0, self.geometry.word());
        (self.below, self.best, self.reads, self.found) = (found.sequence, None, None, None);
    }

    fn address(&self, offset: u32) -> u32 {
        self.origin + self.half * metadata_half(self.geometry) + offset
    }

    fn go_on(&mut self, by: u32) {
        self.offset += by;
        self.step = Step::Look;
    }

    fn look(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let word = self.geometry.word();
        if self.offset + word > metadata_half(self.geometry) {
            return self.end_half();
        }
        self.step = Step::Seen;
        Some(cells.read(self.address(self.offset), word))
    }

    fn end_half(&mut self) -> Option<Io> {
        self.half += 1;
        self.offset = self.geometry.word();
        self.step = if self.half < 2 { Step::Look } else { Step::Choose };
        None
    }

    fn seen(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let word = self.geometry.word();
        if is_blank(cells.scratch(word)) {
            return self.end_half();
        }
        let fits = |header: &Header| {
            self.offset + self.geometry.item_span(header.len.into()) <= metadata_half(self.geometry)
        };
        match Header::parse(cells.scratch(word)).filter(fits) {
            Some(header) => Some(self.read(header, cells)),
            None => {
                self.go_on(word);
                None
            }
        }
    }

    /// Reads the header and as much of the data as there is memory for.
    fn read(&mut self, header: Header, cells: &mut Cells<'_>) -> Io {
        self.step = Step::Data(header);
        let len = self.geometry.item_span(header.len.into()).min(self.room(cells));
        cells.read_record(self.address(self.offset), len)
    }

    fn room(&self, cells: &Cells<'_>) -> u32 {
        cells.record.len() as u32 & !(self.geometry.word() - 1)
    }

    fn data(&mut self, header: Header, cells: &mut Cells<'_>) -> Option<Io> {
        let word = self.geometry.word();
        let end = (word + u32::from(header.len)).min(self.room(cells));
        let mut crc = DataCrc::new();
        crc.update(cells.record(end).get(word as usize..).unwrap_or_default());
        self.more(header, crc, end - word, cells)
    }

    fn more(&mut self, header: Header, crc: DataCrc, done: u32, cells: &mut Cells<'_>) -> Option<Io> {
        let left = u32::from(header.len).saturating_sub(done);
        if left == 0 {
            self.judge(header, crc.end(), cells);
            return None;
        }
        self.step = Step::More(header, crc, done);
        let at = self.address(self.offset + self.geometry.word() + done);
        Some(cells.read(at, self.geometry.round_up(left).min(SCRATCH as u32)))
    }

    fn judge(&mut self, header: Header, crc: u32, cells: &Cells<'_>) {
        let is_whole = crc == header.crc;
        if let (Some(reads), Some(best)) = (self.reads, self.best) {
            // It was chosen, and this was another look at it.
            self.step = Step::Choose;
            self.reads = reads.checked_sub(1);
            if is_whole {
                self.found = Some(best);
            } else if reads == 0 {
                self.older_than(&best);
            }
            return;
        }
        let (word, offset) = (self.geometry.word(), self.offset);
        if !is_whole {
            return self.go_on(word);
        }
        self.go_on(self.geometry.item_span(header.len.into()));
        let end = (word + u32::from(header.len)).min(self.room(cells));
        match SnapshotHead::number(cells.record(end).get(word as usize..).unwrap_or_default()) {
            Some((FORMAT, sequence)) => {
                if sequence < self.below && self.best.is_none_or(|best| best.sequence <= sequence) {
                    self.best = Some(Found { half: self.half, offset, header, sequence });
                }
            }
            Some((format, _)) => self.other_format = Some(format),
            None => {}
        }
    }

    fn choose(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        self.step = Step::Done;
        let best = self.best.filter(|_| self.other_format.is_none())?;
        (self.half, self.offset) = (best.half, best.offset);
        if self.found.is_some() {
            let len = self.geometry.item_span(best.len());
            return (len <= self.room(cells)).then(|| cells.program_record(self.address(self.offset), len));
        }
        self.reads = self.reads.or(Some(READS));
        Some(self.read(best.header, cells))
    }
}

impl Job for Load {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        loop {
            let io = match core::mem::replace(&mut self.step, Step::Done) {
                Step::Look => self.look(cells),
                Step::Seen => self.seen(cells),
                Step::Data(header) => self.data(header, cells),
                Step::More(header, mut crc, done) => {
                    let got = u32::from(header.len).saturating_sub(done).min(SCRATCH as u32);
                    crc.update(cells.scratch(got));
                    self.more(header, crc, done + got, cells)
                }
                Step::Choose => self.choose(cells),
                Step::Done => return None,
            };
            if io.is_some() {
                return io;
            }
        }
    }
}
