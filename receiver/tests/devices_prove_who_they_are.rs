//! Only who knows a device's secret changes anything, and only the receiver can have answered: to be unknown, to be revoked and to have
//! the wrong secret look the same, every answer to a device that proved itself is tagged, and nothing is settled before it is durable.
//! A new secret takes the old one's place when it is first used, and not before.

mod served;

use std::time::Duration;

use pillarbox_receiver::admin::NewSecret;
use pillarbox_receiver::store::{Change, DeviceQuery, Role};
use served::device::Speaker;
use served::gate::{Closed, Gate};
use served::{Answer, Ground, START_MS, Served, records, until};

const ONE: &[(u64, &[u8])] = &[(0, b"a")];

#[tokio::test]
async fn to_be_unknown_revoked_or_wrong_looks_the_same_and_changes_nothing() {
    for ground in Ground::all().await {
        let served = Served::start(&ground).await;
        let http = reqwest::Client::new();
        let (known, revoked) = (Speaker::new("meter-1", 1), Speaker::new("meter-2", 2));
        known.register(&*ground.store, START_MS).await;
        revoked.register(&*ground.store, START_MS).await;
        assert_eq!(revoked.deliver(&http, &served.url, ONE).await, [true]);
        ground.store.change(Change::Revoke(revoked.device.clone()), START_MS).await.unwrap();
        let before = state(&ground).await;

        let wrong = Speaker { secret: [9; 32], ..known.clone() };
        let anothers = Speaker { secret: revoked.secret, ..known.clone() };
        let unknown = Speaker::new("meter-3", 1);
        let mut torn = known.batch(0, 1, &[], ONE);
        *torn.last_mut().unwrap() ^= 1;
        let mut altered = known.batch(0, 1, &[], ONE);
        let body = altered.len() - 17;
        altered[body] ^= 1;
        let batches = [
            wrong.batch(0, 1, &[], ONE),
            anothers.batch(0, 1, &[], ONE),
            unknown.batch(0, 1, &[], ONE),
            revoked.batch(0, 1, &[], ONE),
            torn,
            altered,
        ];
        let mut seen = Vec::new();
        for batch in batches {
            let answer = known.send(&http, &served.url, &batch).await;
            assert!(answer.is_problem(401, "unauthorized"), "{answer:?}");
            let mut headers = answer.headers.clone();
            headers.remove("date");
            headers.remove("x-request-id");
            seen.push((answer.status, headers, answer.body));
        }
        assert!(seen.iter().all(|answer| *answer == seen[0]), "{seen:?}");
        assert_eq!(state(&ground).await, before);
        assert_eq!(known.deliver(&http, &served.url, ONE).await, [true]);
        assert_ne!(state(&ground).await, before, "and the right one changes something");
    }
}

/// Everything that a batch could change.
async fn state(ground: &Ground) -> String {
    let devices = ground.store.devices(DeviceQuery { limit: 100, ..DeviceQuery::default() }).await.unwrap();
    let mut state = format!("{:?} {devices:?}", ground.store.heads().await.unwrap());
    for device in devices {
        let incarnations = ground.store.incarnations(device.id).await.unwrap();
        state += &format!("{incarnations:?} {:?}", ground.store.lanes(device.id).await.unwrap());
    }
    state
}

#[tokio::test]
async fn what_is_no_batch_is_refused_in_words() {
    for ground in Ground::all().await {
        let served = Served::start(&ground).await;
        let http = reqwest::Client::new();
        let device = Speaker::new("meter-1", 1);
        device.register(&*ground.store, START_MS).await;
        let before = state(&ground).await;
        let mut version = device.batch(0, 1, &[], ONE);
        version[0] = 2;
        for bytes in [&b""[..], b"\x01", b"GET / HTTP/1.1", &version] {
            let answer = device.send(&http, &served.url, bytes).await;
            assert!(answer.is_problem(400, "not-a-batch"), "{answer:?}");
        }
        let large = device.send(&http, &served.url, &vec![1; 70_000]).await;
        assert!(large.is_problem(413, "too-large"), "{large:?}");
        let request =
            http.post(format!("{}/v1/batch", served.url)).header("content-type", "application/json");
        let answer = Answer::of(request.body(device.batch(0, 1, &[], ONE))).await;
        assert!(answer.is_problem(415, "unsupported-media-type"), "{answer:?}");
        assert_eq!(state(&ground).await, before);
    }
}

#[tokio::test]
async fn an_answer_comes_when_the_records_are_durable_and_not_before() {
    for ground in Ground::all().await {
        let gate = Gate::new(&ground.store, Closed::Take);
        let served = Served::with(gate.clone(), |_| {}).await;
        let device = Speaker::new("meter-1", 1);
        device.register(&*ground.store, START_MS).await;
        let url = served.url.clone();
        let delivery = tokio::spawn({
            let device = device.clone();
            async move { device.deliver(&reqwest::Client::new(), &url, ONE).await }
        });
        until("it is under way", || async { gate.waiting() == 1 }).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!delivery.is_finished(), "it was answered before it was stored");
        gate.open();
        assert_eq!(delivery.await.unwrap(), [true]);
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}

