//! A disk that is full when a test says so: a receiver has to refuse what it cannot keep, and no pretended error comes from where
//! the real one does.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::watchdog::Watchdog;

/// What takes the space.
const FILLER: &str = "filler";
/// The space is given out in pages.
const PAGE: usize = 4096;

/// A file system of its own with little space, in memory. It is unmounted when it is dropped, and when the test process dies.
#[derive(Debug)]
pub struct SmallDisk {
    directory: PathBuf,
    _watchdog: Watchdog,
}

impl SmallDisk {
    /// Mounts so many MiB.
    ///
    /// # Panics
    /// If it cannot be mounted: only root may.
    pub fn of_mib(mib: u32) -> Self {
        assert!(
            Self::is_possible(),
            "a small disk is mounted, and only root may mount: run this test as root"
        );
        let directory = tempfile::Builder::new().prefix("pillarbox-disk-").tempdir();
        // Removed by the watchdog, who also comes when this process is killed.
        let directory = directory.expect("a test may write temporary files").keep();
        let watchdog = Watchdog::start(Some(&directory));
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=1777"), "tmpfs"])
            .arg(&directory)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("cannot start mount: {error}"));
        let why = String::from_utf8_lossy(&mount.stderr);
        assert!(mount.status.success(), "a small disk cannot be mounted: {}", why.trim());
        Self { directory, _watchdog: watchdog }
    }

    /// Whether this process may mount: a test that nobody but root can run may say so and leave.
    pub fn is_possible() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Bytes that are left.
    pub fn free_bytes(&self) -> u64 {
        let statistics = rustix::fs::statvfs(&self.directory).expect("it is mounted");
        statistics.f_bavail * statistics.f_frsize
    }

    /// Takes all the space that is left.
    pub fn fill(&self) {
        self.fill_but(0);
    }

    /// Takes the space that is left, but for so many bytes, rounded up to a page.
    pub fn fill_but(&self, bytes: u64) {
        let filler = File::options().create(true).append(true).open(self.directory.join(FILLER));
        let mut filler = filler.expect("the disk is mounted");
        while self.free_bytes() >= bytes + PAGE as u64 {
            match filler.write_all(&[0x5a; PAGE]) {
                Ok(()) => {}
                // Somebody else was quicker.
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("the disk cannot be filled: {error}"),
            }
        }
    }

    /// Gives back what [`fill`](Self::fill) has taken.
    pub fn free(&self) {
        match std::fs::remove_file(self.directory.join(FILLER)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                panic!("no space can be given back: {error}")
            }
            _ => {}
        }
    }
}
