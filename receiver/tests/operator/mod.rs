//! An operator with a directory of their own, the real program in it, and devices that send to it.

// Each test file needs a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use receiver_testkit::{Drained, Fleet, Habits, Program, Running};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pillarbox");
/// A drain that takes longer does not end.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Operator {
    directory: tempfile::TempDir,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// It did what it was asked.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// It did not, with this status, and said why in one line that has these words in it.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, words: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stderr.contains(words), "{words:?} is not in {:?}", self.stderr);
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{:?}", self.stderr);
    }
}

impl Operator {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("there is room") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("there is room");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("it was written")
    }

    /// Who may do what with a file, as `chmod` takes it.
    pub(crate) fn mode(&self, name: &str) -> u32 {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(self.path(name)).expect("it is there").permissions().mode() & 0o777
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments.split_whitespace()).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command, written as in a shell but without its quotes.
    pub(crate) fn run(&self, arguments: &str) -> Said {
        self.run_with(arguments, &[])
    }

    /// The same with variables.
    pub(crate) fn run_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Said {
        let output = self.command(arguments).envs(variables.iter().copied()).output().expect("it is built");
        let text = |bytes| String::from_utf8(bytes).expect("it is text");
        Said { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// What a command says to programs.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &str) -> Value {
        let said = self.run(&format!("{arguments} --json")).done();
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// Starts a receiver at a port that is free.
    pub(crate) fn serve(&self, arguments: &str) -> Receiver {
        self.serve_with(&format!("--listen 127.0.0.1:0 {arguments}"), &[])
    }

    /// Starts one, with variables, wherever it listens.
    pub(crate) fn serve_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Receiver {
        let program = Program::new(PROGRAM)
            .arg("serve")
            .args(arguments.split_whitespace())
            .in_directory(&self.directory);
        let program = variables.iter().fold(program, |program, (name, value)| program.env(name, value));
        let (running, line) = program.start_until_line("listening on http");
        let url = line.split_whitespace().find(|word| word.starts_with("http"));
        Receiver { running, url: url.expect("it says where it listens").to_owned() }
    }

    /// Serves from a store, and stops.
    pub(crate) fn serves_and_stops(&self, store: &str) {
        self.serve(&format!("--store {store}")).stop();
    }

    /// Makes a token and gives it.
    pub(crate) fn token(&self, arguments: &str) -> String {
        let made = self.json(&format!("token add {arguments}"));
        made["token"].as_str().expect("it is told").to_owned()
    }

    /// Lets the devices of a fleet in.
    pub(crate) fn let_in(&self, devices: usize, seed: u64) {
        for member in Fleet::members_of(devices, seed) {
            self.write("given.secret", &hex::encode(member.secret));
            self.run(&format!("device add {} --secret-from given.secret", member.device)).done();
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// A receiver that runs.
pub(crate) struct Receiver {
    pub(crate) running: Running,
    pub(crate) url: String,
}

impl Receiver {
    /// Stops it as an operator would.
    pub(crate) fn stop(mut self) -> String {
        let status = self.running.stop();
        assert!(status.success(), "it stopped with {status}: {}", self.running.output());
        self.running.output()
    }
}

/// Devices that post some records each and lose no power; when this returns, all is sent.
pub(crate) async fn send_some(devices: usize, seed: u64, url: &str) -> Fleet {
    let fleet = start_some(devices, seed, url);
    a_few(&fleet, devices * 5).await;
    assert_eq!(fleet.drain(DRAINED_WITHIN).await, Drained::All);
    fleet
}

pub(crate) fn start_some(devices: usize, seed: u64, url: &str) -> Fleet {
    println!("seed {seed}");
    let habits = Habits { cuts_percent: 0, notes_max: 50, ..Habits::default() };
    Fleet::start_with(devices, seed, url, habits)
}

/// Waits until so many records are settled.
pub(crate) async fn a_few(fleet: &Fleet, settled: usize) {
    wait_until(|| fleet.settled().len() >= settled).await;
}

/// Waits until it is so.
pub(crate) async fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it has not come to pass in half a minute");
}
