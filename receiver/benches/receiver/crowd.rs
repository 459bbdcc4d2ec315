//! Many devices and many open connections: what a batch then costs in time, and the receiver in memory.

use std::path::Path;
use std::time::{Duration, Instant};

use comfy_table::Table;
use pillarbox::wire::{BATCH_CONTENT_TYPE, BatchWriter, Head, TagKeys};
use pillarbox::{DeviceId, Key, Kind, Stored, Timestamp};
use pillarbox_receiver::store::sqlite::Core;
use receiver_testkit::Program;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Effort;
use crate::batches::{BODY, NOW, name, secret};

const RECORDS: usize = 10;
const DEVICES: [usize; 3] = [100, 10_000, 100_000];
const CONNECTIONS: [usize; 3] = [1, 100, 1_000];
/// Neighbours in time are not neighbours in the database: a prime, so that every device has its turn.
const STRIDE: usize = 7919;
/// Batches that every connection sends while all the others do.
const ROUNDS: usize = 3;

/// A batch takes at most so many times as long with a hundred thousand devices and a thousand connections as with a hundred
/// devices and one connection.
const SLOWER_MAX: f64 = 2.0;
/// What a thousand connections may add to the memory of one, in KiB for each, while all of them wait for an answer.
const CONNECTION_KIB_MAX: f64 = 96.0;
/// What the other 99,900 devices may add, in bytes for each: the caches of the database fill, and then they are full.
const DEVICE_BYTES_MAX: f64 = 1024.0;

/// What one crowd saw.
#[derive(Clone, Copy)]
struct Seen {
    /// With all connections open, before anything was sent.
    idle_kib: u64,
    /// The most that there ever was.
    peak_kib: u64,
    median: Duration,
    slow: Duration,
    at_once: f64,
}

/// Prints the table. Gives the bars that are missed.
pub(crate) async fn run(effort: Effort) -> Vec<String> {
    let mut table = Table::new();
    table.set_header([
        "devices",
        "connections",
        "memory, idle",
        "memory, at most",
        "a batch, median",
        "a batch, 99 %",
        "batches/s, all at once",
    ]);
    let mut all = Vec::new();
    for devices in DEVICES {
        let directory = tempfile::tempdir_in("/dev/shm").expect("there is memory");
        let database = directory.path().join("pillarbox.db");
        register(&database, devices);
        let mut fleet = Crowd { devices, sent: 0 };
        for connections in CONNECTIONS {
            let seen = fleet.measure(&database, connections, effort.crowd_batches).await;
            let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
            let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
            table.add_row([
                devices.to_string(),
                connections.to_string(),
                mib(seen.idle_kib),
                mib(seen.peak_kib),
                ms(seen.median),
                ms(seen.slow),
                // One connection is not a crowd.
                if connections > 1 { format!("{:.0}", seen.at_once) } else { "-".to_owned() },
            ]);
            all.push(seen);
        }
    }
    println!(
        "`pillarbox serve` on SQLite in memory-backed storage, over TCP on the loopback interface: {} batches of {RECORDS} records, one after \
         the other over all connections in turn; then {ROUNDS} batches of every connection, all at once.\n{table}\n",
        effort.crowd_batches
    );
    missed(&all)
}

