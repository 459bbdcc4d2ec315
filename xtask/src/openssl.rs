//! OpenSSL's program: the other end of a TLS connection with a pre-shared key.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Installs it if it is missing, where Debian's packages are to be had.
pub(crate) fn complete() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    println!("installing: openssl");
    let apt_get = |arguments: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        Ok(command
            .status()
            .context("openssl is missing, and there is no apt-get: install it by hand")?
            .success())
    };
    // Without lists there are no packages; with old ones there may be.
    let _ = apt_get(&["update"])?;
    if !apt_get(&["install", "-y", "openssl"])? || !is_there() {
        bail!("apt-get could not install openssl: is there a network, and are you root?");
    }
    Ok(())
}

fn is_there() -> bool {
    let version = Command::new("openssl").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
