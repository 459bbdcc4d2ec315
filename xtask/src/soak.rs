//! Lives without end: cuts the power of simulated devices until the time is up, and says what became of every
//! record. One failing life is enough to fail, and its seed is enough to see it again.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use host_tests::flash::FaultClass;
use host_tests::raw::{RawReport, run_raw};
use host_tests::soak::{Tally, geometries, run_life};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Outcome;
use crate::table::Table;

const THREADS: usize = 2;
/// The raw queue loses within a few hundred cuts; more than this tells nothing new.
const RAW_CUTS_MAX: u64 = 20_000;
const TICK: Duration = Duration::from_millis(100);
/// Where there is no terminal for a bar, a line this often.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Cuts the power of simulated outboxes, over and over, and counts what is lost.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask soak --minutes 10 --seed 7\n  cargo xtask soak --cuts 50000 --raw\n  \
                  cargo xtask soak --class mixed --geometry 4-4-4096 --minutes 2\n  \
                  cargo xtask soak --replay mixed:4-4-4096:1234"
)]
pub(crate) struct Arguments {
    /// Stop after so many minutes (1 if neither this nor --cuts is given)
    #[arg(long)]
    minutes: Option<f64>,
    /// Where the lives' seeds come from; by default the clock
    #[arg(long)]
    seed: Option<u64>,
    /// Only this fault class
    #[arg(long)]
    class: Option<FaultClass>,
    /// Only this chip: read size, write size, page size
    #[arg(long)]
    geometry: Option<String>,
    /// Stop when every class has had so many cuts
    #[arg(long)]
    cuts: Option<u64>,
    /// Run the raw sequential-storage queue under the same faults, to see that the harness sees losses
    #[arg(long)]
    raw: bool,
    /// Run this one life again
    #[arg(long, value_name = "CLASS:GEOMETRY:SEED", conflicts_with_all = ["minutes", "seed", "class", "geometry", "cuts", "raw"])]
    replay: Option<Life>,
}

/// One life, as a failure names it.
#[derive(Clone, Copy, Debug)]
struct Life {
    class: FaultClass,
    geometry: &'static str,
    seed: u64,
}

impl FromStr for Life {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let (Some(class), Some(name), Some(seed), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            bail!("a life is CLASS:GEOMETRY:SEED, as a failing soak prints it");
        };
        Ok(Self {
            class: class.parse()?,
            geometry: geometry(name)?,
            seed: seed.parse().context("the seed is a number")?,
        })
    }
}

impl Life {
    /// Runs it; an error says what went wrong and how to see it again.
    fn run(self) -> Result<Tally, String> {
        let Self { class, geometry, seed } = self;
        let replay = format!("replay: cargo xtask soak --replay {class}:{geometry}:{seed}");
        // A panic is a broken promise like any other, and the seed must not go down with it.
        let run = catch_unwind(AssertUnwindSafe(|| run_life(geometry, class, seed)));
        let tally = match run {
            Ok(Ok(tally)) => tally,
            Ok(Err(failure)) => return Err(failure.to_string()),
            Err(_) => return Err(format!("the life panicked\n{replay}")),
        };
        let broken = tally.lost + tally.unaccounted + tally.reused_keys + tally.inversions + tally.wedges;
        if broken > 0 {
            return Err(format!("{tally:?}\n{replay}"));
        }
        Ok(tally)
    }
}

fn geometry(name: &str) -> Result<&'static str> {
    let known = geometries().iter().copied().find(|known| *known == name);
    known.with_context(|| format!("no geometry is called {name:?}; there are: {}", geometries().join(" ")))
}

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome> {
    if let Some(life) = arguments.replay {
        return Ok(replay(life));
    }
    let soak = Soak::new(arguments)?;
    println!("seed {}", soak.seed);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| while soak.next_life().is_continue() {});
        }
        soak.watch();
    });
    let reports = soak.reports();
    print_reports(&soak.classes, &reports);
    if arguments.raw {
        print_raw(&soak.classes, &reports, soak.seed);
    }
    let failure = soak.failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(match failure {
        None => Outcome::Good,
        Some(failure) => {
            eprintln!("{failure}");
            Outcome::Bad
        }
    })
}

fn replay(life: Life) -> Outcome {
    match life.run() {
        Ok(tally) => {
            print_reports(&[life.class], &[tally]);
            Outcome::Good
        }
        Err(failure) => {
            eprintln!("{failure}");
            Outcome::Bad
        }
    }
}

/// What the threads share.
struct Soak {
    seed: u64,
    classes: Vec<FaultClass>,
    geometries: Vec<&'static str>,
    start: Instant,
    minutes: Option<Duration>,
    cuts: Option<u64>,
    lives: AtomicU64,
    stop: AtomicBool,
    tallies: Mutex<Vec<Tally>>,
    failure: Mutex<Option<String>>,
}

impl Soak {
    fn new(arguments: &Arguments) -> Result<Self> {
        let minutes = match (arguments.minutes, arguments.cuts) {
            (None, None) => Some(1.0),
            (minutes, _) => minutes,
        };
        let minutes = minutes
            .map(|minutes| Duration::try_from_secs_f64(minutes * 60.0))
            .transpose()
            .context("--minutes is not a length of time")?;
        let classes = arguments.class.map_or(FaultClass::ALL.to_vec(), |class| vec![class]);
        let geometries = match &arguments.geometry {
            Some(name) => vec![geometry(name)?],
            None => geometries().to_vec(),
        };
        Ok(Self {
            seed: arguments.seed.unwrap_or_else(seed_of_the_clock),
            tallies: Mutex::new(vec![Tally::default(); classes.len()]),
            classes,
            geometries,
            start: Instant::now(),
            minutes,
            cuts: arguments.cuts,
            lives: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        })
    }

