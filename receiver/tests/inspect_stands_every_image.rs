//! Whatever the bytes of a dump are, `inspect` ends, says what is wrong and where, and still shows every record that is whole: flipped
//! bits on every page, dumps that end anywhere, metadata that are gone, noise, and a region somewhere in a larger flash.

mod images;

use std::collections::BTreeMap;

use images::{GOLDEN, golden};
use pillarbox_receiver::inspect::{self, Fate, Inspection, PageHealth, Where};
use pillarbox_receiver::kinds::Kinds;

fn look(image: &[u8]) -> Inspection {
    inspect::look(image, None, &Kinds::default())
}

/// What is whole in a sound image: address, key without the device, and body.
fn whole(found: &Inspection) -> BTreeMap<u32, (String, String)> {
    let is_whole = |record: &&inspect::RecordView| matches!(record.state, Fate::Pending | Fate::Dead);
    let told = |record: &inspect::RecordView| (record.address, content(record));
    found.records.iter().filter(is_whole).map(told).collect()
}

fn content(record: &inspect::RecordView) -> (String, String) {
    let (_, key) = record.key.split_once('.').expect("a key has a device");
    (key.to_owned(), record.hex.clone().expect("no kind is known"))
}

/// Every record that is whole and does not lie in `hit` is shown where it lies, whatever it is called.
fn assert_shown(found: &Inspection, whole: &BTreeMap<u32, (String, String)>, hit: &[usize], who: &str) {
    let shown: BTreeMap<u32, (String, String)> =
        found.records.iter().map(|record| (record.address, content(record))).collect();
    for (address, record) in whole {
        // The longest record of these images takes 64 bytes and its header 32.
        let is_hit = |at: &usize| (*address as usize..*address as usize + 128).contains(at);
        if !hit.iter().any(is_hit) {
            assert_eq!(shown.get(address), Some(record), "{who}: the record at {address:#x}");
        }
    }
}

#[test]
fn flipped_bits_on_every_page() {
    for (name, page) in GOLDEN {
        let image = golden(name);
        let whole = whole(&look(&image));
        assert!(whole.len() > 5, "{name}");
        let (mut damaged, mut runs) = (0, 0);
        for start in (0..image.len()).step_by(page) {
            for seed in 0..40 {
                let mut rng = fastrand::Rng::with_seed(seed ^ (start as u64) << 8);
                // Most of a page is blank: half of the bits are flipped where there is something.
                let filled: Vec<usize> = (start..start + page).filter(|at| image[*at] != 0xff).collect();
                let mut at = start + rng.usize(..page);
                if let Some(place) = rng.choice(&filled).filter(|_| seed % 2 == 0) {
                    at = *place;
                }
                let mut bytes = image.clone();
                bytes[at] ^= 1 << rng.u8(..8);
                let found = look(&bytes);
                let who = format!("{name}, byte {at:#x}, seed {seed}");
                assert_shown(&found, &whole, &[at], &who);
                damaged += u32::from(!found.is_sound);
                runs += 1;
            }
        }
        println!("{name}: {damaged} of {runs} flips are called damage");
        assert!(damaged > runs / 10, "{name}: {damaged} of {runs}");
    }
}

