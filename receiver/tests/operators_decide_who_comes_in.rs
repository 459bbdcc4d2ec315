//! What an operator decides about a device must be so for the device itself: real devices are let in, given another secret, fenced,
//! shut out and given up, and see it.

mod operator;

use std::time::Duration;

use operator::{Operator, a_few, send_some, start_some, wait_until};
use receiver_testkit::{Drained, Fleet, Habits};
use serde_json::Value;

/// Who has not been let in by then will not be.
const NOT_LET_IN_WITHIN: Duration = Duration::from_secs(3);
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

fn give_secret(operator: &Operator, seed: u64) {
    operator.write("given.secret", &hex::encode(Fleet::members_of(1, seed)[0].secret));
}

/// The states of a device's incarnations.
fn states(shown: &Value) -> Vec<&str> {
    let incarnations = shown["incarnations"].as_array().expect("it is a list");
    incarnations.iter().map(|incarnation| incarnation["state"].as_str().expect("it is text")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_secret_is_good_beside_the_old_one_until_it_is_used() {
    let operator = Operator::new();
    operator.let_in(1, 51);
    let receiver = operator.serve("");
    let old = start_some(1, 51, &receiver.url);
    a_few(&old, 3).await;
    give_secret(&operator, 52);
    operator.run("device rotate meter-1 --secret-from given.secret").done();
    assert!(operator.run("device show meter-1").done().contains("a new one waits for its first use"));
    a_few(&old, old.settled().len() + 3).await;
    drop(send_some(1, 52, &receiver.url).await);
    assert_eq!(operator.json("device show meter-1")["is_rotating"], false);
    // The device with the old secret is not let in any more.
    let late = Fleet::start_with(1, 51, &receiver.url, Habits { cuts_percent: 0, ..Habits::default() });
    wait_until(|| late.posted().len() >= 3).await;
    assert!(matches!(late.drain(NOT_LET_IN_WITHIN).await, Drained::Not { .. }));
    assert_eq!(late.settled(), []);
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_device_is_not_let_in() {
    let operator = Operator::new();
    operator.let_in(2, 53);
    let receiver = operator.serve("");
    operator.run("device revoke meter-2").done();
    operator.run("device rotate meter-2").refused(1, "is revoked");
    let fleet = start_some(2, 53, &receiver.url);
    a_few(&fleet, 3).await;
    assert!(matches!(fleet.drain(NOT_LET_IN_WITHIN).await, Drained::Not { devices: 1, .. }));
    assert!(fleet.settled().iter().all(|sent| sent.device.as_str() == "meter-1"));
    assert_eq!(operator.run("records export --device meter-2").done(), "");
    let list = operator.run_with("device list", &[("COLUMNS", "80")]).done();
    assert!(list.starts_with("1 of 2 devices need attention"), "{list}");
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_device_takes_another_incarnation() {
    let operator = Operator::new();
    operator.let_in(1, 54);
    let receiver = operator.serve("");
    let fleet = start_some(1, 54, &receiver.url);
    a_few(&fleet, 3).await;
    let before = operator.json("device show meter-1");
    let fenced = before["current_incarnation"].as_str().expect("it was heard").to_owned();
    operator.run(&format!("device fence meter-1 {fenced}")).done();
    a_few(&fleet, fleet.settled().len() + 10).await;
    assert_eq!(fleet.drain(DRAINED_WITHIN).await, Drained::All);
    let after = operator.json("device show meter-1");
    assert_ne!(after["current_incarnation"].as_str(), Some(&*fenced), "{after}");
    assert!(states(&after).contains(&"fenced"), "{after}");
    // What came under the fenced one since is kept aside, and nothing is gone.
    let count = |what: &str| operator.run(&format!("records export {what}")).done().lines().count();
    assert_eq!(count("") + count("--asides"), fleet.posted().len());
    assert!(count("--asides --device meter-1") > 0);
    let aside = operator.run("records export --asides").done();
    assert!(aside.lines().all(|line| line.contains("\"quarantined\"") && line.contains(&fenced)), "{aside}");
    operator.run("check").done();
    for columns in ["80", "120"] {
        let shown = operator.run_with("device show meter-1", &[("COLUMNS", columns)]).done();
        println!("{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= columns.parse().unwrap()), "{shown}");
    }
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incarnation_that_is_gone_can_be_closed() {
    let operator = Operator::new();
    operator.let_in(1, 55);
    let receiver = operator.serve("");
    let first = start_some(1, 55, &receiver.url);
    a_few(&first, 3).await;
    let gone = operator.json("device show meter-1")["current_incarnation"].as_str().unwrap().to_owned();
    // Its flash is gone, and another one takes its place.
    drop(first);
    give_secret(&operator, 56);
    operator.run("device rotate meter-1 --secret-from given.secret").done();
    drop(send_some(1, 56, &receiver.url).await);
    let shown = operator.json("device show meter-1");
    assert_eq!(states(&shown), ["open", "current"]);
    let advice = format!("pillarbox device close meter-1 {gone}");
    let said = operator.run("device show meter-1").done();
    assert!(said.contains(&advice), "{said}");
    operator.run(advice.trim_start_matches("pillarbox ")).done();
    let shown = operator.json("device show meter-1");
    assert_eq!(states(&shown), ["given_up", "current"]);
    assert_eq!(shown["problems"].as_array().unwrap().len(), 0, "{shown}");
    receiver.stop();
}
