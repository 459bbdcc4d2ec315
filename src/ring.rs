//! A ring of records in flash: which page takes the next, which holds the oldest, and how one is appended.

use crate::{
    io::{Cells, Erase, Io, Job, fill, zero},
    item::{Header, data_crc},
    pages::Pages,
};

/// A ring, as the boot check found it and as it has changed since. The pages from `head` to `tail` hold records; those
/// behind `tail` are open.
///
/// The small fields come first: of those further behind the smallest cores (Thumb-1) reach bytes and halves of words
/// only with several instructions.
#[repr(C)]
pub(crate) struct Ring {
    /// Unset while something is under way. If that fails or its future is dropped, it stays unset, and the next
    /// operation begins with the boot check.
    pub(crate) is_trusted: bool,
    /// The page that takes records.
    pub(crate) tail: u16,
    /// Where on that page the next one goes; 0 if the page is still open.
    pub(crate) free: u32,
    /// Page and offset before which nothing is pending.
    pub(crate) head: (u16, u32),
    pub(crate) erases: u32,
    pub(crate) pages: Pages,
}

impl Pages {
    // A function of its own, because so many ask for it.
    #[inline(never)]
    pub(crate) fn erase(&self, page: u16) -> Erase {
        Erase::new(self.address(page, 0), self.address(page, self.geometry.page()), self.geometry)
    }

    /// Magic and mark "in use" in one program: a magic that a cut left weak is made good before the page matters.
    pub(crate) fn begin(&self, page: u16, cells: &mut Cells<'_>) -> Io {
        let word = self.geometry.word();
        fill(cells.scratch_mut(), 0);
        self.geometry.put_magic(cells.scratch_mut());
        cells.program(self.address(page, 0), 2 * word)
    }

    pub(crate) fn zero(&self, page: u16, offset: u32, cells: &mut Cells<'_>) -> Io {
        zero(cells, self.address(page, offset), self.geometry.word())
    }
}

impl Ring {
    pub(crate) const fn new(pages: Pages) -> Self {
        Self { pages, head: (0, 0), tail: 0, free: 0, is_trusted: false, erases: 0 }
    }

    /// No page but the one that takes records holds any, and that one is not begun.
    pub(crate) fn is_blank(&self) -> bool {
        self.free == 0 && self.head.0 == self.tail
    }

    /// A page was erased. Unless it was the oldest, the ring is to be checked before it is used again.
    pub(crate) fn erased(&mut self, page: u16) {
        self.erases += 1;
        if self.head.0 == page && self.tail != page {
            self.head = (self.pages.next(page), self.pages.geometry.first_item());
            self.is_trusted = true;
        }
    }

    /// Whether there is a page to go on to when the one in use is full.
    pub(crate) fn has_open_page(&self) -> bool {
        self.pages.next(self.tail) != self.head.0
    }

    /// Whether an item with so much data can be appended without giving anything up.
    fn has_room(&self, len: u32) -> bool {
        let fits = self.free + self.pages.geometry.item_span(len) <= self.pages.geometry.end_mark();
        self.free == 0 || fits || self.has_open_page()
    }
}

#[derive(Clone, Copy)]
enum Step {
    Start,
    /// The page that was full is closed.
    Closed,
    /// Is the new page as blank as it should be?
    Check,
    Checked,
    Begin,
    Begun,
    Data,
    Done,
}

/// Appends the item in the record's memory: durable when it is done.
pub(crate) struct Push<'w> {
    ring: &'w mut Ring,
    len: u32,
    step: Step,
    /// The new page was not blank, and had to be erased.
    pub(crate) corrupt: u32,
}

impl<'w> Push<'w> {
    /// `len` is a whole number of words.
    pub(crate) fn new(ring: &'w mut Ring, len: u32) -> Self {
        Self { ring, len, step: Step::Start, corrupt: 0 }
    }
}

impl Job for Push<'_> {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let ring = &mut *self.ring;
        let pages = ring.pages;
        let geometry = pages.geometry;
        loop {
            let (io, next) = match self.step {
                Step::Start if !ring.has_room(self.len) => return Some(cells.full()),
                Step::Start if ring.free == 0 => (None, Step::Check),
                Step::Start if ring.free + geometry.item_span(self.len) <= geometry.end_mark() => {
                    (None, Step::Begun)
                }
                Step::Start => (Some(pages.zero(ring.tail, geometry.end_mark(), cells)), Step::Closed),
                Step::Closed => {
                    ring.tail = pages.next(ring.tail);
                    ring.free = 0;
                    (None, Step::Check)
                }
                Step::Check => {
                    let (from, to) = (geometry.first_item(), geometry.page());
                    (
                        Some(cells.check(pages.address(ring.tail, from), pages.address(ring.tail, to))),
                        Step::Checked,
                    )
                }
                Step::Checked if cells.is_blank() => (None, Step::Begin),
                // Something happened to its cells since they were erased; a record would not survive on them.
                Step::Checked => {
                    self.corrupt += 1;
                    ring.erases += 1;
                    (Some(pages.erase(ring.tail).begin(cells)), Step::Begin)
                }
                Step::Begin => {
                    ring.free = geometry.first_item();
                    if ring.head.0 == ring.tail {
                        ring.head.1 = ring.free;
                    }
                    (Some(pages.begin(ring.tail, cells)), Step::Begun)
                }
                Step::Begun => {
                    let header = Header { crc: data_crc(cells.record(self.len)), len: self.len as u16 };
                    header.put(cells.scratch_mut());
                    let at = pages.address(ring.tail, ring.free);
                    (Some(cells.program(at, geometry.word())), Step::Data)
                }
                Step::Data => {
                    let at = pages.address(ring.tail, ring.free + geometry.word());
                    (Some(cells.program_record(at, self.len)), Step::Done)
                }
                Step::Done => {
                    ring.free += geometry.item_span(self.len);
                    return None;
                }
            };
            self.step = next;
            if io.is_some() {
                return io;
            }
        }
    }
}
