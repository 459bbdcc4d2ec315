//! Claim: a record that cannot be sent steps aside without being lost, and a wrong answer, a wrong clock or a wrong
//! deployment does not empty a ring. A bug here either blocks a lane for ever or throws its records away.

use core::time::Duration;

use embassy_futures::block_on;
use host_tests::device::{Flash, Kept, Meter, boot, chip, config, for_every_cut, keys, numbers};
use pillarbox::{Cause, Config, Event, Key, LaneConfig, Reason};

const MINUTE: u64 = 60_000;
/// Some day in 2026.
const NOW: u64 = 1_790_000_000_000;

fn attempts(max: u16) -> Config<1> {
    config([LaneConfig::new(4).max_attempts(max)])
}

fn ten_minutes() -> Config<1> {
    config([LaneConfig::new(4).max_age(Duration::from_secs(600))])
}

/// Parks notes by rejecting each once; the lane is to allow one attempt.
fn park(meter: &mut Meter, numbers: impl IntoIterator<Item = u32>) -> Vec<Key> {
    let mut parked = Vec::new();
    for number in numbers {
        let key = meter.post(number);
        assert_eq!(meter.reject(0, &[key]).parked, 1);
        // The brake is not what these tests are about.
        block_on(meter.drain.resume_parking());
        parked.push(key);
    }
    parked
}

fn causes(kept: &[Kept]) -> Vec<Option<Cause>> {
    kept.iter().map(|kept| kept.cause).collect()
}

#[test]
fn a_record_rejected_too_often_is_parked_with_its_cause_and_the_rest_goes_on() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(3));
    let posted = meter.post_all(0..4);
    for attempt in 1..3 {
        let rejection = meter.reject(0, &[posted[1]]);
        assert_eq!((rejection.retrying, rejection.parked), (1, 0), "attempt {attempt}");
        assert_eq!(numbers(&meter.pending(0)), [0, 1, 2, 3]);
    }
    meter.events();
    let rejection = meter.reject(0, &[posted[1]]);
    assert_eq!((rejection.retrying, rejection.parked), (0, 1));
    assert_eq!(numbers(&meter.pending(0)), [0, 2, 3]);
    let dead = meter.dead_letters();
    assert_eq!((numbers(&dead), causes(&dead)), (vec![1], vec![Some(Cause::Rejected)]));
    assert_eq!(dead[0].key, posted[1]);
    assert_eq!(meter.explanation(posted[1]), Some(Reason::Parked));
    assert_eq!(meter.stats().lanes[0].given_up.of(Reason::Parked), 1);
    let parked = Event::Parked { key: posted[1], cause: Cause::Rejected };
    assert!(meter.events().contains(&parked));
    assert_eq!(meter.deliver(usize::MAX), [0, 2, 3]);
}

#[test]
fn dead_letters_survive_reboots_whole_and_in_order() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    park(&mut meter, 10..15);
    let dead = meter.dead_letters();
    assert_eq!(numbers(&dead), [10, 11, 12, 13, 14]);
    drop(meter);
    for _ in 0..3 {
        assert_eq!(boot(&chip, &attempts(1)).dead_letters(), dead);
    }
}

#[test]
fn parking_may_be_cut_at_every_operation_and_the_record_is_in_one_place() {
    let before = chip();
    let posted = boot(&before, &attempts(1)).post_all(0..3);
    for_every_cut(
        &before,
        |chip| {
            if let Ok(mut meter) = Meter::open(chip, &attempts(1)) {
                let _ = block_on(meter.drain.reject(0, &[posted[1]]));
            }
        },
        |chip| {
            let meter = boot(chip, &attempts(1));
            let mut everywhere = [meter.pending(0), meter.dead_letters()].concat();
            everywhere.sort_by_key(|kept| kept.key);
            assert_eq!(keys(&everywhere), posted);
        },
    );
}

#[test]
fn a_retried_dead_letter_keeps_its_key_and_travels_late_until_it_is_settled() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let parked = park(&mut meter, [7, 8]);
    assert_eq!(meter.late(), []);
    assert!(meter.retry(parked[1]));
    drop(meter);
    let mut meter = boot(&chip, &attempts(1));
    let late = meter.late();
    assert_eq!((keys(&late), numbers(&late)), (vec![parked[1]], vec![8]));
    assert_eq!(meter.pending(0), [], "it does not go back to the lane");
    assert_eq!(block_on(meter.drain.settle_late(&[parked[1]])), Ok(1));
    assert_eq!(meter.late(), []);
    assert_eq!(keys(&meter.dead_letters()), [parked[0]]);
    assert_eq!(meter.explanation(parked[1]), None, "it came after all");
    assert_eq!(meter.stats().lanes[0].delivered, 1);
    drop(meter);
    let mut meter = boot(&chip, &attempts(1));
    assert_eq!(meter.late(), []);
    assert_eq!(keys(&meter.dead_letters()), [parked[0]]);
}

