//! Batches are taken exactly once in effect, whatever they hold and however often they come.

use std::sync::Arc;

use bytes::Bytes;
use pillarbox::wire::{Secret, TagKeys};
use pillarbox::{DeviceKey, Entry, Key, Reason};
use pillarbox_receiver::intake::{Arrival, Aside, Outcome, Post, SecretUsed};
use pillarbox_receiver::store::{Change, RecordQuery, Source, StoreError};

use super::{Device, Fresh, INCARNATION, NOW, SECRET, counters, everything, on_both, record};

const QUARANTINED: Outcome = Outcome::Aside(Aside::Quarantined);
const CONFLICT: Outcome = Outcome::Aside(Aside::Conflict);
const UNREADABLE: Outcome = Outcome::Aside(Aside::Unreadable);

/// What tells keys apart.
fn tag_of(keys: &TagKeys) -> [u8; 16] {
    keys.batch_tag(b"a batch")
}

/// The same key, another content.
fn other(mut record: Arrival) -> Arrival {
    record.body = Bytes::from_static(b"something else");
    record
}

/// The batch under another incarnation.
fn under(mut post: Post, incarnation: u32) -> Post {
    post.head.incarnation = incarnation;
    post.records.iter_mut().for_each(|record| record.key.incarnation = incarnation);
    post
}

async fn aside_of(fresh: &Fresh, device: &Device, counter: u64) -> Vec<(Option<Aside>, Vec<u8>)> {
    let key =
        DeviceKey { device: device.name.clone(), key: Key { incarnation: INCARNATION, lane: 0, counter } };
    let rows = fresh.store.get(&key).await.expect("it is sound");
    rows.into_iter().map(|row| (row.aside, row.body)).collect()
}

on_both! {
    what_is_new_is_stored_and_what_comes_again_is_not,
    the_same_key_with_another_content_is_kept_beside,
    a_boot_that_is_over_is_quarantined_and_changes_no_books,
    what_nobody_can_read_is_kept_raw_and_counts_as_received,
    late_records_go_into_the_books_of_their_own_lanes,
    dead_letters_of_a_fenced_incarnation_are_quarantined,
    hostile_numbers_hurt_nobody_else,
    a_fenced_incarnation_is_quarantined,
    an_incarnation_that_was_given_up_is_nobodys_lag_until_it_is_heard_again,
    a_new_secret_takes_the_old_ones_place_when_it_is_used,
    who_was_revoked_is_not_let_in_any_more,
    copies_of_a_batch_that_come_at_once_are_stored_once,
    one_that_cannot_be_taken_fails_alone,
    what_is_kept_aside_is_read_page_by_page,
}

async fn what_is_new_is_stored_and_what_comes_again_is_not(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let mut post = device.batch(0..100);
    post.report = vec![1, 2, u32::MAX];
    post.head.wall_ms = Some(NOW - 1000);
    assert_eq!(device.outcomes(&post).await, [Outcome::Stored; 100]);
    assert_eq!(device.outcomes(&post).await, [Outcome::Duplicate; 100]);
    let next = device.outcomes(&device.batch(98..102)).await;
    assert_eq!(next, [Outcome::Duplicate, Outcome::Duplicate, Outcome::Stored, Outcome::Stored]);
    let log = fresh.log().await;
    assert_eq!(counters(&log), (0..102).collect::<Vec<u64>>());
    let Source::Device { key, time } = &log[50].source else { panic!("it is from a device") };
    let sent = record(INCARNATION, 0, 50);
    assert_eq!((key, *time), (&sent.key.of(&device.name), sent.time));
    assert_eq!((log[50].kind, &log[50].body[..], log[50].received_ms), (sent.kind, &sent.body[..], NOW));
    let lanes = fresh.store.lanes(device.id).await.expect("it is sound");
    let state = &lanes[0].state;
    assert_eq!((lanes.len(), state.books.floor(), state.books.issued()), (1, 98, 102));
    assert_eq!((state.heard_ms, state.clock_offset_ms), (NOW, Some(-1000)));
    assert_eq!(state.report, Some((NOW, vec![1, 2, u32::MAX])));
    let count = fresh.store.count(device.id, INCARNATION, 0).await.expect("it is sound");
    assert_eq!(count, 102);
}

