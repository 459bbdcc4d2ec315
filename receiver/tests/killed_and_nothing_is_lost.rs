//! The program is killed, its database is killed, the network between it and its devices breaks, doubles and garbles, its disk is
//! full: and every key that a device saw settled is stored exactly once, in a log without gaps. The devices run the real library over real TCP, and lose
//! power themselves.
//!
//! `KILL_SEED` and `KILL_ROUNDS` repeat or prolong it.

mod ground;

use std::time::Duration;

use fastrand::Rng;
use ground::{Receiver, fleet, reckon, register};
use receiver_testkit::{FaultyProxy, Postgres, SmallDisk};

const DEVICES: usize = 16;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect("it is a number"))
}

fn seed() -> u64 {
    number("KILL_SEED", 1)
}

fn rounds() -> u64 {
    number("KILL_ROUNDS", 12)
}

async fn a_while(rng: &mut Rng) {
    tokio::time::sleep(Duration::from_millis(rng.u64(50..600))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_on_sqlite_is_killed_again_and_again() {
    let directory = tempfile::tempdir().expect("there is a disk");
    let store = directory.path().join("pillarbox.db").display().to_string();
    register(&store, DEVICES, seed()).await;
    let mut receiver = Receiver::start(&store);
    let proxy = FaultyProxy::start(receiver.address, seed());
    let fleet = fleet(DEVICES, seed(), &proxy);
    let mut rng = Rng::with_seed(seed());
    for _ in 0..rounds() {
        a_while(&mut rng).await;
        receiver.kill();
        receiver.start_again();
    }
    proxy.calm();
    println!("faults of the network: {:?}", proxy.counts());
    reckon(&fleet, &store).await;
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_killed_under_its_receiver() {
    let postgres = Postgres::start();
    let store = postgres.fresh_database();
    register(&store, DEVICES, seed()).await;
    let mut receiver = Receiver::start(&store);
    let proxy = FaultyProxy::start(receiver.address, seed());
    let fleet = fleet(DEVICES, seed(), &proxy);
    let mut rng = Rng::with_seed(seed());
    for _ in 0..rounds() {
        a_while(&mut rng).await;
        tokio::task::block_in_place(|| postgres.kill());
        a_while(&mut rng).await;
        tokio::task::block_in_place(|| postgres.start_again());
    }
    proxy.calm();
    reckon(&fleet, &store).await;
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_receivers_share_one_postgres_and_are_killed_in_turn() {
    let postgres = Postgres::start();
    let store = postgres.fresh_database();
    register(&store, DEVICES, seed()).await;
    let mut receivers: Vec<Receiver> = (0..3).map(|_| Receiver::start(&store)).collect();
    let proxy = FaultyProxy::start(receivers[0].address, seed());
    let fleet = fleet(DEVICES, seed(), &proxy);
    let mut rng = Rng::with_seed(seed());
    for _ in 0..rounds() {
        // A connection stays with the receiver that it found, so all three have some.
        for _ in 0..10 {
            proxy.forward_to(receivers[rng.usize(..3)].address);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let victim = rng.usize(..3);
        receivers[victim].kill();
        tokio::task::block_in_place(|| receivers[victim].start_again());
    }
    proxy.calm();
    reckon(&fleet, &store).await;
    receivers.iter_mut().for_each(Receiver::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_settles_nothing_and_is_recovered_from() {
    assert!(
        SmallDisk::is_possible(),
        "a disk that is full needs a small file system, and making one needs root"
    );
    let disk = SmallDisk::of_mib(24);
    let store = disk.path().join("pillarbox.db").display().to_string();
    register(&store, DEVICES, seed()).await;
    let mut receiver = Receiver::start(&store);
    let proxy = FaultyProxy::start(receiver.address, seed());
    proxy.calm();
    let fleet = fleet(DEVICES, seed(), &proxy);
    let mut rng = Rng::with_seed(seed());
    for _ in 0..rounds() / 2 {
        a_while(&mut rng).await;
        disk.fill_but(rng.u64(..60_000));
        a_while(&mut rng).await;
        let before = fleet.settled().len();
        disk.fill();
        a_while(&mut rng).await;
        disk.free();
        println!("{before} settled before, {} after the disk was full", fleet.settled().len());
    }
    let metrics = reqwest::get(format!("http://{}/metrics", receiver.address)).await.expect("it answers");
    let metrics = metrics.text().await.expect("it is text");
    let refused = metrics.lines().find(|line| line.starts_with("pillarbox_batches_total{status=\"503\"}"));
    println!("{refused:?}");
    assert!(refused.is_some(), "the disk was never full while a batch came");
    reckon(&fleet, &store).await;
    receiver.stop();
}
