//! Verifies a store against itself: the places of the log have no gaps, no key is stored twice, and every lane's books say as many
//! received records as there are. The receiver may go on meanwhile: what seems wrong is looked at again before it is said.

use std::collections::{BTreeMap, HashMap};

use pillarbox::DeviceId;
use serde::Serialize;

use crate::admin::{IncarnationName, Place};
use crate::books::Seen;
use crate::intake::{Aside, LaneName};
use crate::ledger::counted;
use crate::store::{
    Device, DeviceQuery, LaneRow, Position, RecordQuery, Result, Row, Source, Store, StoreError, shard_of,
};

/// Rows, or devices, that are read at a time.
const PAGE: u32 = 1000;
/// Findings that are told; the others are counted.
const FINDINGS_MAX: usize = 100;
/// How often a lane is looked at again that changes while it is looked at.
const LOOKS: usize = 5;

/// What was checked, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Shards of the log.
    pub shards: u64,
    /// Records in the log.
    pub records: u64,
    /// Of these, records of ordinary clients.
    pub client_records: u64,
    /// Records that are kept aside.
    pub asides: u64,
    /// Devices.
    pub devices: u64,
    /// Lanes of their incarnations.
    pub lanes: u64,
    /// Of these, lanes that received records whenever they were looked at: of them nothing can be said.
    pub busy_lanes: u64,
    /// What is wrong, in sentences.
    pub findings: Vec<String>,
    /// Findings beyond these.
    pub more_findings: u64,
}

impl CheckReport {
    /// Nothing was found.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    fn found(&mut self, sentence: String) {
        match self.findings.len() {
            FINDINGS_MAX.. => self.more_findings += 1,
            _ => self.findings.push(sentence),
        }
    }
}

/// Checks everything, and says how far it is. If the future is dropped, nothing was changed.
pub async fn check(store: &dyn Store, mut so_far: impl FnMut(&CheckReport)) -> Result<CheckReport> {
    let mut check =
        Check { store, report: CheckReport::default(), stored: HashMap::new(), read_to: Vec::new() };
    for head in store.heads().await? {
        check.report.shards += 1;
        check.read_to.push(Position::new(head.shard(), 0));
        check.shard(head, &mut so_far).await?;
    }
    check.asides().await?;
    let mut after = None;
    loop {
        let devices = store.devices(DeviceQuery { after, limit: PAGE, ..DeviceQuery::default() }).await?;
        for device in &devices {
            check.report.devices += 1;
            check.device(device).await?;
            so_far(&check.report);
        }
        after = devices.last().map(|device| device.name.clone());
        if devices.len() < PAGE as usize {
            break;
        }
    }
    check.left_over();
    Ok(check.report)
}

/// What of a lane is stored.
#[derive(Clone, Debug, Default)]
struct Stored {
    logged: Counters,
    /// What counts as received and is kept aside.
    unreadable: u64,
}

/// Counters as the runs that they make: few, however many there are.
#[derive(Clone, Debug, Default)]
struct Counters {
    /// By the first of a run, the counter after its last.
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl Counters {
    /// Adds a counter; says whether it was not there.
    fn add(&mut self, counter: u64) -> bool {
        let before = self.runs.range(..=counter).next_back().map(|(first, end)| (*first, *end));
        if before.is_some_and(|(_, end)| counter < end) {
            return false;
        }
        let end = self.runs.remove(&(counter.saturating_add(1))).unwrap_or(counter.saturating_add(1));
        let first = before.filter(|(_, end)| *end == counter).map_or(counter, |(first, _)| first);
        self.runs.insert(first, end);
        self.count += 1;
        true
    }
}

struct Check<'s> {
    store: &'s dyn Store,
    report: CheckReport,
    stored: HashMap<String, BTreeMap<LaneName, Stored>>,
    /// How far each shard was read.
    read_to: Vec<Position>,
}

