//! The programs that tests call and cargo does not bring: what they are, how to see that they are there, where to get them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use receiver_testkit::tools as found;

use crate::Outcome;

/// Installs the programs that tests call, those that are missing.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask tools\n  cargo xtask tools promtool schemathesis")]
pub(crate) struct Arguments {
    /// Only these, by name
    #[arg(value_parser = ALL.map(|tool| tool.name))]
    names: Vec<String>,
}

pub(crate) fn install_missing(arguments: &Arguments) -> Result<Outcome> {
    let is_wanted =
        |tool: &Tool| arguments.names.is_empty() || arguments.names.iter().any(|name| name == tool.name);
    complete(&ALL.into_iter().filter(is_wanted).collect::<Vec<_>>())?;
    println!("nothing is missing");
    Ok(Outcome::Good)
}

/// A program, or some that belong together.
pub(crate) struct Tool {
    name: &'static str,
    is_there: fn() -> bool,
    source: Source,
}

/// Where a program comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Debian's package of this name, installed.
    Debian(&'static str),
    /// One program of Debian's package, which is only unpacked: installed, it would bring a service that nobody asked for.
    OutOfDebian { package: &'static str, program: &'static str },
    /// A package of PyPI and its version, in an environment of its own.
    Python { package: &'static str, version: &'static str },
}

/// The other end of a TLS connection with a pre-shared key.
pub(crate) const OPENSSL: Tool =
    Tool { name: "openssl", is_there: || runs("openssl", &["version"]), source: Source::Debian("openssl") };

/// Watches what a process asks of the disk.
pub(crate) const STRACE: Tool =
    Tool { name: "strace", is_there: || runs("strace", &["--version"]), source: Source::Debian("strace") };

/// The receiver's larger store.
pub(crate) const POSTGRES: Tool = Tool {
    name: "PostgreSQL",
    is_there: || found::postgres_programs().is_ok(),
    source: Source::Debian("postgresql"),
};

/// Checks and tries out the alert rules.
const PROMTOOL: Tool = Tool {
    name: "promtool",
    is_there: || found::promtool().is_ok(),
    source: Source::OutOfDebian { package: "prometheus", program: "promtool" },
};

/// Tries the receiver's API against its description.
const SCHEMATHESIS: Tool = Tool {
    name: "schemathesis",
    is_there: || found::schemathesis().is_ok(),
    source: Source::Python { package: "schemathesis", version: found::SCHEMATHESIS_VERSION },
};

/// All that tests call.
pub(crate) const ALL: [Tool; 4] = [OPENSSL, POSTGRES, PROMTOOL, SCHEMATHESIS];

/// Installs those that are missing, where Debian's packages are to be had.
pub(crate) fn complete(tools: &[Tool]) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !(tool.is_there)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // Without lists there are no packages; with old ones there may be.
    let _ = apt_get(Path::new("/"), &["update"]);
    for tool in missing {
        println!("installing: {}", tool.name);
        let installed = match tool.source {
            Source::Debian(package) => install(package),
            Source::OutOfDebian { package, program } => take_out(package, program),
            Source::Python { package, version } => install_python(package, version),
        };
        installed.with_context(|| format!("{} is missing and cannot be installed", tool.name))?;
        if !(tool.is_there)() {
            bail!("{} was installed, and is still not there", tool.name);
        }
    }
    Ok(())
}

fn install(package: &str) -> Result<()> {
    let _quiet = NoServices::begin();
    apt_get(Path::new("/"), &["install", "-y", "--no-install-recommends", package])
        .context("is there a network, and are you root?")
}

fn take_out(package: &str, program: &str) -> Result<()> {
    let tools = found::tools_directory();
    let unpacked = tools.join(format!("{package}.unpacked"));
    // What is left of an attempt that was interrupted.
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked)?;
    apt_get(&unpacked, &["download", package]).context("is there a network?")?;
    let mut files = fs::read_dir(&unpacked)?.filter_map(|file| Some(file.ok()?.path()));
    let archive = files.find(|file| file.extension().is_some_and(|kind| kind == "deb"));
    let archive = archive.with_context(|| format!("apt-get brought no package {package}"))?;
    run(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&unpacked))?;
    fs::rename(unpacked.join("usr/bin").join(program), tools.join(program))?;
    fs::remove_dir_all(&unpacked)?;
    Ok(())
}

fn install_python(package: &str, version: &str) -> Result<()> {
    if !runs("python3", &["-c", "import ensurepip, venv"]) {
        install("python3-venv")?;
    }
    let environment = found::tools_directory().join(format!("{package}-{version}"));
    let filled =
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment)).and_then(|()| {
            let mut pip = Command::new(environment.join("bin/pip"));
            run(pip
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .arg(format!("{package}=={version}")))
        });
    if filled.is_err() {
        // Half an environment would be taken for a whole one.
        let _ = fs::remove_dir_all(&environment);
    }
    filled.context("is there a network?")
}

fn apt_get(directory: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    run(command.current_dir(directory).args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Runs a command without its output; its complaints are shown.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        bail!("{name} failed with {status}");
    }
    Ok(())
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// While it lives, no package that is installed starts its service: Debian asks this file first.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    const POLICY: &str = "/usr/sbin/policy-rc.d";
    const SCRIPT: &str = "#!/bin/sh\n# Written by cargo xtask test, which removes it again.\nexit 101\n";

    fn begin() -> Self {
        // Somebody else's stays as it is. One of ours is left from a run that was interrupted.
        let is_ours = fs::read_to_string(Self::POLICY).map_or(true, |script| script == Self::SCRIPT);
        if is_ours && fs::write(Self::POLICY, Self::SCRIPT).is_ok() {
            let _ = fs::set_permissions(Self::POLICY, fs::Permissions::from_mode(0o755));
        }
        Self { is_ours }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(Self::POLICY);
        }
    }
}
