//! The metrics say what has happened, whoever it was and whatever they made up; readiness is about writing; and the alert rules are
//! sound, fire when they should, and ask for nothing that is not measured.

mod served;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_receiver::store::Role;
use pillarbox_receiver::store::sqlite::SqliteStore;
use receiver_testkit::{SmallDisk, tools};
use served::device::Speaker;
use served::{Answer, Ground, START_MS, Served, until};

/// A line of the metrics and what it is expected to rise by.
async fn rises(served: &Served, lines: &[(&str, f64)], happening: impl Future<Output = ()>) {
    let mut before = Vec::new();
    for (line, _) in lines {
        before.push(
            served.metric(line).await.unwrap_or_else(|| panic!("{line} is not told before it happens")),
        );
    }
    happening.await;
    for ((line, by), before) in lines.iter().zip(before) {
        assert_eq!(served.metric(line).await, Some(before + by), "{line} was {before}");
    }
}

#[tokio::test]
async fn what_becomes_of_batches_and_records_is_counted() {
    for ground in Ground::all().await {
        let served = Served::start(&ground).await;
        let http = reqwest::Client::new();
        let device = Speaker::new("meter-1", 1);
        device.register(&*ground.store, START_MS).await;
        let url = served.url.clone();
        let verdict = |name: &str| format!("pillarbox_records_total{{verdict=\"{name}\"}}");
        let [stored, duplicate, conflict] = ["stored", "duplicate", "conflict"].map(verdict);
        let [unreadable, quarantined, kept] = ["unreadable", "quarantined", "kept"].map(verdict);
        let heard = "pillarbox_batches_total{status=\"200\"}";
        let stale = "pillarbox_stale_batches_total";
        rises(&served, &[(heard, 1.0), (&stored, 2.0), (&duplicate, 0.0)], async {
            device.deliver(&http, &url, &[(0, b"a"), (1, b"b")]).await;
        })
        .await;
        rises(&served, &[(heard, 1.0), (&stored, 1.0), (&duplicate, 1.0), (&conflict, 1.0)], async {
            device.deliver(&http, &url, &[(0, b"a"), (1, b"another"), (2, b"c")]).await;
        })
        .await;
        rises(&served, &[(&unreadable, 1.0)], async {
            Speaker { kind: 7, ..device.clone() }.deliver(&http, &url, &[(3, b"no reading")]).await;
        })
        .await;
        rises(&served, &[("pillarbox_batches_total{status=\"401\"}", 1.0), (heard, 0.0)], async {
            let wrong = Speaker { secret: [9; 32], ..device.clone() };
            wrong.send(&http, &url, &wrong.batch(0, 1, &[], &[])).await;
        })
        .await;
        let rebooted = Speaker { boot: 2, ..device.clone() };
        rebooted.deliver(&http, &url, &[(4, b"e")]).await;
        rises(&served, &[(stale, 1.0), (&quarantined, 1.0), (&kept, 0.0)], async {
            device.deliver(&http, &url, &[(5, b"of a boot that is over")]).await;
        })
        .await;
    }
}

#[tokio::test]
async fn what_becomes_of_clients_requests_is_counted() {
    for ground in Ground::all().await {
        let served = Served::with(ground.store.clone(), |settings| {
            settings.limits.store_timeout = Duration::from_millis(300);
        })
        .await;
        let client = served.client(&ground.token(Role::Client, Some("acme")).await);
        let outcome = |name: &str| format!("pillarbox_client_requests_total{{outcome=\"{name}\"}}");
        for (key, kind, body, name) in [
            ("k", "photo", "1", "stored"),
            ("k", "photo", "1.0", "replayed"),
            ("k", "photo", "2", "key_reused"),
            ("k", "reading", "{}", "invalid"),
            ("k", "no-such-kind", "1", "refused"),
        ] {
            let line = outcome(name);
            rises(&served, &[(&line, 1.0)], async {
                client.post(kind, key, body).await;
            })
            .await;
        }
        let outage = ground.outage().await;
        let (line, failures) = (outcome("unavailable"), "pillarbox_store_failures_total");
        let before = served.metric(failures).await.unwrap();
        rises(&served, &[(&line, 1.0)], async {
            client.post("photo", "k2", "1").await;
        })
        .await;
        assert!(served.metric(failures).await.unwrap() > before);
        drop(outage);
    }
}

