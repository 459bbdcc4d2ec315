//! The books as bytes, which is what a database keeps of a lane. "Stored books" in SPEC.md says every byte; one state
//! has one form, so that whatever was changed on the way is found out.

use pillarbox::Reason;
use pillarbox::wire::WINDOW;

use super::{Books, COUNTER_END, Forgotten, OPEN_MAX, Open, OpenRanges, Window};

const VERSION: u8 = 1;

const CLOSING: u8 = 0x01;
const FORGOTTEN: u8 = 0x02;
/// The window is written bit by bit, because its runs would take more.
const BITS: u8 = 0x04;

const WINDOW_LEN: usize = WINDOW as usize / 8;

/// Where the width of the counts begins in the head of what is forgotten; below are the reasons.
const WIDTH_SHIFT: u32 = 12;
const _: () = assert!(Reason::COUNT <= WIDTH_SHIFT as usize, "one more reason needs another version");

/// Why bytes are not books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BooksError {
    /// A receiver of another version wrote them: that one can read them.
    #[error("the books have version {0}, this receiver reads version 1")]
    Version(u8),
    /// No batches lead to such books: the database is damaged.
    #[error("the books are damaged: {0}")]
    Damaged(&'static str),
}

impl Books {
    /// The books as bytes: at most 200, and 16 for each open range, while the lane has no more than 2^32 counters.
    pub fn encode(&self) -> Vec<u8> {
        let mut flags = if self.is_closing { CLOSING } else { 0 };
        let mut window = self.window.runs();
        if window.len() > WINDOW_LEN {
            flags |= BITS;
            window = self.window.bits();
        }
        if self.forgotten.end > 0 {
            flags |= FORGOTTEN;
        }
        let mut bytes = Vec::with_capacity(64);
        bytes.extend([VERSION, flags]);
        put(&mut bytes, self.floor());
        put(&mut bytes, self.claimed.saturating_sub(self.floor()));
        put(&mut bytes, self.issued.saturating_sub(self.claimed));
        put(&mut bytes, self.issued.saturating_sub(self.handed_out));
        bytes.extend(window);
        put(&mut bytes, self.open().len() as u64);
        let mut last_end = 0;
        for open in self.open() {
            bytes.push(open.reason as u8);
            put(&mut bytes, open.first.saturating_sub(last_end));
            put(&mut bytes, open.len());
            last_end = open.end;
        }
        if self.forgotten.end > 0 {
            self.forgotten.write(&mut bytes, self.floor());
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote. Refuses everything else, and books that no batches lead to.
    pub fn decode(bytes: &[u8]) -> Result<Self, BooksError> {
        let mut reader = Reader { bytes };
        let version = reader.byte()?;
        if version != VERSION {
            return Err(BooksError::Version(version));
        }
        let flags = reader.byte()?;
        let floor = reader.sum(0)?;
        let claimed = reader.sum(floor)?;
        let issued = reader.sum(claimed)?;
        let behind = reader.number()?;
        let handed_out = issued.checked_sub(behind).ok_or(OUT_OF_ORDER)?;
        let mut window = Window::new(floor);
        match flags & BITS {
            0 => window.read_runs(&mut reader)?,
            _ => window.read_bits(reader.take(WINDOW_LEN)?),
        }
        let open = OpenRanges::read(&mut reader)?;
        let forgotten = match flags & FORGOTTEN {
            0 => Forgotten::default(),
            _ => Forgotten::read(&mut reader, floor)?,
        };
        let is_closing = flags & CLOSING != 0;
        let books = Self { window, claimed, issued, handed_out, is_closing, open, forgotten };
        books.check()?;
        // Numbers that are longer than they need be, flags that mean nothing, bytes behind the end.
        if books.encode() != bytes {
            return Err(BooksError::Damaged("they are not in the form that is written"));
        }
        Ok(books)
    }

    /// Whether everything agrees with everything.
    fn check(&self) -> Result<(), BooksError> {
        let is_beyond = self.window.first_received(self.issued..u64::MAX).is_some()
            || self.open().last().is_some_and(|open| open.end > self.issued);
        if is_beyond {
            return Err(BooksError::Damaged("they know of a counter that was never issued"));
        }
        let mut tidy = self.open.clone();
        tidy.tidy(&self.window);
        if tidy != self.open {
            return Err(BooksError::Damaged("an open range could be less"));
        }
        let below = |open: &Open| open.within(0..self.forgotten.end).len();
        let still_open = self.open().iter().map(below).fold(0, u64::saturating_add);
        if self.forgotten.counts.iter().fold(still_open, |sum, n| sum.saturating_add(*n)) > self.forgotten.end
        {
            return Err(BooksError::Damaged("more is forgotten than there was"));
        }
        Ok(())
    }
}

impl Window {
    /// A list of the lengths of runs from the floor on, alternately received and not, up to the last that was received.
    fn runs(&self) -> Vec<u8> {
        let mut runs = Vec::new();
        let mut count: u64 = 0;
        let mut at = self.floor();
        while let Some(received) = self.first_received(at..self.end()) {
            if at < received {
                // What is missing at the floor comes behind a run of none.
                if count == 0 {
                    put(&mut runs, 0);
                    count = 1;
                }
                put(&mut runs, received.saturating_sub(at));
                count = count.saturating_add(1);
            }
            at = self.first_missing(received..self.end()).unwrap_or(self.end());
            put(&mut runs, at.saturating_sub(received));
            count = count.saturating_add(1);
        }
        let mut list = Vec::with_capacity(runs.len().saturating_add(2));
        put(&mut list, count);
        list.extend(runs);
        list
    }

    fn read_runs(&mut self, reader: &mut Reader<'_>) -> Result<(), BooksError> {
        let count = reader.number()?;
        let mut at = self.floor();
        for n in 0..count {
            let end = at.saturating_add(reader.number()?);
            if end > self.end() {
                return Err(BooksError::Damaged("the window is too long"));
            }
            if n % 2 == 0 {
                (at..end).for_each(|counter| self.receive(counter));
            }
            at = end;
        }
        Ok(())
    }

    fn bits(&self) -> Vec<u8> {
        let mut bits = vec![0; WINDOW_LEN];
        for (n, byte) in (0_u64..).zip(&mut bits) {
            let first = self.floor().saturating_add(n.saturating_mul(8));
            for bit in 0..8 {
                *byte |= u8::from(self.is_received(first.saturating_add(bit))) << bit;
            }
        }
        bits
    }

    fn read_bits(&mut self, bits: &[u8]) {
        for (n, byte) in (0_u64..).zip(bits) {
            let first = self.floor().saturating_add(n.saturating_mul(8));
            let set = (0..8).filter(|bit| byte >> bit & 1 != 0);
            set.for_each(|bit| self.receive(first.saturating_add(bit)));
        }
    }
}

impl OpenRanges {
    fn read(reader: &mut Reader<'_>) -> Result<Self, BooksError> {
        let count = reader.number()?;
        if count > OPEN_MAX as u64 {
            return Err(BooksError::Damaged("there are too many open ranges"));
        }
        let mut open = Self::default();
        let mut last_end = 0;
        for _ in 0..count {
            let number = reader.byte()?;
            let reason = Reason::ALL.get(usize::from(number)).ok_or(UNKNOWN_REASON)?;
            let first = reader.sum(last_end)?;
            last_end = reader.sum(first)?;
            open.push(Open::new(first..last_end, *reason));
        }
        Ok(open)
    }
}

impl Forgotten {
    fn write(&self, bytes: &mut Vec<u8>, floor: u64) {
        let highest = self.counts.iter().copied().max().unwrap_or(0);
        let width = (u64::BITS.saturating_sub(highest.leading_zeros())).div_ceil(8);
        let mut head = (width as u16) << WIDTH_SHIFT;
        for (n, count) in self.counts.iter().enumerate() {
            head |= u16::from(*count > 0) << n;
        }
        bytes.extend(head.to_le_bytes());
        put(bytes, floor.saturating_sub(self.end));
        for count in self.counts.iter().filter(|count| **count > 0) {
            bytes.extend(count.to_le_bytes().iter().take(width as usize));
        }
    }

    fn read(reader: &mut Reader<'_>, floor: u64) -> Result<Self, BooksError> {
        let head = u16::from(reader.byte()?) | u16::from(reader.byte()?) << 8;
        let end = floor.checked_sub(reader.number()?).ok_or(OUT_OF_ORDER)?;
        let width = usize::from(head >> WIDTH_SHIFT);
        let mut counts = [0; Reason::COUNT];
        for (n, count) in counts.iter_mut().enumerate() {
            if head >> n & 1 == 0 {
                continue;
            }
            let mut number = [0; 8];
            number.iter_mut().zip(reader.take(width)?).for_each(|(to, from)| *to = *from);
            *count = u64::from_le_bytes(number);
        }
        // Whoever has forgotten something has forgotten at least one counter.
        if counts.iter().all(|count| *count == 0) {
            return Err(BooksError::Damaged("nothing is forgotten"));
        }
        Ok(Self { counts, end })
    }
}

const CUT: BooksError = BooksError::Damaged("they end too early");
const OUT_OF_ORDER: BooksError = BooksError::Damaged("a counter is below another that it cannot be below");
const TOO_LARGE: BooksError = BooksError::Damaged("a number is larger than any counter");
const UNKNOWN_REASON: BooksError = BooksError::Damaged("there is no such reason");

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BooksError> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(CUT)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, BooksError> {
        self.take(1)?.first().copied().ok_or(CUT)
    }

    fn number(&mut self) -> Result<u64, BooksError> {
        let mut number = 0;
        // Nine times seven bits, and the one of 2^63.
        for shift in (0..=63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(TOO_LARGE)
    }

    /// A counter that is written as its distance from another.
    fn sum(&mut self, from: u64) -> Result<u64, BooksError> {
        let sum = from.checked_add(self.number()?).filter(|sum| *sum <= COUNTER_END);
        sum.ok_or(TOO_LARGE)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
