//! When a test process is killed, what it has started ends too, and what it has written is removed: the watchdog comes after.

use std::path::Path;
use std::time::{Duration, Instant};

use receiver_testkit::{Postgres, Program};

/// The process that is killed: this test's own binary, which starts things and waits.
#[test]
#[ignore = "the other test starts it"]
fn victim() {
    let postgres = Postgres::start();
    let running = Program::new("/bin/sleep").arg("600").start();
    println!("pid {}", running.pid());
    println!("pid {}", postgres.pid().unwrap());
    println!("directory {}", postgres.query(&postgres.url(), "SHOW data_directory"));
    println!("all started");
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn nothing_outlives_a_killed_test() {
    let victim = Program::new(std::env::current_exe().unwrap());
    let (mut victim, _) =
        victim.args(["victim", "--exact", "--ignored", "--nocapture"]).start_until_line("all started");
    let output = victim.output();
    let named = |name: &'static str| output.lines().filter_map(move |line| line.strip_prefix(name));
    let mut left: Vec<String> = named("pid ").map(|pid| format!("/proc/{pid}")).collect();
    left.extend(named("directory ").map(str::to_owned));
    assert_eq!(left.len(), 3, "{output}");
    left.iter().for_each(|path| assert!(Path::new(path).exists(), "{path}"));
    victim.kill();
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Some(path) = left.iter().find(|path| Path::new(path).exists()) {
        assert!(Instant::now() < deadline, "{path} is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}
