//! Claim: records leave a lane in the order in which they came, each once, and lanes do not hear of each other. A bug
//! here shows at the receiver only, as a meter that runs backwards.

use std::collections::BTreeSet;

use embassy_futures::block_on;
use embassy_futures::join::join4;
use host_tests::device::{Flash, Kept, Meter, Note, boot, chip, config, keys, numbers, poll_times};
use pillarbox::{Config, EnqueueError, Key, LaneConfig, Stored};

fn one_lane() -> Config<1> {
    config([LaneConfig::new(4)])
}

/// Asserts that keys rise strictly, which is order and uniqueness in one.
fn assert_rising(keys: &[Key]) {
    let rising = |pair: &[Key]| pair[0].counter < pair[1].counter;
    assert!(keys.windows(2).all(rising), "{keys:?}");
}

#[test]
fn first_in_is_first_out_over_wraps_and_reboots() {
    let chip = chip();
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut next, mut delivered) = (0, Vec::new());
    let mut last_counter = None;
    for _ in 0..60 {
        let mut meter = boot(&chip, &one_lane());
        for _ in 0..rng.usize(1..12) {
            // A ring that refuses has lost nothing; the note is posted when there is room.
            if let Ok(key) = meter.try_post(next) {
                assert!(last_counter < Some(key.counter), "{key:?} after {last_counter:?}");
                last_counter = Some(key.counter);
                next += 1;
            }
        }
        assert_rising(&keys(&meter.pending(0)));
        delivered.extend(meter.deliver(rng.usize(0..12)));
        if rng.bool() {
            meter.suspend();
        }
    }
    delivered.extend(boot(&chip, &one_lane()).deliver(usize::MAX));
    assert!(next > 200, "only {next} notes were posted: no wrap");
    assert_eq!(delivered, (0..next).collect::<Vec<_>>());
}

#[test]
fn lanes_keep_their_own_order_and_counters() {
    const LANES: usize = 5;
    let chip = chip();
    let config = config([LaneConfig::new(3); LANES]);
    let mut meter: Meter<LANES> = boot(&chip, &config);
    let mut posted = vec![Vec::new(); LANES];
    let mut rng = fastrand::Rng::with_seed(3);
    for number in 0..60 {
        let lane = rng.usize(0..LANES);
        let key = meter.try_post_in(lane as u8, number).unwrap();
        assert_eq!(usize::from(key.lane), lane);
        assert_eq!(key.counter as usize, posted[lane].len());
        posted[lane].push(number);
    }
    // Draining one lane leaves the others as they are.
    let drained = keys(&meter.pending(2));
    assert_eq!(meter.settle(2, &drained) as usize, posted[2].len());
    posted[2].clear();
    drop(meter);
    let meter = boot(&chip, &config);
    for (lane, posted) in posted.iter().enumerate() {
        assert_eq!(numbers(&meter.pending(lane as u8)), *posted, "lane {lane}");
    }
}

#[test]
fn a_full_lane_does_not_hinder_another() {
    let chip = chip();
    let mut meter: Meter<2> = boot(&chip, &config([LaneConfig::new(2), LaneConfig::new(2)]));
    let full = meter.fill(0);
    for number in 0..100 {
        let key = meter.try_post_in(1, number).unwrap();
        assert_eq!(meter.settle(1, &[key]), 1);
    }
    assert_eq!(numbers(&meter.pending(0)), full);
}

#[test]
fn a_key_of_one_lane_settles_nothing_in_another() {
    let chip = chip();
    let mut meter: Meter<2> = boot(&chip, &config([LaneConfig::new(2), LaneConfig::new(2)]));
    let key = meter.post(1);
    meter.try_post_in(1, 2).unwrap();
    assert_eq!(meter.settle(1, &[key]), 0);
    assert_eq!(numbers(&meter.pending(0)), [1]);
    assert_eq!(numbers(&meter.pending(1)), [2]);
}

#[test]
fn records_are_settled_by_key_in_whatever_order_in_one_pass() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    let posted = meter.post_all(0..30);
    let mut settled: Vec<Key> = posted.iter().copied().filter(|key| key.counter % 3 != 0).collect();
    fastrand::Rng::with_seed(5).shuffle(&mut settled);
    let reads = chip.counts().reads;
    assert_eq!(meter.settle(0, &settled) as usize, settled.len());
    let reads_of_many = chip.counts().reads - reads;
    let left: Vec<u32> = (0..30).filter(|number| number % 3 == 0).collect();
    assert_eq!(numbers(&meter.pending(0)), left);
    assert_eq!(meter.settle(0, &settled), 0, "they are gone already");
    let reads = chip.counts().reads;
    meter.pending(0);
    let reads_of_a_pass = chip.counts().reads - reads;
    assert!(
        reads_of_many <= 4 * reads_of_a_pass,
        "{reads_of_many} reads to settle, {reads_of_a_pass} to pass over the lane once"
    );
    drop(meter);
    assert_eq!(numbers(&boot(&chip, &one_lane()).pending(0)), left);
}

