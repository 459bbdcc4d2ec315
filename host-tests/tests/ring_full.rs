//! Claim: a full ring does what its lane was told to do, and nothing else. A bug here loses records without a word,
//! or stops a device for good that still has flash to write to.

use host_tests::device::{Device, Meter, RECORD, boot, boot_counted, chip, config, corrupt, keys, numbers};
use host_tests::flash::Chip;
use pillarbox::{Cause, EnqueueError, Entry, Event, LaneConfig, Reason};

const PAGES: u16 = 4;

fn refusing() -> LaneConfig {
    LaneConfig::new(PAGES)
}

fn evicting() -> LaneConfig {
    LaneConfig::new(PAGES).evict_oldest()
}

/// How many notes a page takes, given a ring that took `total`.
fn a_page_of(total: usize) -> usize {
    total / usize::from(PAGES)
}

fn counters(entries: &[Entry]) -> Vec<u64> {
    entries.iter().flat_map(|entry| entry.first..entry.end()).collect()
}

#[test]
fn a_refusing_lane_says_full_and_loses_nothing() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &config([refusing()]));
    let posted = meter.fill(0);
    assert!(posted.len() > 20, "only {} notes fit", posted.len());
    assert_eq!(meter.try_post(999), Err(EnqueueError::Full));
    assert!(meter.events().contains(&Event::Full { lane: 0 }));
    assert_eq!(numbers(&meter.pending(0)), posted);
    assert_eq!(meter.account(), []);
    assert_eq!(meter.depth(0).records as usize, posted.len());
    assert_eq!(meter.stats().lanes[0].enqueued as usize, posted.len());
}

#[test]
fn a_refused_record_consumes_no_counter() {
    let chip = chip();
    let mut meter = boot(&chip, &config([refusing()]));
    let posted = meter.fill(0).len() as u64;
    for _ in 0..100 {
        assert_eq!(meter.try_post(999), Err(EnqueueError::Full));
    }
    meter.deliver(a_page_of(posted as usize) * 2);
    assert_eq!(meter.post(1000).counter, posted);
}

#[test]
fn a_refusing_lane_works_again_after_settling_for_as_long_as_one_likes() {
    let chip = chip();
    let mut meter = boot(&chip, &config([refusing()]));
    let mut posted = meter.fill(0);
    let mut delivered = Vec::new();
    for _ in 0..10 {
        delivered.extend(meter.deliver(posted.len() / 2));
        let next = posted.len() as u32;
        let more = meter.fill(next);
        assert!(!more.is_empty(), "settling half of a full ring makes no room");
        posted.extend(more);
    }
    delivered.extend(meter.deliver(usize::MAX));
    assert_eq!(delivered, posted);
    assert_eq!(meter.account(), []);
}

#[test]
fn a_full_lane_is_full_after_a_reboot_too_and_keeps_everything() {
    let chip = chip();
    let posted = boot(&chip, &config([refusing()])).fill(0);
    for _ in 0..5 {
        let meter = boot(&chip, &config([refusing()]));
        assert_eq!(meter.try_post(999), Err(EnqueueError::Full));
        assert_eq!(numbers(&meter.pending(0)), posted);
    }
}

#[test]
fn an_evicting_lane_gives_up_exactly_its_oldest_page() {
    let chip = chip();
    let posted = boot(&chip, &config([refusing()])).fill(0);
    let mut meter = boot(&chip, &config([evicting()]));
    let before = meter.pending(0);
    meter.events();
    let newest = meter.post(posted.len() as u32);
    let after = meter.pending(0);
    let given_up = before.len() + 1 - after.len();
    let page = a_page_of(posted.len());
    assert!((page..=page + 1).contains(&given_up), "{given_up} given up, a page holds {page}");
    assert_eq!(keys(&after[..after.len() - 1]), keys(&before[given_up..]));
    assert_eq!(after.last().unwrap().key, newest);
    let evicted = meter.explained_as(Reason::Evicted);
    assert_eq!(evicted.len(), 1, "one page is one entry: {evicted:?}");
    assert_eq!(
        counters(&evicted),
        before[..given_up].iter().map(|kept| kept.key.counter).collect::<Vec<_>>()
    );
    let events = meter.events();
    assert!(events.contains(&Event::Full { lane: 0 }), "{events:?}");
    assert!(events.contains(&Event::Dropped(evicted[0])), "{events:?}");
    assert_eq!(meter.stats().lanes[0].given_up.of(Reason::Evicted) as usize, given_up);
}

#[test]
fn an_evicting_lane_keeps_the_newest_and_explains_the_rest_over_many_wraps() {
    let chip = chip();
    let mut meter = boot_counted(&chip, &config([evicting()]));
    for number in 0..600 {
        let key = meter.post(number);
        assert_eq!(key.counter, u64::from(number));
        assert_eq!(meter.depth(0).records as usize, meter.pending(0).len());
    }
    let pending = meter.pending(0);
    let first = pending[0].number;
    assert_eq!(numbers(&pending), (first..600).collect::<Vec<_>>());
    assert!(pending.len() >= 20, "it keeps no more than {} notes", pending.len());
    let evicted = meter.explained_as(Reason::Evicted);
    assert_eq!(evicted.len(), 1, "neighbours are merged: {evicted:?}");
    assert_eq!(counters(&evicted), (0..u64::from(first)).collect::<Vec<_>>());
    assert_eq!(meter.stats().lanes[0].given_up.of(Reason::Evicted), first);
    let depth = meter.depth(0);
    assert!(depth.is_exact);
    meter.window(0);
    assert_eq!(meter.depth(0), depth, "counting again gives the same");
}

