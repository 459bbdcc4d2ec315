//! A command is written once and done in two places: on the store, and by a receiver that is asked over HTTP. Who learns it at one
//! place must not be surprised at the other; and scripts rely on what the shell is told.

mod operator;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use operator::{Operator, send_some};

/// Says the same in both places.
#[track_caller]
fn same(operator: &Operator, afar: &str, command: &str) -> String {
    let here = operator.run(command);
    let there = operator.run(&format!("{command} {afar}"));
    println!("$ pillarbox {command}\n{}{}", here.stdout, here.stderr);
    assert_eq!(
        (here.code, &here.stdout, &here.stderr),
        (there.code, &there.stdout, &there.stderr),
        "{command}"
    );
    assert!(!here.stdout.is_empty() || here.code != Some(0), "{command} says nothing");
    here.stdout
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_here_and_afar_is_answered_alike() {
    let operator = Operator::new();
    operator.let_in(3, 11);
    let receiver = operator.serve("");
    operator.run("token add --role admin --out admin.token").done();
    let fleet = send_some(3, 11, &receiver.url).await;
    let afar = format!("--server {} --token-file admin.token", receiver.url);
    let key = fleet.settled()[0].key.of(&fleet.settled()[0].device).to_string();
    for command in [
        "device list --json",
        "device list meter-2 --json",
        "device show meter-1 --json",
        "token list --json",
        "epoch",
        "records tail --no-follow -n 1000 --json",
        "records tail --no-follow -n 3 --device meter-2",
        "records export --format csv",
        "records export --kind 1 --device meter-1",
        "records get 0-9999",
        "records get nothing",
        "device show nobody",
        "device rotate nobody",
        "device revoke nobody",
        "device fence nobody 00000001",
        "device close meter-1 00000001",
        "token revoke 99",
        "records export --kind nothing",
    ] {
        same(&operator, &afar, command);
    }
    assert!(same(&operator, &afar, &format!("records get {key}")).contains("it is here"));
    let place = operator.json(&format!("records get {key}"))["records"][0]["place"].clone();
    let by_place = same(&operator, &afar, &format!("records get {}", place.as_str().unwrap()));
    assert!(by_place.contains(&key));
    // Each sees what the other changed.
    operator.run(&format!("device add added-afar {afar}")).done();
    operator.run("device show added-afar").done();
    operator.run("device revoke added-afar").done();
    let shown = operator.json(&format!("device show added-afar {afar}"));
    assert!(shown["revoked_at"].is_string(), "{shown}");
    let before = operator.run("epoch").done();
    let renewed = operator.run(&format!("epoch --renew {afar}")).done();
    assert_ne!(before, renewed);
    assert_eq!(operator.run("epoch").done(), renewed);
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_receiver_refuses_is_said_in_a_sentence() {
    let operator = Operator::new();
    let receiver = operator.serve("");
    let list = format!("device list --server {}", receiver.url);
    operator.run(&list).refused(2, "wants a token");
    operator.write("wrong.token", &format!("pbx_{}", "0".repeat(64)));
    operator.run(&format!("{list} --token-file wrong.token")).refused(1, "does not take this token");
    let client = operator.token("--role client");
    operator.run_with(&list, &[("PILLARBOX_TOKEN", &client)]).refused(1, "not for this");
    operator.run(&format!("{list} --store x.db")).refused(2, "exclude each other");
    operator
        .run("device list --server http://192.0.2.1 --token-file wrong.token")
        .refused(2, "over plain HTTP");
    operator.run("device list --server ftp://x --token-file wrong.token").refused(2, "--server wants");
    let url = receiver.url.clone();
    receiver.stop();
    operator
        .run(&format!("device list --server {url} --token-file wrong.token"))
        .refused(1, "cannot be reached");
}

#[test]
fn a_store_that_is_not_there_is_only_made_by_who_may_begin_with_it() {
    let operator = Operator::new();
    for command in [
        "device list",
        "device show meter-1",
        "device revoke meter-1",
        "token list",
        "records export",
        "records tail",
        "epoch --renew",
        "check",
        "backup copy.db",
    ] {
        operator.run(command).refused(1, "there is no store in");
    }
    let left: Vec<_> = std::fs::read_dir(operator.directory()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let added = operator.run("device add meter-1");
    assert!(added.stderr.contains("making a new store in"), "{added:?}");
    added.done();
    operator.run("backup --store postgres://db/fleet copy.db").refused(1, "pg_dump");
}

#[test]
fn the_shell_is_told_how_it_went() {
    let operator = Operator::new();
    operator.run("device add meter-1").done();
    operator.run("device add meter-1").refused(1, "there is a device meter-1 already");
    for wrong in
        ["", "nothing", "device add", "device add meter/1", "token add --role king", "check --server x"]
    {
        assert_eq!(operator.run(wrong).code, Some(2), "{wrong}");
    }
    operator.run("device fence meter-1 12").done_not();
    for right in ["--help", "--version", "device list --help", "help device", "completions bash"] {
        assert_eq!(operator.run(right).code, Some(0), "{right}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = operator.run(&format!("completions {shell}")).done();
        assert!(script.contains("tail") && script.contains("secret-file"), "{shell}");
    }
}

impl operator::Said {
    fn done_not(self) {
        assert_eq!(self.code, Some(2), "{self:?}");
    }
}

#[test]
fn a_reader_that_is_gone_is_no_panic() {
    let operator = Operator::new();
    for n in 0..30 {
        operator.run(&format!("device add meter-{n}")).done();
    }
    for command in ["device list", "device list --json", "completions bash", "records export", "--help"] {
        let mut command = operator.command(command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The reader goes before anything was said.
        drop(child.stdout.take());
        let stderr: Vec<String> =
            BufReader::new(child.stderr.take().unwrap()).lines().collect::<Result<_, _>>().unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() && stderr.is_empty(), "{command:?}: {status} {stderr:?}");
    }
}

#[test]
fn a_backup_is_whole_and_takes_another_epoch() {
    let operator = Operator::new();
    operator.run("device add meter-1").done();
    operator.run("backup copy.db").done();
    operator.run("backup copy.db").refused(1, "copy.db is there already");
    assert_eq!(operator.mode("copy.db"), 0o600);
    let (all, copied) = (operator.json("device list"), operator.json("device list --store copy.db"));
    assert_eq!(all, copied);
    let first = operator.run("epoch").done();
    assert_eq!(first, operator.run("epoch --store copy.db").done(), "it was only looked at");
    operator.serves_and_stops("copy.db");
    assert_ne!(first, operator.run("epoch --store copy.db").done());
    let left = std::fs::metadata(operator.path("copy.db-wal")).map_or(0, |file| file.len());
    assert_eq!(left, 0, "after a clean stop the file alone is the whole database");
}
