//! Finding the newest snapshot in the two halves of the metadata: the same for the device and for the read-only scan.

use crate::{
    Geometry,
    geometry::FORMAT,
    io::{Cells, Io, Job, SCRATCH, is_blank},
    item::{DataCrc, Header},
    layout::metadata_half,
    ledger::snapshot_number,
};

/// How often a snapshot is read until it is whole: one that was not written to its end may be so by chance.
const READS: u8 = 17;

/// A snapshot that was whole when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) half: u32,
    pub(crate) offset: u32,
    header: Header,
    pub(crate) sequence: u32,
}

impl Found {
    fn len(&self) -> u32 {
        self.header.len.into()
    }

    /// Bytes of flash that it takes.
    pub(crate) fn span(&self, geometry: Geometry) -> u32 {
        geometry.item_span(self.len())
    }

    /// The snapshot that was found, or as much of it as there was memory for.
    pub(crate) fn snapshot<'b>(&self, geometry: Geometry, cells: &'b Cells<'_>) -> &'b [u8] {
        let bytes = cells.record.get(geometry.word() as usize..).unwrap_or_default();
        bytes.get(..self.len() as usize).unwrap_or(bytes)
    }
}

#[derive(Clone, Copy)]
enum Step {
    Look,
    Seen,
    /// A snapshot's data were read, as many of them as there is memory for.
    Data,
    /// More of them were read. The rest is only looked at: a region with more lanes has larger snapshots, and is to be
    /// known as such.
    More,
    /// Both halves were seen.
    Choose,
    Done,
}

/// Finds the newest whole snapshot, puts it into the record's memory behind a word for its header, and programs it
/// once more, in case a power cut has left its cells weak.
#[repr(C)]
pub(crate) struct Load {
    // The small fields first, as in `Ring`.
    step: Step,
    /// Reads of the best that are left, once it is chosen; before, none.
    reads: u8,
    /// The one that was chosen was read and is whole.
    is_whole: bool,
    /// Whole snapshots of another version of this library. One of them may be newer than ours.
    pub(crate) other_format: Option<u8>,
    half: u32,
    offset: u32,
    /// The snapshot that is being read, and how much of its data is in the checksum.
    header: Header,
    done: u32,
    crc: DataCrc,
    /// Newer ones were whole by chance only.
    below: u32,
    origin: u32,
    geometry: Geometry,
    /// The best so far; when the job is done, the one that was found.
    pub(crate) found: Option<Found>,
}

impl Load {
    // Inlined into the one future that does all work it costs more than the call.
    #[inline(never)]
    pub(crate) fn new(geometry: Geometry, origin: u32) -> Self {
        Self {
            geometry,
            origin,
            step: Step::Look,
            half: 0,
            offset: geometry.word(),
            header: Header { crc: 0, len: 0 },
            done: 0,
            crc: DataCrc::new(),
            below: u32::MAX,
            reads: 0,
            is_whole: false,
            found: None,
            other_format: None,
        }
    }

    /// Looks again, for an older one.
    pub(crate) fn older_than(&mut self, found: &Found) {
        (self.step, self.half, self.offset) = (Step::Look, 0, self.geometry.word());
        (self.below, self.reads, self.is_whole, self.found) = (found.sequence, 0, false, None);
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
        self.step = Step::Data;
        self.header = header;
        let len = self.geometry.item_span(header.len.into()).min(self.room(cells));
        cells.read_record(self.address(self.offset), len)
    }

    fn room(&self, cells: &Cells<'_>) -> u32 {
        cells.record.len() as u32 & !(self.geometry.word() - 1)
    }

    /// The data in memory, or as much of them as there is memory for.
    fn in_memory<'b>(&self, cells: &'b Cells<'_>) -> &'b [u8] {
        let word = self.geometry.word();
        let end = (word + u32::from(self.header.len)).min(self.room(cells));
        cells.record(end).get(word as usize..).unwrap_or_default()
    }

    /// Another piece of the data was read.
    fn add(&mut self, data: &[u8]) {
        self.crc.update(data);
        self.done += data.len() as u32;
    }

    fn left(&self) -> u32 {
        u32::from(self.header.len).saturating_sub(self.done)
    }

    fn more(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let left = self.left();
        if left == 0 {
            self.judge(cells);
            return None;
        }
        self.step = Step::More;
        let at = self.address(self.offset + self.geometry.word() + self.done);
        Some(cells.read(at, self.geometry.round_up(left).min(SCRATCH as u32)))
    }

    fn judge(&mut self, cells: &Cells<'_>) {
        let header = self.header;
        let is_whole = core::mem::replace(&mut self.crc, DataCrc::new()).end() == header.crc;
        if self.reads != 0 {
            // It was chosen, and this was another look at it.
            self.step = Step::Choose;
            self.reads -= 1;
            self.is_whole = is_whole;
            if self.reads == 0
                && !is_whole
                && let Some(found) = self.found
            {
                self.older_than(&found);
            }
            return;
        }
        let (word, offset) = (self.geometry.word(), self.offset);
        if !is_whole {
            return self.go_on(word);
        }
        self.go_on(self.geometry.item_span(header.len.into()));
        match snapshot_number(self.in_memory(cells)) {
            Some((FORMAT, sequence))
                if sequence < self.below && self.found.is_none_or(|found| found.sequence <= sequence) =>
            {
                self.found = Some(Found { half: self.half, offset, header, sequence });
            }
            Some((FORMAT, _)) => {}
            Some((format, _)) => self.other_format = Some(format),
            None => {}
        }
    }

    fn choose(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        self.step = Step::Done;
        self.found = self.found.filter(|_| self.other_format.is_none());
        let found = self.found?;
        (self.half, self.offset) = (found.half, found.offset);
        if self.is_whole {
            let len = self.geometry.item_span(found.len());
            return (len <= self.room(cells)).then(|| cells.program_record(self.address(self.offset), len));
        }
        if self.reads == 0 {
            self.reads = READS;
        }
        Some(self.read(found.header, cells))
    }
}

impl Job for Load {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        loop {
            let io = match self.step {
                Step::Look => self.look(cells),
                Step::Seen => self.seen(cells),
                Step::Data => {
                    (self.crc, self.done) = (DataCrc::new(), 0);
                    self.add(self.in_memory(cells));
                    self.more(cells)
                }
                Step::More => {
                    self.add(cells.scratch(self.left().min(SCRATCH as u32)));
                    self.more(cells)
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
