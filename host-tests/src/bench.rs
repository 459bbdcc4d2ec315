//! What the outbox costs, in counts of flash operations, beside the raw queue in the same run.

use core::cell::Cell;
use core::fmt;

use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use pillarbox::{Config, DeviceId, Drain, Key, LaneConfig, Outbox, Resources, buffer_size};
use sequential_storage::cache::page_pointers::ArrayPagePointers;
use sequential_storage::cache::page_states::ArrayPageStates;
use sequential_storage::cache::{Cache, Uncached};
use sequential_storage::queue::{QueueConfig, QueueStorage};

use crate::flash::{Chip, Counts};
use crate::life::{Reading, VirtualClock, record_max};

/// Pages of the lane.
pub const PAGES: usize = 64;
const PAGE: usize = 4096;
const METADATA_PAGES: usize = 2;
const DEAD_PAGES: usize = 2;
/// The body of a record: a number of up to 10 bytes, a length, and the rest.
const PAYLOAD: usize = 20;
const RECORD: usize = record_max(PAYLOAD);
const BUFFER: usize = buffer_size(1, RECORD);
/// Records sent and settled at once.
const BATCH: usize = 64;

/// The flash of an RP2040 as embassy-rp drives it.
type Flash = Chip<4, 1, PAGE>;
type Device<'r> = Outbox<'r, &'r Flash, 1, RECORD, NoopRawMutex, VirtualClock<'r>>;
type Sender<'r> = Drain<'r, &'r Flash, 1, RECORD, NoopRawMutex, VirtualClock<'r>>;

/// Flash operations per record.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PerRecord {
    /// Reads.
    pub reads: f64,
    /// Programs.
    pub programs: f64,
    /// Bytes programmed.
    pub bytes: f64,
    /// Erases.
    pub erases: f64,
    /// Modelled time for which the flash was busy, in microseconds.
    pub busy_us: f64,
}

impl PerRecord {
    fn of(counts: Counts, records: usize) -> Self {
        let per = |count: u64| count as f64 / records as f64;
        Self {
            reads: per(counts.reads),
            programs: per(counts.programs),
            bytes: per(counts.bytes_programmed),
            erases: per(counts.erases),
            busy_us: counts.busy_us() / records as f64,
        }
    }
}

/// The three things that happen to a record.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Costs {
    /// Appending it.
    pub enqueue: PerRecord,
    /// Reading it for a batch.
    pub read: PerRecord,
    /// Removing it.
    pub settle: PerRecord,
}

/// What opening costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Boot {
    /// Pages of the lane.
    pub pages: u16,
    /// Records that lie in it.
    pub records: usize,
    /// The stop before it was clean.
    pub is_clean: bool,
    /// Operations of the opening.
    pub counts: Counts,
}

/// Everything that was counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Ours over a full wrap of the ring, metadata included.
    pub ours: Costs,
    /// The raw queue's, over the same.
    pub raw: Costs,
    /// Ours with so many records pending.
    pub backlogs: Vec<(usize, Costs)>,
    /// Opening.
    pub boots: Vec<Boot>,
    /// Records that a full ring holds.
    pub capacity: usize,
}

/// Counts everything.
pub fn run() -> Report {
    let capacity = capacity();
    Report {
        ours: wrap(capacity),
        raw: raw_wrap(),
        backlogs: [10, 1_000, capacity - 4 * BATCH].map(|backlog| (backlog, with_backlog(backlog))).to_vec(),
        boots: boots(),
        capacity,
    }
}

fn chip() -> Flash {
    Chip::new(METADATA_PAGES + DEAD_PAGES + PAGES, 1)
}

