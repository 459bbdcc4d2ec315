//! Files with secrets: read without repeating what is in them, written so that only their owner can read them.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::{CliError, Result};

/// A file with more bytes holds no secret of ours.
const BYTES_MAX: u64 = 4096;

/// What a file holds, or standard input if it is `-`, without the blanks around it.
pub(super) fn read(path: &Path) -> Result<String> {
    let cannot = |error| CliError::Refused(format!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().take(BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        File::open(path).map_err(cannot)?.take(BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    }
    // The bytes are not repeated: they may be a secret that was damaged.
    let text = String::from_utf8(bytes)
        .map_err(|_| CliError::Refused(format!("{} holds no text, so no secret", path.display())))?;
    Ok(text.trim().to_owned())
}

/// A new file that is there before its secret is made: where it cannot be written, nothing must be changed.
pub(super) struct SecretFile {
    path: PathBuf,
    file: File,
    is_written: bool,
}

impl SecretFile {
    /// Makes an empty file. One that is there is left alone.
    pub(super) fn create(path: &Path) -> Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file =
            file.map_err(|error| CliError::Refused(format!("cannot make {}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned(), file, is_written: false })
    }

    /// Writes the secret.
    pub(super) fn write(mut self, secret: &str) -> Result<()> {
        let written = writeln!(self.file, "{secret}").and_then(|()| self.file.sync_all());
        written.map_err(|error| {
            let path = self.path.display();
            CliError::Refused(format!("cannot write {path}: {error}. The secret is lost; rotate or revoke"))
        })?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.is_written {
            drop(std::fs::remove_file(&self.path));
        }
    }
}
