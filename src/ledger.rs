//! The metadata: one snapshot holds everything that must change together.

use heapless::Vec;

#[cfg(feature = "outbox")]
use crate::io::fill;
use crate::{
    Cause, Geometry, Key, Layout, Tag, account::Account, codec::Walk, geometry::FORMAT, layout::LANES_MAX,
};

/// Set in the first byte of a snapshot, beside the format, and never in that of a record: a ring's page that lies
/// where the metadata should be is not taken for them.
const SNAPSHOT: u8 = 0x80;

/// Live tags a lane.
pub(crate) const TAGS: usize = 16;
/// Records a lane whose rejections are counted at a time.
pub(crate) const ATTEMPTS: usize = 4;
/// Dead letters that may be on their way again at a time.
pub(crate) const LATE: usize = 4;
/// Earlier incarnations whose books may still be open.
pub(crate) const FORMER: usize = 2;

/// The newest record of a tag; older ones with the same tag are superseded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// What it is about.
    pub tag: Tag,
    /// The counter of its key, which is of the current incarnation.
    pub counter: u64,
    /// Where it lies, so that superseding it needs no search.
    pub page: u16,
}

/// How often a pending record was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// The record.
    pub key: Key,
    /// So often.
    pub count: u16,
}

/// How many records lie in a lane, as counted at a clean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub records: u32,
    /// The bytes of flash that they take.
    pub bytes: u32,
}

/// The ring of the dead letters, where lanes are numbered.
pub(crate) const DEAD_LETTERS: u8 = 0xff;

/// Something that takes several steps on the flash. It is written down before the first, so that after a power
/// cut the rest is done at the next boot. Doing it again when it is done already changes nothing.
// With this representation page and key lie at one place in all of them, so that one code serves them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) act: Act,
    pub(crate) ring: u8,
    pub(crate) page: u16,
    /// Why a record is parked; else it does not matter.
    pub(crate) cause: Cause,
    /// The record in question; of a page that is evicted, the last on it.
    pub(crate) key: Key,
}

/// What is intended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Erase every ring and take a new incarnation.
    Clear,
    /// Erase this page of a ring, if that still is the last record on it.
    Evict,
    /// Remove this record.
    Remove,
    /// Move this record to the dead letters.
    Park,
}

/// A lane's part of the snapshot.
// In this order: a small chip reaches what lies near the start with shorter code, and the lists are long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LaneLedger {
    /// No counter from here on was ever handed out.
    pub(crate) ceiling: u64,
    /// Every counter below was handed out, or will never be; the truth lies between this and the ceiling.
    pub(crate) next: u64,
    pub(crate) count: Option<Count>,
    pub(crate) attempts: Vec<Attempts, ATTEMPTS>,
    pub(crate) tags: Vec<Tagged, TAGS>,
}

/// An incarnation that takes no more records, and how far its counters came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Former<const LANES: usize> {
    pub(crate) incarnation: u32,
    pub(crate) issued: [u64; LANES],
}

/// The state that survives: written whole, so that no two parts of it ever disagree.
// In this order for the same reason. In a snapshot it is that of `walk`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Ledger<const LANES: usize> {
    pub(crate) incarnation: u32,
    pub(crate) boot: u32,
    /// What has begun and may have to be finished.
    pub(crate) intent: Option<Intent>,
    pub(crate) late: Vec<Key, LATE>,
    pub(crate) former: Vec<Former<LANES>, FORMER>,
    pub(crate) lanes: [LaneLedger; LANES],
    pub(crate) account: Account,
}

/// The most bytes that a snapshot of so many lanes takes.
pub(crate) const fn snapshot_max(lanes: usize) -> usize {
    let key = 5 + 1 + 10;
    let lane = 10 + 10 + (1 + 5 + 5) + (1 + TAGS * (5 + 10 + 3)) + (1 + ATTEMPTS * (key + 3));
    let account = 1 + Account::MAX * (5 + 1 + 1 + 10 + 10);
    let head = 1 + 5 + Layout::ENCODED_MAX;
    let intent = 1 + 1 + 1 + 3 + key + 1;
    head + 5
        + 5
        + intent
        + (1 + lanes * lane)
        + account
        + (1 + LATE * key)
        + (1 + FORMER * (5 + 1 + lanes * 10))
}

// A half of the metadata holds the magic and the largest snapshot, whatever the word.
const _: () =
    assert!(2 * Geometry::WORD_MAX + snapshot_max(LANES_MAX).next_multiple_of(Geometry::WORD_MAX) <= 4096);

/// The version and the number of a snapshot, whatever the version. `None` for what is no snapshot.
pub(crate) fn snapshot_number(bytes: &[u8]) -> Option<(u8, u32)> {
    let mut walk = Walk::reading(bytes);
    let (mut first, mut sequence) = (0, 0);
    walk.byte(&mut first);
    walk.u32(&mut sequence);
    walk.end().filter(|_| first & SNAPSHOT != 0).map(|_| (first & !SNAPSHOT, sequence))
}

