//! The boot check: what a power cut left in doubt is decided once, and programmed, so that it reads the same
//! ever after.
//!
//! A cell that was being programmed or erased when the power went may read differently every time. Whatever
//! looks doubtful is therefore read `READS` times; and because a cell may look sound in all of them and waver
//! later, the few cells that the last operation can have touched are programmed again even if they look sound.
//! Programming makes a weak zero good, and never a weak one; so what was never finished is zeroed, one doubtful word
//! at a time. Every step may itself be cut and is then simply done again.

use crate::{
    io::{Cells, Io, Job, SCRATCH, fill, is_blank},
    item::{Header, Judgement},
    pages::{PageState, Slot},
    ring::Ring,
    rings::Outcome,
};

/// How often a doubtful cell is read before it is believed.
const READS: u8 = 16;

/// A mark over several reads.
#[derive(Clone, Copy, Default)]
struct Mark {
    has_zeros: bool,
    has_ones: bool,
}

impl Mark {
    fn see(&mut self, cells: &[u8]) {
        self.has_zeros |= !is_blank(cells);
        self.has_ones |= cells.iter().any(|&byte| byte != 0);
    }

    fn is_doubtful(&self) -> bool {
        self.has_zeros && self.has_ones
    }

    fn set(&mut self) {
        *self = Self { has_zeros: true, has_ones: false };
    }
}

/// The pages' states, four to a byte, while the ring is put in order.
struct States<'b>(&'b mut [u8]);

impl States<'_> {
    fn get(&self, page: u16) -> PageState {
        match self.0.get(usize::from(page / 4)).map_or(0, |byte| byte >> (page % 4 * 2) & 3) {
            0 => PageState::Open,
            1 => PageState::InUse,
            _ => PageState::Closed,
        }
    }

    fn set(&mut self, page: u16, state: PageState) {
        let shift = page % 4 * 2;
        if let Some(byte) = self.0.get_mut(usize::from(page / 4)) {
            *byte = *byte & !(3 << shift) | (state as u8) << shift;
        }
    }
}

/// An item of the last page.
#[derive(Clone, Copy)]
struct Placed {
    offset: u32,
    header: Header,
    void: bool,
}

impl Placed {
    /// No item: none is at this offset.
    const NONE: Self = Self { offset: 0, header: Header { crc: 0, len: 0 }, void: true };
}

#[derive(Clone, Copy)]
enum Step {
    Front,
    FrontRead,
    BackRead,
    Decide,
    /// The magic was not exact, or the whole ring was closed: the page was erased.
    Erased,
    Order,
    Tidy,
    Begin,
    Look,
    Seen,
    /// The last item was read.
    Judge,
    /// Zero everything up to `end_of_void`, a word at a time.
    Void,
    /// Spend the words behind the last item.
    Spend,
    SpendTail,
    /// What an item that was being voided has left behind its header: zeros, and one word in doubt.
    Behind,
    BehindRead,
    Rest,
    RestChecked,
    CloseDamaged,
    Youngest,
    Show,
    Done,
}

/// Checks a ring and finds its ends.
#[repr(C)]
pub(crate) struct Mount<'w> {
    // The small fields first, as in `Ring`.
    step: Step,
    reads: u8,
    is_exact: bool,
    start: Mark,
    end: Mark,
    /// While the pages are put in order: a closed one was seen.
    has_closed: bool,
    is_tail_open: bool,
    is_next_open: bool,
    has_previous: bool,
    is_steady: bool,
    is_good: bool,
    /// The page before the one in use is looked at, only to see what is youngest.
    is_behind: bool,
    /// Behind the header of the last item a word was found zeroed.
    has_spent: bool,
    page: u16,
    just_closed: Option<u16>,
    offset: u32,
    ring: &'w mut Ring,
    /// Where the spent words behind the last item begin, and where they end.
    spent: u32,
    tail: u32,
    /// Where an item ends that is voided.
    end_of_void: u32,
    last: Placed,
    youngest: Placed,
    pub(crate) outcome: Outcome,
}

impl<'w> Mount<'w> {
    pub(crate) fn new(ring: &'w mut Ring) -> Self {
        Self {
            ring,
            step: Step::Front,
            page: 0,
            offset: 0,
            reads: 0,
            is_exact: true,
            start: Mark::default(),
            end: Mark::default(),
            just_closed: None,
            has_closed: false,
            is_tail_open: false,
            is_next_open: false,
            has_previous: false,
            last: Placed::NONE,
            youngest: Placed::NONE,
            is_steady: true,
            is_good: true,
            is_behind: false,
            has_spent: false,
            spent: 0,
            tail: 0,
            end_of_void: 0,
            outcome: Outcome::default(),
        }
    }

