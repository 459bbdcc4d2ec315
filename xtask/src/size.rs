//! What the library costs on the smallest target, measured on programs that are linked as a firmware is, and
//! held against the budgets.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::table::Table;
use crate::{Outcome, cargo, root};

const TARGET: &str = "thumbv6m-none-eabi";
const KIB: u64 = 1024;
/// Code beyond what sequential-storage's queue alone takes.
const OURS_MAX: u64 = 16 * KIB;
/// Code in all.
const ALL_MAX: u64 = 32 * KIB;
/// `Resources` of one lane, less the buffer that the application chooses.
const RAM_MAX: u64 = 2048;
/// Code beyond a program that posts the same records with reqwless alone.
const UPLINK_MAX: u64 = 24 * KIB;
/// Shown without being asked when a budget is exceeded.
const SYMBOLS_AT_A_MISS: usize = 12;

/// Builds the smallest firmwares and says what the library adds to them in flash and RAM.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask size\n  cargo xtask size --symbols 40")]
pub(crate) struct Arguments {
    /// Show so many of the largest functions of the outbox's programs
    #[arg(long, value_name = "N")]
    symbols: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome> {
    // Not among the workspace's artifacts: a firmware's profile would throw them out and be thrown out by them.
    let target_dir = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
        .join("size");
    let built = build(&target_dir, &[])?;
    // Apart, so that the programs without TLS stay without it.
    let built_with_tls =
        build(&target_dir.join("tls"), &["--features", "tls", "--bin", "tls", "--bin", "memory"])?;

    let empty = Program::read(&built, "empty")?;
    let queue = Program::read(&built, "queue")?;
    let outbox = Program::read(&built, "outbox")?;
    let reqwless = Program::read(&built, "reqwless")?;
    let uplink = Program::read(&built, "uplink")?;
    let tls = Program::read(&built_with_tls, "tls")?;
    let measures = Measures::read(&built)?;
    let measures_with_tls = Measures::read(&built_with_tls)?;
    print_programs([
        ("(a) runtime and flash stub", &empty),
        ("(b) sequential-storage's queue", &queue),
        ("(c) pillarbox, one lane", &outbox),
        ("(d) (c) and a POST with reqwless", &reqwless),
        ("(e) (c) and a dispatcher with its uplink", &uplink),
        ("(f) (e) with TLS and a shared key", &tls),
    ]);
    measures.print(&measures_with_tls);
    let budgets = [
        Budget {
            name: "(c) - (b): flash, beyond the queue",
            bytes: outbox.text.saturating_sub(queue.text),
            max: OURS_MAX,
        },
        Budget {
            name: "(c) - (a): flash, in all",
            bytes: outbox.text.saturating_sub(empty.text),
            max: ALL_MAX,
        },
        Budget {
            name: "(e) - (d): flash, beyond reqwless alone",
            bytes: uplink.text.saturating_sub(reqwless.text),
            max: UPLINK_MAX,
        },
        Budget {
            name: "RAM: Resources of 1 lane, less BUFFER",
            bytes: measures.resources.saturating_sub(measures.buffer),
            max: RAM_MAX,
        },
    ];
    print_budgets(&budgets);
    let missed: Vec<_> = budgets.iter().filter(|budget| budget.excess() > 0).collect();
    let at_a_miss = if missed.is_empty() { 0 } else { SYMBOLS_AT_A_MISS };
    let symbols = arguments.symbols.unwrap_or(at_a_miss);
    print_symbols("(c)", &outbox, symbols);
    print_symbols("(e)", &uplink, symbols);
    for budget in &missed {
        println!("over budget by {} bytes: {}", budget.excess(), budget.name);
    }
    Ok(if missed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Builds the programs in a directory of their own. Gives where they are.
fn build(target_dir: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let status = cargo()
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--manifest-path", "size/Cargo.toml", "--target-dir"])
        .arg(target_dir)
        .args(arguments)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the programs in size/ do not build");
    Ok(target_dir.join(TARGET).join("release"))
}

struct Budget {
    name: &'static str,
    bytes: u64,
    max: u64,
}

impl Budget {
    fn excess(&self) -> u64 {
        self.bytes.saturating_sub(self.max)
    }
}

/// What a linked program takes.
struct Program {
    /// Everything that is flashed: vectors, code, constants, initial values.
    text: u64,
    /// Statics: `.data` and `.bss`.
    ram: u64,
    /// The functions, the largest first.
    functions: Vec<(u64, String)>,
}

impl Program {
    fn read(built: &Path, name: &str) -> Result<Self> {
        let bytes = image(built, name)?;
        let file = Elf::parse(&*bytes).with_context(|| format!("{name} is not a program"))?;
        let size_of = |name: &str| file.section_by_name(name).map_or(0, |section| section.size());
        let sum = |names: &[&str]| names.iter().map(|name| size_of(name)).sum();
        let mut functions: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .map(|symbol| (symbol.size(), demangled(symbol.name().unwrap_or("?"))))
            .collect();
        functions.sort_by(|one, other| other.cmp(one));
        Ok(Self {
            text: sum(&[".vector_table", ".text", ".rodata", ".data"]),
            ram: sum(&[".data", ".bss"]),
            functions,
        })
    }
}

type Elf<'data> = object::read::elf::ElfFile32<'data, Endianness>;

fn image(built: &Path, name: &str) -> Result<Vec<u8>> {
    let path = built.join(name);
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn demangled(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

/// What only the target's compiler knows; `size/src/bin/memory.rs` writes it into its image.
struct Measures {
    resources: u64,
    buffer: u64,
    /// Futures and structs by name.
    others: [(&'static str, u64); 8],
}

impl Measures {
    fn read(built: &Path) -> Result<Self> {
        const NAME: &str = "MEASURES";
        let bytes = image(built, "memory")?;
        let file = Elf::parse(&*bytes).context("memory is not a program")?;
        let symbol = file.symbol_by_name(NAME).context("memory has no MEASURES")?;
        let section = symbol.section_index().context("MEASURES lies nowhere")?;
        let section = file.section_by_index(section)?;
        let data = section.data_range(symbol.address(), symbol.size())?;
        let (words, _) = data.context("MEASURES has no bytes")?.as_chunks::<4>();
        let words: Vec<_> = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).collect();
        let [resources, buffer, new, enqueue, window, settle, suspend, run, dispatcher, uplink] = words[..]
        else {
            bail!("size/src/bin/memory.rs and this program disagree about MEASURES");
        };
        Ok(Self {
            resources,
            buffer,
            others: [
                ("future of new", new),
                ("future of enqueue", enqueue),
                ("future of window", window),
                ("future of settle", settle),
                ("future of suspend", suspend),
                ("future of run", run),
                ("Dispatcher of 1 lane", dispatcher),
                ("BatchUplink, less its buffers", uplink),
            ],
        })
    }

    fn print(&self, with_tls: &Self) {
        let mut table = Table::new(["RAM", "bytes", "with TLS"]);
        for ((name, bytes), (_, bytes_with_tls)) in self.others.iter().zip(&with_tls.others) {
            table.row([(*name).to_owned(), bytes.to_string(), bytes_with_tls.to_string()]);
        }
        println!("{table}");
    }
}

fn print_programs(programs: [(&str, &Program); 6]) {
    let mut table = Table::new(["program", "text, rodata", "data, bss"]);
    for (name, program) in programs {
        table.row([name.to_owned(), program.text.to_string(), program.ram.to_string()]);
    }
    println!("{TARGET}, opt-level z, fat LTO, abort; bytes\n\n{table}");
}

fn print_budgets(budgets: &[Budget]) {
    let mut table = Table::new(["budget", "bytes", "at most", ""]);
    for budget in budgets {
        let verdict = if budget.excess() == 0 { "ok" } else { "OVER" };
        table.row([
            budget.name.to_owned(),
            budget.bytes.to_string(),
            budget.max.to_string(),
            verdict.to_owned(),
        ]);
    }
    println!("{table}");
}

fn print_symbols(name: &str, program: &Program, count: usize) {
    if count == 0 {
        return;
    }
    println!("the largest functions of {name}:");
    for (bytes, name) in program.functions.iter().take(count) {
        println!("{bytes:>7}  {name}");
    }
    println!();
}
