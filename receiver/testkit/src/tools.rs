//! Where the programs are that tests call: one place that looks for them, and one sentence when they are not there.

use std::fmt;
use std::path::{Path, PathBuf};

/// A program that is not on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What is missing.
    pub program: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not on this machine: cargo xtask test installs it", self.program)
    }
}

impl std::error::Error for Missing {}

/// The directory of PostgreSQL's programs: Debian's newest version, or wherever the `PATH` has a server.
pub fn postgres_programs() -> Result<PathBuf, Missing> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .filter(|(_, programs)| has_a_server(programs))
        .collect();
    found.sort();
    let newest = found.pop().map(|(_, programs)| programs);
    newest
        .or_else(|| search_path().find(|programs| has_a_server(programs)))
        .ok_or(Missing { program: "PostgreSQL's server (initdb, postgres, psql)" })
}

fn has_a_server(programs: &Path) -> bool {
    ["initdb", "postgres", "psql"].iter().all(|name| programs.join(name).is_file())
}

/// Prometheus' `promtool`, which checks and tries out alert rules; the variable `PROMTOOL` may say where it is.
pub fn promtool() -> Result<PathBuf, Missing> {
    find("PROMTOOL", "promtool", "promtool")
}

/// The version of schemathesis that the tests were written with.
pub const SCHEMATHESIS_VERSION: &str = "4.32.5";

/// `schemathesis`, which tries an API against its description; the variable `SCHEMATHESIS` may say where it is.
pub fn schemathesis() -> Result<PathBuf, Missing> {
    find("SCHEMATHESIS", "schemathesis", &format!("schemathesis-{SCHEMATHESIS_VERSION}/bin/schemathesis"))
}

/// Where `cargo xtask test` puts programs that are only for the tests.
pub fn tools_directory() -> PathBuf {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.ancestors().nth(2).unwrap_or(testkit).join("target/tools")
}

/// A variable says where it is, or else it is among the tools, or else it is in the `PATH`.
fn find(variable: &str, program: &'static str, in_tools: &str) -> Result<PathBuf, Missing> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let installed = tools_directory().join(in_tools);
    let mut places = named.into_iter().chain([installed]).chain(search_path().map(|at| at.join(program)));
    places.find(|place| place.is_file()).ok_or(Missing { program })
}

fn search_path() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect::<Vec<_>>().into_iter()
}