#[test]
fn what_was_not_a_dead_letter_is_not_delivered_late() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let parked = park(&mut meter, [1]);
    let stranger = Key { counter: 999, ..parked[0] };
    assert_eq!(block_on(meter.drain.settle_late(&[stranger])), Ok(0));
    assert_eq!(meter.stats().lanes[0].delivered, 0);
}

#[test]
fn only_dead_letters_can_be_retried_and_four_at_a_time() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let pending = meter.post(100);
    assert!(!meter.retry(pending));
    let parked = park(&mut meter, 0..9);
    for key in &parked[..4] {
        assert!(meter.retry(*key));
        assert!(meter.retry(*key), "asking twice is asking once");
    }
    assert!(!meter.retry(parked[4]));
    assert_eq!(meter.late().len(), 4);
    assert_eq!(block_on(meter.drain.settle_late(&parked[..1])), Ok(1));
    assert!(meter.retry(parked[4]), "one was delivered, so there is room");
}

#[test]
fn a_discarded_dead_letter_is_gone_and_accounted_for_finally() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let parked = park(&mut meter, [7, 8]);
    assert!(meter.retry(parked[0]));
    assert!(meter.discard(parked[0]));
    assert!(!meter.discard(parked[0]));
    assert_eq!(meter.late(), []);
    drop(meter);
    let mut meter = boot(&chip, &attempts(1));
    assert_eq!(numbers(&meter.dead_letters()), [8]);
    assert_eq!(meter.explanation(parked[0]), Some(Reason::Rejected));
    assert_eq!(meter.explanation(parked[1]), Some(Reason::Parked));
}

#[test]
fn a_full_dead_letter_ring_gives_up_its_oldest_and_accounts_for_it() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let parked = park(&mut meter, 0..100);
    let dead = meter.dead_letters();
    let first = dead[0].number;
    assert!(first > 0 && dead.len() > 5, "{} of 100 are there", dead.len());
    assert_eq!(numbers(&dead), (first..100).collect::<Vec<_>>(), "the youngest stay");
    for (key, number) in parked.iter().zip(0..) {
        let expected = if number < first { Reason::Rejected } else { Reason::Parked };
        assert_eq!(meter.explanation(*key), Some(expected), "note {number}");
    }
    assert_eq!(meter.stats().lanes[0].given_up.of(Reason::Rejected), first);
}

/// Rejects a note until it is parked; says how many rejections that took.
fn rejections_until_parked(meter: &mut Meter, key: Key) -> u32 {
    (1..).find(|_| meter.reject(0, &[key]).parked == 1).unwrap()
}

#[test]
fn attempts_are_written_down_at_powers_of_two() {
    // After so many rejections and a reboot, so many are remembered.
    for (rejections, remembered) in [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8)] {
        let chip = chip();
        let mut meter = boot(&chip, &attempts(10));
        let key = meter.post(1);
        for _ in 0..rejections {
            meter.reject(0, &[key]);
        }
        drop(meter);
        let mut meter = boot(&chip, &attempts(10));
        assert_eq!(rejections_until_parked(&mut meter, key), 10 - remembered, "{rejections} rejections");
    }
}

#[test]
fn a_clean_stop_keeps_every_attempt() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(10));
    let key = meter.post(1);
    for _ in 0..7 {
        meter.reject(0, &[key]);
    }
    meter.suspend();
    drop(meter);
    assert_eq!(rejections_until_parked(&mut boot(&chip, &attempts(10)), key), 3);
}

#[test]
fn counting_attempts_wears_little() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(u16::MAX));
    let key = meter.post(1);
    let before = chip.counts().programs;
    for _ in 0..1000 {
        meter.reject(0, &[key]);
    }
    let programs = chip.counts().programs - before;
    assert!(programs <= 2 * 10 + 2, "{programs} programs for 1000 rejections");
}

#[test]
fn records_that_are_gone_leave_the_count_of_attempts_to_others() {
    // Few records are counted at a time: those that were evicted or superseded must not keep their places.
    let chip = chip();
    let mut meter = boot(&chip, &config([LaneConfig::new(4).evict_oldest().max_attempts(2)]));
    let evicted = meter.post_all(0..8);
    for key in &evicted {
        meter.reject(0, &[*key]);
    }
    meter.post_all(8..100);
    assert!(evicted.iter().all(|key| !keys(&meter.pending(0)).contains(key)));
    let poison = meter.post(1000);
    assert_eq!(meter.reject(0, &[poison]).retrying, 1);
    assert_eq!(meter.reject(0, &[poison]).parked, 1);
}

#[test]
fn superseded_records_leave_the_count_of_attempts_to_others() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(2));
    for number in 0..8 {
        let key = meter.try_post_once(1, number).unwrap();
        meter.reject(0, &[key]);
    }
    let poison = meter.post(1000);
    assert_eq!(meter.reject(0, &[poison]).retrying, 1);
    assert_eq!(meter.reject(0, &[poison]).parked, 1);
}