/// Opens an outbox with a lane of so many pages and uses it.
fn with_outbox<T>(chip: &Flash, pages: u16, use_it: impl FnOnce(Device<'_>, &mut Sender<'_>) -> T) -> T {
    let clock = Cell::new(86_400_000);
    let mut resources = Resources::<_, 1, RECORD, BUFFER, NoopRawMutex, VirtualClock<'_>>::new();
    let device = DeviceId::new("meter-0042").expect("it is a device id");
    let config = Config::new(device, [LaneConfig::new(pages)]);
    let opened = block_on(pillarbox::new(&mut resources, chip, VirtualClock(&clock), 1, config));
    let (outbox, mut drain) = opened.expect("the flash is sound");
    block_on(drain.learn_time(1_790_000_000_000));
    use_it(outbox, &mut drain)
}

/// A record whose body has 32 bytes.
fn reading(serial: usize) -> Reading<PAYLOAD> {
    let mut reading = Reading::new(u64::MAX - serial as u64);
    reading.payload.resize_default(PAYLOAD).expect("it is no longer than that");
    reading
}

fn counted<T>(chip: &Flash, total: &mut Counts, work: impl FnOnce() -> T) -> T {
    let before = chip.counts();
    let value = work();
    *total += chip.counts() - before;
    value
}

#[derive(Default)]
struct Totals {
    enqueue: Counts,
    read: Counts,
    settle: Counts,
    records: usize,
}

impl Totals {
    fn costs(&self) -> Costs {
        let per = |counts| PerRecord::of(counts, self.records);
        Costs { enqueue: per(self.enqueue), read: per(self.read), settle: per(self.settle) }
    }

    /// A batch is posted, sent and settled.
    fn batch(&mut self, chip: &Flash, outbox: Device<'_>, drain: &mut Sender<'_>) {
        for _ in 0..BATCH {
            let posted =
                counted(chip, &mut self.enqueue, || block_on(outbox.enqueue(&reading(self.records))));
            posted.expect("there is room");
            self.records += 1;
        }
        let keys = counted(chip, &mut self.read, || window(drain));
        let settled = counted(chip, &mut self.settle, || block_on(drain.settle(0, &keys)));
        assert_eq!(settled.expect("the flash is sound"), BATCH as u32);
    }
}

fn window(drain: &mut Sender<'_>) -> Vec<Key> {
    let mut keys = Vec::new();
    let taken = block_on(drain.window(0, |stored| {
        let room = keys.len() < BATCH;
        if room {
            keys.push(stored.key);
        }
        room
    }));
    taken.expect("the flash is sound");
    keys
}

fn capacity() -> usize {
    let chip = chip();
    with_outbox(&chip, PAGES as u16, |outbox, _| {
        (0..).take_while(|&serial| block_on(outbox.enqueue(&reading(serial))).is_ok()).count()
    })
}

fn wrap(records: usize) -> Costs {
    let chip = chip();
    with_outbox(&chip, PAGES as u16, |outbox, drain| {
        let mut totals = Totals::default();
        // Once round to reach the steady state, once round to count.
        while totals.records < records {
            totals.batch(&chip, outbox, drain);
        }
        totals = Totals::default();
        while totals.records < records {
            totals.batch(&chip, outbox, drain);
        }
        totals.costs()
    })
}

fn with_backlog(backlog: usize) -> Costs {
    let chip = chip();
    with_outbox(&chip, PAGES as u16, |outbox, drain| {
        for serial in 0..backlog {
            block_on(outbox.enqueue(&reading(serial))).expect("there is room");
        }
        let mut totals = Totals::default();
        while totals.records < 16 * BATCH {
            totals.batch(&chip, outbox, drain);
        }
        totals.costs()
    })
}

