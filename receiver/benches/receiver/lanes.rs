//! Lanes with everything that a receiver keeps of one, and what that takes in a database.

use pillarbox::wire::WINDOW;
use pillarbox::{Entry, Reason};
use pillarbox_receiver::store::sqlite::Core;

use crate::batches::{INCARNATION, Sender};

/// What there may be for each open range, beside [`LANE_MAX`].
pub(crate) const OPEN_RANGE_MAX: usize = 16;
/// What there may be of a lane.
pub(crate) const LANE_MAX: usize = 200;

/// Makes a lane's books as long as they get: so many ranges that were given up, each of a million counters with one that was
/// received behind it, and then a window of which every other record has come. More than 32 ranges are too many, and forgotten.
pub(crate) fn scatter(core: &mut Core, sender: &mut Sender, ranges: u64) {
    const RANGE: u64 = 1_000_000;
    let reasons = [Reason::Evicted, Reason::Expired, Reason::Rejected, Reason::Parked, Reason::Corrupt];
    let mut first = 0;
    for reason in reasons.iter().cycle().take(ranges as usize) {
        let entry = Entry { incarnation: INCARNATION, lane: 0, reason: *reason, first, len: RANGE - 1 };
        first += RANGE;
        let post = sender.batch(first - 1, vec![entry], [first - 1]);
        core.take(sender.id, &post).expect("there is room");
    }
    let post = sender.batch(first, Vec::new(), (first..first + WINDOW).skip(1).step_by(2));
    core.take(sender.id, &post).expect("there is room");
}

/// What a database keeps of its only lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Open ranges.
    pub(crate) ranges: usize,
    /// Bytes of its books.
    pub(crate) books: usize,
    /// Bytes of its row in all.
    pub(crate) row: usize,
}

impl Kept {
    pub(crate) fn of(core: &Core, device: i64) -> Self {
        let lanes = core.lanes(device).expect("it is sound");
        let books = &lanes.first().expect("there is one").state.books;
        let number = |sql: &str| core.connection().query_row(sql, [], |row| row.get::<_, i64>(0));
        // What SQLite counts itself: the row with its header.
        let row = number("SELECT sum(payload) FROM dbstat WHERE name = 'lanes'").expect("it is SQL");
        Self { ranges: books.open().len(), books: books.encode().len(), row: row as usize }
    }

    /// What it may take.
    pub(crate) fn max(self) -> usize {
        LANE_MAX + OPEN_RANGE_MAX * self.ranges
    }
}
