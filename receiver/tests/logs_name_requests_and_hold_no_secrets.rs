//! The log of a request says which way it went, what came of it and under which id, and nothing that its sender would not want to
//! read there: no token, no secret, no key, no body, no path of the sender's making. At the loudest level, as JSON.

mod served;

use std::io::Write;
use std::sync::{Arc, Mutex};

use pillarbox_receiver::store::Role;
use served::device::Speaker;
use served::{Answer, Ground, START_MS, Served};
use tracing_subscriber::fmt::MakeWriter;

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).expect("it is text")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Everything in one thread, whose log this is.
#[tokio::test]
async fn a_request_is_named_and_nothing_of_it_is_repeated() {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().json().with_max_level(tracing::Level::TRACE).with_writer(log.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let ground = Ground::sqlite().await;
    let served = Served::start(&ground).await;
    let device = Speaker::new("meter-1", 0xa7);
    device.register(&*ground.store, START_MS).await;
    let admin = ground.token(Role::Admin, None).await;
    let token = ground.token(Role::Client, Some("acme")).await;
    let client = served.client(&token);
    let http = &client.http;

    let named = client.record("photo", "\"body-marker\"").header("x-request-id", "by-the-proxy.1");
    let named = named.header("content-type", "application/json").header("idempotency-key", "\"key-marker\"");
    let answer = Answer::of(named).await;
    assert_eq!((answer.status, answer.header("x-request-id")), (201, Some("by-the-proxy.1")));
    let other = client.post("photo", "key-marker", "\"other-marker\"").await;
    assert_eq!(other.status, 409);
    let id = other.header("x-request-id").expect("it has one").to_owned();
    let forged = client.record("photo", "1").header("x-request-id", "{\"level\":\"forged\"}");
    let forged = Answer::of(forged).await;
    assert_ne!(forged.header("x-request-id"), Some("{\"level\":\"forged\"}"));
    assert_eq!(client.post("path-marker", "k", "1").await.status, 404);
    served.get("/path-marker?query-marker").await;
    device.deliver(http, &served.url, &[(0, b"record-marker")]).await;
    device.deliver(http, &served.url, &[(0, b"conflict-marker")]).await;
    let wrong = Speaker { secret: [0xb8; 32], ..device.clone() };
    wrong.send(http, &served.url, &wrong.batch(0, 1, &[], &[(0, b"record-marker")])).await;
    let secret =
        Answer::of(http.post(format!("{}/v1/admin/devices/meter-1/rotate", served.url)).bearer_auth(&admin))
            .await;
    let secret = secret.json()["secret"].as_str().expect("it is told").to_owned();
    served.stopped().await;

    let text = log.text();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("every line is JSON"))
        .filter(|line: &serde_json::Value| {
            line["target"].as_str().is_some_and(|target| target.starts_with("pillarbox_receiver"))
        })
        .collect();
    let of = |id: &str| {
        let line =
            lines.iter().find(|line| line["span"]["id"] == id && line["fields"]["message"] == "answered");
        line.unwrap_or_else(|| panic!("{id} is not in the log:\n{text}"))
    };
    let line = of("by-the-proxy.1");
    assert_eq!(line["fields"]["status"], 201);
    assert_eq!(
        (&line["span"]["route"], &line["span"]["method"]),
        (&"/v1/records/{kind}".into(), &"POST".into())
    );
    assert_eq!(of(&id)["fields"]["status"], 409);
    assert!(
        text.contains("a key came with two contents") && text.contains("meter-1"),
        "a conflict is told of"
    );

    let ours: String = lines.iter().map(|line| line.to_string() + "\n").collect();
    let hex_secret = "a7".repeat(32);
    let secrets: [&str; 12] = [
        &admin,
        &token,
        &secret,
        &hex_secret,
        "key-marker",
        "body-marker",
        "other-marker",
        "path-marker",
        "query-marker",
        "record-marker",
        "conflict-marker",
        "forged",
    ];
    for secret in secrets {
        assert!(!ours.contains(secret), "{secret} is in the log:\n{ours}");
    }
}
