//! Many devices and many open connections: what a batch then costs in time, and the receiver in memory.

use std::time::{Duration, Instant};

use comfy_table::Table;
use pillarbox::wire::{BATCH_CONTENT_TYPE, BatchWriter, Head, TagKeys};
use pillarbox::{DeviceId, Key, Kind, Stored, Timestamp};
use pillarbox_receiver::store::sqlite::Core;
use receiver_testkit::Program;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::batches::{BODY, NOW, name, secret};

const BATCHES: usize = 2_000;
const RECORDS: usize = 10;

/// Prints the table. There is no bar but that the numbers are there to be looked at.
pub(crate) async fn run() -> bool {
    let mut table = Table::new();
    table.set_header([
        "devices registered",
        "connections open",
        "memory of the receiver",
        "time a batch, median",
        "99 %",
    ]);
    for (devices, connections) in [(1_000, 1), (1_000, 1_000), (100_000, 1), (100_000, 1_000)] {
        let (memory, times) = measure(devices, connections).await;
        table.add_row([
            devices.to_string(),
            connections.to_string(),
            format!("{:.1} MiB", memory as f64 / 1024.0),
            format!("{:.2} ms", times[times.len() / 2].as_secs_f64() * 1e3),
            format!("{:.2} ms", times[times.len() * 99 / 100].as_secs_f64() * 1e3),
        ]);
    }
    println!(
        "`pillarbox serve` on SQLite in memory-backed storage, {BATCHES} batches of {RECORDS} records, one after the other over all connections in turn:\n{table}\n"
    );
    true
}

async fn measure(devices: usize, connections: usize) -> (u64, Vec<Duration>) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let database = directory.path().join("pillarbox.db");
    register(&database, devices);
    let program = env!("CARGO_BIN_EXE_pillarbox");
    let serve = Program::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--store"])
        .arg(&database)
        .start("listening on ");
    let address = serve.ready().trim_start_matches("http://").to_owned();
    let mut open = Vec::new();
    for _ in 0..connections {
        let stream = TcpStream::connect(&address).await.expect("it listens");
        stream.set_nodelay(true).expect("it is TCP");
        open.push(stream);
    }
    let mut times = Vec::new();
    for n in 0..BATCHES {
        let request = request(&name(n % devices), (n / devices) as u64);
        let stream = &mut open[n % connections];
        let start = Instant::now();
        exchange(stream, &request).await;
        times.push(start.elapsed());
    }
    times.sort();
    (resident_kib(serve.pid()), times)
}

fn register(database: &std::path::Path, devices: usize) {
    let mut core = Core::open(database).expect("there is memory");
    core.connection().execute_batch("BEGIN").expect("nobody else writes");
    for n in 0..devices {
        core.add_device(&name(n), &secret()).expect("it is new");
    }
    core.connection().execute_batch("COMMIT").expect("there is memory");
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).expect("it has this line")
}

async fn exchange(stream: &mut TcpStream, request: &[u8]) {
    stream.write_all(request).await.expect("it listens");
    let mut answer = vec![0; 4096];
    let len = stream.read(&mut answer).await.expect("it answers");
    assert!(answer[..len].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..len]));
}

/// The nth batch of a device over HTTP.
fn request(device: &DeviceId, nth: u64) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let mut writer = BatchWriter::new(&mut buffer, 1, 1000, Some(NOW), 0);
    let floor = nth * RECORDS as u64;
    writer.set_floor(floor);
    for counter in floor..floor + RECORDS as u64 {
        let key = Key { incarnation: 1, lane: 0, counter };
        let time = Timestamp { boot: 1, uptime_ms: 5, wall_ms: Some(NOW) };
        let body = [0x5a; BODY];
        assert!(
            writer.record(&Stored { key, kind: Kind(1), time, tag: None, cause: None, body: &body }, 4096)
        );
    }
    let mut head = Head {
        device: device.clone(),
        incarnation: 1,
        lane: 0,
        is_closing: false,
        is_in_order: true,
        floor,
        issued: floor + RECORDS as u64,
        boot: 1,
        boot_nonce: 1,
        attempt_nonce: nth,
        uptime_ms: 1000,
        wall_ms: Some(NOW),
    };
    let keys = TagKeys::new(&secret());
    let (range, _) = writer.finish(&mut head, &[], &[], &keys).expect("it fits");
    let envelope = &buffer[range];
    let head = format!(
        "POST /v1/batch HTTP/1.1\r\nHost: receiver.test\r\nContent-Type: {BATCH_CONTENT_TYPE}\r\nContent-Length: {}\r\n\r\n",
        envelope.len()
    );
    [head.as_bytes(), envelope].concat()
}