#[test]
fn many_flipped_bits() {
    for (name, page) in GOLDEN {
        let image = golden(name);
        for seed in 0..150 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut bytes = image.clone();
            let hit: Vec<usize> = (0..1 << rng.u32(1..10)).map(|_| rng.usize(..bytes.len())).collect();
            hit.iter().for_each(|at| bytes[*at] ^= 1 << rng.u8(..8));
            let found = look(&bytes);
            assert!(found.pages.len() <= image.len() / page, "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_dump_that_ends_early_is_shown_as_far_as_it_goes() {
    for (name, page) in GOLDEN {
        let image = golden(name);
        let whole = whole(&look(&image));
        for len in (1..image.len()).step_by(if page == 256 { 37 } else { 211 }) {
            let found = look(&image[..len]);
            let who = format!("{name}, the first {len:#x} bytes");
            let left = whole.iter().filter(|(at, _)| **at as usize + 128 <= len);
            let left: BTreeMap<u32, (String, String)> =
                left.map(|(at, record)| (*at, record.clone())).collect();
            assert_shown(&found, &left, &[], &who);
            assert!(!found.is_sound, "{who}: something is missing");
            let is_gone = |page: &&inspect::PageView| page.health == PageHealth::Missing;
            let gone = found.pages.iter().filter(is_gone).count();
            assert!(found.region.is_none() || gone > 0, "{who}");
        }
    }
}

#[test]
fn without_metadata_the_records_are_still_there() {
    for (name, page) in GOLDEN {
        let image = golden(name);
        let half = page.max(4096);
        let sound = look(&image);
        let whole = whole(&sound);
        let origin = sound.region.as_ref().expect("it is sound").origin as usize;
        let newest =
            sound.metadata.iter().max_by_key(|half| half.newest).expect("there are two").address as usize;
        for fill in [0xff, 0x00, 0x5a] {
            let who = format!("{name}, filled with {fill:#x}");
            let mut bytes = image.clone();
            bytes[newest..newest + half].fill(fill);
            let found = look(&bytes);
            assert!(
                found.region.is_none() || found.region.as_ref().expect("it is").origin as usize == origin,
                "{who}"
            );
            assert_shown(&found, &whole, &[], &who);
            bytes[origin..origin + 2 * half].fill(fill);
            let found = look(&bytes);
            assert_eq!(found.region, None, "{who}");
            assert!(!found.is_sound, "{who}");
            assert_shown(&found, &whole, &[], &who);
            assert_eq!(found.totals.pending + found.totals.dead, whole.len() as u64, "{who}: and no others");
            assert_eq!(found.problems.len(), 1, "{who}: {:?}", found.problems);
            // A page between others is found without its magic, too.
            let page = sound.pages.iter().rev().find(|page| page.ring == Where::Lane(0) && page.pending > 0);
            let at = page.expect("there is one").address as usize;
            bytes[at] ^= 1;
            assert_shown(&look(&bytes), &whole, &[], &who);
        }
    }
}

#[test]
fn a_region_is_found_wherever_it_lies() {
    for (name, page) in GOLDEN {
        let image = golden(name);
        let plain = look(&image);
        let origin = plain.region.as_ref().expect("it is sound").origin;
        for (seed, before) in [0, 1, 3, 64, 200].into_iter().enumerate() {
            let mut flash = vec![0; before * page];
            fastrand::Rng::with_seed(seed as u64).fill(&mut flash);
            flash.extend(&image);
            flash.extend(vec![0xa5; 5000]);
            let found = look(&flash);
            let at = (before * page) as u32 + origin;
            assert_eq!(
                found.region.as_ref().map(|region| region.origin),
                Some(at),
                "{name} behind {before} pages"
            );
            assert!(found.is_sound, "{name} behind {before} pages: {:?}", found.problems);
            let keys = |found: &Inspection| {
                found.records.iter().map(|record| record.key.clone()).collect::<Vec<_>>()
            };
            assert_eq!(keys(&found), keys(&plain));
            assert_eq!(inspect::look(&flash, Some(at), &Kinds::default()), found, "--origin says the same");
        }
    }
}

/// A region's metadata may have lost both their magics and still be whole.
#[test]
fn metadata_without_a_magic_are_found() {
    for (name, _) in GOLDEN {
        let mut image = golden(name);
        let plain = look(&image);
        for half in &plain.metadata {
            let word = plain.region.as_ref().expect("it is sound").word as usize;
            image[half.address as usize..half.address as usize + word].fill(0x42);
        }
        let found = look(&image);
        let origin = |found: &Inspection| found.region.as_ref().map(|region| region.origin);
        assert_eq!(origin(&found), origin(&plain), "{name}: {:?}", found.problems);
        assert_eq!(found.records, plain.records, "{name}");
        assert!(!found.is_sound, "{name}: the half with the newest snapshot has lost its magic");
    }
}

#[test]
fn two_regions_are_both_named() {
    let image = golden("word-8-page-256");
    let both = [&image[..], &image[..]].concat();
    let found = look(&both);
    assert_eq!(found.region.as_ref().map(|region| region.origin), Some(256));
    let named =
        found.notes.iter().any(|note| note.says.contains(&format!("--origin {:#x}", image.len() + 256)));
    assert!(named, "{:?}", found.notes);
}

#[test]
fn noise_ends() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = vec![0; rng.usize(1..200_000)];
        rng.fill(&mut bytes);
        let found = look(&bytes);
        assert!(!found.is_sound && found.records.is_empty(), "seed {seed}");
        // The same with the magic sprinkled over it, and pieces of a real image.
        let image = golden(GOLDEN[seed as usize % GOLDEN.len()].0);
        for _ in 0..rng.usize(1..60) {
            let len = 1 << rng.usize(3..10);
            let from = rng.usize(..image.len() - len);
            let to = rng.usize(..bytes.len().div_ceil(256)) * 256 + (from % 256);
            if let Some(place) = bytes.get_mut(to..to + len) {
                place.copy_from_slice(&image[from..from + len]);
            }
        }
        let found = look(&bytes);
        assert!(!found.problems.is_empty() || found.is_sound, "seed {seed}");
    }
    for byte in 0..=u8::MAX {
        assert!(!look(&[byte; 20_000]).is_sound);
    }
    assert!(!look(&[]).is_sound);
}

#[test]
fn pages_in_any_order_end() {
    for (name, size) in GOLDEN {
        let image = golden(name);
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut pages: Vec<&[u8]> = image.chunks(size).collect();
            if rng.bool() {
                rng.shuffle(&mut pages);
            } else {
                for _ in 0..8 {
                    let (from, to) = (rng.usize(..pages.len()), rng.usize(..pages.len()));
                    pages[to] = pages[from];
                }
            }
            let found = look(&pages.concat());
            assert_eq!(found.bytes, image.len() as u64, "{name}, seed {seed}");
        }
    }
}
