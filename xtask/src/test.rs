//! The one test command: everything that must hold before a change goes in, in one run, with what the machine
//! lacks installed first.

use std::collections::BTreeSet;
use std::io::{Read, pipe};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::table::Table;
use crate::{Outcome, cargo, root, tools};

/// Checks everything: format, lints, tests, documentation, builds for the devices.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --only clippy-defmt\n  \
                        cargo xtask test --only build\n  cargo xtask test --only build-thumbv6m")]
pub(crate) struct Arguments {
    /// Run only this step, or only the steps whose names begin with it
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
}

/// Every feature combination that is meant to be used, by its name in a step's name.
const FEATURES: [(&str, &[&str]); 8] = [
    ("formats", &["--no-default-features"]),
    ("formats-log", &["--no-default-features", "--features", "log"]),
    ("formats-defmt", &["--no-default-features", "--features", "defmt"]),
    ("default", &[]),
    ("log", &["--features", "log"]),
    ("defmt", &["--features", "defmt"]),
    ("tls", &["--features", "tls"]),
    ("embassy-net", &["--features", "embassy-net"]),
];

struct Step {
    name: String,
    arguments: Vec<String>,
    /// A variable that the command needs, added to what the caller has in it.
    flags: Option<(&'static str, &'static str)>,
}

impl Step {
    fn new(name: impl Into<String>, command: &str) -> Self {
        Self {
            name: name.into(),
            arguments: command.split_whitespace().map(str::to_owned).collect(),
            flags: None,
        }
    }

    fn with(mut self, more: &[&str]) -> Self {
        self.arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        self
    }

    fn denying_warnings(self, variable: &'static str) -> Self {
        Self { flags: Some((variable, "-D warnings")), ..self }
    }

    fn command_line(&self) -> String {
        let variable = self.flags.map(|(name, value)| format!("{name}=\"{value}\" "));
        format!("{}cargo {}", variable.unwrap_or_default(), self.arguments.join(" "))
    }

    fn command(&self) -> Command {
        let mut command = cargo();
        command.args(&self.arguments);
        if let Some((name, value)) = self.flags {
            let before = std::env::var(name).unwrap_or_default();
            command.env(name, format!("{before} {value}").trim());
        }
        command
    }

    fn belongs_to(&self, only: &str) -> bool {
        let rest = self.name.strip_prefix(only);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
    }
}

fn steps(targets: &[String]) -> Vec<Step> {
    let mut steps = vec![
        Step::new("fmt", "fmt --all --check"),
        Step::new("clippy-workspace", "clippy --workspace --all-targets -- -D warnings"),
        Step::new("clippy-formats", "clippy -p pillarbox --no-default-features -- -D warnings"),
        Step::new("clippy-log", "clippy -p pillarbox --features log -- -D warnings"),
        Step::new("clippy-defmt", "clippy -p pillarbox --features defmt -- -D warnings"),
        // Power-cut lives are CPU-bound.
        Step::new("test", "test --workspace --release"),
        Step::new("doc", "doc --no-deps --workspace").denying_warnings("RUSTDOCFLAGS"),
        Step::new("size", "xtask size"),
        Step::new("fuzz", "check --manifest-path fuzz/Cargo.toml --target-dir target/fuzz"),
    ];
    for target in targets {
        for (name, features) in FEATURES {
            let build =
                Step::new(format!("build-{target}-{name}"), &format!("build -p pillarbox --target {target}"));
            steps.push(build.with(features).denying_warnings("RUSTFLAGS"));
        }
    }
    steps
}

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome> {
    let toolchain = Toolchain::read()?;
    let mut steps = steps(&toolchain.targets);
    if let Some(only) = &arguments.only {
        let names: Vec<_> = steps.iter().map(|step| format!("  {}", step.name)).collect();
        // A step that is named in full runs alone, although others' names begin with its name.
        let is_named = steps.iter().any(|step| step.name == *only);
        steps.retain(|step| step.name == *only || (!is_named && step.belongs_to(only)));
        if steps.is_empty() {
            bail!("no step is called {only:?}; there are:\n{}", names.join("\n"));
        }
    }
    toolchain.complete()?;
    if steps.iter().any(|step| step.name == "test") {
        tools::complete(&tools::ALL)?;
    }
    let mut table = Table::new(["step", "result", "seconds"]);
    let mut failed = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        println!("[{:>2}/{}] {}", at + 1, steps.len(), step.command_line());
        let (passed, took) = perform(step)?;
        let result = if passed { "ok" } else { "FAILED" };
        table.row([step.name.clone(), result.to_owned(), format!("{:.1}", took.as_secs_f64())]);
        if !passed {
            failed.push(step);
        }
    }
    println!("\n{table}");
    for step in &failed {
        println!("{} failed; alone: cargo xtask test --only {}", step.name, step.name);
    }
    println!("{} passed, {} failed", steps.len() - failed.len(), failed.len());
    Ok(if failed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Runs a step in silence, and shows all of its output if it fails.
fn perform(step: &Step) -> Result<(bool, Duration)> {
    let start = Instant::now();
    // One pipe for both streams keeps their lines in order.
    let (mut reader, writer) = pipe().context("no pipe for a step's output")?;
    let mut child = step
        .command()
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {}", step.command_line()))?;
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    let passed = child.wait()?.success();
    let took = start.elapsed();
    if passed {
        println!("        ok, {:.1} s", took.as_secs_f64());
    } else {
        println!("{}", String::from_utf8_lossy(&output));
        println!("        FAILED, {:.1} s", took.as_secs_f64());
    }
    Ok((passed, took))
}

/// What rust-toolchain.toml asks for.
struct Toolchain {
    targets: Vec<String>,
    components: Vec<String>,
}

impl Toolchain {
    fn read() -> Result<Self> {
        let path = root().join("rust-toolchain.toml");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let file: toml::Table = text.parse().context("rust-toolchain.toml")?;
        let list = |name: &str| -> Vec<String> {
            let values = file.get("toolchain").and_then(|toolchain| toolchain.get(name)?.as_array());
            let values = values.into_iter().flatten();
            values.filter_map(|value| value.as_str().map(str::to_owned)).collect()
        };
        Ok(Self { targets: list("targets"), components: list("components") })
    }

    /// Installs what is missing. Asks first what is there, because adding reaches for the network even when it
    /// has nothing to do.
    fn complete(&self) -> Result<()> {
        for (what, wanted) in [("target", &self.targets), ("component", &self.components)] {
            let Some(installed) = installed(what)? else {
                println!("rustup is not there: taking it that the compiler has all it needs");
                return Ok(());
            };
            // A component is listed with its host behind it.
            let is_there = |name: &String| installed.iter().any(|have| have.starts_with(name.as_str()));
            let missing: Vec<_> = wanted.iter().filter(|name| !is_there(name)).collect();
            if missing.is_empty() {
                continue;
            }
            let mut add = Command::new("rustup");
            add.current_dir(root()).args([what, "add"]).args(&missing);
            println!("installing: {missing:?}");
            if !add.status()?.success() {
                bail!("rustup could not add {missing:?}: is there a network?");
            }
        }
        Ok(())
    }
}

/// What rustup has installed of this sort; `None` without rustup.
fn installed(what: &str) -> Result<Option<BTreeSet<String>>> {
    let mut list = Command::new("rustup");
    list.current_dir(root()).args([what, "list", "--installed"]);
    match list.output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(Some(text.lines().map(|line| line.trim().to_owned()).collect()))
        }
        Ok(output) => bail!("rustup {what} list: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot start rustup"),
    }
}
