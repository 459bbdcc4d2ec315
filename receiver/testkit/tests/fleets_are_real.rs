//! A fleet posts, loses power, flushes over real connections, and knows afterwards what has become of every record: compared with
//! what the model of a receiver has stored.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host_tests::real_net::{HonestServer, Model, plainly};
use host_tests::server::{ModelServer, Refusal};
use receiver_testkit::{Drained, Fault, FaultyProxy, Fleet, Habits, Member, Sent, State};

const DRAINED_WITHIN: Duration = Duration::from_secs(60);

fn model(members: &[Member]) -> Model {
    let mut server = ModelServer::new(1);
    members.iter().for_each(|member| server.register(member.device.clone(), &member.secret()));
    Arc::new(Mutex::new(server))
}

/// After a drain a receiver that has lost nothing has stored every record once, as it was posted, and no others.
fn compare(fleet: &Fleet, model: &Model) {
    let model = model.lock().unwrap();
    model.check();
    for sent in fleet.posted() {
        let stored = model.stored(&sent.device, sent.key);
        assert_eq!(stored.map(|stored| &stored.body), Some(&sent.body), "{} {:?}", sent.device, sent.key);
        assert_eq!(sent.state, State::Settled);
    }
    let posted: BTreeSet<_> = fleet.posted().into_iter().map(|sent| (sent.device, sent.key)).collect();
    let stored: BTreeSet<_> = model.log().iter().map(|stored| (stored.device.clone(), stored.key)).collect();
    assert_eq!((posted.len(), &posted), (model.log().len(), &stored));
    assert_eq!(model.conflicts().count() + model.quarantine().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_fleet_and_its_receiver_agree() {
    let model = model(&Fleet::members_of(20, 1));
    let server = HonestServer::start(&model, plainly()).await.unwrap();
    let fleet = Fleet::start(20, 1, &format!("http://{}", server.address()));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = fleet.settled();
    assert_eq!(fleet.drain(DRAINED_WITHIN).await, Drained::All);
    let numbers: BTreeSet<_> = fleet.posted().into_iter().map(|sent| sent.number).collect();
    println!("{} posted, {} cuts, flushes {:?}", numbers.len(), fleet.cuts(), fleet.flushes());
    assert!(numbers.len() > 500 && fleet.cuts() > 20, "{} posted, {} cuts", numbers.len(), fleet.cuts());
    assert!(
        fleet.posted().iter().any(|sent| sent.key.lane == 0)
            && fleet.posted().iter().any(|sent| sent.key.lane == 1)
    );
    assert_eq!(numbers.len(), fleet.posted().len(), "no number is posted twice");
    let after = fleet.settled();
    assert!(before.iter().all(|sent| after.contains(sent)), "what is settled stays settled");
    compare(&fleet, &model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_fleet_outlives_a_storm() {
    let model = model(&Fleet::members_of(50, 2));
    let server = HonestServer::start(&model, plainly()).await.unwrap();
    let proxy = FaultyProxy::start(server.address(), 2);
    let habits = Habits { patience: Duration::from_secs(2), ..Habits::default() };
    let mut fleet = Fleet::start_with(50, 2, &proxy.url(), habits);
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.calm();
    assert_eq!(fleet.drain(DRAINED_WITHIN).await, Drained::All);
    println!("{} posted, {} cuts, flushes {:?}", fleet.posted().len(), fleet.cuts(), fleet.flushes());
    println!("{:?}", proxy.counts());
    assert_eq!(proxy.counts().len(), Fault::ALL.len(), "{:?}", proxy.counts());
    assert!(fleet.flushes().1 > 0);
    fleet.stop();
    compare(&fleet, &model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_device_knows_what_was_not_taken() {
    let model = model(&Fleet::members_of(2, 3));
    model.lock().unwrap().knobs.judge =
        Some(Arc::new(|_, stored| (stored.key.counter % 4 == 0).then_some(Refusal::Rejected)));
    let server = HonestServer::start(&model, plainly()).await.unwrap();
    let habits = Habits { notes_max: 30, cuts_percent: 0, ..Habits::default() };
    let fleet = Fleet::start_with(2, 3, &format!("http://{}", server.address()), habits);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fleet.drain(DRAINED_WITHIN).await, Drained::All);
    assert_eq!(fleet.posted().len(), 60);
    for sent in fleet.posted() {
        assert_eq!(sent.state == State::Settled, sent.key.counter % 4 != 0, "{sent:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_receiver_that_forgets_is_found_out() {
    let model = model(&Fleet::members_of(5, 5));
    let server = HonestServer::start(&model, plainly()).await.unwrap();
    let habits = Habits { cuts_percent: 0, ..Habits::default() };
    let fleet = Fleet::start_with(5, 5, &format!("http://{}", server.address()), habits);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let backup = model.lock().unwrap().snapshot();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Under its old name: a receiver that does not even know that it has forgotten.
    model.lock().unwrap().restore(&backup, 1);
    fleet.drain(DRAINED_WITHIN).await;
    let model = model.lock().unwrap();
    let is_lost = |sent: &Sent| model.stored(&sent.device, sent.key).is_none();
    let lost = fleet.settled().into_iter().filter(is_lost).count();
    assert!(lost > 0, "{} are settled", fleet.settled().len());
}

#[tokio::test]
async fn without_a_receiver_nothing_is_settled() {
    // Port 1 is nobody's.
    let habits = Habits { notes_max: 5, ..Habits::default() };
    let mut fleet = Fleet::start_with(3, 4, "http://127.0.0.1:1", habits);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let drained = fleet.drain(Duration::from_millis(100)).await;
    let records = fleet.posted().len();
    assert!(records > 0);
    assert_eq!(drained, Drained::Not { devices: 3, records });
    assert!(fleet.settled().is_empty());
    fleet.stop();
}

#[test]
fn members_follow_from_the_seed() {
    let names = |seed| {
        Fleet::members_of(3, seed).into_iter().map(|member| member.device.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(1), ["meter-1", "meter-2", "meter-3"]);
    let secrets =
        |seed| Fleet::members_of(3, seed).into_iter().map(|member| member.secret).collect::<BTreeSet<_>>();
    assert_eq!(secrets(1), secrets(1));
    assert_eq!((secrets(1).len(), secrets(1).is_disjoint(&secrets(2))), (3, true));
}