/// What is called flat: generous, because the two cores are shared by the bench and the receiver.
fn missed(all: &[Seen]) -> Vec<String> {
    let (Some(least), Some(most)) = (all.first(), all.last()) else { return Vec::new() };
    let one_connection = all.iter().rev().nth(CONNECTIONS.len() - 1).unwrap_or(least);
    let slower = most.median.as_secs_f64() / least.median.as_secs_f64();
    let kib = most.peak_kib.saturating_sub(one_connection.peak_kib) as f64;
    let connection_kib = kib / (CONNECTIONS[2] - CONNECTIONS[0]) as f64;
    let kib = one_connection.peak_kib.saturating_sub(least.peak_kib) as f64;
    let device_bytes = kib * 1024.0 / (DEVICES[2] - DEVICES[0]) as f64;
    println!(
        "Flat means, from the first row to the last: a batch takes at most {SLOWER_MAX} times as long ({slower:.2}), a connection adds \
         at most {CONNECTION_KIB_MAX} KiB ({connection_kib:.1}), a device {DEVICE_BYTES_MAX} bytes ({device_bytes:.0}).\n"
    );
    let bars = [
        ("times as long takes a batch in a crowd", slower, SLOWER_MAX),
        ("KiB are added by a connection", connection_kib, CONNECTION_KIB_MAX),
        ("bytes are added by a device", device_bytes, DEVICE_BYTES_MAX),
    ];
    let over = bars.iter().filter(|(_, is, max)| is > max);
    over.map(|(what, is, max)| format!("{is:.2} {what}, not {max}")).collect()
}

fn register(database: &Path, devices: usize) {
    let mut core = Core::open(database).expect("there is memory");
    core.connection().execute_batch("BEGIN").expect("nobody else writes");
    for n in 0..devices {
        core.add_device(&name(n), &secret()).expect("it is new");
    }
    core.connection().execute_batch("COMMIT").expect("there is memory");
}

/// Devices that are registered, and how many batches they have sent together.
struct Crowd {
    devices: usize,
    sent: usize,
}

impl Crowd {
    /// The next batch of whose turn it is.
    fn request(&mut self) -> Vec<u8> {
        let n = self.sent;
        self.sent += 1;
        request(&name(n * STRIDE % self.devices), (n / self.devices) as u64)
    }

    async fn measure(&mut self, database: &Path, connections: usize, batches: usize) -> Seen {
        let (mut serve, line) = Program::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args(["serve", "--listen", "127.0.0.1:0", "--store"])
            .arg(database)
            .env("RUST_LOG", "warn")
            .start_until_line("listening on http://");
        let address = line.split("http://").nth(1).expect("it says where").trim().to_owned();
        let mut open = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(&address).await.expect("it listens");
            stream.set_nodelay(true).expect("it is TCP");
            open.push(stream);
        }
        // Every connection is accepted and has been used.
        for stream in &mut open {
            exchange(stream, &self.request()).await;
        }
        let idle_kib = status_kib(serve.pid(), "VmRSS:");
        let mut times = Vec::new();
        for n in 0..batches {
            let request = self.request();
            let start = Instant::now();
            exchange(&mut open[n % connections], &request).await;
            times.push(start.elapsed());
        }
        times.sort();
        let at_once = self.all_at_once(open).await;
        let seen = Seen {
            idle_kib,
            peak_kib: status_kib(serve.pid(), "VmHWM:"),
            median: times[times.len() / 2],
            slow: times[times.len() * 99 / 100],
            at_once,
        };
        serve.stop();
        seen
    }

    /// Batches a second while every connection waits for an answer of its own.
    async fn all_at_once(&mut self, open: Vec<TcpStream>) -> f64 {
        let batches = open.len() * ROUNDS;
        let work: Vec<(TcpStream, Vec<Vec<u8>>)> =
            open.into_iter().map(|stream| (stream, Vec::new())).collect();
        let mut work = work;
        // A device's second batch comes after its first one.
        for (_, requests) in &mut work {
            requests.extend((0..ROUNDS).map(|_| self.request()));
        }
        let start = Instant::now();
        let tasks: Vec<_> = work
            .into_iter()
            .map(|(mut stream, requests)| {
                tokio::spawn(async move {
                    for request in &requests {
                        exchange(&mut stream, request).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it does not panic");
        }
        batches as f64 / start.elapsed().as_secs_f64()
    }
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
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
        let stored = Stored { key, kind: Kind(1), time, tag: None, cause: None, body: &body };
        assert!(writer.record(&stored, 4096), "there is room");
    }
    let mut head = Head {
        device: device.clone(),
        incarnation: 1,
        lane: 0,
        is_closing: false,
        is_in_order: false,
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
