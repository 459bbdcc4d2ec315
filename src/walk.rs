//! A walk over a ring's items, oldest first: the only way in which records are read and removed.

use crate::{
    io::{Cells, Io, Job},
    item::{Header, Judgement},
    pages::Slot,
    ring::Ring,
    rings::Outcome,
};

/// Which items a walk shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What is pending in the whole ring. Pages at its front that hold nothing any more are erased on the way.
    Pending,
    /// Everything legible on one page, the removed included.
    Page(u16),
}

/// What an item is when it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Pending,
    /// This walk has just removed it, as it was told to.
    Removed,
    /// It was removed before.
    Gone,
}

/// What to do with an item that a walk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    Keep,
    Remove,
    /// Keep it and end the walk; its bytes stay in the record's memory.
    Stop,
    /// Remove it and end the walk.
    RemoveAndStop,
}

/// Where a walk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) page: u16,
    pub(crate) sight: Sight,
    /// Items that could not be read so far.
    pub(crate) corrupt: u32,
    /// Bytes of flash that the item takes.
    pub(crate) span: u32,
}

/// Looks at the items of a walk.
pub(crate) trait Eyes {
    /// Says what is to be done with an item.
    fn see(&mut self, bytes: &[u8], here: &Here) -> Visit;
}

#[derive(Clone, Copy)]
enum Step {
    /// See what stands at the offset.
    Look,
    /// It was read.
    Slot,
    /// An item's data were read.
    Data,
    /// An item was removed: because the visitor said so, or because it is none.
    Removed(Option<Visit>),
    /// The page has no more items.
    Leave,
    /// The page was erased.
    Erased,
    Done,
}

/// A walk that is under way.
#[repr(C)]
pub(crate) struct Walk<'w> {
    // The small fields first, as in `Ring`.
    step: Step,
    /// Something pending was passed: the ring's front is not this walk's any more.
    has_kept: bool,
    /// An item did not add up and is read once more.
    is_second_look: bool,
    is_whole_ring: bool,
    page: u16,
    offset: u32,
    ring: &'w mut Ring,
    eyes: &'w mut dyn Eyes,
    /// The item that was read.
    header: Header,
    pub(crate) outcome: Outcome,
}

impl<'w> Walk<'w> {
    pub(crate) fn new(ring: &'w mut Ring, scope: Scope, eyes: &'w mut dyn Eyes) -> Self {
        let (page, offset) = match scope {
            Scope::Pending => ring.head,
            Scope::Page(page) => (page, ring.pages.geometry.first_item()),
        };
        Self {
            ring,
            eyes,
            is_whole_ring: scope == Scope::Pending,
            page,
            offset,
            step: Step::Look,
            header: Header { crc: 0, len: 0 },
            has_kept: false,
            is_second_look: false,
            outcome: Outcome::default(),
        }
    }

    /// Goes on at an offset of this page.
    fn go_to(&mut self, offset: u32) {
        self.is_second_look = false;
        self.offset = offset;
        self.step = Step::Look;
        if self.is_whole_ring && !self.has_kept {
            self.ring.head = (self.page, offset);
        }
    }

    fn pass_by(&mut self) {
        self.go_to(self.ring.pages.after(self.offset, &self.header));
    }

    fn show(&mut self, sight: Sight, cells: &Cells<'_>) -> Visit {
        let len = self.header.len.into();
        let span = self.ring.pages.geometry.item_span(len);
        let here = Here { page: self.page, sight, corrupt: self.outcome.corrupt, span };
        self.eyes.see(cells.record(len), &here)
    }

    fn remove(&mut self, verdict: Option<Visit>, cells: &mut Cells<'_>) -> Io {
        self.step = Step::Removed(verdict);
        self.header.popped().put(cells.scratch_mut());
        cells.program(self.ring.pages.address(self.page, self.offset), self.ring.pages.geometry.word())
    }

    fn obey(&mut self, verdict: Visit, cells: &mut Cells<'_>) -> Option<Io> {
        match verdict {
            Visit::Remove | Visit::RemoveAndStop => return Some(self.remove(Some(verdict), cells)),
            Visit::Keep => {
                self.has_kept = true;
                self.pass_by();
            }
            Visit::Stop => self.step = Step::Done,
        }
        None
    }

    /// What was read at the offset decides what is read next.
    fn see(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = self.ring.pages;
        match pages.slot(self.offset, cells.scratch(pages.look(self.offset))) {
            Slot::Spent => self.go_to(self.offset + pages.geometry.word()),
            Slot::End => self.step = Step::Leave,
            Slot::Item { header, void } => {
                self.header = header;
                let len = pages.geometry.round_up(header.len.into());
                if header.is_popped() && (self.is_whole_ring || void) {
                    self.pass_by();
                } else if len as usize <= cells.record.len() {
                    self.step = Step::Data;
                    let at = pages.address(self.page, self.offset + pages.geometry.word());
                    return Some(cells.read_record(at, len));
                } else if self.is_whole_ring {
                    // No record of ours is that long.
                    self.outcome.corrupt += 1;
                    return Some(self.remove(None, cells));
                } else {
                    self.pass_by();
                }
            }
        }
        None
    }

    fn judge(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let header = self.header;
        let judgement = header.judge(cells.record(header.len.into()));
        if header.is_popped() || judgement == Judgement::Whole {
            let sight = if header.is_popped() { Sight::Gone } else { Sight::Pending };
            let verdict = self.show(sight, cells);
            return self.obey(verdict, cells);
        }
        if !self.is_whole_ring {
            self.pass_by();
            return None;
        }
        if judgement == Judgement::Corrupt {
            if !self.is_second_look {
                self.is_second_look = true;
                self.step = Step::Look;
                return None;
            }
            self.outcome.corrupt += 1;
        }
        // The cells of a removal that was cut may be weak, and the record be back the next time: it is finished now.
        Some(self.remove(None, cells))
    }

    fn leave(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let ring = &*self.ring;
        let (next, first_item) = (ring.pages.next(self.page), ring.pages.geometry.first_item());
        if !self.is_whole_ring || self.page == ring.tail {
            self.outcome.is_complete = true;
            self.step = Step::Done;
        } else if self.has_kept {
            self.page = next;
            self.go_to(first_item);
        } else {
            let io = ring.pages.erase(self.page).begin(cells);
            self.step = Step::Erased;
            return Some(io);
        }
        None
    }
}

impl Job for Walk<'_> {
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        loop {
            let io = match self.step {
                Step::Look => {
                    let pages = &self.ring.pages;
                    let end = if self.page == self.ring.tail { self.ring.free } else { u32::MAX };
                    let len = pages.look(self.offset);
                    if len == 0 || self.offset >= end {
                        self.step = Step::Leave;
                        None
                    } else {
                        self.step = Step::Slot;
                        Some(cells.read(pages.address(self.page, self.offset), len))
                    }
                }
                Step::Slot => self.see(cells),
                Step::Data => self.judge(cells),
                Step::Removed(verdict) => {
                    if verdict.is_some() {
                        self.show(Sight::Removed, cells);
                    }
                    self.pass_by();
                    if verdict == Some(Visit::RemoveAndStop) {
                        self.step = Step::Done;
                    }
                    None
                }
                Step::Leave => self.leave(cells),
                Step::Erased => {
                    self.ring.erases += 1;
                    self.page = self.ring.pages.next(self.page);
                    self.go_to(self.ring.pages.geometry.first_item());
                    None
                }
                Step::Done => return None,
            };
            if io.is_some() {
                return io;
            }
        }
    }
}