async fn the_same_key_with_another_content_is_kept_beside(fresh: Fresh) {
    let device = fresh.device("meter").await;
    device.take(&device.batch(0..3)).await;
    let mut post = device.batch(0..3);
    post.records[1] = other(record(INCARNATION, 0, 1));
    let concluded = device.take(&post).await;
    assert_eq!(concluded.outcomes, [Outcome::Duplicate, CONFLICT, Outcome::Duplicate]);
    assert!(concluded.is_renew);
    assert_eq!(device.outcomes(&post).await[1], CONFLICT, "it is kept once, however often it comes");
    let kept = aside_of(&fresh, &device, 1).await;
    assert_eq!(kept, [(None, b"record 1".to_vec()), (Some(Aside::Conflict), b"something else".to_vec())]);
    let device = fresh.store.device(&device.name).await.expect("it is sound").expect("it was added");
    assert_eq!(device.conflicts, 2);
}

async fn a_boot_that_is_over_is_quarantined_and_changes_no_books(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let mut young = device.batch(0..3);
    young.head.boot = 5;
    device.take(&young).await;
    let books = fresh.store.lanes(device.id).await.expect("it is sound")[0].state.clone();
    let mut stale = device.batch(2..5);
    stale.head.boot = 4;
    let concluded = device.take(&stale).await;
    assert_eq!(concluded.outcomes, [Outcome::Duplicate, QUARANTINED, QUARANTINED]);
    assert!(concluded.is_stale && concluded.is_renew);
    assert_eq!(fresh.store.lanes(device.id).await.expect("it is sound")[0].state, books);
    assert_eq!(device.outcomes(&stale).await, concluded.outcomes);
    assert_eq!(fresh.asides().await.len(), 2, "each once");
    // The right device sends one of them: it is in the log, and in quarantine no more.
    let mut post = device.batch(3..4);
    post.head.boot = 5;
    assert_eq!(device.outcomes(&post).await, [Outcome::Stored]);
    assert_eq!(counters(&fresh.asides().await), [4]);
    let device = fresh.store.device(&device.name).await.expect("it is sound").expect("it was added");
    assert_eq!(device.stale, 2);
}

async fn what_nobody_can_read_is_kept_raw_and_counts_as_received(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let mut post = device.batch(0..2);
    post.records[0].is_unreadable = true;
    assert_eq!(device.outcomes(&post).await, [UNREADABLE, Outcome::Stored]);
    assert_eq!(device.outcomes(&post).await, [Outcome::Duplicate, Outcome::Duplicate]);
    post.records[0] = other(record(INCARNATION, 0, 0));
    assert_eq!(device.outcomes(&post).await[0], CONFLICT);
    assert_eq!(fresh.store.count(device.id, INCARNATION, 0).await.expect("it is sound"), 2);
    let state = fresh.store.lanes(device.id).await.expect("it is sound")[0].state.clone();
    assert_eq!(state.books.ledger().received, 2);
}

async fn dead_letters_of_a_fenced_incarnation_are_quarantined(fresh: Fresh) {
    let device = fresh.device("meter").await;
    device.take(&device.batch(0..3)).await;
    let fence = Change::Fence(device.name.clone(), INCARNATION);
    fresh.store.change(fence, NOW).await.expect("it is there");
    let mut post = under(device.batch(0..1), 2);
    // One that is in the log, and one that is not.
    post.late = vec![record(INCARNATION, 0, 2), record(INCARNATION, 0, 3)];
    assert_eq!(device.outcomes(&post).await, [Outcome::Stored, Outcome::Duplicate, QUARANTINED]);
    assert_eq!(fresh.log().await.len(), 4);
}

