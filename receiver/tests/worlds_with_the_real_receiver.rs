//! The worlds of the library's tests, with the real receiver on a real SQLite where the model of it was. The model runs beside
//! it, and the two must give every device the same answer, byte for byte, and have the same books in the end. So whatever the worlds
//! prove about the model holds for the receiver.
//!
//! `WORLD_SEEDS=5000..6000 cargo test --release -p pillarbox-receiver --test worlds_with_the_real_receiver` runs others.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use host_tests::server::ledger::Ledger;
use host_tests::server::{ModelServer, Received, Reply, Server};
use host_tests::world::{Witness, run_all};
use pillarbox::wire::{Batch, Secret, fingerprint};
use pillarbox::{DeviceId, Key, Kind, Reason, Stored};
use pillarbox_receiver::intake::{AnswerTo, Post, SecretUsed};
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::store::sqlite::Core;
use pillarbox_receiver::store::{RecordQuery, Row, Source};
use rusqlite::Connection;

/// Worlds that are run with every test.
const SEEDS: Range<u64> = 0..1_500;
/// Worlds whose database is a file.
const SEEDS_ON_DISK: Range<u64> = 20_000..20_060;

/// The receiver, and the model beside it.
struct Beside {
    real: Core,
    model: ModelServer,
    backups: Option<(Connection, ModelServer)>,
    clock_offset_ms: i64,
    /// Where the database is, if it is a file.
    _directory: Option<tempfile::TempDir>,
}

impl Beside {
    fn new(mut real: Core, directory: Option<tempfile::TempDir>) -> Self {
        let epoch = real.renew_epoch().expect("it is sound");
        Self {
            real,
            model: ModelServer::new(epoch),
            backups: None,
            clock_offset_ms: 0,
            _directory: directory,
        }
    }

    fn in_memory() -> Self {
        Self::new(Core::in_memory().expect("there is memory"), None)
    }

    fn on_disk() -> Self {
        let directory = tempfile::tempdir().expect("there is a disk");
        let core = Core::open(&directory.path().join("pillarbox.db")).expect("it can be opened");
        Self::new(core, Some(directory))
    }

    fn answer(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        let reply = |status, body| Reply { status, body, retry_after_s: None };
        let device = match Batch::device(body) {
            Ok(device) => device,
            Err(error) => return reply(400, error.to_string().into_bytes()),
        };
        let Some(door) = self.real.door(&device).expect("it is sound") else { return reply(401, Vec::new()) };
        let Some(tag) = door.keys.verify_batch(body) else { return reply(401, Vec::new()) };
        let envelope = Bytes::copy_from_slice(body);
        match Post::decode(&envelope, &Kinds::default(), now_ms, SecretUsed::Current) {
            Ok(post) => {
                let concluded = self.real.take(door.id, &post).expect("it is sound");
                let now_ms = now_ms.saturating_add_signed(self.clock_offset_ms);
                let (keys, epoch) = (&door.keys, self.real.epoch());
                let to = AnswerTo { keys, tag: &tag, now_ms, epoch, retry_after_s: None };
                reply(200, concluded.answer(&to).expect("it fits"))
            }
            Err(error) => reply(400, error.to_string().into_bytes()),
        }
    }

    fn id(&self, device: &DeviceId) -> i64 {
        self.real.door(device).expect("it is sound").expect("it is registered").id
    }

    fn rows(rows: Vec<Row>) -> Vec<Received> {
        let received = |(at, row): (usize, Row)| {
            let Source::Device { key, time } = row.source else { panic!("only devices send here") };
            let kind = Kind(row.kind);
            let stored = Stored { key: key.key, kind, time, tag: None, cause: None, body: &row.body };
            let fingerprint = fingerprint(&stored);
            let (device, key) = (key.device, key.key);
            Received { device, key, kind, time, fingerprint, arrival: at as u64, body: row.body }
        };
        rows.into_iter().enumerate().map(received).collect()
    }
}

/// The same records, whatever came between them from other devices.
fn assert_same(real: &[Received], model: &[Received]) {
    let sorted = |all: &[Received]| {
        let mut all: Vec<Received> = all.to_vec();
        all.sort_by(|one, other| (&one.device, one.arrival).cmp(&(&other.device, other.arrival)));
        all.into_iter().map(|received| Received { arrival: 0, ..received }).collect::<Vec<_>>()
    };
    assert_eq!(sorted(real), sorted(model), "the receiver has other records than the model");
}

