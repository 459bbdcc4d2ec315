//! A real PostgreSQL server for a test: what a receiver relies on when it commits, a pretended database would only pretend.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::tools;
use crate::watchdog::Watchdog;

/// The server's administrator, who needs no password on the loopback interface.
const USER: &str = "postgres";
/// A crash recovery of what a test has written takes much less.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A port that was free a moment ago may be taken; so many times in a row it is not.
const PORTS_MAX: usize = 5;

/// Where the server keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory where there is such a file system, and without waiting for a disk. What was committed survives
    /// [`Postgres::kill`] all the same: the write-ahead log is in the kernel's hands before a commit is answered.
    Memory,
    /// On disk, in the directory for temporary files, as safe as an operator's: for tests that count syncs.
    Disk,
}

/// A server of the test's own. It ends, and its data is removed, when it is dropped, and when the test process dies.
///
/// All methods wait in the calling thread.
pub struct Postgres {
    programs: PathBuf,
    /// Holds the data directory; the watchdog removes it.
    directory: PathBuf,
    storage: Storage,
    account: Option<Account>,
    port: u16,
    databases: AtomicU32,
    server: Mutex<Server>,
}

struct Server {
    /// The postmaster, while it runs.
    postmaster: Option<Child>,
    watchdog: Watchdog,
}

