//! The receiver's books do what the model's do, which are proved in `host-tests` to be exact: whatever a device or an
//! attacker sends, both say the same after every step. And they come back from the bytes that a database keeps, which are
//! few, and whatever else the database gives back is refused without a panic.
//!
//! Every life has a seed. One that fails is named and lived again with `BOOKS_SEED`.

mod twin;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use host_tests::abstract_device::{Device, Habits, Sent};
use host_tests::server::books::Said as ModelSaid;
use pillarbox::wire::WINDOW;
use pillarbox::{Entry, Reason};
use pillarbox_receiver::books::{Books, BooksError, Said};
use twin::{COUNTER_END, Largest, Twin, any_entry, places, stored};

/// Lives all seeds, or the one that is asked for, and gives the longest stored books of all.
fn live_all(seeds: u64, life: impl Fn(&mut Rng) -> Largest) -> Largest {
    let asked = std::env::var("BOOKS_SEED").ok().map(|text| text.parse::<u64>().expect("it is a number"));
    let mut largest = Largest::default();
    for seed in asked.map_or(0..seeds, |seed| seed..seed + 1) {
        match catch_unwind(AssertUnwindSafe(|| life(&mut Rng::with_seed(seed)))) {
            Ok(one) => largest = largest.or(one),
            Err(_) => panic!("seed {seed} fails; live it again with BOOKS_SEED={seed}"),
        }
    }
    println!(
        "the longest books have {} bytes; without 16 for each open range, {}",
        largest.len, largest.base
    );
    largest
}

/// A device that means well, on a way on which everything can happen, and in the end nothing any more.
fn live_with_a_device(random: &mut Rng) -> Largest {
    let habits = Habits::any(random);
    let mut device = Device::new(habits, random.u64(..1 << 60) * u64::from(random.u8(..4) == 0));
    let mut twin = Twin::default();
    let mut backup = (twin.model.clone(), twin.ours.encode());
    let mut on_the_way: Vec<Sent> = Vec::new();
    for _ in 0..random.usize(1..50) {
        device.live(random);
        match random.u8(..40) {
            // A batch of an earlier boot is stale, which is no matter of the books.
            0..=2 => {
                on_the_way.clear();
                device.reboot(random, twin.ours.issued());
            }
            3 => backup = (twin.model.clone(), twin.ours.encode()),
            4 if habits.is_restored => {
                twin.model = backup.0.clone();
                twin.ours = Books::decode(&backup.1).expect("these were written");
                device.is_exact = false;
            }
            _ => {}
        }
        on_the_way.push(device.batch(random));
        let refused = if random.bool() { random.u64(1..6) } else { 0 };
        while !on_the_way.is_empty() && random.u8(..4) > 0 {
            let at = random.usize(..on_the_way.len());
            let sent = if random.bool() { on_the_way[at].clone() } else { on_the_way.swap_remove(at) };
            let answer = twin.take(random, &sent, |counter| refused > 0 && counter % 6 < refused);
            device.had_no_room |= answer.is_uncertain_waiting(&sent);
            if random.u8(..3) > 0 {
                device.hear(&sent, &answer);
            }
        }
    }
    converge(random, &mut device, &mut twin);
    twin.largest
}

fn converge(random: &mut Rng, device: &mut Device, twin: &mut Twin) {
    device.stop();
    for round in 0.. {
        let sent = device.batch(random);
        let answer = twin.take(random, &sent, |_| false);
        device.hear(&sent, &answer);
        if device.is_done() && twin.ours.is_closed() {
            break;
        }
        assert!(round < 500, "no end: {device:?}");
    }
}

/// A counter near to something that the books know, or anywhere.
fn any_place(random: &mut Rng, books: &Books) -> u64 {
    let known = places(random, books);
    let near = random.choice(known).expect("there are some");
    match random.u8(..16) {
        0 => random.u64(..=COUNTER_END),
        1..=4 => near.saturating_add(random.u64(..2 * WINDOW)).min(COUNTER_END),
        5..=6 => near.saturating_sub(random.u64(..2 * WINDOW)),
        _ => near,
    }
}