    fn at(&self, offset: u32) -> u32 {
        self.ring.pages.address(self.page, offset)
    }

    /// Another read of something doubtful, if it was not read often enough.
    fn again(&mut self) -> bool {
        self.reads += 1;
        self.reads < READS
    }

    fn go(&mut self, step: Step) {
        self.reads = 0;
        self.step = step;
    }

    fn give_up(&mut self, page: u16, then_page: u16, cells: &mut Cells<'_>) -> Option<Io> {
        self.page = then_page;
        self.outcome.corrupt += 1;
        self.erase(page, cells)
    }

    fn erase(&mut self, page: u16, cells: &mut Cells<'_>) -> Option<Io> {
        self.step = Step::Erased;
        Some(self.ring.pages.erase(page).begin(cells))
    }

    /// A page's marks were read: decides them, and the page's state.
    fn decide(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = self.ring.pages;
        let (start, end) = (pages.geometry.start_mark(), pages.geometry.end_mark());
        if !self.is_exact || (!self.start.has_zeros && self.end.has_zeros) {
            return self.erase(self.page, cells);
        }
        if self.start.is_doubtful() {
            self.start.set();
            return Some(pages.zero(self.page, start, cells));
        }
        if self.end.is_doubtful() {
            self.end.set();
            self.just_closed = Some(self.page);
            return Some(pages.zero(self.page, end, cells));
        }
        let state = match (self.start.has_zeros, self.end.has_zeros) {
            (false, _) => PageState::Open,
            (true, false) => PageState::InUse,
            (true, true) => PageState::Closed,
        };
        self.decided(state, cells);
        None
    }

    fn decided(&mut self, state: PageState, cells: &mut Cells<'_>) {
        States(cells.record).set(self.page, state);
        (self.is_exact, self.start, self.end) = (true, Mark::default(), Mark::default());
        self.page += 1;
        self.go(if self.page < self.ring.pages.count { Step::Front } else { Step::Order });
    }

    /// Finds the page in use. From the page after it there must come open pages, then closed ones: that is all that
    /// power cuts can leave. Anything else is corruption, and is brought into that order at the least cost.
    fn order(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = &self.ring.pages;
        let states = States(cells.record);
        let mut best = (0, 0);
        for page in 0..pages.count {
            let (previous, next) = (states.get(pages.previous(page)), states.get(pages.next(page)));
            let rank = PageState::rank(previous, states.get(page), next);
            if rank > best.0 {
                best = (rank, page);
            }
        }
        let (rank, page) = best;
        if rank == 0 {
            // All closed: the ring has to go on, so the oldest page, which follows the youngest, is given up.
            let oldest = self.just_closed.map_or(0, |page| pages.next(page));
            return self.give_up(oldest, oldest, cells);
        }
        self.ring.tail = page;
        self.ring.head = (page, pages.geometry.first_item());
        self.is_tail_open = states.get(page) == PageState::Open;
        self.is_next_open = states.get(pages.next(page)) == PageState::Open;
        self.page = pages.next(page);
        self.step = Step::Tidy;
        None
    }

    fn tidy(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = self.ring.pages;
        if self.page == self.ring.tail {
            self.has_previous = self.has_closed;
            self.step = if self.is_tail_open { Step::Youngest } else { Step::Begin };
            return None;
        }
        let mut states = States(cells.record);
        let io = match states.get(self.page) {
            PageState::Open if self.has_closed => {
                states.set(self.page, PageState::InUse);
                return Some(pages.zero(self.page, pages.geometry.start_mark(), cells));
            }
            PageState::Open => None,
            state => {
                if !self.has_closed {
                    self.ring.head.0 = self.page;
                }
                self.has_closed = true;
                (state == PageState::InUse).then(|| {
                    self.outcome.corrupt += 1;
                    pages.zero(self.page, pages.geometry.end_mark(), cells)
                })
            }
        };
        self.page = pages.next(self.page);
        io
    }

    /// What stands at the offset of the page in use.
    fn seen(&mut self, cells: &Cells<'_>) {
        let pages = self.ring.pages;
        self.step = Step::Look;
        match pages.slot(self.offset, cells.scratch(pages.look(self.offset))) {
            Slot::Spent => self.offset += pages.geometry.word(),
            Slot::Item { header, void } => {
                self.pass_last();
                self.last = Placed { offset: self.offset, header, void };
                self.offset = pages.after(self.offset, &header);
                self.spent = self.offset;
            }
            Slot::End => self.end_items(),
        }
    }