#[tokio::test]
async fn the_fleet_is_told_as_it_is() {
    for ground in Ground::all().await {
        let first = Served::start(&ground).await;
        let http = reqwest::Client::new();
        let device = Speaker::new("meter-1", 1);
        device.register(&*ground.store, START_MS).await;
        // 3 is still to come; 1 and 2 are gone, and nobody has said why.
        let batch = device.batch(0, 4, &[], &[(0, b"a")]);
        assert_eq!(device.send(&http, &first.url, &batch).await.status, 200);
        let batch = device.batch(3, 4, &[], &[]);
        assert_eq!(device.send(&http, &first.url, &batch).await.status, 200);
        first.stopped().await;
        let later = START_MS + 400_000;
        let served = Served::over(ground.store.clone(), None, later, |_| {}).await;
        until("the fleet was looked at", || async { served.metric("pillarbox_devices").await == Some(1.0) })
            .await;
        for (name, value) in [
            ("pillarbox_device_lag_seconds", 400.0),
            ("pillarbox_pending_records", 1.0),
            ("pillarbox_unexplained_missing", 2.0),
            ("pillarbox_lost_records", 0.0),
            ("pillarbox_asides", 0.0),
            ("pillarbox_log_records", 1.0),
            ("pillarbox_store_queue", 0.0),
            ("pillarbox_store_up", 1.0),
        ] {
            assert_eq!(served.metric(name).await, Some(value), "{name}");
        }
        let took = "pillarbox_store_seconds_count{operation=\"door\"}";
        assert_eq!(served.metric(took).await, None);
        device.deliver(&http, &served.url, &[(0, b"a")]).await;
        assert_eq!(served.metric(took).await, Some(1.0));
    }
}

/// Names and labels of everything that is told.
async fn series(served: &Served) -> BTreeSet<String> {
    let text = served.get("/metrics").await.text();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.rsplit_once(' ').expect("a name and a value").0.to_owned()).collect()
}

/// What somebody may think of who wants many labels.
async fn make_things_up(served: &Served, token: &str, salt: &str) {
    let client = served.client(token);
    let http = &client.http;
    for n in 0..10 {
        let made_up = format!("{salt}-{n}");
        let device = Speaker::new(&made_up, 1);
        device.send(http, &served.url, &device.batch(0, 1, &[], &[])).await;
        client.post(&made_up, "k", "1").await;
        client.post(&format!("{}", 1000 + n), &made_up, "1").await;
        client.post_as("photo", &made_up, &format!("x/{made_up}"), b"1").await;
        served.get(&format!("/{made_up}")).await;
        let method = reqwest::Method::from_bytes(made_up.to_uppercase().as_bytes()).unwrap();
        Answer::of(http.request(method, format!("{}/v1/batch", served.url))).await;
        device.send(http, &served.url, made_up.as_bytes()).await;
    }
}

#[tokio::test]
async fn nobody_can_make_the_metrics_grow() {
    for ground in Ground::all().await {
        let served = Served::start(&ground).await;
        let token = ground.token(Role::Client, Some("acme")).await;
        make_things_up(&served, &token, "one").await;
        let before = series(&served).await;
        make_things_up(&served, &token, "two").await;
        assert_eq!(series(&served).await, before);
        assert!(before.len() < 200, "{}", before.len());
        assert!(!before.iter().any(|line| line.contains("one-")), "{before:?}");
    }
}

#[tokio::test]
async fn ready_is_who_can_write_and_alive_is_who_answers() {
    for ground in Ground::all().await {
        let served = Served::with(ground.store.clone(), |settings| {
            settings.limits.store_timeout = Duration::from_millis(300);
        })
        .await;
        assert_eq!(served.get("/readyz").await.text(), "ready\n");
        let outage = ground.outage().await;
        let answer = served.get("/readyz").await;
        assert!(answer.is_problem(503, "store-unavailable"), "{answer:?}");
        assert!(answer.header("retry-after").is_some());
        assert_eq!(served.get("/healthz").await.status, 200);
        assert_eq!(served.metric("pillarbox_store_up").await, Some(0.0));
        drop(outage);
        assert_eq!(served.get("/readyz").await.status, 200);
        assert_eq!(served.metric("pillarbox_store_up").await, Some(1.0));
    }
}