async fn hostile_numbers_hurt_nobody_else(fresh: Fresh) {
    const LAST: u64 = (1 << 63) - 1;
    let (bad, worse, good) =
        (fresh.device("bad").await, fresh.device("worse").await, fresh.device("good").await);
    let mut huge = bad.batch([]);
    huge.head.issued = LAST;
    bad.take(&huge).await;
    let mut waits = good.batch(0..1);
    waits.head.issued = 10;
    good.take(&waits).await;
    let fleet = fresh.store.fleet().await.expect("the sum does not overflow");
    assert!(fleet.pending > 9 && fleet.pending < LAST, "{fleet:?}");
    // The last counter that there is, after all others were explained; and once more.
    let mut last = worse.batch([]);
    (last.head.floor, last.head.issued) = (LAST, LAST + 1);
    last.entries =
        vec![Entry { incarnation: INCARNATION, lane: 0, reason: Reason::Expired, first: 0, len: LAST }];
    let key = Key { incarnation: INCARNATION, lane: 0, counter: LAST };
    last.records = vec![Arrival { key, ..record(INCARNATION, 0, 0) }];
    assert_eq!(worse.outcomes(&last).await, [Outcome::Stored]);
    assert_eq!(worse.outcomes(&last).await, [Outcome::Duplicate]);
    let found = fresh.store.get(&DeviceKey { device: worse.name.clone(), key }).await.expect("it is sound");
    assert_eq!(found.len(), 1);
    assert_eq!(fresh.store.count(worse.id, INCARNATION, 0).await.expect("it is sound"), 1);
}

async fn late_records_go_into_the_books_of_their_own_lanes(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let former = INCARNATION - 1;
    let mut post = device.batch(0..2);
    post.late = vec![record(INCARNATION, 3, 8), record(former, 1, 2), record(former, 1, 5000)];
    let outcomes = device.outcomes(&post).await;
    assert_eq!(outcomes[2..], [Outcome::Stored, Outcome::Stored, QUARANTINED]);
    assert_eq!(device.outcomes(&post).await[2..4], [Outcome::Duplicate, Outcome::Duplicate]);
    let lanes = fresh.store.lanes(device.id).await.expect("it is sound");
    assert!(
        lanes.iter().all(|row| row.state.mark_ms == NOW),
        "nothing has been pending since 1970: {lanes:?}"
    );
    let lanes: Vec<(u32, u8, u64)> =
        lanes.iter().map(|row| (row.incarnation, row.lane, row.state.books.issued())).collect();
    assert_eq!(lanes, [(former, 1, 3), (INCARNATION, 0, 2), (INCARNATION, 3, 9)]);
    let incarnations = fresh.store.incarnations(device.id).await.expect("it is sound");
    assert_eq!(incarnations.len(), 2);
    assert_eq!(fresh.log().await.len(), 4);
}

async fn a_fenced_incarnation_is_quarantined(fresh: Fresh) {
    let device = fresh.device("meter").await;
    device.take(&device.batch(0..2)).await;
    let fence = |incarnation| Change::Fence(device.name.clone(), incarnation);
    fresh.store.change(fence(INCARNATION), NOW).await.expect("it is there");
    fresh.store.change(fence(99), NOW).await.expect("it need not have been heard of");
    assert_eq!(device.outcomes(&device.batch(1..3)).await, [Outcome::Duplicate, QUARANTINED]);
    assert!(device.take(&under(device.batch(0..1), 99)).await.is_stale);
    assert!(!device.take(&under(device.batch(0..1), 7)).await.is_stale);
    let incarnations = fresh.store.incarnations(device.id).await.expect("it is sound");
    assert_eq!(incarnations.iter().filter(|row| row.is_fenced).count(), 2);
}

