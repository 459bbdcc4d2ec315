//! A program as an operator runs it: started with arguments and variables, watched until it says that it is ready, stopped
//! politely or not at all. What a process killed with SIGKILL has promised, no test inside one process can tell.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::watchdog::Watchdog;

/// No program of ours takes longer to be ready, also on a machine that is busy with other tests.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// No program of ours takes longer to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Its output and its errors.
const STREAMS: usize = 2;
/// A program that says more has lost its mind; the rest is read and forgotten.
const LINES_MAX: usize = 100_000;

/// What to start. It can be started again after it was killed, with the same arguments.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
}

impl Program {
    /// The program at this path, say `env!("CARGO_BIN_EXE_pillarbox")`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_path_buf();
        Self { path, arguments: Vec::new(), variables: Vec::new(), directory: None }
    }

    /// With one more argument.
    pub fn arg(self, argument: impl AsRef<OsStr>) -> Self {
        self.args([argument])
    }

    /// With more arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// With a variable in its environment, beside those of the test.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// In this directory.
    pub fn in_directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_path_buf());
        self
    }

    /// Starts it, and does not wait for anything.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self) -> Running {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        Running::start(command)
    }

    /// Starts it and waits for a line of its output that contains this text; gives the line.
    ///
    /// # Panics
    /// If it cannot be started, or ends, or is not ready within a minute.
    pub fn start_until_line(&self, text: &str) -> (Running, String) {
        let running = self.start();
        let line = running.line_with(text);
        (running, line)
    }

    /// Starts it and waits until a GET of this URL is answered with 200.
    ///
    /// # Panics
    /// If it cannot be started, or ends, or is not ready within a minute.
    pub fn start_until_url(&self, url: &str) -> Running {
        let mut running = self.start();
        running.wait_for_url(url);
        running
    }
}

/// A program that was started. It ends with the test: when this is dropped, and when the test process dies.
///
/// Its methods wait in the calling thread. A runtime of one thread does nothing else meanwhile: a server in the test that
/// the program needs in order to be ready has to run elsewhere.
pub struct Running {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    said: Arc<Said>,
    readers: Vec<JoinHandle<()>>,
    watchdog: Watchdog,
}

/// What a program has said so far, both streams in the order in which their lines came.
#[derive(Default)]
struct Said {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    all: Vec<String>,
    /// Streams that have come to their end.
    closed: usize,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let mut watchdog = Watchdog::start(None);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", command.get_program().display()));
        watchdog.guard(child.id());
        let said = Arc::new(Said::default());
        let stdout = child.stdout.take().expect("it was asked for");
        let stderr = child.stderr.take().expect("it was asked for");
        let readers = Vec::from([listen(stdout, &said), listen(stderr, &said)]);
        Self { name, child, ended: None, said, readers, watchdog }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it has said so far.
    pub fn output(&self) -> String {
        self.said.lines.lock().unwrap().all.join("\n")
    }

    /// Waits for a line that contains this text, from the first line on; gives the line.
    ///
    /// # Panics
    /// If it ends without such a line, or has not said it within a minute.
    pub fn line_with(&self, text: &str) -> String {
        let deadline = Instant::now() + READY_WITHIN;
        let mut seen = 0;
        let mut lines = self.said.lines.lock().unwrap();
        loop {
            if let Some(line) = lines.all[seen..].iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            seen = lines.all.len();
            let left = deadline.saturating_duration_since(Instant::now());
            let why = if lines.closed == STREAMS {
                "has ended and"
            } else if left.is_zero() {
                "runs and"
            } else {
                lines = self.said.changed.wait_timeout(lines, left).unwrap().0;
                continue;
            };
            let output = lines.all.join("\n");
            drop(lines);
            panic!("{} {why} has not said {text:?}; it said:\n{output}", self.name);
        }
    }

    /// Waits until a GET of this URL is answered with 200.
    ///
    /// # Panics
    /// If it ends before, or there is no such answer within a minute.
    pub fn wait_for_url(&mut self, url: &str) {
        let deadline = Instant::now() + READY_WITHIN;
        let mut last = String::new();
        while Instant::now() < deadline {
            match status_of(url) {
                Ok(200) => return,
                Ok(status) => last = format!("status {status}"),
                Err(error) => last = error.to_string(),
            }
            if let Some(status) = self.ended() {
                panic!(
                    "{} has ended with {status} before {url} answered; it said:\n{}",
                    self.name,
                    self.output()
                );
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        panic!(
            "{} runs, but {url} does not answer with 200 ({last}); it said:\n{}",
            self.name,
            self.output()
        );
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("it is our child");
            if self.ended.is_some() {
                self.watchdog.release();
            }
        }
        self.ended
    }

    /// Takes it away between two instructions: SIGKILL, and nothing that it does not have on disk survives.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            self.wait_for_end(STOPPED_WITHIN);
        }
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Panics
    /// If it still runs after half a minute.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_end(STOPPED_WITHIN)
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it still runs after this time.
    pub fn wait_for_end(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                // What it said last is in the pipes.
                self.readers.drain(..).for_each(|reader| reader.join().expect("it only reads"));
                return status;
            }
            if Instant::now() >= deadline {
                panic!("{} does not end; it said:\n{}", self.name, self.output());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Sends it a signal, if it still runs.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none()
            && let Some(pid) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
            self.watchdog.release();
        }
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.output());
        }
    }
}

fn listen(stream: impl Read + Send + 'static, said: &Arc<Said>) -> JoinHandle<()> {
    let said = said.clone();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let mut lines = said.lines.lock().unwrap();
            if lines.all.len() < LINES_MAX {
                lines.all.push(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            said.changed.notify_all();
            line.clear();
        }
        said.lines.lock().unwrap().closed += 1;
        said.changed.notify_all();
    })
}

/// The status of a GET, without a client: a test kit should not need one to see that a server is there.
fn status_of(url: &str) -> std::io::Result<u16> {
    let no_url = || std::io::Error::other(format!("{url} is no URL of plain HTTP on this host"));
    let (host, path) = url.strip_prefix("http://").ok_or_else(no_url)?.split_once('/').ok_or_else(no_url)?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut head = String::new();
    BufReader::new(stream.take(1024)).read_line(&mut head)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::other(format!("no answer of HTTP: {head:?}")))
}
