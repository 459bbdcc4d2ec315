//! Exports go into other people's programs: what comes out must be what went in, whatever is in it, and all of it. And who follows
//! the log must see every record once, as it comes.

mod operator;

use std::collections::BTreeSet;
use std::time::Duration;

use operator::{Operator, a_few, send_some, start_some};
use receiver_testkit::{Drained, Program};
use serde_json::{Value, json};

/// What a spreadsheet, a shell or a careless split would break.
const NASTY: [&str; 7] = [
    "plain",
    "comma, \"quote\" and 'other'",
    "two\nlines\r\nand a tab\t",
    "=1+1",
    "ümläut 漢字 🦀",
    "",
    "\u{0000}\u{001b}[31m",
];

async fn post_all(operator: &Operator, url: &str) -> Vec<(String, Value)> {
    let token = operator.token("--role client --tenant north");
    let client = reqwest::Client::new();
    let mut posted = Vec::new();
    for (n, text) in NASTY.iter().enumerate() {
        let (key, body) = (format!("key, {n}"), json!({ "text": text, "n": n, "deep": [{ "a": null }] }));
        let request = client.post(format!("{url}/v1/records/9")).bearer_auth(&token);
        let answer =
            request.header("idempotency-key", format!("\"{key}\"")).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        posted.push((key, body));
    }
    let raw =
        client.post(format!("{url}/v1/records/10")).bearer_auth(&token).header("idempotency-key", "\"raw\"");
    let raw = raw
        .header("content-type", "application/octet-stream")
        .body(&b"\x00\xff,\"\n"[..])
        .send()
        .await
        .unwrap();
    assert!(raw.status().is_success());
    posted
}

fn csv_rows(text: &str) -> Vec<std::collections::HashMap<String, String>> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().expect("it is CSV")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_comes_back_whole() {
    let operator = Operator::new();
    operator.let_in(2, 21);
    let receiver = operator.serve("");
    let posted = post_all(&operator, &receiver.url).await;
    let fleet = send_some(2, 21, &receiver.url).await;
    operator.run("records export --out all.csv").done();
    operator.run("records export --out all.jsonl").done();
    operator.run("records export --out all.csv").refused(1, "is there already");
    let (rows, text) = (csv_rows(&operator.read("all.csv")), operator.read("all.jsonl"));
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!((rows.len(), lines.len()), (fleet.posted().len() + posted.len() + 1, rows.len()));
    for (row, line) in rows.iter().zip(&lines) {
        for name in
            ["place", "key", "device", "tenant", "received_at", "hex", "base64", "content_type", "aside"]
        {
            assert_eq!(row[name], line[name].as_str().unwrap_or_default(), "{name} of {line}");
        }
        let data: Value =
            if row["data"].is_empty() { Value::Null } else { serde_json::from_str(&row["data"]).unwrap() };
        assert_eq!(data, line["data"]);
    }
    for (key, body) in posted {
        let row = rows.iter().find(|row| row["key"] == key).expect("it is there");
        assert_eq!(serde_json::from_str::<Value>(&row["data"]).unwrap(), body);
    }
    for sent in fleet.posted() {
        let key = sent.key.of(&sent.device).to_string();
        let row = rows.iter().find(|row| row["key"] == key).expect("it is there");
        assert_eq!(hex::decode(&row["hex"]).unwrap(), sent.body, "{key}");
    }
    let left = std::fs::read_dir(operator.directory()).unwrap();
    let parts = left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(parts.count(), 0);
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_leave_out_what_was_not_asked_for_and_nothing_else() {
    let operator = Operator::new();
    operator.let_in(2, 22);
    let receiver = operator.serve("");
    post_all(&operator, &receiver.url).await;
    let fleet = send_some(2, 22, &receiver.url).await;
    let count = |filter: &str| operator.run(&format!("records export {filter}")).done().lines().count();
    let of_device = fleet.posted().iter().filter(|sent| sent.device.as_str() == "meter-1").count();
    let all = fleet.posted().len() + NASTY.len() + 1;
    assert_eq!(count(""), all);
    assert_eq!(count("--device meter-1"), of_device);
    assert_eq!(count("--tenant north"), NASTY.len() + 1);
    assert_eq!(count("--kind 9"), NASTY.len());
    assert_eq!(count("--kind 9 --tenant default"), 0);
    assert_eq!(count("--asides"), 0);
    assert_eq!(count("--since 2001-01-01"), all);
    assert_eq!(count("--until 2001-01-01 --tenant north"), 0);
    assert_eq!(count("--since 2999-01-01"), 0);
    let record = operator.json("records export --kind 10");
    let at = record["received_at"].as_str().unwrap().to_owned();
    assert_eq!(count(&format!("--kind 10 --since {at}")), 1);
    assert_eq!(count(&format!("--kind 10 --until {at}")), 0);
    // A name does for a number.
    operator.write("kinds.toml", "[[kind]]\nnumber = 9\nname = 'posted'\n");
    assert_eq!(count("--kind posted --kinds kinds.toml"), NASTY.len());
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_the_log_sees_every_record_once() {
    let operator = Operator::new();
    operator.let_in(3, 23);
    let receiver = operator.serve("");
    operator.run("token add --role viewer --out viewer.token").done();
    let fleet = start_some(3, 23, &receiver.url);
    a_few(&fleet, 5).await;
    let follow = |arguments: &str| {
        let arguments = format!("records tail --json -n 100000 {arguments}");
        let program = Program::new(env!("CARGO_BIN_EXE_pillarbox"));
        program.args(arguments.split_whitespace()).in_directory(operator.directory()).start()
    };
    let here = follow("");
    let mut there = follow(&format!("--server {} --token-file viewer.token", receiver.url));
    let _ = here.line_with("received_at");
    let _ = there.line_with("received_at");
    // What comes now was not there when they began.
    a_few(&fleet, 40).await;
    assert_eq!(fleet.drain(Duration::from_secs(60)).await, Drained::All);
    let posted: BTreeSet<String> =
        fleet.posted().iter().map(|sent| sent.key.of(&sent.device).to_string()).collect();
    for follower in [&here, &there] {
        for key in &posted {
            follower.line_with(&format!("\"{key}\""));
        }
        assert_eq!(follower.output().lines().count(), posted.len());
    }
    let last = operator.run("records tail --no-follow -n 4").done();
    assert_eq!(last.lines().count(), 4, "{last}");
    let last = operator.run("records tail --no-follow -n 2 --device meter-3").done();
    assert_eq!(last.lines().filter(|line| line.contains("meter-3.")).count(), 2, "{last}");
    there.kill();
    receiver.stop();
}