async fn an_incarnation_that_was_given_up_is_nobodys_lag_until_it_is_heard_again(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let mut post = device.batch([1, 2]);
    post.head.floor = 0;
    post.head.issued = 10;
    device.take(&post).await;
    let fleet = fresh.store.fleet().await.expect("it is sound");
    assert_eq!((fleet.devices, fleet.records, fleet.asides), (1, 2, 0));
    assert_eq!((fleet.pending, fleet.oldest_pending_ms), (8, Some(NOW)));
    let give_up = Change::GiveUp(device.name.clone(), INCARNATION);
    fresh.store.change(give_up.clone(), NOW).await.expect("it is there");
    let fleet = fresh.store.fleet().await.expect("it is sound");
    assert_eq!((fleet.pending, fleet.oldest_pending_ms), (0, None));
    let unknown = fresh.store.change(Change::GiveUp(device.name.clone(), 1), NOW).await;
    assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
    device.take(&post).await;
    assert_eq!(fresh.store.fleet().await.expect("it is sound").pending, 8);
    // All is settled or explained.
    let mut rest = device.batch(3..9);
    rest.entries = vec![Entry { incarnation: INCARNATION, lane: 0, reason: Reason::Lost, first: 9, len: 1 }];
    rest.head.issued = 10;
    rest.records.push(record(INCARNATION, 0, 0));
    rest.records.rotate_right(1);
    rest.head.floor = 0;
    device.take(&rest).await;
    let mut end = device.batch([]);
    (end.head.floor, end.head.issued) = (10, 10);
    device.take(&end).await;
    let fleet = fresh.store.fleet().await.expect("it is sound");
    assert_eq!((fleet.pending, fleet.unexplained, fleet.lost), (0, 0, 1));
}

async fn a_new_secret_takes_the_old_ones_place_when_it_is_used(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let door = || async {
        let door = fresh.store.door(&device.name).await.expect("it is sound").expect("it was added");
        (tag_of(&door.keys), door.next.as_ref().map(|(keys, _)| tag_of(keys)))
    };
    let print = || async {
        let door = fresh.store.door(&device.name).await.expect("it is sound").expect("it was added");
        door.next.expect("it has a next one").1
    };
    let of = |secret| tag_of(&TagKeys::new(&Secret::new(secret)));
    fresh.store.change(Change::Rotate(device.name.clone(), [8; 32]), NOW).await.expect("it is there");
    assert_eq!(door().await, (of(SECRET), Some(of([8; 32]))));
    device.take(&device.batch(0..1)).await;
    assert_eq!(door().await, (of(SECRET), Some(of([8; 32]))), "the old one was used");
    let mut post = device.batch(1..2);
    post.with = SecretUsed::Next(print().await);
    // Another secret takes its place between the door and here: it must not become the device's, which does not have it.
    fresh.store.change(Change::Rotate(device.name.clone(), [9; 32]), NOW).await.expect("it is there");
    let refused = fresh.store.take(device.id, Arc::new(post.clone())).await;
    assert!(matches!(refused, Err(StoreError::NotFound(_))), "{refused:?}");
    assert_eq!(door().await, (of(SECRET), Some(of([9; 32]))));
    fresh.store.change(Change::Rotate(device.name.clone(), [8; 32]), NOW).await.expect("it is there");
    device.take(&post).await;
    assert_eq!(door().await, (of([8; 32]), None));
    device.take(&post).await;
    assert_eq!(door().await, (of([8; 32]), None));
    let row = fresh.store.device(&device.name).await.expect("it is sound").expect("it was added");
    assert!(!row.is_rotating);
    let unknown = Change::Rotate(pillarbox::DeviceId::new("nobody").expect("it is a name"), SECRET);
    assert!(matches!(fresh.store.change(unknown, NOW).await, Err(StoreError::NotFound(_))));
}

