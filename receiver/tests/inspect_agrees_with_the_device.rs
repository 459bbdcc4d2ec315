//! What `inspect` says of a dump is what the device makes of the same flash when it boots: pending, dead, accounted for, uncertain. After
//! power cuts of every class, at which nothing is damaged; so nothing may be called so.

use std::collections::BTreeSet;

use host_tests::flash::FaultClass;
use host_tests::life::{LANES, Opened, record_max, run_watched};
use pillarbox::{Key, buffer_size};
use pillarbox_receiver::inspect::{self, Fate, Inspection, Where};
use pillarbox_receiver::kinds::Kinds;

const PAYLOAD: usize = 20;
const RECORD: usize = record_max(PAYLOAD);
const BUFFER: usize = buffer_size(LANES, RECORD);
/// Lives of each class; each has a dozen cuts.
const LIVES: u64 = 12;

#[derive(Default)]
struct Seen {
    images: u32,
    leaving: u32,
    erasing: u32,
    unfinished: u32,
    pending: usize,
    dead: usize,
}

fn lives<const R: usize, const W: usize, const E: usize>() {
    let mut seen = Seen::default();
    for class in FaultClass::ALL {
        for seed in 0..LIVES {
            let watch = |image: &[u8]| {
                let kept = inspect::look(image, None, &Kinds::default());
                let opened = Opened::of::<R, W, E, RECORD, BUFFER>(image)?;
                compare(&kept, &opened, &mut seen)
            };
            if let Err(what) = run_watched::<R, W, E, PAYLOAD, RECORD, BUFFER>(*class, seed, watch) {
                panic!("class {class}, seed {seed}, pages of {E}: {what}");
            }
        }
    }
    let Seen { images, leaving, erasing, unfinished, pending, dead } = seen;
    println!(
        "{images} images: {pending} pending, {dead} dead, {leaving} leaving, {erasing} erasing, {unfinished} unfinished"
    );
    assert!(images > 1000 && pending > 1000 && dead > 100, "too little happened");
    assert!(leaving > 5 && erasing > 5 && unfinished > 5, "the cuts have hit nothing of interest");
}

fn key(record: &inspect::RecordView) -> Key {
    Key { incarnation: record.incarnation.0, lane: record.lane, counter: record.counter }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, shown: T, opened: T) -> Result<(), String> {
    if shown == opened {
        Ok(())
    } else {
        Err(format!("{what}: inspect says {shown:?}, the device {opened:?}"))
    }
}

fn compare(shown: &Inspection, opened: &Opened, seen: &mut Seen) -> Result<(), String> {
    let Some(region) = &shown.region else {
        // The first boot was cut before it had written anything down.
        let nothing: Vec<Key> = Vec::new();
        same("the first boot", nothing, opened.pending.concat())?;
        return same("the first boot", 1, opened.boot);
    };
    seen.images += 1;
    let of = |fate: Fate| shown.records.iter().filter(move |record| record.state == fate);
    same("what is damaged", &shown.problems[..], &[])?;
    same("the boot", region.boot + 1, opened.boot)?;
    let is_clearing = of(Fate::Leaving).any(|record| record.leaving == Some("cleared"));
    if !is_clearing && !region.unfinished.as_ref().is_some_and(|says| says.contains("cleared")) {
        same("the incarnation", region.incarnation.0, opened.incarnation)?;
    }
    for (lane, pending) in (0..).zip(&opened.pending) {
        let keys: Vec<Key> =
            of(Fate::Pending).filter(|record| record.ring == Where::Lane(lane)).map(key).collect();
        seen.pending += keys.len();
        same(&format!("pending in lane {lane}"), &keys, pending)?;
        same("so many", shown.lanes[usize::from(lane)].pending, pending.len() as u64)?;
    }
    let mut dead: BTreeSet<Key> = of(Fate::Dead).map(key).collect();
    seen.dead += dead.len();
    let parked: Vec<Key> =
        of(Fate::Leaving).filter(|record| record.leaving == Some("parked")).map(key).collect();
    dead.extend(&parked);
    let opened_dead: BTreeSet<Key> = opened.dead.iter().copied().collect();
    if parked.is_empty() {
        same("the dead letters", &dead, &opened_dead)?;
    } else if !opened_dead.is_subset(&dead) || !opened_dead.is_superset(&parked.iter().copied().collect()) {
        // What is being parked may make other dead letters go.
        return Err(format!("the dead letters: inspect says {dead:?}, the device {opened_dead:?}"));
    }
    account(shown, opened)?;
    seen.leaving += of(Fate::Leaving).count() as u32;
    seen.erasing += shown.pages.iter().filter(|page| page.state == "erasing").count() as u32;
    seen.unfinished += shown.totals.unfinished as u32;
    Ok(())
}

/// Whatever the account explains in the dump it explains after the boot, and the uncertain range besides.
fn account(shown: &Inspection, opened: &Opened) -> Result<(), String> {
    let is_explained = |incarnation: u32, lane: u8, counter: u64| {
        opened.account.iter().any(|entry| entry.covers(incarnation, lane, counter))
    };
    for entry in &shown.account {
        if let Some(counter) = (entry.first..entry.first + entry.count)
            .find(|n| !is_explained(entry.incarnation.0, entry.lane, *n))
        {
            return Err(format!("{counter} of {entry:?} is not in {:?}", opened.account));
        }
    }
    let incarnation = shown.region.as_ref().map_or(0, |region| region.incarnation.0);
    for lane in &shown.lanes {
        let (first, most) = lane.uncertain.unwrap_or((lane.ceiling, 0));
        let end = first + most;
        let is_told = |counter: u64| is_explained(incarnation, lane.lane, counter);
        if (first..end).any(|counter| !is_told(counter)) {
            return Err(format!("{lane:?} is uncertain, and the device says {:?}", opened.account));
        }
        // Where many entries were joined, or some were there before, they begin earlier.
        let is_alone =
            opened.account.len() < 12 && !shown.account.iter().any(|entry| entry.lane == lane.lane);
        let last = opened.account.iter().filter(|entry| entry.reason == pillarbox::Reason::Uncertain);
        for entry in
            last.filter(|entry| lane.ceiling > 0 && entry.covers(incarnation, lane.lane, lane.ceiling - 1))
        {
            if is_alone {
                same("the first that is uncertain", first, entry.first)?;
            }
        }
    }
    Ok(())
}

#[test]
fn after_cuts_on_small_pages() {
    lives::<4, 4, 256>();
}

#[test]
fn after_cuts_on_large_pages() {
    lives::<1, 1, 4096>();
}

#[test]
fn after_cuts_with_wide_words() {
    lives::<32, 32, 1024>();
}
