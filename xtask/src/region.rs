//! How much flash to set aside: from what a device records to pages, bytes and years.

use anyhow::{Context, Result, bail, ensure};
use host_tests::flash::Chip;
use pillarbox::{Config, DeviceId, Geometry, LaneConfig};

use crate::Outcome;

/// Says how many pages a lane needs, how large the region becomes, and how long the flash lasts.
#[derive(clap::Args)]
#[command(after_help = "Example, a reading of 32 bytes every quarter of an hour, a month offline:\n  \
                        cargo xtask region --records-per-day 96 --record 32 --days 30")]
pub(crate) struct Arguments {
    /// Records a day
    #[arg(long)]
    records_per_day: u32,
    /// Bytes of the largest encoded record, `EncodedSize::MAX`
    #[arg(long)]
    record: u32,
    /// Days that a device must get by without a link
    #[arg(long)]
    days: u32,
    /// Bytes that the flash erases at once
    #[arg(long, default_value_t = 4096)]
    page: u32,
    /// Bytes that the flash programs at once
    #[arg(long, default_value_t = 1)]
    word: u32,
    /// Erases that a page of the flash endures
    #[arg(long, default_value_t = 100_000)]
    cycles: u32,
}

/// The oldest page is free again only when its last record is settled.
const PAGES_SPARE: u64 = 1;
const PAGES_MIN: u64 = 2;
const DAYS_A_YEAR: f64 = 365.25;

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome> {
    ensure!(arguments.records_per_day > 0, "--records-per-day must be at least 1");
    let geometry = geometry(arguments.page, arguments.word)?;
    let records_per_page = match arguments.record {
        record if record < geometry.page() => u64::from(geometry.records_per_page(record)),
        _ => 0,
    };
    ensure!(
        records_per_page > 0,
        "a record of {} bytes does not fit in a page of {}: split it, or take a flash with larger pages",
        arguments.record,
        geometry.page()
    );
    let records = u64::from(arguments.records_per_day) * u64::from(arguments.days);
    let pages = (records.div_ceil(records_per_page) + PAGES_SPARE).max(PAGES_MIN);
    let config = u16::try_from(pages)
        .ok()
        .and_then(|pages| Some(Config::new(DeviceId::new("any").ok()?, [LaneConfig::new(pages)])))
        .filter(|_| pages * u64::from(geometry.page()) < u64::from(u32::MAX / 2))
        .with_context(|| format!("{pages} pages are more than a lane can have"))?;
    let region = config.region_size(geometry);
    // A page is erased once each time that the ring has gone round.
    let rounds_per_day = f64::from(arguments.records_per_day) / (pages * records_per_page) as f64;
    let years = f64::from(arguments.cycles) / rounds_per_day / DAYS_A_YEAR;

    println!("records to hold     {records}");
    println!("a page holds        {records_per_page} of them, or more if they are short");
    println!("lane                {pages} pages: LaneConfig::new({pages})");
    println!(
        "region              {region} bytes ({} KiB), with metadata and {} dead-letter pages",
        region.div_ceil(1024),
        config.dead_letter_pages
    );
    println!("endurance           {years:.0} years of the lane's pages at {} erases each", arguments.cycles);
    Ok(Outcome::Good)
}

/// The geometry of a flash with these sizes. The library takes it from a driver's type.
fn geometry(page: u32, word: u32) -> Result<Geometry> {
    match word {
        1 | 2 | 4 | 8 => of_page::<8>(page),
        16 => of_page::<16>(page),
        32 => of_page::<32>(page),
        _ => bail!("--word must be a power of two up to 32"),
    }
}

fn of_page<const WORD: usize>(page: u32) -> Result<Geometry> {
    Ok(match page {
        256 => Geometry::of::<&Chip<WORD, WORD, 256>>(),
        512 => Geometry::of::<&Chip<WORD, WORD, 512>>(),
        1024 => Geometry::of::<&Chip<WORD, WORD, 1024>>(),
        2048 => Geometry::of::<&Chip<WORD, WORD, 2048>>(),
        4096 => Geometry::of::<&Chip<WORD, WORD, 4096>>(),
        8192 => Geometry::of::<&Chip<WORD, WORD, 8192>>(),
        16384 => Geometry::of::<&Chip<WORD, WORD, 16384>>(),
        32768 => Geometry::of::<&Chip<WORD, WORD, 32768>>(),
        65536 => Geometry::of::<&Chip<WORD, WORD, 65536>>(),
        _ => bail!("--page must be a power of two from 256 to 65536"),
    })
}
