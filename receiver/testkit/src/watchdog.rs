//! Ends what a test has started and removes what it has written, also when the test process itself is killed: nothing that
//! runs inside a process can clean up after its death, so a shell beside it waits for the end of a pipe.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Reads which process to end, one line each time it changes (0 for none); the end of its input is the end of the test.
/// A database server is asked to quit first, because only then do its children quit at once.
const SCRIPT: &str = r#"
pid=0
while read -r line; do pid=$line; done
if [ "$pid" != 0 ]; then
    kill -QUIT "$pid" 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null
fi
[ -z "$1" ] && exit
# A server that was killed leaves a segment of shared memory that only its file still names.
segment=$(sed -n '7s/.* //p' "$1/data/postmaster.pid" 2>/dev/null)
[ -n "$segment" ] && ipcrm -m "$segment" 2>/dev/null
# A small disk, whoever still has a file open on it.
umount -l "$1" 2>/dev/null
rm -rf "$1"
"#;

/// A shell that outlives the test process for as long as it takes to clean up.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Watches; at the end it also removes this directory.
    pub(crate) fn start(removes: Option<&Path>) -> Self {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(removes.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the keyboard ends the test, and the watchdog has to come after it.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("a watchdog needs /bin/sh: {error}"));
        let pipe = shell.stdin.take();
        Self { shell, pipe }
    }

    /// This process is to end with the test.
    pub(crate) fn guard(&mut self, pid: u32) {
        self.say(pid);
    }

    /// The process has ended: its number may soon be another's.
    pub(crate) fn release(&mut self) {
        self.say(0);
    }

    fn say(&mut self, pid: u32) {
        if let Some(pipe) = &mut self.pipe {
            writeln!(pipe, "{pid}").expect("the watchdog reads");
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The end of the pipe is the signal; the script's own loop bounds the wait.
        self.pipe = None;
        let _ = self.shell.wait();
    }
}
