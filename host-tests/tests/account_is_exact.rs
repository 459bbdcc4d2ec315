//! Every counter below the floor was delivered, or is in exactly one entry of the account, and the entry tells the
//! true reason.

use core::cell::Cell;
use std::collections::BTreeMap;

use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use host_tests::flash::{Chip, Tear};
use host_tests::life::{Reading, VirtualClock, record_max};
use pillarbox::{Config, DeviceId, Entry, Key, LaneConfig, Reason, Resources, buffer_size};

const RECORD: usize = record_max(20);
const BUFFER: usize = buffer_size(1, RECORD);

type Flash = Chip<4, 4, 256>;

fn config() -> Config<1> {
    let device = DeviceId::new("meter-1").expect("it is a device id");
    Config::new(device, [LaneConfig::new(4).evict_oldest().max_attempts(1)])
}

/// Opens the outbox and binds its two handles.
macro_rules! open {
    ($chip:expr, $clock:expr, $outbox:ident, $drain:ident) => {
        let mut resources = Resources::<_, 1, RECORD, BUFFER, NoopRawMutex, VirtualClock<'_>>::new();
        let opened = block_on(pillarbox::new(&mut resources, $chip, VirtualClock($clock), 7, config()));
        #[allow(unused_mut)]
        let ($outbox, mut $drain) = opened.expect("the flash is sound");
    };
}

/// What is said about each counter below `floor`, delivered ones left out.
fn explained(account: &[Entry], floor: u64) -> BTreeMap<u64, Vec<Reason>> {
    let mut reasons: BTreeMap<u64, Vec<Reason>> = BTreeMap::new();
    for entry in account {
        for counter in entry.first..entry.end().min(floor) {
            reasons.entry(counter).or_default().push(entry.reason);
        }
    }
    reasons
}

#[test]
fn every_way_to_give_up_a_record_is_told_by_its_reason() {
    let chip = Flash::new(40, 1);
    let clock = Cell::new(1);
    let mut expected: BTreeMap<u64, Reason> = BTreeMap::new();
    let mut delivered = Vec::new();
    {
        open!(&chip, &clock, outbox, drain);
        let post =
            |serial| block_on(outbox.enqueue(&Reading::<20>::new(serial))).expect("there is room").counter;
        // Superseded: of three settings the last stays.
        let set = |serial| {
            block_on(outbox.enqueue_once(9, &Reading::<20>::new(serial))).expect("there is room").counter
        };
        let settings = [set(0), set(1), set(2)];
        expected.insert(settings[0], Reason::Superseded);
        expected.insert(settings[1], Reason::Superseded);
        // Delivered.
        let keys = keys_of(&mut drain, 10);
        assert_eq!(keys.len(), 1);
        block_on(drain.settle(0, &keys)).expect("the flash is sound");
        delivered.push(settings[2]);
        // Parked, then one of two discarded.
        let rejected = [post(3), post(4)];
        let keys = keys_of(&mut drain, 2);
        block_on(drain.reject(0, &keys)).expect("the flash is sound");
        assert!(block_on(outbox.dead_letters().discard(keys[0])).expect("the flash is sound"));
        expected.insert(rejected[0], Reason::Rejected);
        expected.insert(rejected[1], Reason::Parked);
        // Aborted: the driver fails in the middle of the append.
        chip.fail_after(6);
        let aborted = (5..).find(|&serial| block_on(outbox.enqueue(&Reading::<20>::new(serial))).is_err());
        let aborted = aborted.expect("the driver fails");
        let before = (5..aborted).count() as u64;
        let after = post(100);
        let counter = rejected[1] + before + 1;
        assert_eq!(after, counter + 1, "the aborted counter is not used again");
        expected.insert(counter, Reason::Aborted);
        // Evicted: the ring wraps.
        let mut evicted_below = 0;
        for serial in 101..140 {
            post(serial);
            let mut oldest = None;
            block_on(outbox.inspect(0, |stored| oldest = oldest.or(Some(stored.key.counter))))
                .expect("sound");
            evicted_below = oldest.expect("there are records");
        }
        for counter in rejected[1] + 1..evicted_below {
            expected.entry(counter).or_insert(Reason::Evicted);
        }
        assert!(expected.values().any(|reason| *reason == Reason::Evicted));

        let account = block_on(drain.account());
        let floor = block_on(drain.window(0, |_| false)).expect("the flash is sound").floor;
        assert_eq!(floor, evicted_below);
        check(&account, floor, &expected, &delivered);
    }
    // Nothing of this is forgotten without power, and the lease that was lost is uncertain.
    open!(&chip, &clock, outbox, drain);
    let account = block_on(drain.account());
    let window = block_on(drain.window(0, |_| false)).expect("the flash is sound");
    check(&account, window.floor, &expected, &delivered);
    let uncertain: Vec<_> = account.iter().filter(|entry| entry.reason == Reason::Uncertain).collect();
    assert!(
        matches!(uncertain[..], [entry] if entry.end() == window.issued && entry.len <= 64),
        "{account:?}"
    );
    let _ = outbox;
}