/// A batch that an envelope can hold, and no device would send.
fn hostile(random: &mut Rng, books: &Books) -> Sent {
    let (one, other) = match random.u8(..4) {
        // So that the lane goes on from where it is, in steps that can be followed.
        0 => (any_place(random, books), any_place(random, books)),
        1 => (books.claimed(), books.issued()),
        _ => (books.floor() + random.u64(..90), books.issued() + random.u64(..90)),
    };
    let (floor, issued) = (one.min(other).min(COUNTER_END), one.max(other).min(COUNTER_END));
    let entries = (0..random.usize(..=32) * random.usize(..2)).map(|_| {
        let first = if random.bool() { any_place(random, books) } else { floor + random.u64(..300) };
        let len = match random.u8(..8) {
            0 => {
                let end = [floor, issued, books.issued(), any_place(random, books)];
                random.choice(end).expect("there are some").saturating_sub(first).max(1)
            }
            1 => random.u64(1..300),
            2 => u64::MAX,
            _ => random.u64(1..4),
        };
        any_entry(random, first, len)
    });
    let entries = entries.collect();
    let (step, at_most) = (random.usize(1..5), 1 << random.u8(..9));
    let reach = floor..issued.min(floor + WINDOW);
    let records = reach.step_by(step).filter(|_| random.u8(..8) > 0).take(at_most).collect();
    let late =
        (0..random.usize(..16)).map(|_| any_place(random, books)).filter(|n| *n < COUNTER_END).collect();
    let said = ModelSaid { floor, issued, is_closing: random.u8(..20) == 0 };
    Sent { said, entries, records, late }
}

/// A lane that somebody who has the device's secret plays with, from the first counters on or near to the last.
fn live_with_an_attacker(random: &mut Rng) -> Largest {
    let mut twin = Twin::default();
    let start = match random.u8(..4) {
        0 => COUNTER_END - random.u64(..3 * WINDOW),
        1 => (1 << 32) - random.u64(..3 * WINDOW),
        2 => random.u64(..COUNTER_END),
        _ => 0,
    };
    if start > 0 {
        let said = ModelSaid { floor: start, issued: start, is_closing: false };
        let entries = vec![any_entry(random, 0, start)];
        twin.take(random, &Sent { said, entries, records: vec![], late: vec![] }, |_| false);
    }
    for _ in 0..random.usize(1..30) {
        let sent = hostile(random, &twin.ours);
        let refused = random.u64(..3);
        twin.take(random, &sent, |counter| counter % 7 < refused);
        if random.u8(..4) == 0 {
            twin.take(random, &sent, |_| false);
        }
    }
    twin.largest
}

/// Numbers that no envelope can hold: the model does not know them. Nothing may panic, and the books stay books.
fn live_beyond_envelopes(random: &mut Rng, books: &mut Books) -> Largest {
    let mut largest = Largest::default();
    let any = |random: &mut Rng, books: &Books| match random.u8(..3) {
        0 => any_place(random, books),
        1 => u64::MAX - random.u64(..3),
        _ => random.u64(..) >> random.u8(..64),
    };
    for _ in 0..random.usize(1..10) {
        let mut said =
            || Said { floor: any(random, books), issued: any(random, books), is_closing: random.bool() };
        let (first_said, last_said) = (said(), said());
        let entries: Vec<Entry> = (0..random.usize(..70))
            .map(|_| {
                let (first, len) = (any(random, books), any(random, books));
                any_entry(random, first, len)
            })
            .collect();
        books.begin(&first_said, &entries);
        largest = largest.or(stored(books));
        for _ in 0..random.usize(..100) {
            books.store(any(random, books));
        }
        let last_said = if random.bool() { first_said } else { last_said };
        books.finish(&last_said, &entries);
        largest = largest.or(stored(books));
        assert_adds_up(books);
    }
    largest
}

fn assert_adds_up(books: &Books) {
    let ledger = books.ledger();
    let others = [ledger.received, ledger.pending, ledger.unexplained];
    let sum = others.iter().chain(&ledger.explained).map(|count| u128::from(*count)).sum::<u128>();
    assert_eq!(sum, u128::from(ledger.issued), "{ledger:?}");
    assert!(books.floor() <= books.claimed() && books.claimed() <= books.issued());
    assert!(books.issued() <= COUNTER_END);
}

#[test]
fn books_say_what_the_model_says_to_a_device() {
    live_all(1500, live_with_a_device);
}

#[test]
fn books_say_what_the_model_says_to_an_attacker() {
    live_all(2000, live_with_an_attacker);
}

#[test]
fn numbers_that_no_envelope_holds_do_no_harm() {
    live_all(4000, |random| live_beyond_envelopes(random, &mut Books::default()));
}