fn raw_wrap() -> Costs {
    let chip = Flash::new(PAGES, 1);
    let mut queue = QueueStorage::new(
        &chip,
        const { QueueConfig::new(0..(PAGES * PAGE) as u32) },
        Cache::new(ArrayPageStates::<PAGES>::new(), ArrayPagePointers::<PAGES>::new(), Uncached),
    );
    let mut totals = Totals::default();
    let round = PAGES * PAGE / (RECORD + 8);
    let mut buffer = [0; PAGE];
    for serial in 0..2 * round {
        if serial == round {
            totals = Totals::default();
        }
        let item = [serial as u8; RECORD];
        counted(&chip, &mut totals.enqueue, || block_on(queue.push(&item, false))).expect("there is room");
        totals.records += 1;
        if totals.records.is_multiple_of(BATCH) {
            counted(&chip, &mut totals.read, || {
                block_on(async {
                    let mut items = queue.iter().await.expect("the flash is sound");
                    while items.next(&mut buffer).await.expect("the flash is sound").is_some() {}
                });
            });
            counted(&chip, &mut totals.settle, || {
                block_on(async {
                    let mut items = queue.iter().await.expect("the flash is sound");
                    while let Some(item) = items.next(&mut buffer).await.expect("the flash is sound") {
                        item.pop().await.expect("the flash is sound");
                    }
                });
            });
        }
    }
    totals.costs()
}

fn boots() -> Vec<Boot> {
    let mut boots = Vec::new();
    for pages in [4_u16, 16, 64] {
        for full in [false, true] {
            for is_clean in [false, true] {
                let chip = chip();
                let records = with_outbox(&chip, pages, |outbox, _| {
                    let most = if full { usize::MAX } else { 10 };
                    let fits = |&serial: &usize| block_on(outbox.enqueue(&reading(serial))).is_ok();
                    let records = (0..most).take_while(fits).count();
                    if is_clean {
                        block_on(outbox.suspend()).expect("the flash is sound");
                    }
                    records
                });
                chip.reset_counts();
                with_outbox(&chip, pages, |_, _| ());
                boots.push(Boot { pages, records, is_clean, counts: chip.counts() });
            }
        }
    }
    boots
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, who: &str, what: &str, cost: &PerRecord| {
            writeln!(
                f,
                "| {who:28} | {what:7} | {:6.2} | {:8.2} | {:16.1} | {:7.4} | {:9.0} |",
                cost.reads, cost.programs, cost.bytes, cost.erases, cost.busy_us
            )
        };
        let all = |f: &mut fmt::Formatter<'_>, who: &str, costs: &Costs| {
            line(f, who, "enqueue", &costs.enqueue)?;
            line(f, who, "read", &costs.read)?;
            line(f, who, "settle", &costs.settle)
        };
        writeln!(
            f,
            "Flash operations per record: 32-byte records, {PAGES} pages of {PAGE} bytes, batches of {BATCH},"
        )?;
        writeln!(
            f,
            "averaged over a full wrap of the ring ({} records), metadata included.\n",
            self.capacity
        )?;
        writeln!(
            f,
            "| storage                      | for     |  reads | programs | bytes programmed |  erases | busy (us) |"
        )?;
        writeln!(
            f,
            "|------------------------------|---------|-------:|---------:|-----------------:|--------:|----------:|"
        )?;
        all(f, "Pillarbox", &self.ours)?;
        all(f, "raw sequential-storage queue", &self.raw)?;
        for (backlog, costs) in &self.backlogs {
            all(f, &format!("Pillarbox, {backlog} pending"), costs)?;
        }
        writeln!(f, "\nOpening:\n")?;
        writeln!(f, "| pages | records | stop    | reads | bytes read | programs | erases | busy (ms) |")?;
        writeln!(f, "|------:|--------:|---------|------:|-----------:|---------:|-------:|----------:|")?;
        for boot in &self.boots {
            writeln!(
                f,
                "| {:5} | {:7} | {:7} | {:5} | {:10} | {:8} | {:6} | {:9.1} |",
                boot.pages,
                boot.records,
                if boot.is_clean { "clean" } else { "unclean" },
                boot.counts.reads,
                boot.counts.bytes_read,
                boot.counts.programs,
                boot.counts.erases,
                boot.counts.busy_us() / 1000.0
            )?;
        }
        Ok(())
    }
}
