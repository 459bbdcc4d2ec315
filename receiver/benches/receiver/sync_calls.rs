//! What a process asks of the disk, watched from outside: this program started again under strace.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a process did.
pub(crate) struct Watched {
    pub(crate) syncs: u64,
    pub(crate) bytes: u64,
}

/// Runs `once` of this program, and counts.
pub(crate) fn watch(store: &str, who: &str, batches: usize) -> Watched {
    let myself = std::env::current_exe().expect("it is running");
    let directory = tempfile::tempdir().expect("there is a disk");
    let trace = directory.path().join("trace");
    let output = Command::new("strace")
        .args(["--follow-forks", "--quiet=all", "--trace=fsync,fdatasync,sync_file_range", "--output"])
        .arg(&trace)
        .arg(myself)
        .args(["once", store, who, &batches.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("strace: {error}. It is Debian's package strace"));
    let status = output.status;
    assert!(status.success() && status.signal().is_none(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = std::fs::read_to_string(trace).expect("strace writes it");
    // A call that another thread interrupts takes two lines.
    let syncs = trace.lines().filter(|line| !line.contains("resumed")).count() as u64;
    let bytes = String::from_utf8_lossy(&output.stdout).trim().parse().expect("it prints a number");
    Watched { syncs, bytes }
}

/// How often this disk can do what a commit waits for.
pub(crate) fn raw_rate() -> String {
    let mut file = tempfile::tempfile().expect("there is a disk");
    let (mut count, start) = (0u32, Instant::now());
    while start.elapsed() < Duration::from_secs(2) {
        file.write_all(&[0x5a; 4096]).expect("there is room");
        file.sync_data().expect("there is a disk");
        count += 1;
    }
    format!(
        "Raw, on the same disk in the same run: {:.0} fdatasync of 4096 bytes a second",
        f64::from(count) / start.elapsed().as_secs_f64()
    )
}
