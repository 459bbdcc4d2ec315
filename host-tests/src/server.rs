//! The receiver in plain code: what a batch does, and what is answered. The worlds of the tests run against it, and the
//! real receiver is proved against it.

pub mod books;
pub mod ledger;
pub mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pillarbox::wire::{
    AnswerDraft, Batch, ENVELOPE_MAX, Head, Secret, TAG_LEN, TagKeys, Verdict, fingerprint,
};
use pillarbox::{DeviceId, Entry, Key, Kind, Stored, Timestamp};

use self::books::{Said, Seen};
use self::ledger::{Lane, Ledger};

/// Verdicts that one answer holds at most.
const VERDICTS_MAX: usize = 64;

/// What comes back over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status of the response.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
    /// Its `Retry-After`, in seconds.
    pub retry_after_s: Option<u32>,
}

/// Whatever takes batches: the model, or the real receiver.
pub trait Server {
    /// Takes the body of a request at this time of the world, in milliseconds since 1970.
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply;
}

impl<F: FnMut(u64, &[u8]) -> Reply> Server for F {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        self(now_ms, body)
    }
}

/// What tells one content from another under the same key.
pub type Fingerprint = [u8; 16];

/// A record that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub device: DeviceId,
    /// Its name.
    pub key: Key,
    /// What its body is.
    pub kind: Kind,
    /// When it was enqueued.
    pub time: Timestamp,
    /// The application's postcard bytes.
    pub body: Vec<u8>,
    /// What tells it from another content under the same key.
    pub fingerprint: Fingerprint,
    /// How many records had come before it.
    pub arrival: u64,
}

/// What a test has the receiver say about a record that it would store, instead of storing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not now.
    Retry,
    /// Not as it is.
    Rejected,
}

/// Decides about a record that would be stored; `None` stores it.
pub type Judge = Arc<dyn Fn(&DeviceId, &Stored<'_>) -> Option<Refusal> + Send + Sync>;

/// What a test may have the receiver do otherwise.
#[derive(Clone, Default)]
pub struct Knobs {
    /// Said in every answer.
    pub retry_after_s: Option<u32>,
    /// Said in every answer.
    pub preferred_size: Option<u32>,
    /// So much is the receiver's clock wrong.
    pub clock_offset_ms: i64,
    /// Records that are refused.
    pub refused: BTreeMap<(DeviceId, Key), Refusal>,
    /// Refuses more records.
    pub judge: Option<Judge>,
}

/// What is known about one incarnation of a device.
#[derive(Clone, Debug, Default)]
struct Incarnation {
    /// The highest boot, and its nonce.
    boot: Option<(u32, u32)>,
    lanes: BTreeMap<u8, Lane>,
    is_fenced: bool,
}

#[derive(Clone)]
struct Device {
    keys: TagKeys,
    incarnations: BTreeMap<u32, Incarnation>,
}

/// What an answer says about one record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Settled,
    SettledBut(Verdict),
    Kept,
    KeptFor(Verdict),
}

/// The receiver. A clone is a backup.
#[derive(Clone)]
pub struct ModelServer {
    /// Random name of the database.
    pub epoch: u64,
    /// What a test has it do otherwise.
    pub knobs: Knobs,
    devices: BTreeMap<DeviceId, Device>,
    log: Vec<Received>,
    /// Where in the log a key is.
    places: BTreeMap<(DeviceId, Key), usize>,
    quarantine: BTreeMap<(DeviceId, Key, Fingerprint), Received>,
    conflicts: BTreeMap<(DeviceId, Key, Fingerprint), Received>,
    arrivals: u64,
}

impl ModelServer {
    /// An empty database of this name.
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            knobs: Knobs::default(),
            devices: BTreeMap::new(),
            log: Vec::new(),
            places: BTreeMap::new(),
            quarantine: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Lets a device in.
    pub fn register(&mut self, device: DeviceId, secret: &Secret) {
        let keys = TagKeys::new(secret);
        self.devices.insert(device, Device { keys, incarnations: BTreeMap::new() });
    }

    /// The database as it is now.
    pub fn snapshot(&self) -> Self {
        self.clone()
    }

    /// The database of a backup takes this one's place, under a new name. The knobs stay.
    pub fn restore(&mut self, backup: &Self, epoch: u64) {
        let knobs = std::mem::take(&mut self.knobs);
        *self = Self { epoch, knobs, ..backup.clone() };
    }

    /// Takes nothing into the books of this incarnation any more: it is answered as stale.
    pub fn fence(&mut self, device: &DeviceId, incarnation: u32) {
        if let Some(device) = self.devices.get_mut(device) {
            device.incarnations.entry(incarnation).or_default().is_fenced = true;
        }
    }

    /// Every record that was stored, in the order of arrival.
    pub fn log(&self) -> &[Received] {
        &self.log
    }

    /// The record that was stored under this key.
    pub fn stored(&self, device: &DeviceId, key: Key) -> Option<&Received> {
        self.log.get(*self.places.get(&(device.clone(), key))?)
    }