async fn who_was_revoked_is_not_let_in_any_more(fresh: Fresh) {
    let device = fresh.device("meter").await;
    device.take(&device.batch(0..1)).await;
    fresh.store.change(Change::Revoke(device.name.clone()), NOW).await.expect("it is there");
    let refused = fresh.store.take(device.id, Arc::new(device.batch(1..2))).await;
    assert!(matches!(refused, Err(StoreError::NotFound(_))), "{refused:?}");
    let stranger = fresh.store.take(device.id + 1000, Arc::new(device.batch(1..2))).await;
    assert!(matches!(stranger, Err(StoreError::NotFound(_))), "{stranger:?}");
    assert!(fresh.store.door(&device.name).await.expect("it is sound").expect("it was added").is_revoked);
    assert_eq!(fresh.log().await.len(), 1);
}

async fn copies_of_a_batch_that_come_at_once_are_stored_once(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let stores = [fresh.store.clone(), fresh.another().await, fresh.another().await];
    for round in 0..20 {
        let floor = round * 10;
        let copies = (0..12).map(|n| {
            // A device that lost power cuts its records into other batches.
            let mut post = device.batch(floor + n % 4..floor + 10);
            post.head.floor = floor;
            let (store, post, id) = (stores[n as usize % 3].clone(), Arc::new(post), device.id);
            tokio::spawn(async move { store.take(id, post).await.expect("there is room").outcomes })
        });
        let mut stored = 0;
        for copy in copies.collect::<Vec<_>>() {
            let outcomes = copy.await.expect("it does not panic");
            stored += outcomes.iter().filter(|outcome| **outcome == Outcome::Stored).count();
        }
        assert_eq!(stored, 10, "round {round}");
    }
    let mut stored = counters(&fresh.log().await);
    stored.sort_unstable();
    assert_eq!(stored, (0..200).collect::<Vec<u64>>());
    assert!(fresh.asides().await.is_empty());
}

async fn one_that_cannot_be_taken_fails_alone(fresh: Fresh) {
    let bad = fresh.device("bad").await;
    bad.take(&bad.batch(0..1)).await;
    // Somebody has meddled: a run that is there twice cannot be written.
    fresh.sql(&format!(
        "INSERT INTO runs (device, incarnation, lane, first, len, position) \
                        VALUES ({}, {INCARNATION}, 0, 1, 1, 1)",
        bad.id
    ));
    let mut work = Vec::new();
    for n in 0..30 {
        let device = if n == 3 { bad.clone() } else { fresh.device(&format!("good-{n}")).await };
        let first = u64::from(n == 3);
        work.push(tokio::spawn(async move {
            device.store.take(device.id, Arc::new(device.batch(first..first + 5))).await
        }));
    }
    for (n, taken) in work.into_iter().enumerate() {
        let taken = taken.await.expect("it does not panic");
        assert_eq!(taken.is_err(), n == 3, "{n}: {taken:?}");
    }
    assert_eq!(fresh.log().await.len(), 1 + 29 * 5);
    let heads = fresh.store.heads().await.expect("it is sound");
    assert_eq!(heads.iter().map(|head| head.n()).sum::<u64>(), 1 + 29 * 5, "no place was left out");
}

async fn what_is_kept_aside_is_read_page_by_page(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let mut post = device.batch(0..25);
    post.records.iter_mut().for_each(|record| record.is_unreadable = true);
    device.take(&post).await;
    let (mut seen, mut after) = (Vec::new(), None);
    for _ in 0..9 {
        let query = RecordQuery { after, limit: 4, ..everything() };
        let page = fresh.store.asides(query).await.expect("it is sound");
        assert!(page.iter().all(|row| row.position.is_none()));
        after = page.last().map(|row| pillarbox_receiver::store::Position(row.arrival));
        seen.extend(counters(&page));
        if page.len() < 4 {
            break;
        }
    }
    assert_eq!(seen, (0..25).collect::<Vec<u64>>());
    let of = |device: &str| RecordQuery { device: Some(device.into()), ..everything() };
    assert_eq!(fresh.store.asides(of("meter")).await.expect("it is sound").len(), 25);
    assert!(fresh.store.asides(of("other")).await.expect("it is sound").is_empty());
}