/// Reads what stands before the ledger in a snapshot, which can be read whatever the number of lanes: the snapshot's number
/// and the region's layout. What follows it is the ledger. `None` for bytes that are no snapshot of this format.
pub(crate) fn read_head<'b>(bytes: &'b [u8], layout: &mut Layout) -> Option<(u32, &'b [u8])> {
    let mut sequence = 0;
    let mut walk = Walk::reading(bytes);
    walk_head(&mut sequence, layout, &mut walk);
    Some((sequence, bytes.get(walk.end()?..)?))
}

fn walk_head(sequence: &mut u32, layout: &mut Layout, walk: &mut Walk<'_>) {
    let mut first = SNAPSHOT | FORMAT;
    walk.byte(&mut first);
    if first != SNAPSHOT | FORMAT {
        walk.fail();
    }
    walk.u32(sequence);
    layout.walk(walk);
}

impl<const LANES: usize> Ledger<LANES> {
    pub(crate) fn fresh(incarnation: u32) -> Self {
        Self {
            incarnation,
            boot: 0,
            intent: None,
            lanes: core::array::from_fn(|_| LaneLedger::default()),
            account: Account::new(),
            late: Vec::new(),
            former: Vec::new(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut ledger = Self::fresh(0);
        ledger.read(bytes).then_some(ledger)
    }

    /// Reads a ledger over this one; `false` if the bytes are none of so many lanes.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> bool {
        let mut walk = Walk::reading(bytes);
        self.walk(&mut walk);
        walk.end().is_some()
    }

    /// Writes a snapshot, padded to the flash's word. Gives its length.
    #[cfg(feature = "outbox")]
    pub(crate) fn encode(
        &mut self,
        buffer: &mut [u8],
        sequence: u32,
        layout: &mut Layout,
        geometry: Geometry,
    ) -> Option<usize> {
        let mut walk = Walk::writing(buffer);
        walk_head(&mut { sequence }, layout, &mut walk);
        self.walk(&mut walk);
        let used = walk.end()?;
        let padded = geometry.round_up(used as u32) as usize;
        fill(buffer.get_mut(used..padded)?, 0xff);
        Some(padded)
    }

    fn walk(&mut self, walk: &mut Walk<'_>) {
        walk.u32(&mut self.incarnation);
        walk.u32(&mut self.boot);
        walk.option(&mut self.intent, Intent::clear(), Intent::walk);
        // A region may have had fewer lanes; those that were added begin as they are.
        let lanes = walk.count(LANES, LANES);
        self.lanes.iter_mut().take(lanes).for_each(|lane| lane.walk(walk));
        self.account.walk(walk);
        walk.list(&mut self.late, NO_KEY, walk_key);
        let former = Former { incarnation: 0, issued: [0; LANES] };
        walk.list(&mut self.former, former, |former, walk| {
            walk.u32(&mut former.incarnation);
            let lanes = walk.count(LANES, LANES);
            former.issued.iter_mut().take(lanes).for_each(|issued| walk.number(issued));
        });
    }
}

const NO_KEY: Key = Key { incarnation: 0, lane: 0, counter: 0 };

fn walk_key(key: &mut Key, walk: &mut Walk<'_>) {
    walk.u32(&mut key.incarnation);
    walk.byte(&mut key.lane);
    walk.number(&mut key.counter);
}

// The parts are walked in functions of their own: in one large function, most values lie on the stack.
impl LaneLedger {
    #[inline(never)]
    fn walk(&mut self, walk: &mut Walk<'_>) {
        walk.number(&mut self.ceiling);
        walk.number(&mut self.next);
        walk.option(&mut self.count, Count { records: 0, bytes: 0 }, |count, walk| {
            walk.u32(&mut count.records);
            walk.u32(&mut count.bytes);
        });
        walk.list(&mut self.tags, Tagged { tag: 0, counter: 0, page: 0 }, |tagged, walk| {
            walk.u32(&mut tagged.tag);
            walk.number(&mut tagged.counter);
            walk.u16(&mut tagged.page);
        });
        walk.list(&mut self.attempts, Attempts { key: NO_KEY, count: 0 }, |attempts, walk| {
            walk_key(&mut attempts.key, walk);
            walk.u16(&mut attempts.count);
        });
    }
}

impl Intent {
    pub(crate) const fn clear() -> Self {
        Self::new(Act::Clear, 0, 0, NO_KEY)
    }

    pub(crate) const fn new(act: Act, ring: u8, page: u16, key: Key) -> Self {
        Self { act, ring, page, cause: Cause::Rejected, key }
    }

    #[inline(never)]
    fn walk(&mut self, walk: &mut Walk<'_>) {
        self.act = match walk.choice(self.act as u8, 4) {
            0 => Act::Clear,
            1 => Act::Evict,
            2 => Act::Remove,
            _ => Act::Park,
        };
        if self.act != Act::Clear {
            walk.byte(&mut self.ring);
            walk.u16(&mut self.page);
            walk_key(&mut self.key, walk);
        }
        if self.act == Act::Park {
            self.cause.walk(walk);
        }
    }
}