    /// Records that are kept aside.
    pub fn quarantine(&self) -> impl Iterator<Item = &Received> {
        self.quarantine.values()
    }

    /// Records whose key was taken by another content.
    pub fn conflicts(&self) -> impl Iterator<Item = &Received> {
        self.conflicts.values()
    }

    /// The incarnations and lanes of a device that the receiver has heard of.
    pub fn lanes(&self, device: &DeviceId) -> BTreeSet<(u32, u8)> {
        let device = self.devices.get(device);
        let incarnations = device.into_iter().flat_map(|device| &device.incarnations);
        incarnations.flat_map(|(name, one)| one.lanes.keys().map(|lane| (*name, *lane))).collect()
    }

    /// The books of one lane.
    pub fn lane(&self, device: &DeviceId, incarnation: u32, lane: u8) -> Option<&Lane> {
        self.devices.get(device)?.incarnations.get(&incarnation)?.lanes.get(&lane)
    }

    /// What became of the counters of one lane.
    pub fn ledger(&self, device: &DeviceId, incarnation: u32, lane: u8) -> Option<Ledger> {
        self.lane(device, incarnation, lane).map(Lane::ledger)
    }

    /// Compares all books with the notes, and with the log. Panics when they disagree.
    pub fn check(&self) {
        for (id, device) in &self.devices {
            for (incarnation, lane) in self.lanes(id) {
                let lane_books = &device.incarnations[&incarnation].lanes[&lane];
                lane_books.check();
                let first = Key { incarnation, lane, counter: 0 };
                let last = Key { counter: u64::MAX, ..first };
                let stored = self.places.range((id.clone(), first)..=(id.clone(), last)).count() as u64;
                assert_eq!(
                    stored,
                    lane_books.ledger().received,
                    "stored under {id} {incarnation:08x}.{lane}"
                );
            }
        }
    }

    /// Boot and nonce against the highest that were seen; takes note of a higher one.
    fn is_stale(&mut self, head: &Head) -> bool {
        let Some(device) = self.devices.get_mut(&head.device) else { return true };
        let known = device.incarnations.entry(head.incarnation).or_default();
        let is_stale = match known.boot {
            Some((boot, nonce)) => head.boot < boot || (head.boot == boot && head.boot_nonce != nonce),
            None => false,
        };
        if known.is_fenced || is_stale {
            return true;
        }
        known.boot = Some((head.boot, head.boot_nonce));
        false
    }

    fn lane_mut(&mut self, device: &DeviceId, incarnation: u32, lane: u8) -> Option<&mut Lane> {
        let incarnation = self.devices.get_mut(device)?.incarnations.entry(incarnation).or_default();
        Some(incarnation.lanes.entry(lane).or_default())
    }

    fn received(&mut self, device: &DeviceId, record: &Stored<'_>) -> Received {
        self.arrivals += 1;
        Received {
            device: device.clone(),
            key: record.key,
            kind: record.kind,
            time: record.time,
            body: record.body.to_vec(),
            fingerprint: fingerprint(record),
            arrival: self.arrivals - 1,
        }
    }

    /// Keeps a record aside, once.
    fn set_aside(&mut self, device: &DeviceId, record: &Stored<'_>, verdict: Verdict) -> Fate {
        let name = (device.clone(), record.key, fingerprint(record));
        let received = self.received(device, record);
        if verdict == Verdict::Conflict {
            self.quarantine.remove(&name);
            self.conflicts.entry(name).or_insert(received);
        } else if !self.conflicts.contains_key(&name) {
            self.quarantine.entry(name).or_insert(received);
        }
        Fate::SettledBut(verdict)
    }

    /// A record of a batch that does not count in the books.
    fn take_stale(&mut self, device: &DeviceId, record: &Stored<'_>) -> Fate {
        match self.stored(device, record.key) {
            Some(known) if known.fingerprint == fingerprint(record) => Fate::Settled,
            _ => self.set_aside(device, record, Verdict::Quarantined),
        }
    }

    fn take(&mut self, head: &Head, record: &Stored<'_>, is_held_up: bool) -> Fate {
        let (device, key) = (&head.device, record.key);
        let Some(lane) = self.lane_mut(device, key.incarnation, key.lane) else { return Fate::Kept };
        let seen = lane.seen(key.counter);
        match (seen, self.stored(device, key)) {
            (Seen::New | Seen::Beyond, Some(_)) => panic!("{device} {key:?} was stored, and is {seen:?}"),
            (Seen::Duplicate, None) => panic!("{device} {key:?} was not stored, and is a duplicate"),
            (_, Some(known)) if known.fingerprint == fingerprint(record) => Fate::Settled,
            (_, Some(_)) => self.set_aside(device, record, Verdict::Conflict),
            (Seen::Doubtful, None) => self.set_aside(device, record, Verdict::Quarantined),
            // Nobody may be left to move the floor of a former incarnation.
            (Seen::Beyond, None) if key.incarnation != head.incarnation => {
                self.set_aside(device, record, Verdict::Quarantined)
            }
            (Seen::Beyond, None) => Fate::Kept,
            (Seen::New, None) if is_held_up => Fate::Kept,
            (Seen::New, None) => match self.refusal(device, record) {
                Some(Refusal::Retry) => Fate::KeptFor(Verdict::Retry),
                Some(Refusal::Rejected) => Fate::KeptFor(Verdict::Rejected),
                None => self.store(device, record),
            },
        }
    }

