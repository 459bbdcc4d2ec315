//! What a process asks of the disk, watched from outside: this program started again under strace.

use std::process::Command;

use crate::wear::Who;

/// What a process did.
pub(crate) struct Watched {
    pub(crate) syncs: u64,
    pub(crate) bytes: u64,
}

/// Starts this program again to take so many batches, and counts.
pub(crate) fn watch(who: Who, batches: usize) -> Watched {
    let myself = std::env::current_exe().expect("it is running");
    let directory = tempfile::tempdir().expect("there is a disk");
    let trace = directory.path().join("trace");
    let output = Command::new("strace")
        .args(["--follow-forks", "--quiet=all", "--seccomp-bpf", "--trace=fsync,fdatasync,pwrite64"])
        .args(["--string-limit=0", "--output"])
        .arg(&trace)
        .arg(myself)
        .args(["--once", &batches.to_string(), "--who", who.name()])
        .output()
        .unwrap_or_else(|error| panic!("strace: {error}. It is Debian's package strace"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = std::fs::read_to_string(trace).expect("strace writes it");
    // A call that another thread interrupts takes two lines; its result is in the last.
    let done: Vec<(&str, u64)> = trace.lines().filter_map(result).collect();
    let syncs = done.iter().filter(|(line, _)| line.contains("sync")).count() as u64;
    let bytes = done.iter().filter(|(line, _)| line.contains("pwrite64")).map(|(_, bytes)| bytes).sum();
    Watched { syncs, bytes }
}

fn result(line: &str) -> Option<(&str, u64)> {
    let (call, result) = line.rsplit_once(" = ")?;
    Some((call, result.split_whitespace().next()?.parse().ok()?))
}