fn everything() -> RecordQuery {
    RecordQuery { limit: u32::MAX, ..RecordQuery::default() }
}

impl Server for Beside {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        let real = self.answer(now_ms, body);
        let model = self.model.handle(now_ms, body);
        assert_eq!(real, model, "the receiver answers otherwise than the model");
        real
    }
}

impl Witness for Beside {
    fn register(&mut self, device: DeviceId, secret: &Secret) {
        self.real.add_device(&device, secret).expect("it is sound");
        self.model.register(device, secret);
    }

    fn log(&self) -> Vec<Received> {
        let log = Self::rows(self.real.log(&everything()).expect("it is sound"));
        assert_same(&log, self.model.log());
        log
    }

    fn aside(&self) -> Vec<Received> {
        let aside = Self::rows(self.real.asides(&everything()).expect("it is sound"));
        let mut model: Vec<Received> =
            self.model.quarantine().chain(self.model.conflicts()).cloned().collect();
        model.sort_by_key(|received| received.arrival);
        let names = |all: &[Received]| {
            let mut names: Vec<_> =
                all.iter().map(|one| (one.device.clone(), one.key, one.fingerprint)).collect();
            names.sort();
            names
        };
        assert_eq!(names(&aside), names(&model), "the receiver keeps other records aside than the model");
        aside
    }

    fn lanes(&self, device: &DeviceId) -> Vec<(u32, u8)> {
        let lanes = self.real.lanes(self.id(device)).expect("it is sound");
        let lanes: Vec<_> = lanes.iter().map(|row| (row.incarnation, row.lane)).collect();
        assert_eq!(lanes, self.model.lanes(device).into_iter().collect::<Vec<_>>());
        lanes
    }

    fn ledger(&self, device: &DeviceId, incarnation: u32, lane: u8) -> Option<Ledger> {
        let lanes = self.real.lanes(self.id(device)).expect("it is sound");
        let row = lanes.into_iter().find(|row| (row.incarnation, row.lane) == (incarnation, lane))?;
        let real = row.state.books.ledger();
        let ledger = Ledger {
            issued: real.issued,
            received: real.received,
            pending: real.pending,
            unexplained: real.unexplained,
            explained: real.explained,
            is_closed: real.is_closed,
        };
        assert_eq!(Some(&ledger), self.model.ledger(device, incarnation, lane).as_ref());
        Some(ledger)
    }

    fn reason(&self, device: &DeviceId, key: Key) -> Option<Reason> {
        // The books may have forgotten it; the model's notes have not.
        self.model.lane(device, key.incarnation, key.lane)?.reason(key.counter)
    }

    fn back_up(&mut self) {
        let mut backup = Connection::open_in_memory().expect("there is memory");
        self.real.back_up(&mut backup).expect("it is sound");
        self.backups = Some((backup, self.model.snapshot()));
    }

    fn restore(&mut self, epoch: u64) {
        if let Some((backup, model)) = &self.backups {
            self.real.restore(backup, epoch).expect("it is sound");
            self.model.restore(model, epoch);
        }
    }

    fn set_clock_offset(&mut self, ms: i64) {
        self.clock_offset_ms = ms;
        self.model.knobs.clock_offset_ms = ms;
    }

    /// The receiver refuses no record: what it cannot read it keeps.
    fn set_moods(&mut self, _: Arc<AtomicBool>) {}
}

fn run(seeds: Range<u64>, server: fn() -> Beside) {
    let (total, failures) = run_all(seeds, server, |_| ());
    println!("{total:#?}");
    for failure in &failures {
        let (seed, next) = (failure.seed, failure.seed + 1);
        println!(
            "{}\nreplay: WORLD_SEEDS={seed}..{next} cargo test --release -p pillarbox-receiver --test worlds_with_the_real_receiver",
            failure.what
        );
    }
    assert!(failures.is_empty(), "{} worlds broke a promise", failures.len());
    assert!(total.acknowledged > 0 && total.stored > 0);
}

/// The seeds that somebody asked for, or these.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("WORLD_SEEDS") else { return usual };
    let parsed = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.expect("WORLD_SEEDS is two numbers, such as 0..1000")
}

#[test]
fn in_every_world_the_receiver_is_the_model() {
    run(seeds(SEEDS), Beside::in_memory);
}

#[test]
fn on_a_disk_too() {
    run(seeds(SEEDS_ON_DISK), Beside::on_disk);
}