impl Check<'_> {
    /// Reads a shard up to its head.
    async fn shard(&mut self, head: Position, so_far: &mut impl FnMut(&CheckReport)) -> Result<()> {
        let shard = head.shard();
        let mut at = Position::new(shard, 0);
        let mut limit = PAGE;
        while at < head {
            let query = RecordQuery { shard: Some(shard), after: Some(at), limit, ..RecordQuery::default() };
            let rows = match self.store.log(query).await {
                Ok(rows) => rows,
                // One of them cannot be read: which one?
                Err(StoreError::Damaged(_)) if limit > 1 => {
                    limit = 1;
                    continue;
                }
                Err(StoreError::Damaged(why)) => {
                    at = Position::new(shard, at.n() + 1);
                    self.report.found(format!("The record at {} cannot be read: {why}.", Place(at)));
                    continue;
                }
                Err(error) => return Err(error),
            };
            // What came behind the head meanwhile is another check's.
            let is_over = rows.first().is_none_or(|row| row.position.is_none_or(|position| position > head));
            for row in rows {
                let Some(position) = row.position.filter(|position| *position <= head) else { break };
                self.gap(at, position);
                at = position;
                self.row(&row);
            }
            so_far(&self.report);
            if is_over {
                self.gap(at, Position::new(shard, head.n() + 1));
                at = head;
            }
        }
        if let Some(read_to) = self.read_to.last_mut() {
            *read_to = head;
        }
        self.beyond(head).await
    }

    /// Whether places are missing between two that follow each other.
    fn gap(&mut self, before: Position, next: Position) {
        let missing = next.n().saturating_sub(before.n() + 1);
        if missing > 0 {
            let first = Place(Position::new(before.shard(), before.n() + 1));
            let are = counted(missing, "place is", "places are");
            self.report.found(format!("{are} missing in the log from {first} on: rows were removed."));
        }
    }

    /// Whether there are records behind a head that has not moved meanwhile.
    async fn beyond(&mut self, head: Position) -> Result<()> {
        let shard = Some(head.shard());
        let query = RecordQuery { shard, after: Some(head), limit: 1, ..RecordQuery::default() };
        let beyond = self.store.log(query).await;
        let is_beyond = beyond.is_ok_and(|rows| !rows.is_empty());
        if is_beyond && self.store.heads().await?.contains(&head) {
            let place = Place(head);
            self.report.found(format!(
                "There are records behind {place}, where the log of shard {} ends: the next ones will find no place.",
                head.shard()
            ));
        }
        Ok(())
    }

    fn row(&mut self, row: &Row) {
        self.report.records += 1;
        let Source::Device { key, .. } = &row.source else {
            self.report.client_records += 1;
            return;
        };
        let (Some(position), name) = (row.position, key.device.as_str()) else { return };
        let shard = shard_of(name, self.store.shards());
        if shard != position.shard() {
            self.report.found(format!(
                "{key} is at {}, but records of {name} belong to shard {shard}: who reads the log may get them out of order.",
                Place(position)
            ));
        }
        let lanes = self.stored.entry(name.to_owned()).or_default();
        let lane = lanes.entry((key.key.incarnation, key.key.lane)).or_default();
        if !lane.logged.add(key.key.counter) {
            self.report.found(format!("{key} is stored twice, the second time at {}.", Place(position)));
        }
    }

    async fn asides(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let query = RecordQuery { after, limit: PAGE, ..RecordQuery::default() };
            let rows = match self.store.asides(query).await {
                Ok(rows) => rows,
                Err(StoreError::Damaged(why)) => {
                    self.report.found(format!("What is kept aside cannot be read: {why}."));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            for row in &rows {
                self.report.asides += 1;
                if let (Source::Device { key, .. }, Some(Aside::Unreadable)) = (&row.source, row.aside) {
                    let lanes = self.stored.entry(key.device.to_string()).or_default();
                    lanes.entry((key.key.incarnation, key.key.lane)).or_default().unreadable += 1;
                }
            }
            after = rows.last().map(|row| Position(row.arrival));
            if rows.len() < PAGE as usize {
                return Ok(());
            }
        }
    }

    async fn device(&mut self, device: &Device) -> Result<()> {
        let stored = self.stored.remove(&device.name).unwrap_or_default();
        let lanes = match self.store.lanes(device.id).await {
            Ok(lanes) => lanes,
            Err(StoreError::Damaged(why)) => {
                let name = &device.name;
                self.report.found(format!("The books of {name} cannot be read: {why}."));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.report.lanes += lanes.len() as u64;
        for lane in &lanes {
            let of_lane = stored.get(&(lane.incarnation, lane.lane)).cloned().unwrap_or_default();
            self.lane(device, lane, of_lane).await?;
        }
        for (incarnation, lane) in stored.keys() {
            if !lanes.iter().any(|row| (row.incarnation, row.lane) == (*incarnation, *lane)) {
                let which = IncarnationName(*incarnation);
                self.report.found(format!(
                    "There are records of {} {which} lane {lane}, and no books.",
                    device.name
                ));
            }
        }
        Ok(())
    }

    /// Compares the books of a lane with what is stored of it, when nothing is received meanwhile.
    async fn lane(&mut self, device: &Device, lane: &LaneRow, mut stored: Stored) -> Result<()> {
        let name = format!("{} {} lane {}", device.name, IncarnationName(lane.incarnation), lane.lane);
        let mut books = lane.state.books.clone();
        for _ in 0..LOOKS {
            let count = self.store.count(device.id, lane.incarnation, lane.lane).await?;
            let here = stored.logged.count + stored.unreadable;
            let received = books.ledger().received;
            if received == count && count == here {
                return Ok(());
            }
            // Something may have come since the log was read, or since the books were.
            stored = self.look_again(device, lane, stored).await?;
            let again = self.store.lanes(device.id).await?;
            let again =
                again.into_iter().find(|row| (row.incarnation, row.lane) == (lane.incarnation, lane.lane));
            let Some(again) = again else { return Ok(()) };
            let is_still = again.state.books.ledger().received == received;
            books = again.state.books;
            let here = stored.logged.count + stored.unreadable;
            if is_still && (received != count || count != here) {
                self.differ(&name, received, count, here);
                self.not_received(&name, &books, &stored);
                return Ok(());
            }
        }
        self.report.busy_lanes += 1;
        Ok(())
    }

    /// How many records of a lane are kept aside because nobody can read them, now.
    async fn unreadable(&self, device: &Device, lane: &LaneRow) -> Result<u64> {
        let (mut after, mut count) = (None, 0);
        loop {
            let name = Some(device.name.clone());
            let query = RecordQuery { device: name, after, limit: PAGE, ..RecordQuery::default() };
            let rows = self.store.asides(query).await?;
            let is_of_lane = |row: &&Row| match &row.source {
                Source::Device { key, .. } => {
                    (key.key.incarnation, key.key.lane) == (lane.incarnation, lane.lane)
                        && row.aside == Some(Aside::Unreadable)
                }
                Source::Client { .. } => false,
            };
            count += rows.iter().filter(is_of_lane).count() as u64;
            after = rows.last().map(|row| Position(row.arrival));
            if rows.len() < PAGE as usize {
                return Ok(count);
            }
        }
    }

    /// Adds what came to the log since it was read, and counts anew what is kept aside.
    async fn look_again(&self, device: &Device, lane: &LaneRow, mut stored: Stored) -> Result<Stored> {
        stored.unreadable = self.unreadable(device, lane).await?;
        let shard = shard_of(&device.name, self.store.shards());
        let mut after = self.read_to.iter().find(|at| at.shard() == shard).copied();
        loop {
            let (shard, device) = (Some(shard), Some(device.name.clone()));
            let query = RecordQuery { device, shard, after, limit: PAGE, ..RecordQuery::default() };
            let Ok(rows) = self.store.log(query).await else { return Ok(stored) };
            for row in &rows {
                if let Source::Device { key, .. } = &row.source
                    && (key.key.incarnation, key.key.lane) == (lane.incarnation, lane.lane)
                {
                    stored.logged.add(key.key.counter);
                }
            }
            after = rows.last().and_then(|row| row.position).or(after);
            if rows.len() < PAGE as usize {
                return Ok(stored);
            }
        }
    }

    fn differ(&mut self, name: &str, received: u64, count: u64, here: u64) {
        if received != here {
            let has = counted(here, "record is", "records are");
            self.report.found(format!("{name}: the books say that {received} were received; {has} stored."));
        }
        if count != here {
            let are = counted(here, "record is", "records are");
            self.report.found(format!(
                "{name}: {are} stored, but {count} are found by key: the list of runs is wrong."
            ));
        }
    }

    /// Which of the stored ones the books do not know of.
    fn not_received(&mut self, name: &str, books: &crate::books::Books, stored: &Stored) {
        let ends = stored.logged.runs.iter().flat_map(|(first, end)| [*first, end.saturating_sub(1)]);
        let unknown = ends.filter(|counter| matches!(books.seen(*counter), Seen::New | Seen::Beyond)).min();
        if let Some(counter) = unknown {
            self.report
                .found(format!("{name}: counter {counter} is stored, and the books have not received it."));
        }
    }

    /// What is stored of nobody.
    fn left_over(&mut self) {
        let mut names: Vec<String> = self.stored.drain().map(|(name, _)| name).collect();
        names.sort();
        for name in names.into_iter().filter(|name| DeviceId::new(name).is_ok()) {
            self.report.found(format!("There are records of {name}, and no such device."));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_runs_and_none_is_counted_twice() {
        let mut counters = Counters::default();
        for counter in [5, 3, 4, 0, u64::MAX - 1, 1] {
            assert!(counters.add(counter), "{counter}");
        }
        for counter in [0, 1, 3, 4, 5, u64::MAX - 1] {
            assert!(!counters.add(counter), "{counter}");
        }
        let runs: Vec<(u64, u64)> = counters.runs.into_iter().collect();
        assert_eq!((counters.count, runs), (6, vec![(0, 2), (3, 6), (u64::MAX - 1, u64::MAX)]));
    }
}