    /// Takes the next number and lives that life. The number alone decides class, geometry and seed.
    fn next_life(&self) -> ControlFlow<()> {
        if self.is_over() {
            return ControlFlow::Break(());
        }
        let number = self.lives.fetch_add(1, Ordering::Relaxed);
        let at = number as usize % self.classes.len();
        if self.has_enough(self.report(at)) {
            return ControlFlow::Continue(());
        }
        let round = number as usize / self.classes.len();
        let life = Life {
            class: self.classes[at],
            geometry: self.geometries[round % self.geometries.len()],
            seed: scatter(self.seed, number),
        };
        match life.run() {
            Ok(tally) => {
                if let Ok(mut tallies) = self.tallies.lock() {
                    tallies[at] += tally;
                }
                ControlFlow::Continue(())
            }
            Err(failure) => {
                self.stop.store(true, Ordering::Relaxed);
                if let Ok(mut first) = self.failure.lock() {
                    first.get_or_insert(failure);
                }
                ControlFlow::Break(())
            }
        }
    }

    fn has_enough(&self, tally: Tally) -> bool {
        self.cuts.is_some_and(|cuts| tally.cuts >= cuts)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
            || self.minutes.is_some_and(|minutes| self.start.elapsed() >= minutes)
            || self.reports().into_iter().all(|tally| self.has_enough(tally))
    }

    fn reports(&self) -> Vec<Tally> {
        self.tallies.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn report(&self, at: usize) -> Tally {
        self.reports()[at]
    }

    /// Shows how far it is, until it is over.
    fn watch(&self) {
        let bar = ProgressBar::new(1000).with_style(
            ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {percent}% {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let mut said = Instant::now();
        while !self.is_over() {
            let mut total = Tally::default();
            self.reports().into_iter().for_each(|tally| total += tally);
            let message = format!("{} lives, {} cuts, {} lost", total.lives, total.cuts, total.lost);
            if bar.is_hidden() && said.elapsed() >= LINE_EVERY {
                said = Instant::now();
                println!("{:>5} s: {message}", self.start.elapsed().as_secs());
            }
            bar.set_position((self.part_done() * 1000.0) as u64);
            bar.set_message(message);
            std::thread::sleep(TICK);
        }
        bar.finish_and_clear();
    }

    /// From 0 to 1, by whichever limit is nearer.
    fn part_done(&self) -> f64 {
        let by_time =
            self.minutes.map_or(0.0, |minutes| self.start.elapsed().as_secs_f64() / minutes.as_secs_f64());
        let by_cuts = self.cuts.map_or(0.0, |cuts| {
            let done: u64 = self.reports().iter().map(|tally| tally.cuts.min(cuts)).sum();
            done as f64 / (cuts * self.classes.len() as u64) as f64
        });
        by_time.max(by_cuts)
    }
}

fn seed_of_the_clock() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |since| since.as_micros() as u64)
}

/// Neighbouring lives get seeds that have nothing to do with each other (splitmix64).
fn scatter(seed: u64, number: u64) -> u64 {
    let mut mixed = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn print_reports(classes: &[FaultClass], tallies: &[Tally]) {
    let mut table = Table::new([
        "class",
        "cuts",
        "in recovery",
        "acknowledged",
        "delivered",
        "accounted",
        "redelivered",
        "lost",
        "keys reused",
        "inversions",
        "wedges",
    ]);
    let mut total = Tally::default();
    let named = classes.iter().map(FaultClass::to_string);
    for (name, tally) in named.zip(tallies.iter().copied()) {
        total += tally;
        table.row(report_row(name, tally));
    }
    table.row(report_row("all".to_owned(), total));
    println!("{} lives, {} futures dropped", total.lives, total.dropped_futures);
    println!("\n{table}");
}

fn report_row(name: String, tally: Tally) -> [String; 11] {
    [
        name,
        tally.cuts.to_string(),
        tally.cuts_in_recovery.to_string(),
        tally.acknowledged.to_string(),
        tally.delivered.to_string(),
        tally.accounted.to_string(),
        tally.redelivered.to_string(),
        tally.lost.to_string(),
        tally.reused_keys.to_string(),
        tally.inversions.to_string(),
        tally.wedges.to_string(),
    ]
}

/// The same faults on the queue without the outbox around it.
fn print_raw(classes: &[FaultClass], tallies: &[Tally], seed: u64) {
    println!("sequential-storage's queue alone, under the same faults:\n");
    let mut table = Table::new([
        "class",
        "word",
        "cuts",
        "acknowledged",
        "lost",
        "stranded",
        "duplicates",
        "inversions",
        "wedges",
    ]);
    for (&class, tally) in classes.iter().zip(tallies) {
        let cuts = tally.cuts.min(RAW_CUTS_MAX);
        for (word, raw) in raw_of_every_word(class, cuts, seed) {
            table.row([
                class.to_string(),
                word.to_string(),
                raw.cuts.to_string(),
                raw.acknowledged.to_string(),
                raw.lost.to_string(),
                raw.stranded.to_string(),
                raw.duplicates.to_string(),
                raw.inversions.to_string(),
                raw.wedges.to_string(),
            ]);
        }
    }
    println!("{table}");
}

fn raw_of_every_word(class: FaultClass, cuts: u64, seed: u64) -> [(usize, RawReport); 3] {
    std::thread::scope(|scope| {
        let of_one = scope.spawn(|| run_raw::<1>(class, cuts, seed));
        let (of_four, of_eight) = (run_raw::<4>(class, cuts, seed), run_raw::<8>(class, cuts, seed));
        let of_one = of_one.join().unwrap_or_default();
        [(1, of_one), (4, of_four), (8, of_eight)]
    })
}