    fn pass_last(&mut self) {
        if !self.last.void {
            self.youngest = self.last;
        }
    }

    /// The items of the page in use end here: the last of them may be in doubt.
    fn end_items(&mut self) {
        if self.is_behind {
            self.pass_last();
        }
        self.outcome.is_pending = !self.youngest.header.is_popped();
        if self.is_behind {
            self.step = Step::Show;
            return;
        }
        self.tail = self.offset;
        self.go(Step::Spend);
        if self.last.offset != 0 {
            self.offset = self.last.offset;
            self.step = Step::Judge;
        }
    }

    fn data_len(&self) -> u32 {
        self.ring.pages.geometry.round_up(self.last.header.len.into())
    }

    fn read_word(&mut self, offset: u32, cells: &mut Cells<'_>) -> Io {
        cells.read(self.at(offset), self.ring.pages.geometry.word())
    }

    /// Looks at the last item again and again, then decides.
    fn judge(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = self.ring.pages;
        let word = pages.geometry.word();
        let expected = self.last.header;
        let span = word + self.data_len();
        if span as usize > cells.record.len() {
            // No record of ours is that long.
            return Some(self.void(cells));
        }
        if self.reads > 0 {
            let (head, data) = cells.record(span).split_at_checked(word as usize).unwrap_or_default();
            let Some(header) = Header::parse(head).filter(|header| header.len == expected.len) else {
                // It wavers: it was never finished, so nothing was written behind it.
                (self.spent, self.tail) = (self.offset, self.offset);
                self.go(Step::Spend);
                return None;
            };
            self.is_steady &= header.crc == expected.crc;
            self.is_good &= if header.is_popped() {
                // No record begins with a zero: an item that does was being voided.
                data.first() != Some(&0)
            } else {
                header.judge(data.get(..header.len.into()).unwrap_or_default()) == Judgement::Whole
            };
        }
        if self.reads < READS {
            self.reads += 1;
            return Some(cells.read_record(self.at(self.offset), span));
        }
        if !self.is_steady || !self.is_good {
            return Some(self.void(cells));
        }
        self.youngest = self.last;
        self.outcome.is_pending = !expected.is_popped();
        self.go(Step::Spend);
        // It is pending: programmed once more, in case something wavers that has not been seen to. Its header, if
        // there are data behind it, was finished before them.
        self.outcome.is_pending.then(|| cells.program_record(self.at(self.offset), span))
    }

    fn program_header(&mut self, cells: &mut Cells<'_>) -> Io {
        self.last.header.put(cells.scratch_mut());
        cells.program(self.at(self.offset), self.ring.pages.geometry.word())
    }

    /// The item was never finished. Its data are zeroed, then its header, which may be weak and is made good first:
    /// as long as the data waver, it has to say how long they are.
    fn void(&mut self, cells: &mut Cells<'_>) -> Io {
        let word = self.ring.pages.geometry.word();
        self.spent = self.offset;
        self.end_of_void = self.offset + word + self.data_len();
        let io = self.program_header(cells);
        self.offset += word;
        self.go(Step::Void);
        io
    }

    /// Zeroes what lies before `to` and is not zeroed yet, so much at once.
    fn zero_to(&mut self, to: u32, at_once: u32, cells: &mut Cells<'_>) -> Option<Io> {
        let to = to.min(self.ring.pages.geometry.end_mark());
        if self.offset >= to {
            return None;
        }
        let len = (to - self.offset).min(at_once);
        let io = cells.program(self.at(self.offset), len);
        fill(cells.scratch_mut(), 0);
        self.offset += len;
        Some(io)
    }

    /// The page in use goes on behind the words that were spent, unless there is more on it than can be read.
    fn rest(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = self.ring.pages;
        if cells.is_blank() {
            self.ring.free = self.offset;
            self.step = Step::Youngest;
            return None;
        }
        self.step = Step::CloseDamaged;
        Some(pages.zero(self.page, pages.geometry.end_mark(), cells))
    }

    /// The page in use was closed because of what lies behind its items. The next one has to be open.
    fn close_damaged(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let pages = self.ring.pages;
        let next = pages.next(self.ring.tail);
        self.ring.tail = next;
        self.ring.free = 0;
        if self.is_next_open {
            self.outcome.corrupt += 1;
            self.step = Step::Youngest;
            return None;
        }
        self.ring.head.0 = pages.next(next);
        self.give_up(next, self.page, cells)
    }