#[tokio::test]
async fn a_full_disk_is_not_ready_and_a_good_read_does_not_hide_it() {
    let disk = SmallDisk::of_mib(8);
    let store = SqliteStore::open(&disk.path().join("pillarbox.db")).expect("there is room");
    let served = Served::with(Arc::new(store), |_| {}).await;
    assert_eq!(served.get("/readyz").await.status, 200);
    disk.fill();
    until("it is not ready", || async { served.get("/readyz").await.status == 503 }).await;
    assert_eq!(served.get("/healthz").await.status, 200);
    // It reads: an unknown device is still refused.
    let device = Speaker::new("meter-1", 1);
    let answer = device.send(&reqwest::Client::new(), &served.url, &device.batch(0, 0, &[], &[])).await;
    assert_eq!(answer.status, 401);
    assert_eq!(served.metric("pillarbox_store_up").await, Some(0.0));
    disk.free();
    until("it is ready again", || async { served.get("/readyz").await.status == 200 }).await;
    assert_eq!(served.metric("pillarbox_store_up").await, Some(1.0));
}

#[tokio::test]
async fn metrics_can_be_kept_to_those_who_have_a_token() {
    let ground = Ground::sqlite().await;
    let served = Served::with(ground.store.clone(), |settings| {
        settings.metrics_access = pillarbox_receiver::serve::MetricsAccess::Token;
    })
    .await;
    assert!(served.get("/metrics").await.is_problem(401, "unauthorized"));
    for (role, status) in [(Role::Client, 403), (Role::Viewer, 200), (Role::Admin, 200)] {
        let token = ground.token(role, None).await;
        let request = reqwest::Client::new().get(format!("{}/metrics", served.url)).bearer_auth(token);
        assert_eq!(Answer::of(request).await.status, status, "{role:?}");
    }
}

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts.yml")
}

fn promtool(arguments: &[&str], file: &Path) {
    let promtool = tools::promtool().unwrap_or_else(|missing| panic!("{missing}"));
    let output = Command::new(promtool).args(arguments).arg(file).output().expect("it can be started");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn the_alert_rules_are_sound_and_fire_when_they_should() {
    promtool(&["check", "rules"], &rules());
    promtool(&["test", "rules"], &rules().with_file_name("alerts_test.yml"));
    let text = std::fs::read_to_string(rules()).unwrap();
    let tests = std::fs::read_to_string(rules().with_file_name("alerts_test.yml")).unwrap();
    let alerts: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    for alert in &alerts {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tried");
    }
    for field in ["summary:", "description:", "severity:"] {
        assert_eq!(text.matches(field).count(), alerts.len(), "each has a {field}");
    }
}

#[tokio::test]
async fn the_alert_rules_ask_only_for_what_is_measured() {
    let ground = Ground::sqlite().await;
    let served = Served::start(&ground).await;
    let device = Speaker::new("meter-1", 1);
    device.register(&*ground.store, START_MS).await;
    device.deliver(&reqwest::Client::new(), &served.url, &[(0, b"a")]).await;
    until("the fleet was looked at", || async { served.metric("pillarbox_devices").await.is_some() }).await;
    let told = series(&served).await;
    let names: BTreeSet<&str> = told.iter().filter_map(|line| line.split('{').next()).collect();
    let text = std::fs::read_to_string(rules()).unwrap();
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let asked: BTreeSet<&str> = text
        .split(|letter: char| !is_of_name(letter))
        .filter(|word| word.starts_with("pillarbox_"))
        .collect();
    assert!(asked.len() > 5, "{asked:?}");
    // A histogram is called by its name where people read of it.
    let base = |name: &str| {
        let end = ["_bucket", "_sum", "_count"].into_iter().find(|end| name.ends_with(end));
        end.map_or(name, |end| name.trim_end_matches(end)).to_owned()
    };
    let is_told = |word: &str| names.iter().any(|name| *name == word || base(name) == word);
    let missing: Vec<_> = asked.iter().filter(|word| !is_told(word)).collect();
    assert!(missing.is_empty(), "{missing:?} are not among {names:?}");
    let described = served.get("/metrics").await.text();
    for name in names.iter().map(|name| base(name)) {
        assert!(described.contains(&format!("# HELP {name} ")), "{name} is not explained");
    }
}
