//! A fleet of real devices, the real program, and a network between them that can be made bad; and the comparison at the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::DeviceKey;
use pillarbox_receiver::store::{self, Change, Position, RecordQuery, Row, Source, Store};
use receiver_testkit::{Drained, FaultyProxy, Fleet, Habits, Program, Running, State};

/// A drain that takes longer is a receiver that does not recover.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// The store of this name, as the program would open it.
pub(crate) async fn open(store: &str) -> Arc<dyn Store> {
    store::open(store).await.expect("there is room")
}

/// A receiver that runs.
pub(crate) struct Receiver {
    program: Program,
    running: Running,
    pub(crate) address: SocketAddr,
}

impl Receiver {
    /// Starts one on this store, at a port that is free.
    pub(crate) fn start(store: &str) -> Self {
        let program = |listen: &str| {
            let arguments = ["serve", "--listen", listen, "--store", store];
            Program::new(env!("CARGO_BIN_EXE_pillarbox")).args(arguments)
        };
        let (running, line) = program("127.0.0.1:0").start_until_line("listening on http://");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address: SocketAddr =
            address.and_then(|text| text.parse().ok()).expect("it says where it listens");
        Self { program: program(&address.to_string()), running, address }
    }

    /// Kills it between two instructions.
    pub(crate) fn kill(&mut self) {
        self.running.kill();
    }

    /// Starts it again where it was.
    pub(crate) fn start_again(&mut self) {
        (self.running, _) = self.program.start_until_line("listening on http://");
    }

    /// Stops it as an operator would.
    pub(crate) fn stop(&mut self) {
        let status = self.running.stop();
        assert!(status.success(), "it stopped with {status}: {}", self.running.output());
    }
}

/// Lets the devices of a fleet in.
pub(crate) async fn register(store: &str, devices: usize, seed: u64) {
    let store = open(store).await;
    for member in Fleet::members_of(devices, seed) {
        let change =
            Change::Add { device: member.device.clone(), tenant: "default".into(), secret: member.secret };
        store.change(change, 0).await.expect("it is new");
    }
}

/// A fleet that sends through a proxy.
pub(crate) fn fleet(devices: usize, seed: u64, proxy: &FaultyProxy) -> Fleet {
    println!("seed {seed}");
    let habits = Habits { patience: Duration::from_secs(2), ..Habits::default() };
    Fleet::start_with(devices, seed, &proxy.url(), habits)
}

/// Lets the fleet come to rest, and compares what it knows with what the store has: every record exactly once, as it was posted, and
/// every ledger closed.
pub(crate) async fn reckon(fleet: &Fleet, store: &str) {
    assert_eq!(fleet.drain(DRAINED_WITHIN).await, Drained::All, "the fleet does not come to rest");
    let store = open(store).await;
    let log = log(&*store).await;
    let mut stored: BTreeMap<DeviceKey, Vec<u8>> = BTreeMap::new();
    for row in log {
        let Source::Device { key, .. } = row.source else { panic!("only devices send here") };
        assert!(stored.insert(key.clone(), row.body).is_none(), "{key} is stored twice");
    }
    let posted = fleet.posted();
    let settled = posted.iter().filter(|sent| sent.state == State::Settled);
    for sent in settled {
        let key = sent.key.of(&sent.device);
        assert_eq!(stored.get(&key), Some(&sent.body), "{key} was settled");
    }
    let asides = store.asides(everything()).await.expect("it is sound");
    assert!(asides.is_empty(), "nothing was cloned: {asides:?}");
    let mut received = 0;
    for member in fleet.members() {
        let device = store.device(&member.device).await.expect("it is sound").expect("it was added");
        for row in store.lanes(device.id).await.expect("it is sound") {
            let ledger = row.state.books.ledger();
            let who = format!("{} {:08x} lane {}: {ledger:?}", device.name, row.incarnation, row.lane);
            assert_eq!((ledger.unexplained, ledger.lost(), ledger.pending), (0, 0, 0), "{who}");
            let count = store.count(device.id, row.incarnation, row.lane).await.expect("it is sound");
            assert_eq!(ledger.received, count, "{who}");
            received += count;
        }
    }
    assert_eq!(received, stored.len() as u64, "the books and the log");
    println!("{} records posted, {} stored, {} cuts of devices", posted.len(), stored.len(), fleet.cuts());
    assert!(stored.len() > 100, "too little happened: {} records", stored.len());
}

fn everything() -> RecordQuery {
    RecordQuery { limit: 1_000_000, ..RecordQuery::default() }
}

/// The whole log, shard by shard; no place of a shard is left out.
async fn log(store: &dyn Store) -> Vec<Row> {
    let mut rows = Vec::new();
    for head in store.heads().await.expect("it is sound") {
        let query = RecordQuery { shard: Some(head.shard()), ..everything() };
        let shard = store.log(query).await.expect("it is sound");
        let places: Vec<Option<Position>> = shard.iter().map(|row| row.position).collect();
        let expected: Vec<_> = (1..=head.n()).map(|n| Some(Position::new(head.shard(), n))).collect();
        assert_eq!(places, expected, "the places of shard {}", head.shard());
        rows.extend(shard);
    }
    rows
}