#[test]
fn producers_at_the_same_time_keep_the_order_of_keys_and_lose_nothing() {
    let chip = chip();
    let mut meter = boot(&chip, &one_lane());
    chip.set_yields(true);
    let outbox = meter.outbox;
    let produce = |first: u32| async move {
        let mut posted = Vec::new();
        for number in first..first + 8 {
            posted.push((outbox.enqueue(&Note::new(number)).await.unwrap(), number));
            embassy_futures::yield_now().await;
        }
        posted
    };
    let (a, b, c, d) = block_on(join4(produce(0), produce(100), produce(200), produce(300)));
    chip.set_yields(false);
    for one in [&a, &b, &c, &d] {
        assert_rising(&one.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    }
    let mut posted = [a, b, c, d].concat();
    posted.sort();
    let pending = meter.pending(0);
    assert_eq!(pending.iter().map(|kept| (kept.key, kept.number)).collect::<Vec<_>>(), posted);
    assert_eq!(
        keys(&pending).iter().map(|key| key.counter).collect::<Vec<_>>(),
        (0..32).collect::<Vec<_>>(),
        "a counter was skipped"
    );
    assert_eq!(meter.account(), []);
}

#[test]
fn producers_and_the_sender_do_not_disturb_each_other() {
    let chip = chip();
    let meter = boot(&chip, &one_lane());
    chip.set_yields(true);
    let outbox = meter.outbox;
    let mut drain = meter.drain;
    let produce = async {
        for number in 0..100 {
            while let Err(error) = outbox.enqueue(&Note::new(number)).await {
                assert_eq!(error, EnqueueError::Full);
                embassy_futures::yield_now().await;
            }
        }
    };
    let mut received = Vec::new();
    let send = async {
        while received.len() < 100 {
            let mut taken = Vec::new();
            let take = |stored: &Stored<'_>| {
                taken.push(Kept::read(stored));
                taken.len() < 5
            };
            drain.window(0, take).await.unwrap();
            drain.settle(0, &keys(&taken)).await.unwrap();
            received.extend(numbers(&taken));
            // The lock is not fair: a task that never waits for anything else keeps the others out.
            embassy_futures::yield_now().await;
        }
    };
    block_on(embassy_futures::join::join(produce, send));
    received.dedup();
    assert_eq!(received, (0..100).collect::<Vec<_>>());
}

/// Drops the next enqueue on a copy of the chip after every possible number of polls.
fn drop_an_enqueue_everywhere(before: &Flash, config: &Config<1>) {
    for polls in 1.. {
        let chip = before.clone();
        let mut meter = boot(&chip, config);
        let mut acknowledged = meter.pending(0);
        chip.set_yields(true);
        let finished = poll_times(meter.outbox.enqueue(&Note::new(1000)), polls);
        chip.set_yields(false);
        let after = meter.post(1001);
        let pending = meter.pending(0);
        assert_rising(&keys(&pending));
        assert_eq!(pending.last().unwrap().key, after);
        // What was evicted to make room is explained.
        acknowledged.retain(|kept| meter.explanation(kept.key).is_none());
        for kept in &acknowledged {
            assert!(pending.contains(kept), "{kept:?} is gone, dropped after {polls} polls");
        }
        assert_eq!(meter.stats().corrupt, 0, "a dropped future is no corruption");
        let dropped = pending.iter().filter(|kept| kept.number == 1000).count();
        assert!(dropped <= 1);
        if let Some(result) = &finished {
            assert_eq!(pending[pending.len() - 2].key, result.unwrap());
        }
        assert_eq!(pending.len(), acknowledged.len() + dropped + 1);
        drop(meter);
        assert_eq!(boot(&chip, config).pending(0), pending, "after {polls} polls and a reboot");
        if finished.is_some() {
            assert!(polls > 3, "it was never pending");
            return;
        }
    }
}

#[test]
fn an_enqueue_may_be_dropped_at_every_await() {
    let chip = chip();
    let meter = boot(&chip, &one_lane());
    drop_an_enqueue_everywhere(&chip, &one_lane());
    meter.post_all(0..5);
    drop(meter);
    drop_an_enqueue_everywhere(&chip, &one_lane());
}

#[test]
fn an_enqueue_that_evicts_may_be_dropped_at_every_await() {
    let chip = chip();
    boot(&chip, &one_lane()).fill(0);
    drop_an_enqueue_everywhere(&chip, &config([LaneConfig::new(4).evict_oldest()]));
}

#[test]
fn a_settle_may_be_dropped_at_every_await() {
    let before = chip();
    let posted = boot(&before, &one_lane()).post_all(0..12);
    let settled = [posted[1], posted[4], posted[5]];
    for polls in 1.. {
        let chip = before.clone();
        let mut meter = boot(&chip, &one_lane());
        chip.set_yields(true);
        let finished = poll_times(meter.drain.settle(0, &settled), polls);
        chip.set_yields(false);
        let pending: BTreeSet<Key> = keys(&meter.pending(0)).into_iter().collect();
        for key in &posted {
            assert!(settled.contains(key) || pending.contains(key), "{key:?} is gone");
        }
        meter.settle(0, &settled);
        assert_eq!(numbers(&meter.pending(0)), [0, 2, 3, 6, 7, 8, 9, 10, 11]);
        if finished.is_some() {
            return;
        }
    }
}