    fn refusal(&self, device: &DeviceId, record: &Stored<'_>) -> Option<Refusal> {
        let named = self.knobs.refused.get(&(device.clone(), record.key)).copied();
        named.or_else(|| self.knobs.judge.as_ref().and_then(|judge| judge(device, record)))
    }

    fn store(&mut self, device: &DeviceId, record: &Stored<'_>) -> Fate {
        let received = self.received(device, record);
        self.quarantine.remove(&(device.clone(), record.key, received.fingerprint));
        self.places.insert((device.clone(), record.key), self.log.len());
        self.log.push(received);
        if let Some(lane) = self.lane_mut(device, record.key.incarnation, record.key.lane) {
            lane.store(record.key.counter);
        }
        Fate::Settled
    }

    /// What an authentic batch does. Gives the answer's body.
    fn answer(&mut self, now_ms: u64, batch: &Batch<'_>, keys: &TagKeys, tag: &[u8; TAG_LEN]) -> Vec<u8> {
        let head = &batch.head;
        let entries: Vec<Entry> = batch.entries().collect();
        let said = Said { floor: head.floor, issued: head.issued, is_closing: head.is_closing };
        let is_stale = self.is_stale(head);
        if let Some(lane) = self.lane_mut(&head.device, head.incarnation, head.lane).filter(|_| !is_stale) {
            lane.begin(&said, &entries);
        }
        let mut fates = |records: Vec<Stored<'_>>| -> Vec<Fate> {
            let mut is_held_up = false;
            let take = |record| {
                let fate = match is_stale {
                    true => self.take_stale(&head.device, record),
                    false => self.take(head, record, is_held_up),
                };
                is_held_up |= head.is_in_order && matches!(fate, Fate::Kept | Fate::KeptFor(_));
                fate
            };
            records.iter().map(take).collect()
        };
        let records = fates(batch.records().collect());
        let late = fates(batch.late().collect());
        let mut draft = AnswerDraft {
            is_stale,
            server_time_ms: now_ms.saturating_add_signed(self.knobs.clock_offset_ms),
            epoch: self.epoch,
            retry_after_s: self.knobs.retry_after_s,
            preferred_size: self.knobs.preferred_size,
            ..AnswerDraft::default()
        };
        let mut explain = Vec::new();
        if let Some(lane) = self.lane_mut(&head.device, head.incarnation, head.lane).filter(|_| !is_stale) {
            let (confirmed, missing) = lane.finish(&said, &entries);
            draft.confirmed = confirmed;
            draft.is_closed = lane.books().is_closed();
            explain =
                missing.into_iter().map(|missing| (missing.start, missing.end - missing.start)).collect();
        }
        let all = || records.iter().chain(&late);
        draft.is_renew = is_stale || all().any(|fate| *fate == Fate::SettledBut(Verdict::Conflict));
        let verdicts = all().enumerate().filter_map(|(n, fate)| match fate {
            Fate::SettledBut(verdict) | Fate::KeptFor(verdict) => Some((n as u16, *verdict)),
            Fate::Settled | Fate::Kept => None,
        });
        let verdicts: Vec<(u16, Verdict)> = verdicts.take(VERDICTS_MAX).collect();
        let (settled, late_settled) = (bitmap(&records), bitmap(&late));
        let draft = AnswerDraft {
            settled: &settled,
            late_settled: &late_settled,
            verdicts: &verdicts,
            explain: &explain,
            ..draft
        };
        let mut body = vec![0; ENVELOPE_MAX];
        let len = draft.encode(&mut body, keys, tag).expect("an answer is never longer than an envelope");
        body.truncate(len);
        body
    }
}

impl Server for ModelServer {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        let retry_after_s = self.knobs.retry_after_s;
        let reply = |status, body| Reply { status, body, retry_after_s };
        let device = match Batch::device(body) {
            Ok(device) => device,
            Err(error) => return reply(400, error.to_string().into_bytes()),
        };
        let Some(keys) = self.devices.get(&device).map(|device| device.keys.clone()) else {
            return reply(401, Vec::new());
        };
        let Some(tag) = keys.verify_batch(body) else { return reply(401, Vec::new()) };
        match Batch::decode(body) {
            Ok(batch) => reply(200, self.answer(now_ms, &batch, &keys, &tag)),
            Err(error) => reply(400, error.to_string().into_bytes()),
        }
    }
}

/// One bit for each record, set if it is settled.
fn bitmap(fates: &[Fate]) -> Vec<u8> {
    let mut bits = vec![0; fates.len().div_ceil(8)];
    for (n, fate) in fates.iter().enumerate() {
        if matches!(fate, Fate::Settled | Fate::SettledBut(_)) {
            bits[n / 8] |= 1 << (n % 8);
        }
    }
    bits
}