fn keys_of(
    drain: &mut pillarbox::Drain<'_, &Flash, 1, RECORD, NoopRawMutex, VirtualClock<'_>>,
    most: usize,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let window = block_on(drain.window(0, |stored| {
        let room = keys.len() < most;
        if room {
            keys.push(stored.key);
        }
        room
    }));
    window.expect("the flash is sound");
    keys
}

fn check(account: &[Entry], floor: u64, expected: &BTreeMap<u64, Reason>, delivered: &[u64]) {
    let said = explained(account, floor);
    for counter in (0..floor).filter(|counter| !delivered.contains(counter)) {
        let reasons = said.get(&counter).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(reasons, [expected[&counter]], "counter {counter} in {account:?}");
    }
}

#[test]
fn an_eviction_that_is_cut_is_told_once_and_truly() {
    // Fill the ring, then cut the append that evicts at each of its operations.
    for op in 0.. {
        let chip = Flash::new(40, 1);
        let clock = Cell::new(1);
        let mut posted = 0;
        {
            open!(&chip, &clock, outbox, _dispatcher);
            for serial in 0..9 {
                posted =
                    block_on(outbox.enqueue(&Reading::<20>::new(serial))).expect("there is room").counter + 1;
            }
            chip.cut_after(op, Tear::AFTER);
            for serial in 9..40 {
                match block_on(outbox.enqueue(&Reading::<20>::new(serial))) {
                    Ok(key) => posted = key.counter + 1,
                    Err(_) => break,
                }
            }
        }
        let was_cut = !chip.is_powered();
        chip.cancel_cut();
        chip.power_on();
        open!(&chip, &clock, outbox, drain);
        let mut pending = Vec::new();
        block_on(outbox.inspect(0, |stored| pending.push(stored.key.counter))).expect("the flash is sound");
        let account = block_on(drain.account());
        let said = explained(&account, u64::MAX);
        for counter in 0..posted {
            let evicted = said.get(&counter).is_some_and(|reasons| reasons == &[Reason::Evicted]);
            assert!(
                evicted != pending.contains(&counter),
                "cut at {op}: counter {counter}, pending {pending:?}, account {account:?}"
            );
        }
        if !was_cut {
            let evicts = account.iter().any(|entry| entry.reason == Reason::Evicted && entry.len > 3);
            assert!(evicts && op > 20, "the scenario has {op} operations: {account:?}");
            return;
        }
    }
}

#[test]
fn a_receiver_that_asks_is_answered_and_confirmation_is_remembered() {
    let chip = Flash::new(40, 1);
    let clock = Cell::new(1);
    open!(&chip, &clock, outbox, drain);
    for serial in 0..8 {
        block_on(outbox.enqueue(&Reading::<20>::new(serial))).expect("there is room");
    }
    let keys = keys_of(&mut drain, 8);
    // The receiver lost what it had of 0..3 in a crash: the device has settled it and can only say "lost".
    block_on(drain.settle(0, &keys[..3])).expect("the flash is sound");
    let asked = Entry { incarnation: keys[0].incarnation, lane: 0, reason: Reason::Lost, first: 0, len: 100 };
    block_on(drain.explain(asked)).expect("the flash is sound");
    let account = block_on(drain.account());
    assert_eq!(
        account.as_slice(),
        [Entry { first: 0, len: 3, ..asked }],
        "what is pending is not explained away"
    );
    block_on(drain.confirm(&[Entry { first: 0, len: 2, ..asked }]));
    assert_eq!(block_on(drain.account()).as_slice(), [Entry { first: 2, len: 1, ..asked }]);
    let _ = outbox;
}