/// Books as a database may give them back: some of it changed, cut or repeated, or other bytes altogether.
fn damaged(random: &mut Rng) -> Vec<u8> {
    let mut twin = Twin::default();
    for _ in 0..random.usize(..6) {
        let sent = hostile(random, &twin.ours);
        let said = twin::said(&sent.said);
        twin.ours.begin(&said, &sent.entries);
        sent.records.iter().chain(&sent.late).for_each(|counter| twin.ours.store(*counter));
        twin.ours.finish(&said, &sent.entries);
    }
    let mut bytes = twin.ours.encode();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..bytes.len());
        match random.u8(..6) {
            0..=2 => bytes[at] ^= 1 << random.u8(..8),
            3 => bytes[at] = random.u8(..),
            4 => bytes.insert(at, random.u8(..)),
            _ => drop(bytes.remove(at)),
        }
        if bytes.is_empty() || random.u8(..8) == 0 {
            bytes = (0..random.usize(1..300)).map(|_| random.u8(..)).collect();
            bytes[0] = 1;
        }
    }
    bytes
}

#[test]
fn damaged_books_are_refused_or_are_books() {
    live_all(20_000, |random| {
        let bytes = damaged(random);
        let Ok(mut books) = Books::decode(&bytes) else { return Largest::default() };
        assert_eq!(books.encode(), bytes, "one state has one form");
        assert_adds_up(&books);
        let largest = stored(&books);
        largest.or(live_beyond_envelopes(random, &mut books))
    });
}

#[test]
fn books_of_another_version_are_told_from_damaged_ones() {
    assert_eq!(Books::decode(&[2, 0, 0, 0, 0, 0, 0, 0]), Err(BooksError::Version(2)));
    assert!(matches!(Books::decode(&[]), Err(BooksError::Damaged(_))));
    assert_eq!(Books::decode(&Books::default().encode()), Ok(Books::default()));
}

#[test]
fn a_lane_that_was_received_in_order_takes_few_bytes() {
    let mut random = Rng::with_seed(1);
    let (mut books, mut next, mut longest) = (Books::default(), 0, 0);
    while next < 1 << 22 {
        let end = next + random.u64(1..=WINDOW);
        let said = Said { floor: next, issued: end + random.u64(..5000), is_closing: false };
        books.begin(&said, &[]);
        (next..end).for_each(|counter| books.store(counter));
        let closing = books.finish(&said, &[]);
        assert_eq!((closing.confirmed, closing.explain.len()), (0, 0));
        longest = longest.max(books.encode().len());
        next = end;
    }
    println!("the longest books of a lane in order have {longest} bytes");
    assert!(longest < 40, "{longest} bytes");
}

#[test]
fn the_longest_books_there_can_be_keep_to_their_size() {
    // 2^28, which is the least that takes five bytes, and fits so often below 2^32.
    let varint = [0x80, 0x80, 0x80, 0x80, 0x01];
    let count = [0, 0, 0, 0x10];
    // Version 1; closing, forgotten and bits; the floor is eleven times 2^28.
    let mut bytes = vec![0x01, 0x07, 0x80, 0x80, 0x80, 0x80, 0x0b];
    bytes.extend([varint, varint, varint].concat());
    bytes.extend([0x55; WINDOW as usize / 8]);
    bytes.push(0);
    bytes.extend([0xff, 0x43]);
    bytes.extend(varint);
    bytes.extend([count; Reason::COUNT].concat());
    let books = Books::decode(&bytes).expect("there can be such books");
    assert_eq!(books.ledger().explained, [1 << 28; Reason::COUNT]);
    println!("the longest books without an open range have {} bytes", stored(&books).len);
}

#[test]
fn stored_books_are_as_the_specification_says() {
    let entry = |reason, first, len| Entry { incarnation: 1, lane: 0, reason, first, len };
    let mut books = Books::default();
    // Dead letters at 0, 2, 4 and so on: more than there is room for. All but one come later.
    let parked: Vec<Entry> = (0..33).map(|n| entry(Reason::Parked, 2 * n, 1)).collect();
    let said = Said { floor: 0, issued: 66, is_closing: false };
    for some in parked.chunks(32) {
        books.begin(&said, some);
        (0..33).for_each(|n| books.store(2 * n + 1));
        books.finish(&said, some);
        books.begin(&Said { floor: 64, ..said }, &[]);
    }
    books.begin(&Said { floor: 66, ..said }, &[]);
    (2..33).for_each(|n| books.store(2 * n));
    let said = Said { floor: 70, issued: 300, is_closing: true };
    let entries = [entry(Reason::Expired, 75, 200)];
    books.begin(&said, &entries);
    [66, 67, 68, 71, 72].into_iter().for_each(|counter| books.store(counter));
    books.finish(&said, &entries);
    let hex: String = books.encode().iter().map(|byte| format!("{byte:02x} ")).collect();
    let specification = include_str!("../../SPEC.md");
    assert!(specification.contains(hex.trim()), "the example is now {hex}");
    assert_eq!((books.floor(), books.claimed(), books.issued(), books.open().len()), (69, 70, 300, 2));
}