#[test]
fn after_eight_in_a_row_parking_pauses_until_a_delivery() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let posted = meter.post_all(0..20);
    for key in &posted[..8] {
        assert_eq!(meter.reject(0, &[*key]).parked, 1);
    }
    meter.events();
    let rejection = meter.reject(0, &[posted[8]]);
    assert!(rejection.is_paused);
    assert_eq!((rejection.parked, rejection.retrying), (0, 1));
    assert!(meter.events().contains(&Event::ParkingPaused { lane: 0 }));
    assert_eq!(meter.pending(0).len(), 12, "nothing more is taken from the lane");
    assert_eq!(meter.settle(0, &[posted[19]]), 1);
    let rejection = meter.reject(0, &[posted[8]]);
    assert_eq!((rejection.parked, rejection.is_paused), (1, false));
}

#[test]
fn settling_what_is_not_there_is_no_delivery_and_does_not_release_the_brake() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let posted = meter.post_all(0..10);
    for key in &posted[..8] {
        meter.reject(0, &[*key]);
    }
    assert_eq!(meter.settle(0, &posted[..1]), 0, "it was parked");
    assert!(meter.reject(0, &[posted[8]]).is_paused);
}

#[test]
fn the_application_can_release_the_brake() {
    let chip = chip();
    let mut meter = boot(&chip, &attempts(1));
    let posted = meter.post_all(0..10);
    for key in &posted[..8] {
        meter.reject(0, &[*key]);
    }
    assert!(meter.reject(0, &[posted[8]]).is_paused);
    block_on(meter.drain.resume_parking());
    assert_eq!(meter.reject(0, &[posted[8]]).parked, 1);
}

#[test]
fn a_record_expires_by_uptime() {
    let chip = chip();
    let mut meter = boot(&chip, &ten_minutes());
    meter.post(1);
    meter.uptime.advance(6 * MINUTE);
    meter.post(2);
    meter.uptime.advance(4 * MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1, 2], "ten minutes are not more than ten");
    meter.uptime.advance(1);
    let (window, shown) = meter.window(0);
    assert_eq!(numbers(&shown), [2]);
    assert_eq!(window.floor, shown[0].key.counter);
    let dead = meter.dead_letters();
    assert_eq!((numbers(&dead), causes(&dead)), (vec![1], vec![Some(Cause::Expired)]));
    assert!(meter.discard(dead[0].key));
    assert_eq!(meter.explanation(dead[0].key), Some(Reason::Expired));
}

/// A device that posts a note at a known time, and the next boot of it, so many minutes later.
fn reboot_after(chip: &Flash) -> Meter<'_> {
    let mut meter = boot(chip, &ten_minutes());
    meter.learn_time(NOW);
    meter.post(1);
    drop(meter);
    boot(chip, &ten_minutes())
}

#[test]
fn a_record_expires_across_boots_when_the_time_is_known() {
    let chip = chip();
    let mut meter = reboot_after(&chip);
    meter.learn_time(NOW + 9 * MINUTE);
    meter.learn_time(NOW + 9 * MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1]);
    meter.uptime.advance(2 * MINUTE);
    assert_eq!(meter.window(0).1, []);
    assert_eq!(numbers(&meter.dead_letters()), [1]);
}

#[test]
fn a_record_does_not_expire_while_the_time_is_unknown() {
    let chip = chip();
    let mut meter = reboot_after(&chip);
    meter.uptime.advance(1000 * MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1], "this boot does not know the time");
    drop(meter);
    let chip = self::chip();
    let meter = boot(&chip, &ten_minutes());
    meter.post(1);
    drop(meter);
    let mut meter = boot(&chip, &ten_minutes());
    meter.learn_time(NOW);
    meter.learn_time(NOW);
    meter.uptime.advance(1000 * MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1], "that boot did not");
}

#[test]
fn a_jump_of_the_clock_expires_nothing_until_a_second_answer_agrees() {
    let chip = chip();
    let mut meter = reboot_after(&chip);
    meter.learn_time(NOW + MINUTE);
    meter.learn_time(NOW + MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1]);
    meter.learn_time(NOW + 1_000_000 * MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1], "one answer jumped");
    meter.learn_time(NOW + MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1], "the next said that it was nonsense");
    meter.learn_time(NOW + 1_000_000 * MINUTE);
    meter.learn_time(NOW + 2_000_000 * MINUTE);
    assert_eq!(numbers(&meter.window(0).1), [1], "two answers that do not agree");
    meter.learn_time(NOW + 2_000_000 * MINUTE);
    assert_eq!(meter.window(0).1, [], "two that do");
}

#[test]
fn a_clock_set_back_expires_nothing() {
    let chip = chip();
    let mut meter = reboot_after(&chip);
    for _ in 0..3 {
        meter.learn_time(NOW - 1_000_000 * MINUTE);
        assert_eq!(numbers(&meter.window(0).1), [1]);
    }
}
