//! What an ordinary client is promised about its key, asked for over TCP: which requests are refused and use nothing up, when a
//! request is the same one and when not, that an answer is repeated to the byte, and for how long.

mod served;

use std::time::Duration;

use pillarbox_receiver::store::Role;
use reqwest::header::HeaderValue;
use served::gate::{Closed, Gate};
use served::{Answer, Client, Ground, Served, records, token, until};

use pillarbox_receiver::serve::ReuseStatus;

const READING: &str = r#"{"watt_hours":5}"#;

async fn start(ground: &Ground) -> (Served, Client) {
    let served = Served::start(ground).await;
    let client = served.client(&ground.token(Role::Client, Some("acme")).await);
    (served, client)
}

#[tokio::test]
async fn a_key_is_one_quoted_string_and_nothing_else() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        let post = || client.record("reading", READING).header("content-type", "application/json");
        let missing = Answer::of(post()).await;
        assert!(missing.is_problem(400, "key-missing"), "{missing:?}");
        let long = format!("\"{}\"", "x".repeat(256));
        let malformed = [
            "8e03978e",
            "\"open",
            "\"\"",
            "",
            "12",
            ":aGk=:",
            "?1",
            "\"a\";v=1",
            "\"a\"; q",
            "\"a\", \"b\"",
            "(\"a\")",
            "\"a\" \"b\"",
            "'a'",
            &long,
        ];
        for key in malformed {
            let answer = Answer::of(post().header("idempotency-key", key)).await;
            assert!(answer.is_problem(400, "key-malformed"), "{key:?}: {answer:?}");
        }
        let foreign = HeaderValue::from_bytes(b"\"\xc3\xa4\"").expect("HTTP carries it");
        let answer = Answer::of(post().header("idempotency-key", foreign)).await;
        assert!(answer.is_problem(400, "key-malformed"), "{answer:?}");
        let twice = post().header("idempotency-key", "\"a\"").header("idempotency-key", "\"a\"");
        let answer = Answer::of(twice).await;
        assert!(answer.is_problem(400, "key-malformed"), "{answer:?}");
        assert_eq!(records(&*served.store).await.len(), 0);

        for key in ["x".repeat(255).as_str(), "a b", r#"\"\\"#, "8e03978e-40d5-43dd-bc93-6894a57f9324"] {
            let answer = client.post("reading", key, READING).await;
            assert_eq!(answer.status, 201, "{key}: {answer:?}");
        }
        assert_eq!(records(&*served.store).await.len(), 4);
    }
}

#[tokio::test]
async fn whoever_may_not_is_told_which_way_it_is() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        let post = |authorization: Option<String>| {
            let request = client.http.post(format!("{}/v1/records/reading", client.url)).body(READING);
            let request = request.header("content-type", "application/json");
            let request = request.header("idempotency-key", "\"k\"");
            match authorization {
                Some(value) => request.header("authorization", value),
                None => request,
            }
        };
        let unknown = format!("Bearer pbx_{}", "0".repeat(64));
        let basic = format!("Basic {}", client.token);
        for authorization in [None, Some(String::new()), Some("Bearer x".into()), Some(unknown), Some(basic)]
        {
            let answer = Answer::of(post(authorization.clone())).await;
            assert!(answer.is_problem(401, "unauthorized"), "{authorization:?}: {answer:?}");
            assert!(answer.header("www-authenticate").is_some_and(|how| how.starts_with("Bearer")));
        }
        let viewer = ground.token(Role::Viewer, Some("acme")).await;
        let nobodys = ground.token(Role::Admin, None).await;
        for token in [viewer, nobodys] {
            let answer = Answer::of(post(Some(format!("Bearer {token}")))).await;
            assert!(answer.is_problem(403, "forbidden"), "{answer:?}");
        }
        let row =
            served.store.tokens().await.unwrap().into_iter().find(|row| row.role == Role::Client).unwrap();
        assert_eq!(client.post("reading", "k", READING).await.status, 201);
        served.store.revoke_token(row.id, served.now_ms()).await.unwrap();
        let answer = client.post("reading", "k", READING).await;
        assert!(answer.is_problem(401, "unauthorized"), "a revoked token is worthless at once: {answer:?}");
        assert_eq!(records(&*served.store).await.len(), 1);
    }
}