/// Who the server runs as: it refuses to run as root.
#[derive(Clone, Copy, Debug)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Postgres {
    /// A server whose data is in memory.
    ///
    /// # Panics
    /// If PostgreSQL is not there, or does not start.
    pub fn start() -> Self {
        Self::start_on(Storage::Memory)
    }

    /// A server whose data is there.
    ///
    /// # Panics
    /// If PostgreSQL is not there, or does not start.
    pub fn start_on(storage: Storage) -> Self {
        let programs = tools::postgres_programs().unwrap_or_else(|missing| panic!("{missing}"));
        let account = Account::needed();
        let directory = new_directory(storage, account);
        let watchdog = Watchdog::start(Some(&directory));
        let server = Mutex::new(Server { postmaster: None, watchdog });
        let mut postgres =
            Self { programs, directory, storage, account, port: 0, databases: AtomicU32::new(0), server };
        postgres.create_cluster();
        for attempt in 1.. {
            postgres.port = free_port();
            match postgres.launch(&mut postgres.server()) {
                Ok(()) => break,
                Err(why) if attempt == PORTS_MAX => panic!("{why}"),
                Err(_) => {}
            }
        }
        postgres
    }

    /// The one server that all tests of this process share, each with a database of its own:
    /// `Postgres::shared().fresh_database()`. Nobody kills it.
    ///
    /// # Panics
    /// If PostgreSQL is not there, or does not start.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// The address of the administrator's database, for clients that take a URL. It stays the same after
    /// [`start_again`](Self::start_again).
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster's process, while the server runs.
    pub fn pid(&self) -> Option<u32> {
        self.server().postmaster.as_ref().map(Child::id)
    }

    /// Makes an empty database and gives its address.
    ///
    /// # Panics
    /// If the server does not run.
    pub fn fresh_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.query(&self.url(), &format!("CREATE DATABASE {name}"));
        self.url_of(&name)
    }

    /// Runs a statement in a database, as a client beside the receiver, and gives what it answers, one line for each row with `|`
    /// between the columns.
    ///
    /// # Panics
    /// If the server does not run, or refuses the statement.
    pub fn query(&self, url: &str, statement: &str) -> String {
        let psql = Command::new(self.programs.join("psql"))
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--set", "ON_ERROR_STOP=1", "--command", statement, url])
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("cannot start psql: {error}"));
        if !psql.status.success() {
            panic!("PostgreSQL refuses {statement:?}: {}", String::from_utf8_lossy(&psql.stderr).trim());
        }
        String::from_utf8_lossy(&psql.stdout).trim_end().to_owned()
    }

    /// Dumps a database, and restores the dump into another one.
    ///
    /// # Panics
    /// If the server does not run, or refuses.
    pub fn copy(&self, from: &str, to: &str) {
        let dump = self.directory.join("dump.sql");
        let run = |program: &str, how: &str, database: &str| {
            let ran = Command::new(self.programs.join(program))
                .args([how, &dump.to_string_lossy(), "--dbname", database])
                .stdin(Stdio::null())
                .output()
                .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
            assert!(ran.status.success(), "{program}: {}", String::from_utf8_lossy(&ran.stderr).trim());
        };
        run("pg_dump", "--file", from);
        run("psql", "--file", to);
    }

    /// Kills the whole server, the postmaster and its children, between two instructions.
    pub fn kill(&self) {
        let mut server = self.server();
        let Some(mut postmaster) = server.postmaster.take() else { return };
        // A postmaster that stands still has no more children than those that are seen.
        send(postmaster.id(), Signal::STOP);
        let deadline = Instant::now() + READY_WITHIN;
        while stat(postmaster.id()).is_some_and(|stat| !"TZ".contains(stat.state)) {
            assert!(Instant::now() < deadline, "a server process does not stand still");
            std::thread::sleep(LOOK_AGAIN);
        }
        let children = children_of(postmaster.id());
        send(postmaster.id(), Signal::KILL);
        children.iter().for_each(|&child| send(child, Signal::KILL));
        postmaster.wait().expect("it is our child");
        server.watchdog.release();
        // The children are somebody else's now; while one of them lives the server refuses to start again.
        while children.iter().any(|&child| is_alive(child)) {
            assert!(Instant::now() < deadline, "a killed server process does not go away");
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Starts the server after [`kill`](Self::kill), on the same port and data: it recovers from the crash.
    ///
    /// # Panics
    /// If it runs, or does not start.
    pub fn start_again(&self) {
        let mut server = self.server();
        assert!(server.postmaster.is_none(), "the server runs");
        self.launch(&mut server).unwrap_or_else(|why| panic!("{why}"));
    }

    /// What the server has written to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// A test that panicked while it held the lock has left nothing half-done.
    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// A program of PostgreSQL's, as somebody whom it accepts.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(&self.directory).stdin(Stdio::null()).env("LC_ALL", "C");
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }

    fn create_cluster(&self) {
        let initdb = self
            .program("initdb")
            .arg("--pgdata")
            .arg(self.data())
            .args(["--no-sync", "--no-instructions", "--username", USER, "--auth", "trust"])
            .args(["--encoding", "UTF8", "--locale", "C"])
            .output()
            .unwrap_or_else(|error| panic!("cannot start initdb: {error}"));
        assert!(initdb.status.success(), "initdb failed: {}", String::from_utf8_lossy(&initdb.stderr).trim());
    }

    fn launch(&self, server: &mut Server) -> Result<(), String> {
        let log = std::fs::File::options().create(true).append(true).open(self.directory.join("log"));
        let log = log.map_err(|error| format!("no log for the server: {error}"))?;
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).arg("-p").arg(self.port.to_string());
        for setting in self.settings() {
            command.args(["-c", setting]);
        }
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let mut postmaster = command
            .stdout(log)
            .stderr(errors)
            // An interrupt from the keyboard is the watchdog's to answer.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start postgres: {error}"))?;
        server.watchdog.guard(postmaster.id());
        let ready = self.wait_until_ready(&mut postmaster);
        if ready.is_ok() {
            server.postmaster = Some(postmaster);
        } else {
            let _ = postmaster.kill();
            let _ = postmaster.wait();
            server.watchdog.release();
        }
        ready
    }

    fn settings(&self) -> impl Iterator<Item = &'static str> {
        let always = [
            "listen_addresses=127.0.0.1",
            // Clients come over TCP; a socket would need a directory that is short enough.
            "unix_socket_directories=",
            "max_connections=200",
            // In the data directory, so that nothing is left elsewhere by a server that was killed.
            "dynamic_shared_memory_type=mmap",
            "log_line_prefix=%m [%p] %d ",
        ];
        let in_memory: &[&str] = match self.storage {
            Storage::Memory => &["fsync=off", "full_page_writes=off"],
            Storage::Disk => &[],
        };
        always.into_iter().chain(in_memory.iter().copied())
    }

    /// The server says in its file how far it is: first its process, last its state.
    fn wait_until_ready(&self, postmaster: &mut Child) -> Result<(), String> {
        let pid = postmaster.id().to_string();
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
            let mut lines = file.lines();
            if lines.next() == Some(&pid) && lines.last().is_some_and(|state| state.trim() == "ready") {
                return Ok(());
            }
            if let Ok(Some(status)) = postmaster.try_wait() {
                return Err(format!("PostgreSQL ended with {status}:\n{}", self.log()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Err(format!("PostgreSQL is not ready:\n{}", self.log()))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Account {
    /// Nobody else is needed unless we are root; then PostgreSQL's own user, or the one who owns nothing.
    fn needed() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let account_of = |name: &str| {
            let mut user =
                users.lines().map(|line| line.split(':')).find(|user| user.clone().next() == Some(name))?;
            Some(Self { uid: user.nth(2)?.parse().ok()?, gid: user.next()?.parse().ok()? })
        };
        let account = account_of("postgres").or_else(|| account_of("nobody"));
        Some(account.expect("PostgreSQL refuses to run as root, and there is no user postgres or nobody"))
    }
}

fn new_directory(storage: Storage, account: Option<Account>) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if storage == Storage::Memory && memory.is_dir() {
        memory.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    let directory = tempfile::Builder::new().prefix("pillarbox-postgres-").tempdir_in(parent);
    // Removed by the watchdog, who also comes when this process is killed.
    let directory = directory.expect("a test may write temporary files").keep();
    if let Some(Account { uid, gid }) = account {
        std::os::unix::fs::chown(&directory, Some(uid), Some(gid)).expect("root may give files away");
    }
    directory
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a loopback interface");
    listener.local_addr().expect("it is bound").port()
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Each backend leads a session of its own, so only the kernel's list of processes knows whose they are.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| stat(pid).is_some_and(|stat| stat.parent == parent)).collect()
}

fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != 'Z')
}

struct Stat {
    state: char,
    parent: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name comes before, in parentheses, and may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some(Stat { state: fields.next()?.chars().next()?, parent: fields.next()?.parse().ok()? })
}