#[test]
fn what_was_evicted_stays_explained_over_a_reboot() {
    let chip = chip();
    let mut meter = boot(&chip, &config([evicting()]));
    meter.post_all(0..200);
    let account = meter.explained_as(Reason::Evicted);
    drop(meter);
    let mut meter = boot(&chip, &config([evicting()]));
    assert_eq!(meter.explained_as(Reason::Evicted), account);
}

/// Everything but the head is delivered, again and again, for several wraps.
fn live_with_a_stuck_head(lane: LaneConfig) -> (usize, Vec<Cause>, usize) {
    let chip = chip();
    let mut meter: Meter = boot_counted(&chip, &config([lane]));
    let stuck = meter.post(0);
    for number in 1..300 {
        let key = meter.post(number);
        assert_eq!(meter.settle(0, &[key]), 1, "note {number} is not there");
    }
    let dead = meter.dead_letters();
    assert_eq!(keys(&dead), [stuck]);
    assert_eq!(meter.explanation(stuck), Some(Reason::Parked));
    assert_eq!(meter.depth(0).records, 0);
    assert!(meter.depth(0).is_exact);
    let pending = meter.pending(0).len();
    let evicted = meter.explained_as(Reason::Evicted).len();
    (pending, dead.iter().filter_map(|kept| kept.cause).collect(), evicted)
}

#[test]
fn a_stuck_head_is_parked_and_never_pins_the_ring() {
    for lane in [refusing(), evicting()] {
        assert_eq!(live_with_a_stuck_head(lane), (0, vec![Cause::Blocking], 0));
    }
}

#[test]
fn parking_a_stuck_head_is_announced() {
    let chip = chip();
    let mut meter = boot(&chip, &config([refusing()]));
    let stuck = meter.post(0);
    let mut parked = Vec::new();
    for number in 1..100 {
        let key = meter.post(number);
        parked.extend(meter.events().into_iter().filter(|event| matches!(event, Event::Parked { .. })));
        meter.settle(0, &[key]);
    }
    assert_eq!(parked, [Event::Parked { key: stuck, cause: Cause::Blocking }]);
}

#[test]
fn a_stuck_head_never_pins_the_window() {
    // A ring with room for far more than the 1024 counters that a window spans.
    let chip = Chip::<4, 4, 4096>::new(32, 1);
    let mut meter = Device::<_, 1, RECORD>::open(&chip, &config([LaneConfig::new(16)])).unwrap();
    meter.post(0);
    for number in 1..1100 {
        let key = meter.post(number);
        assert_eq!(meter.settle(0, &[key]), 1);
    }
    meter.post(5000);
    let (_, shown) = meter.window(0);
    assert!(
        numbers(&shown).contains(&5000),
        "one record that nobody takes keeps all younger ones from being sent: {shown:?}"
    );
}

#[test]
fn a_ring_full_of_corrupt_items_frees_itself() {
    for lane in [refusing(), evicting()] {
        let chip = chip();
        let posted = boot(&chip, &config([refusing()])).fill(0);
        posted.iter().for_each(|&number| corrupt(&chip, number));
        let mut meter = boot(&chip, &config([lane]));
        for number in 1000..1100 {
            let key = meter.post(number);
            assert_eq!(meter.settle(0, &[key]), 1);
        }
        assert_eq!(meter.pending(0), []);
        assert!(meter.stats().corrupt > 0, "nobody counted them");
    }
}

#[test]
fn a_corrupt_oldest_page_costs_no_sound_record() {
    let chip = chip();
    let posted = boot(&chip, &config([refusing()])).fill(0);
    let page = a_page_of(posted.len());
    let sound = posted[page + 1..].to_vec();
    posted[..=page].iter().for_each(|&number| corrupt(&chip, number));
    let mut meter = boot(&chip, &config([refusing()]));
    // Room for one more is made of what cannot be read, not of what can.
    meter.post(1000);
    let mut expected = sound;
    expected.push(1000);
    assert_eq!(numbers(&meter.pending(0)), expected);
    assert_eq!(meter.dead_letters(), []);
    assert_eq!(meter.explained_as(Reason::Evicted), []);
}

#[test]
fn corrupt_items_between_sound_ones_are_passed_over_and_explained() {
    let chip = chip();
    let keys = boot(&chip, &config([refusing()])).post_all(0..8);
    for number in [2, 3, 6] {
        corrupt(&chip, number);
    }
    let mut meter = boot(&chip, &config([refusing()]));
    let (_, shown) = meter.window(0);
    assert_eq!(numbers(&shown), [0, 1, 4, 5, 7]);
    let corrupt = meter.explained_as(Reason::Corrupt);
    assert_eq!(counters(&corrupt), [keys[2].counter, keys[3].counter, keys[6].counter]);
    assert_eq!(meter.deliver(usize::MAX), [0, 1, 4, 5, 7]);
}
