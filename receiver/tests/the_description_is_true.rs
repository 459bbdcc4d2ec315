//! The OpenAPI document says what is served, all of it and nothing else, and the receiver does what the document says: schemathesis
//! makes requests from it, right ones and wrong ones, and holds every answer against it.
//!
//! `DESCRIPTION_SEED` and `DESCRIPTION_EXAMPLES` repeat or prolong it.

mod served;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use pillarbox_receiver::admin::Method;
use pillarbox_receiver::http::{openapi, ways};
use pillarbox_receiver::store::{DeviceQuery, Role};
use receiver_testkit::tools;
use serde_json::Value;
use served::device::Speaker;
use served::{Ground, Served, records};

fn document() -> Value {
    serde_json::from_str(openapi::DOCUMENT).expect("it is JSON")
}

#[test]
fn every_way_in_is_described_and_no_other() {
    let name = |method: Method| format!("{method:?}").to_lowercase();
    let served: BTreeSet<(String, String)> =
        ways().into_iter().map(|(method, path)| (path.to_owned(), name(method))).collect();
    let document = document();
    let paths = document["paths"].as_object().expect("there are some");
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("it has methods");
            methods.keys().map(|method| (path.clone(), method.clone()))
        })
        .collect();
    assert_eq!(served, described);
    assert!(served.len() > 15, "{served:?}");
}

#[test]
fn every_operation_has_an_example_and_says_what_can_go_wrong() {
    let document = document();
    for (path, item) in document["paths"].as_object().expect("there are some") {
        for (method, operation) in item.as_object().expect("it has methods") {
            let who = format!("{method} {path}");
            assert!(operation["summary"].is_string() && operation["operationId"].is_string(), "{who}");
            let responses = operation["responses"].as_object().expect("it is answered");
            let is_secured = operation["security"].as_array().is_some_and(|ways| !ways.is_empty());
            for status in ["401", "403", "503"].iter().filter(|_| is_secured) {
                assert!(responses.contains_key(*status), "{who} does not say {status}");
            }
            if let Some(content) = operation.pointer("/requestBody/content/application~1json") {
                assert!(content.get("example").is_some(), "{who} has no example");
            }
        }
    }
    let problems = document["components"]["responses"].as_object().expect("there are some");
    for (name, problem) in problems {
        let example = &problem["content"]["application/problem+json"]["example"];
        assert!(
            example["type"].as_str().is_some_and(|name| name.starts_with("urn:pillarbox:problem:")),
            "{name}"
        );
    }
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect("it is a number"))
}

/// Has schemathesis try some operations with a token.
async fn try_out(served: &Served, what: &str, token: &str, choice: &[&str]) {
    let schemathesis = tools::schemathesis().unwrap_or_else(|missing| panic!("{missing}"));
    let seed = number("DESCRIPTION_SEED", 1);
    let examples = number("DESCRIPTION_EXAMPLES", 8);
    println!("{what}: DESCRIPTION_SEED={seed} DESCRIPTION_EXAMPLES={examples}");
    let place = tempfile::tempdir().expect("there is a disk");
    let mut command = tokio::process::Command::new(schemathesis);
    command
        .arg("--config-file")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis.toml"))
        .arg("run")
        .arg(format!("{}/openapi.json", served.url))
        .args(["--checks", "all", "--phases", "examples,coverage,fuzzing", "--no-color"])
        .args(["--seed", &seed.to_string(), "--max-examples", &examples.to_string()])
        .args(["--generation-database", "none", "--warnings", "off", "--request-timeout", "20"])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(choice)
        .current_dir(place.path())
        // Where it keeps its tables of characters, which take it half a minute to make.
        .env("HYPOTHESIS_STORAGE_DIRECTORY", tools::tools_directory().join("hypothesis"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await.expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{what}: {said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().filter(|line| line.contains("generated")).collect::<Vec<_>>().join("\n"));
}

/// A receiver with something in it to be shown.
async fn furnished(ground: &Ground) -> Served {
    let served = Served::start(ground).await;
    let device = Speaker::new("meter-0042", 1);
    device.register(&*ground.store, served.now_ms()).await;
    let http = reqwest::Client::new();
    let records: [(u64, &[u8]); 3] = [(0, b"a"), (1, b"b"), (3, b"c")];
    assert_eq!(device.deliver(&http, &served.url, &records).await, [true; 3]);
    let other = Speaker { kind: 7, ..device };
    assert_eq!(other.deliver(&http, &served.url, &[(4, b"\x05"), (5, b"unreadable")]).await, [true; 2]);
    let client = served.client(&ground.token(Role::Client, Some("default")).await);
    assert_eq!(client.post("reading", "a key", r#"{"watt_hours":5}"#).await.status, 201);
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_and_clients_are_answered_as_described() {
    let ground = Ground::sqlite().await;
    let served = furnished(&ground).await;
    let token = ground.token(Role::Client, Some("default")).await;
    try_out(&served, "clients", &token, &["--exclude-path-regex", "^/(v1/admin|metrics)"]).await;
    assert!(records(&*ground.store).await.len() > 6, "nothing was posted: is the token good?");
    served.stopped().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_are_answered_as_described() {
    let ground = Ground::sqlite().await;
    let served = furnished(&ground).await;
    let token = ground.token(Role::Admin, None).await;
    // The last one to be tried: it may make its own token worthless.
    let last = "/v1/admin/tokens/{id}";
    let choice = ["--include-path-regex", "^/(v1/admin|metrics)", "--exclude-path", last];
    try_out(&served, "operators", &token, &choice).await;
    let devices = ground.store.devices(DeviceQuery { limit: 100, ..DeviceQuery::default() }).await.unwrap();
    assert!(devices.len() > 1, "no device was added: is the token good?");
    let revoker = ground.token(Role::Admin, None).await;
    try_out(&served, "the end of a token", &revoker, &["--include-path", last]).await;
    served.stopped().await;
}
