//! A crash between a key's claim and its end neither loses nor doubles a client's record: the key is taken over when the lease ends,
//! who comes back late changes nothing, and whatever SIGKILL interrupts, key, answer and record are there together or not at all.
//!
//! `CRASH_SEED` and `CRASH_ROUNDS` repeat or prolong it.

mod served;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use pillarbox_receiver::moment::now_ms;
use pillarbox_receiver::store::Role;
use receiver_testkit::Program;
use served::gate::{Closed, Gate};
use served::{Client, Ground, Served, records, token, until};

const CLIENTS: usize = 4;
/// Longer than a key's lease.
const LATER: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_holder_is_gone_is_taken_over_and_who_comes_back_late_changes_nothing() {
    for ground in Ground::all().await {
        let gate = Gate::new(&ground.store, Closed::Complete);
        let stuck = Served::with(gate.clone(), |_| {}).await;
        let first = stuck.client(&ground.token(Role::Client, Some("acme")).await);
        let second = Served::with(ground.store.clone(), |settings| {
            settings.limits.key_wait = Duration::from_millis(100);
        })
        .await;
        let client = Client { url: second.url.clone(), ..first.clone() };
        let late = tokio::spawn(async move { first.post("photo", "k", "[1]").await });
        until("the key is claimed", || async { gate.waiting() == 1 }).await;

        second.advance(Duration::from_secs(59));
        let early = client.post("photo", "k", "[1]").await;
        assert!(early.is_problem(409, "in-progress"), "{early:?}");
        assert!(early.header("retry-after").is_some());
        second.advance(Duration::from_secs(2));
        let other = client.post("photo", "k", "[2]").await;
        assert!(other.is_problem(409, "key-reused"), "nobody knows whether the first was told: {other:?}");
        let taken_over = client.post("photo", "k", "[1]").await;
        assert_eq!((taken_over.status, taken_over.is_replay()), (201, false), "{taken_over:?}");

        gate.open();
        let late = late.await.unwrap();
        assert!(late.is_problem(409, "in-progress"), "it is told to ask again: {late:?}");
        let again = client.post("photo", "k", "[1]").await;
        assert!(again.is_replay());
        assert_eq!(again.body, taken_over.body);
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_has_its_record_stored_all_the_same() {
    for ground in Ground::all().await {
        let gate = Gate::new(&ground.store, Closed::Complete);
        let served = Served::with(gate.clone(), |_| {}).await;
        let client = served.client(&ground.token(Role::Client, Some("acme")).await);
        let gone = tokio::spawn({
            let client = client.clone();
            async move { client.post("photo", "k", "[1]").await }
        });
        until("the key is claimed", || async { gate.waiting() == 1 }).await;
        gone.abort();
        drop(gone.await);
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.open();
        let again = client.post("photo", "k", "[1]").await;
        assert_eq!((again.status, again.is_replay()), (201, true), "{again:?}");
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}

/// What clients know of their keys: what they were told, if anything.
type Diary = BTreeMap<String, Option<Vec<u8>>>;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect("it is a number"))
}

/// Posts one record after the other until it is over, each until there is an answer, or until the key is left to a crash.
async fn post_on(client: Client, name: usize, is_over: Arc<AtomicBool>) -> Diary {
    let mut diary = Diary::new();
    let mut number = 0;
    while !is_over.load(Ordering::SeqCst) {
        number += 1;
        let key = format!("{name}-{number}");
        diary.insert(key.clone(), None);
        for _ in 0..200 {
            match client.try_post("8", &key, "application/json", body(&key).as_bytes()).await {
                Ok(answer) if answer.status == 201 => {
                    diary.insert(key, Some(answer.body));
                    break;
                }
                // Claimed by a receiver that was killed: it is asked for again when the lease is over.
                Ok(answer) if answer.status == 409 => {
                    assert!(answer.is_problem(409, "in-progress"), "{answer:?}");
                    break;
                }
                Ok(answer) => assert!(answer.is_problem(503, "store-unavailable"), "{answer:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
    diary
}

fn body(key: &str) -> String {
    serde_json::json!({ "of": key }).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_killed_again_and_again_stores_what_it_told_once() {
    for ground in Ground::all().await {
        kill_again_and_again(ground).await;
    }
}

async fn kill_again_and_again(ground: Ground) {
    let (seed, rounds) = (number("CRASH_SEED", 1), number("CRASH_ROUNDS", 10));
    println!("CRASH_SEED={seed} CRASH_ROUNDS={rounds}");
    let mut rng = Rng::with_seed(seed);
    let token = token(&*ground.store, Role::Client, Some("acme")).await;
    let program = |listen: &str| {
        let program = Program::new(env!("CARGO_BIN_EXE_pillarbox"));
        program.args(["serve", "--listen", listen, "--store"]).arg(&ground.name)
    };
    let ready = "listening on http://";
    let (mut running, line) = program("127.0.0.1:0").start_until_line(ready);
    let address = line.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
    let address: SocketAddr = address.and_then(|text| text.parse().ok()).expect("it says where");
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| {
            let client = Client {
                http: reqwest::Client::new(),
                url: format!("http://{address}"),
                token: token.clone(),
            };
            tokio::spawn(post_on(client, name, is_over.clone()))
        })
        .collect();
    for _ in 0..rounds {
        tokio::time::sleep(Duration::from_millis(rng.u64(20..300))).await;
        running.kill();
        (running, _) = tokio::task::block_in_place(|| program(&address.to_string()).start_until_line(ready));
    }
    is_over.store(true, Ordering::SeqCst);
    let mut diary = Diary::new();
    for client in clients {
        diary.extend(client.await.expect("it is told nothing else"));
    }
    assert!(running.stop().success());
    reckon(&ground, &token, diary).await;
}

/// When all leases are over every key is asked for again: who was told something is told the same, and the log has each once.
async fn reckon(ground: &Ground, token: &str, diary: Diary) {
    let later = now_ms() + LATER.as_millis() as u64;
    let served = Served::over(ground.store.clone(), None, later, |_| {}).await;
    let client = served.client(token);
    let stored: BTreeMap<_, _> =
        records(&*ground.store).await.into_iter().map(|(key, row)| (key, row.body)).collect();
    let mut open = 0;
    for (key, told) in &diary {
        let answer = client.post("8", key, &body(key)).await;
        assert_eq!(answer.status, 201, "{key}: {answer:?}");
        // Key and record came together, or not at all.
        assert_eq!(answer.is_replay(), stored.contains_key(key), "{key}: {answer:?}");
        if let Some(told) = told {
            assert_eq!(told, &answer.body, "{key} was told something else");
        }
        open += usize::from(told.is_none());
    }
    let stored = records(&*ground.store).await;
    let mut keys: Vec<_> = stored.iter().map(|(key, _)| key.clone()).collect();
    keys.sort();
    assert_eq!(keys, diary.keys().cloned().collect::<Vec<_>>(), "each once");
    assert!(stored.iter().all(|(key, row)| row.body == body(key).as_bytes()));
    assert!(keys.len() > 50, "too little happened: {}", keys.len());
    println!("{} records, {open} of them left open by a crash", keys.len());
}