#[tokio::test]
async fn a_key_is_its_tenants_own() {
    for ground in Ground::all().await {
        let (served, acme) = start(&ground).await;
        let other = served.client(&ground.token(Role::Client, Some("globex")).await);
        assert_eq!(acme.post("reading", "k", READING).await.status, 201);
        let theirs = other.post("reading", "k", r#"{"watt_hours":6}"#).await;
        assert_eq!((theirs.status, theirs.is_replay()), (201, false));
        // Two programs of one tenant share its keys.
        let second = served.client(&ground.token(Role::Client, Some("acme")).await);
        assert!(second.post("reading", "k", READING).await.is_replay());
        let tenants: Vec<String> =
            records(&*served.store).await.into_iter().map(|(_, row)| row.tenant).collect();
        assert_eq!(tenants.len(), 2);
        assert!(tenants.contains(&"acme".into()) && tenants.contains(&"globex".into()), "{tenants:?}");
    }
}

#[tokio::test]
async fn the_same_request_is_answered_the_same_to_the_byte_and_stored_once() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        let first = client.post("8", "k", r#"{"a":1,"b":[2,{"c":0.5}],"d":"x"}"#).await;
        assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
        assert_eq!(first.json()["key"], "k");
        served.advance(Duration::from_secs(3600));
        for (kind, content_type, same) in [
            ("8", "application/json", r#"{"a":1,"b":[2,{"c":0.5}],"d":"x"}"#),
            ("8", "application/json", " { \"d\" : \"\\u0078\", \"b\":[2, {\"c\":5e-1}],\n \"a\" : 1.0 } "),
            ("photo", "application/json", r#"{"a":1,"b":[2,{"c":0.5}],"d":"x"}"#),
            ("008", "Application/JSON; charset=utf-8", r#"{"a":1,"b":[2,{"c":0.50}],"d":"x"}"#),
        ] {
            let again = client.post_as(kind, "k", content_type, same.as_bytes()).await;
            assert_eq!((again.status, &again.body), (first.status, &first.body), "{same}");
            assert_eq!(again.header("content-type"), first.header("content-type"));
            assert!(again.is_replay(), "{again:?}");
        }
        let stored = records(&*served.store).await;
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].1.body, br#"{"a":1,"b":[2,{"c":0.5}],"d":"x"}"#, "as it first came");
    }
}

#[tokio::test]
async fn another_payload_under_the_key_is_refused_with_the_status_that_was_chosen() {
    for ground in Ground::all().await {
        for (choice, status) in [(ReuseStatus::Conflict, 409), (ReuseStatus::Unprocessable, 422)] {
            let change =
                |settings: &mut pillarbox_receiver::serve::ServeSettings| settings.reuse_status = choice;
            let served = Served::with(ground.store.clone(), change).await;
            let client = served.client(&ground.token(Role::Client, Some(&format!("tenant-{status}"))).await);
            assert_eq!(client.post("8", "k", "[1,2]").await.status, 201);
            for (kind, content_type, body) in [
                ("8", "application/json", "[2,1]"),
                ("8", "application/json", "[1,2.5]"),
                ("8", "application/json", "[1,\"2\"]"),
                ("9", "application/json", "[1,2]"),
                ("8", "application/octet-stream", "[1,2]"),
            ] {
                let answer = client.post_as(kind, "k", content_type, body.as_bytes()).await;
                assert!(answer.is_problem(status, "key-reused"), "{kind} {content_type} {body}: {answer:?}");
                assert_eq!(answer.header("retry-after"), None, "it will never go well");
            }
            assert!(client.post("8", "k", "[1,2]").await.is_replay(), "the first one still stands");
        }
        assert_eq!(records(&*ground.store).await.len(), 2);
    }
}

#[tokio::test]
async fn while_a_request_is_under_way_others_with_its_key_are_asked_to_come_again() {
    for ground in Ground::all().await {
        let gate = Gate::new(&ground.store, Closed::Complete);
        let served = Served::with(gate.clone(), |settings| {
            settings.limits.key_wait = Duration::from_millis(200);
        })
        .await;
        let client = served.client(&ground.token(Role::Client, Some("acme")).await);
        let slow = tokio::spawn({
            let client = client.clone();
            async move { client.post("reading", "k", READING).await }
        });
        until("the first is under way", || async { gate.waiting() == 1 }).await;
        let answer = client.post("reading", "k", READING).await;
        assert!(answer.is_problem(409, "in-progress"), "{answer:?}");
        let seconds: u64 = answer.header("retry-after").expect("it says when").parse().expect("in seconds");
        assert!((1..=60).contains(&seconds), "{seconds}");
        let other = client.post("reading", "k", r#"{"watt_hours":6}"#).await;
        assert!(other.is_problem(409, "key-reused"), "{other:?}");
        // Who waits long enough gets the answer itself.
        let patient = tokio::spawn({
            let client = client.clone();
            async move { client.post("reading", "k", READING).await }
        });
        tokio::time::sleep(Duration::from_millis(60)).await;
        gate.open();
        let (first, second) = (slow.await.unwrap(), patient.await.unwrap());
        assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
        assert_eq!((second.status, second.is_replay()), (201, true), "{second:?}");
        assert_eq!(first.body, second.body);
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_with_one_key_one_is_stored_and_all_are_told_the_same() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        let other = Served::start(&ground).await;
        let elsewhere = Client { url: other.url.clone(), ..client.clone() };
        let all = (0..40).map(|n| {
            let client = if n % 2 == 0 { client.clone() } else { elsewhere.clone() };
            tokio::spawn(async move {
                let answer = client.post("reading", &format!("k{}", n / 20), READING).await;
                (n / 20, answer)
            })
        });
        let all: Vec<_> = all.collect();
        let mut told = [vec![], vec![]];
        for answer in all {
            let (key, answer): (usize, Answer) = answer.await.unwrap();
            assert_eq!(answer.status, 201, "{answer:?}");
            told[key].push(answer);
        }
        for told in told {
            assert!(told.iter().all(|answer| answer.body == told[0].body));
            assert_eq!(told.iter().filter(|answer| !answer.is_replay()).count(), 1);
        }
        assert_eq!(records(&*served.store).await.len(), 2);
    }
}

#[tokio::test]
async fn what_is_refused_does_not_use_the_key_up() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        let raw = "application/octet-stream";
        let large = vec![b'x'; 65_536];
        let refused: [(&str, &str, &[u8], u16, &str); 9] = [
            ("no-such-kind", "application/json", READING.as_bytes(), 404, "unknown-kind"),
            ("65536", "application/json", READING.as_bytes(), 404, "unknown-kind"),
            ("reading", "application/json", b"{", 422, "invalid-record"),
            ("reading", "application/json", br#"{"watt_hours":-1}"#, 422, "invalid-record"),
            ("7", "application/json", br#"{"amps":1}"#, 422, "invalid-record"),
            ("reading", raw, b"\x80", 422, "invalid-record"),
            ("reading", raw, b"\x05\x05", 422, "invalid-record"),
            ("reading", "text/plain", READING.as_bytes(), 415, "unsupported-media-type"),
            ("photo", raw, &large, 413, "too-large"),
        ];
        for (kind, content_type, body, status, name) in refused {
            let answer = client.post_as(kind, "k", content_type, body).await;
            assert!(answer.is_problem(status, name), "{kind} {content_type}: {answer:?}");
        }
        assert_eq!(records(&*served.store).await.len(), 0);
        let answer = client.post("reading", "k", READING).await;
        assert_eq!((answer.status, answer.is_replay()), (201, false), "{answer:?}");
    }
}

#[tokio::test]
async fn a_kind_is_called_by_name_or_number_and_its_schema_is_asked() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        let raw = "application/octet-stream";
        let taken: [(&str, &str, &[u8], u16); 7] = [
            ("reading", "application/json", br#"{"watt_hours":18446744073709551615}"#, 7),
            ("7", "application/json", br#"{"watt_hours":0}"#, 7),
            ("reading", raw, b"\x05", 7),
            ("photo", raw, b"\xff\x00\x80", 8),
            ("photo", raw, b"", 8),
            ("4242", "application/json", b"null", 4242),
            ("0", raw, b"of no known kind", 0),
        ];
        for (n, (name, content_type, body, kind)) in taken.into_iter().enumerate() {
            let answer = client.post_as(name, &format!("k{n}"), content_type, body).await;
            assert_eq!(answer.status, 201, "{name}: {answer:?}");
            assert_eq!(answer.json()["kind"], kind);
            let stored = records(&*served.store).await;
            let (_, row) = stored.iter().find(|(key, _)| *key == format!("k{n}")).expect("it is in the log");
            assert_eq!((row.kind, &row.body[..]), (kind, body));
        }
    }
}

#[tokio::test]
async fn a_key_is_remembered_as_long_as_is_published_and_no_longer() {
    for ground in Ground::all().await {
        let served = Served::with(ground.store.clone(), |settings| {
            settings.key_retention = Duration::from_secs(100);
        })
        .await;
        let client = served.client(&ground.token(Role::Client, Some("acme")).await);
        let first = client.post("reading", "k", READING).await;
        assert_eq!(first.header("idempotency-key-retention"), Some("100"));
        let refused = client.post("reading", "k2", "{}").await;
        assert_eq!(refused.header("idempotency-key-retention"), Some("100"), "every answer says it");
        served.advance(Duration::from_secs(100));
        assert!(client.post("reading", "k", READING).await.is_replay(), "to the last second");
        served.advance(Duration::from_secs(1));
        let other = r#"{"watt_hours":6}"#;
        let second = client.post("reading", "k", other).await;
        assert_eq!((second.status, second.is_replay()), (201, false), "a key that is forgotten is a new one");
        assert!(client.post("reading", "k", other).await.is_replay());
        assert_eq!(records(&*ground.store).await.len(), 2);
    }
    let usual = pillarbox_receiver::serve::ServeSettings::default().key_retention;
    assert_eq!(usual, Duration::from_secs(7 * 24 * 3600), "seven days, as the description says");
}

#[tokio::test]
async fn old_keys_are_forgotten_a_few_at_a_time() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        for n in 0..25 {
            assert_eq!(client.post("reading", &format!("old-{n}"), READING).await.status, 201);
        }
        served.advance(Duration::from_secs(60));
        let before_ms = served.now_ms();
        for n in 0..5 {
            assert_eq!(client.post("reading", &format!("young-{n}"), READING).await.status, 201);
        }
        let mut forgotten = Vec::new();
        for _ in 0..4 {
            forgotten.push(served.store.forget_keys(before_ms, 10).await.unwrap());
        }
        assert_eq!(forgotten, [10, 10, 5, 0]);
        for n in 0..5 {
            assert!(client.post("reading", &format!("young-{n}"), READING).await.is_replay());
        }
        assert!(!client.post("reading", "old-3", READING).await.is_replay());
        assert_eq!(records(&*served.store).await.len(), 31, "records are not forgotten with their keys");
    }
}

#[tokio::test]
async fn the_receiver_forgets_by_itself_what_is_over() {
    for ground in Ground::all().await {
        let (served, client) = start(&ground).await;
        // More than one transaction forgets.
        for n in 0..600 {
            let claim = pillarbox_receiver::store::Claim {
                tenant: "acme".into(),
                operation: "POST /v1/records".into(),
                key: format!("old-{n}"),
                hash: [0; 32],
                holder: n,
                now_ms: served.now_ms() - 8 * 24 * 3_600_000,
                lease_until_ms: 0,
                expired_before_ms: 0,
            };
            served.store.claim(claim).await.unwrap();
        }
        assert_eq!(client.post("reading", "young", READING).await.status, 201);
        served.stopped().await;
        let again = Served::start(&ground).await;
        let far = again.now_ms() + 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(ground.store.forget_keys(far, 1000).await.unwrap(), 1, "only the young one was left");
    }
}

#[tokio::test]
async fn when_the_store_is_down_nothing_is_stored_and_the_key_works_afterwards() {
    for ground in Ground::all().await {
        let served = Served::with(ground.store.clone(), |settings| {
            settings.limits.store_timeout = Duration::from_millis(300);
        })
        .await;
        let client = served.client(&token(&*ground.store, Role::Client, Some("acme")).await);
        let outage = ground.outage().await;
        for _ in 0..2 {
            let answer = client.post("reading", "k", READING).await;
            assert!(answer.is_problem(503, "store-unavailable"), "{answer:?}");
            let seconds: u64 =
                answer.header("retry-after").expect("it says when").parse().expect("in seconds");
            assert!((1..=60).contains(&seconds));
        }
        drop(outage);
        let answer = client.post("reading", "k", READING).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(client.post("reading", "k", READING).await.is_replay());
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}