#[tokio::test]
async fn a_store_that_is_down_settles_nothing_and_the_answer_is_tagged() {
    for ground in Ground::all().await {
        let served = Served::with(ground.store.clone(), |settings| {
            settings.limits.store_timeout = Duration::from_millis(300);
        })
        .await;
        let http = reqwest::Client::new();
        let device = Speaker::new("meter-1", 1);
        device.register(&*ground.store, START_MS).await;
        let outage = ground.outage().await;
        let batch = device.batch(0, 1, &[], ONE);
        let answer = device.send(&http, &served.url, &batch).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        let seconds: u32 = answer.header("retry-after").expect("it says when").parse().unwrap();
        let said = device.open(&batch, &answer).expect("it is tagged");
        assert_eq!((said.is_settled(0), said.retry_after_s), (false, Some(seconds)));
        assert_eq!(said.server_time_ms, served.now_ms());
        drop(outage);
        // What was asked for may have been done all the same: then the same record is a duplicate, and settled.
        assert_eq!(device.deliver(&http, &served.url, ONE).await, [true]);
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_batch_in_two_receivers_store_it_once() {
    for ground in Ground::all().await {
        let receivers = [Served::start(&ground).await, Served::start(&ground).await];
        let device = Speaker::new("meter-1", 1);
        device.register(&*ground.store, START_MS).await;
        let http = reqwest::Client::new();
        let sent: Vec<_> = (0..20)
            .map(|n| {
                let (device, http, url) = (device.clone(), http.clone(), receivers[n % 2].url.clone());
                tokio::spawn(
                    async move { device.deliver(&http, &url, &[(0, b"a"), (1, b"b"), (2, b"c")]).await },
                )
            })
            .collect();
        for sent in sent {
            assert_eq!(sent.await.unwrap(), [true; 3]);
        }
        assert_eq!(records(&*ground.store).await.len(), 3);
    }
}

/// Has an operator give the device a new secret, over HTTP.
async fn rotate(served: &Served, admin: &str, device: &Speaker) -> Speaker {
    let url = format!("{}/v1/admin/devices/{}/rotate", served.url, device.device);
    let answer = Answer::of(reqwest::Client::new().post(url).bearer_auth(admin)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let new: NewSecret = serde_json::from_value(answer.json()).expect("it is a secret");
    Speaker { secret: new.secret.0, ..device.clone() }
}

#[tokio::test]
async fn both_secrets_are_good_until_the_new_one_is_used() {
    for ground in Ground::all().await {
        let served = Served::start(&ground).await;
        let http = reqwest::Client::new();
        let admin = ground.token(Role::Admin, None).await;
        let old = Speaker::new("meter-1", 1);
        old.register(&*ground.store, START_MS).await;
        assert_eq!(old.deliver(&http, &served.url, &[(0, b"a")]).await, [true]);
        let never_used = rotate(&served, &admin, &old).await;
        let new = rotate(&served, &admin, &old).await;
        let is_rotating =
            async || ground.store.device(&old.device).await.unwrap().expect("it is there").is_rotating;

        // A secret that was replaced before it was used is nobody's; a wrong one ends nothing.
        for stranger in [&never_used, &Speaker { secret: [9; 32], ..old.clone() }] {
            let answer = stranger.send(&http, &served.url, &stranger.batch(0, 9, &[], &[(1, b"b")])).await;
            assert!(answer.is_problem(401, "unauthorized"), "{answer:?}");
        }
        assert!(is_rotating().await);
        for counter in 1..4 {
            assert_eq!(
                old.deliver(&http, &served.url, &[(counter, b"b")]).await,
                [true],
                "the old one is good"
            );
        }
        assert!(is_rotating().await, "the old one changes nothing");

        // The answer is tagged with the secret that was used: `deliver` would not open another.
        assert_eq!(new.deliver(&http, &served.url, &[(4, b"c")]).await, [true]);
        assert!(!is_rotating().await);
        let answer = old.send(&http, &served.url, &old.batch(0, 9, &[], &[(5, b"d")])).await;
        assert!(answer.is_problem(401, "unauthorized"), "the old one is good no more: {answer:?}");
        assert_eq!(new.deliver(&http, &served.url, &[(5, b"d")]).await, [true]);
        assert_eq!(records(&*ground.store).await.len(), 6);
    }
}

#[tokio::test]
async fn a_new_secret_that_a_dead_store_could_not_note_is_still_new() {
    for ground in Ground::all().await {
        let served = Served::with(ground.store.clone(), |settings| {
            settings.limits.store_timeout = Duration::from_millis(300);
        })
        .await;
        let http = reqwest::Client::new();
        let admin = ground.token(Role::Admin, None).await;
        let old = Speaker::new("meter-1", 1);
        old.register(&*ground.store, START_MS).await;
        let new = rotate(&served, &admin, &old).await;
        let outage = ground.outage().await;
        let batch = new.batch(0, 1, &[], ONE);
        let answer = new.send(&http, &served.url, &batch).await;
        assert_eq!(answer.status, 503);
        assert!(new.open(&batch, &answer).is_some_and(|said| !said.is_settled(0)), "tagged with the new one");
        drop(outage);
        assert_eq!(new.deliver(&http, &served.url, ONE).await, [true]);
        let answer = old.send(&http, &served.url, &old.batch(0, 1, &[], ONE)).await;
        assert!(answer.is_problem(401, "unauthorized"), "{answer:?}");
    }
}
