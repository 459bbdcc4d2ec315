//! The receiver's books and the model's, side by side: every step is taken by both, and they must say the same.

use host_tests::abstract_device::{Answer, Sent};
use host_tests::server::books::{Said as ModelSaid, Seen as ModelSeen};
use host_tests::server::ledger::Lane;
use pillarbox::wire::WINDOW;
use pillarbox::{Entry, Reason};
use pillarbox_receiver::books::{Books, OPEN_MAX, Said, Seen};

/// No counter reaches it.
pub(crate) const COUNTER_END: u64 = 1 << 63;

/// The longest forms that were seen, of lanes of at most 2^32 counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Largest {
    /// All bytes.
    pub(crate) len: usize,
    /// Bytes without 16 for each open range.
    pub(crate) base: isize,
}

impl Largest {
    pub(crate) fn or(self, other: Self) -> Self {
        Self { len: self.len.max(other.len), base: self.base.max(other.base) }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Twin {
    pub(crate) model: Lane,
    pub(crate) ours: Books,
    pub(crate) largest: Largest,
}

impl Twin {
    /// Takes a batch into both, as a receiver does.
    pub(crate) fn take(
        &mut self,
        random: &mut fastrand::Rng,
        sent: &Sent,
        refuse: impl Fn(u64) -> bool,
    ) -> Answer {
        let said = said(&sent.said);
        self.model.begin(&sent.said, &sent.entries);
        self.ours.begin(&said, &sent.entries);
        self.compare(random);
        let settled = sent.records.iter().map(|counter| self.record(*counter, &refuse)).collect();
        let late_settled = sent.late.iter().map(|counter| self.record(*counter, &refuse)).collect();
        self.compare(random);
        let (confirmed, explain) = self.model.finish(&sent.said, &sent.entries);
        let closing = self.ours.finish(&said, &sent.entries);
        assert_eq!(closing.confirmed, confirmed, "confirmed");
        let asked: Vec<(u64, u64)> =
            explain.iter().map(|range| (range.start, range.end - range.start)).collect();
        assert_eq!(closing.explain, asked, "explain");
        self.compare(random);
        Answer { settled, late_settled, confirmed, explain }
    }

    fn record(&mut self, counter: u64, refuse: impl Fn(u64) -> bool) -> bool {
        let seen = self.model.seen(counter);
        assert_eq!(self.ours.seen(counter), same(seen), "counter {counter}");
        if seen != ModelSeen::New {
            let before = self.ours.clone();
            self.ours.store(counter);
            assert_eq!(self.ours, before, "a record that is not new changed something");
        } else if refuse(counter) {
            return false;
        } else {
            self.model.store(counter);
            self.ours.store(counter);
            self.compare_open();
        }
        seen != ModelSeen::Beyond
    }

    fn compare_open(&self) {
        let ours = self.ours.open().iter().map(|open| (open.first, open.end, open.reason));
        let model = self.model.books().open().iter().map(|open| (open.first, open.end, open.reason));
        assert!(ours.clone().eq(model), "open: {:?}, but {:?}", self.ours.open(), self.model.books().open());
        assert!(ours.len() <= OPEN_MAX, "{} open ranges", ours.len());
    }

    /// Whether both say the same about everything that can be asked.
    pub(crate) fn compare(&mut self, random: &mut fastrand::Rng) {
        let (ours, model) = (&self.ours, self.model.books());
        assert_eq!(
            (ours.floor(), ours.issued(), ours.claimed(), ours.is_closed()),
            (model.floor(), model.issued(), model.claimed(), model.is_closed()),
            "floor, issued, claimed, closed"
        );
        self.compare_open();
        let (ledger, expected) = (ours.ledger(), self.model.ledger());
        assert_eq!(ledger.explained, expected.explained, "explained");
        assert_eq!(
            (ledger.issued, ledger.received, ledger.pending, ledger.unexplained, ledger.is_closed),
            (expected.issued, expected.received, expected.pending, expected.unexplained, expected.is_closed),
            "ledger"
        );
        assert_eq!((ledger.lost(), ledger.uncertain()), (expected.lost(), expected.uncertain()));
        let explained = model.explained_exactly();
        for counter in places(random, ours) {
            assert_eq!(ours.seen(counter), same(self.model.seen(counter)), "counter {counter}");
            let reason = explained.iter().find(|open| open.covers(counter)).map(|open| open.reason);
            assert_eq!(ours.reason(counter), reason, "reason of {counter}");
        }
        self.largest = self.largest.or(stored(ours));
    }
}

/// Whether the books come back from their bytes, which are no more than they may be.
pub(crate) fn stored(books: &Books) -> Largest {
    let bytes = books.encode();
    assert_eq!(Books::decode(&bytes).as_ref(), Ok(books), "stored as {bytes:02x?}");
    if books.issued() > 1 << 32 {
        return Largest::default();
    }
    let for_ranges = 16 * books.open().len();
    assert!(bytes.len() <= 200 + for_ranges, "{} bytes: {books:?}", bytes.len());
    Largest { len: bytes.len(), base: bytes.len() as isize - for_ranges as isize }
}

/// Counters that are worth a question: the ends of everything, and some others.
pub(crate) fn places(random: &mut fastrand::Rng, books: &Books) -> Vec<u64> {
    let ends = [0, books.floor(), books.floor() + WINDOW, books.issued(), books.claimed(), COUNTER_END - 1];
    let open = books.open().iter().flat_map(|open| [open.first, open.end]);
    let ends = ends.into_iter().chain(open);
    let mut places: Vec<u64> = ends.flat_map(|end| [end.saturating_sub(1), end, end + 1]).collect();
    for _ in 0..8 {
        places.push(books.floor() + random.u64(..WINDOW));
        places.push(random.u64(..=books.floor()));
    }
    places.retain(|counter| *counter < COUNTER_END);
    random.shuffle(&mut places);
    places.truncate(24);
    places
}

pub(crate) fn said(said: &ModelSaid) -> Said {
    Said { floor: said.floor, issued: said.issued, is_closing: said.is_closing }
}

pub(crate) fn any_entry(random: &mut fastrand::Rng, first: u64, len: u64) -> Entry {
    // What is uncertain is the hardest to get right.
    let reason = if random.u8(..4) == 0 { Some(Reason::Uncertain) } else { random.choice(Reason::ALL) };
    let reason = reason.expect("there are some");
    Entry { incarnation: 1, lane: 0, reason, first, len }
}

fn same(seen: ModelSeen) -> Seen {
    match seen {
        ModelSeen::New => Seen::New,
        ModelSeen::Duplicate => Seen::Duplicate,
        ModelSeen::Doubtful => Seen::Doubtful,
        ModelSeen::Beyond => Seen::Beyond,
    }
}