    fn find_youngest(&mut self) {
        let pages = self.ring.pages;
        if self.is_tail_open {
            self.ring.free = 0;
            self.page = self.ring.tail;
        }
        self.step = Step::Show;
        if self.youngest.offset == 0 && self.has_previous {
            self.page = pages.previous(self.page);
            self.offset = pages.geometry.first_item();
            self.last = Placed::NONE;
            self.is_behind = true;
            self.step = Step::Look;
        }
    }

    fn show(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        self.step = Step::Done;
        let item = self.youngest;
        let geometry = self.ring.pages.geometry;
        let len = geometry.round_up(item.header.len.into());
        if item.offset == 0 || len as usize > cells.record.len() {
            return None;
        }
        self.outcome.page = self.page;
        self.outcome.len = Some(item.header.len.into());
        Some(cells.read_record(self.at(item.offset + geometry.word()), len))
    }

    /// Reads what stands at the offset, if there can be anything.
    fn look(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let len = self.ring.pages.look(self.offset);
        if len == 0 {
            self.end_items();
            return None;
        }
        self.step = Step::Seen;
        Some(cells.read(self.at(self.offset), len))
    }
}

impl Job for Mount<'_> {
    // The largest of the jobs: it is smaller with the registers to itself.
    #[inline(never)]
    fn next(&mut self, cells: &mut Cells<'_>) -> Option<Io> {
        let word = self.ring.pages.geometry.word();
        loop {
            let io = match self.step {
                Step::Front => {
                    self.step = Step::FrontRead;
                    Some(cells.read(self.at(0), 2 * word))
                }
                Step::FrontRead => {
                    let (magic, mark) =
                        cells.scratch(2 * word).split_at_checked(word as usize).unwrap_or_default();
                    self.is_exact &= self.ring.pages.geometry.is_magic(magic);
                    self.start.see(mark);
                    if self.is_exact {
                        self.step = Step::BackRead;
                        Some(self.read_word(self.ring.pages.geometry.end_mark(), cells))
                    } else {
                        self.step = Step::Decide;
                        None
                    }
                }
                Step::BackRead => {
                    self.end.see(cells.scratch(word));
                    self.step = if self.again() { Step::Front } else { Step::Decide };
                    None
                }
                Step::Decide => self.decide(cells),
                Step::Erased => {
                    self.ring.erases += 1;
                    if self.tail == 0 {
                        self.decided(PageState::Open, cells);
                    } else {
                        self.step = Step::Youngest;
                    }
                    None
                }
                Step::Order => self.order(cells),
                Step::Tidy => self.tidy(cells),
                Step::Begin => {
                    self.offset = self.ring.pages.geometry.first_item();
                    self.spent = self.offset;
                    self.step = Step::Look;
                    Some(self.ring.pages.begin(self.page, cells))
                }
                Step::Look => self.look(cells),
                Step::Seen => {
                    self.seen(cells);
                    None
                }
                Step::Judge => self.judge(cells),
                Step::Void => {
                    let io = self.zero_to(self.end_of_void, word, cells);
                    if io.is_none() {
                        self.step = Step::Spend;
                    }
                    io
                }
                Step::Spend => {
                    self.offset = self.spent;
                    self.step = Step::SpendTail;
                    None
                }
                // Of the words before the tail one at most is in doubt, so they are zeroed together; the tail is another.
                Step::SpendTail => {
                    let (to, at_once) = if self.offset < self.tail {
                        (self.tail, SCRATCH as u32)
                    } else {
                        (self.tail + word, word)
                    };
                    let io = self.zero_to(to, at_once, cells);
                    if io.is_none() {
                        self.step = Step::Behind;
                    }
                    io
                }
                Step::Behind => {
                    self.step = Step::BehindRead;
                    if self.offset < self.ring.pages.geometry.end_mark() {
                        Some(self.read_word(self.offset, cells))
                    } else {
                        fill(cells.scratch_mut(), 0xff);
                        None
                    }
                }
                Step::BehindRead => {
                    let is_spent = cells.scratch(word).iter().all(|&byte| byte == 0);
                    let to = self.offset + if is_spent || self.has_spent { word } else { 0 };
                    let io = self.zero_to(to, word, cells);
                    self.has_spent |= is_spent;
                    self.step = if is_spent { Step::Behind } else { Step::Rest };
                    io
                }
                Step::Rest => {
                    self.step = Step::RestChecked;
                    Some(cells.check(self.at(self.offset), self.at(self.ring.pages.geometry.end_mark())))
                }
                Step::RestChecked => self.rest(cells),
                Step::CloseDamaged => self.close_damaged(cells),
                Step::Youngest => {
                    self.find_youngest();
                    None
                }
                Step::Show => self.show(cells),
                Step::Done => return None,
            };
            if io.is_some() {
                return io;
            }
        }
    }
}
