//! The keys of ordinary clients: each is one request's, and its answer is given again.

use pillarbox_receiver::store::{Claim, Claimed, Posting, RecordQuery, RowTime, Source};

use super::{Fresh, NOW, on_both};

const LEASE: u64 = 60_000;

fn claim(key: &str, holder: u64, now_ms: u64) -> Claim {
    Claim {
        tenant: "acme".into(),
        operation: "post".into(),
        key: key.into(),
        hash: [3; 32],
        holder,
        now_ms,
        lease_until_ms: now_ms + LEASE,
        expired_before_ms: now_ms - 7 * 24 * 3_600_000,
    }
}

fn posting(claim: &Claim) -> Posting {
    Posting {
        claim: claim.clone(),
        kind: 9,
        content_type: "application/json".into(),
        body: b"{}".to_vec(),
        status: 201,
        answer: b"done".to_vec(),
    }
}

on_both! {
    a_key_is_claimed_completed_and_answered_again,
    a_lease_that_is_over_is_taken_over,
    a_key_that_was_given_back_is_free,
    keys_expire_and_are_forgotten_a_few_at_a_time,
    a_key_that_many_want_is_one_requests,
}

async fn a_key_is_claimed_completed_and_answered_again(fresh: Fresh) {
    let store = &fresh.store;
    let first = claim("k", u64::MAX, NOW);
    assert_eq!(store.claim(first.clone()).await.expect("it is sound"), Claimed::Ours);
    let second = store.claim(claim("k", 2, NOW + 1)).await.expect("it is sound");
    assert_eq!(second, Claimed::InProgress { lease_until_ms: NOW + LEASE });
    let position = store.complete(posting(&first)).await.expect("it is sound").expect("it is ours");
    let again = Claimed::Completed { status: 201, body: b"done".to_vec() };
    assert_eq!(store.claim(claim("k", 3, NOW + 2)).await.expect("it is sound"), again);
    let reused = Claim { hash: [4; 32], ..claim("k", 4, NOW + 3) };
    assert_eq!(store.claim(reused).await.expect("it is sound"), Claimed::Reused);
    let elsewhere = Claim { operation: "other".into(), ..claim("k", 5, NOW) };
    assert_eq!(store.claim(elsewhere).await.expect("it is sound"), Claimed::Ours);
    let other = Claim { tenant: "other".into(), ..claim("k", 5, NOW) };
    assert_eq!(store.claim(other).await.expect("it is sound"), Claimed::Ours);
    let log = fresh.log().await;
    assert_eq!(
        (log.len(), log[0].position, log[0].kind, &log[0].body[..]),
        (1, Some(position), 9, &b"{}"[..])
    );
    assert_eq!((&log[0].tenant[..], log[0].time), ("acme", RowTime::Exactly { ms: NOW }));
    let source = Source::Client { key: "k".into(), content_type: "application/json".into() };
    assert_eq!(log[0].source, source);
    let of_tenant = RecordQuery { tenant: Some("other".into()), limit: 9, ..RecordQuery::default() };
    assert!(store.log(of_tenant).await.expect("it is sound").is_empty());
}

async fn a_lease_that_is_over_is_taken_over(fresh: Fresh) {
    let store = &fresh.store;
    let late = claim("k", 1, NOW);
    store.claim(late.clone()).await.expect("it is sound");
    let next = claim("k", 2, NOW + LEASE);
    assert_eq!(store.claim(next.clone()).await.expect("it is sound"), Claimed::Ours);
    assert_eq!(store.complete(posting(&late)).await.expect("it is sound"), None);
    store.give_back(late).await.expect("it is sound");
    assert!(store.complete(posting(&next)).await.expect("it is sound").is_some());
    assert_eq!(fresh.log().await.len(), 1);
}

async fn a_key_that_was_given_back_is_free(fresh: Fresh) {
    let store = &fresh.store;
    let failed = claim("k", 1, NOW);
    store.claim(failed.clone()).await.expect("it is sound");
    store.give_back(failed.clone()).await.expect("it is sound");
    assert_eq!(store.complete(posting(&failed)).await.expect("it is sound"), None);
    let next = claim("k", 2, NOW + 1);
    assert_eq!(store.claim(next.clone()).await.expect("it is sound"), Claimed::Ours);
    assert!(store.complete(posting(&next)).await.expect("it is sound").is_some());
    store.give_back(next).await.expect("it is sound");
    let third = store.claim(claim("k", 3, NOW + 2)).await.expect("it is sound");
    assert!(matches!(third, Claimed::Completed { .. }), "what is completed is not given back");
}

/// A file's commit has an answer; one that goes over a network may be done and not heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_again_finds_what_an_unheard_answer_did() {
    let fresh = Fresh::postgres().await;
    let store = &fresh.store;
    let ours = claim("k", 1, NOW);
    assert_eq!(store.claim(ours.clone()).await.expect("it is sound"), Claimed::Ours);
    assert_eq!(store.claim(ours.clone()).await.expect("it is sound"), Claimed::Ours);
    let position = store.complete(posting(&ours)).await.expect("it is sound");
    assert!(position.is_some());
    assert_eq!(store.complete(posting(&ours)).await.expect("it is sound"), position);
    assert_eq!(fresh.log().await.len(), 1);
}

async fn keys_expire_and_are_forgotten_a_few_at_a_time(fresh: Fresh) {
    let store = &fresh.store;
    for n in 0..10 {
        let claim = claim(&format!("k{n}"), 1, NOW + n);
        store.claim(claim.clone()).await.expect("it is sound");
        store.complete(posting(&claim)).await.expect("it is sound");
    }
    let expired = Claim { expired_before_ms: NOW + 1, hash: [9; 32], ..claim("k0", 2, NOW + 100) };
    assert_eq!(store.claim(expired).await.expect("it is sound"), Claimed::Ours);
    assert_eq!(store.forget_keys(NOW + 6, 3).await.expect("it is sound"), 3);
    assert_eq!(store.forget_keys(NOW + 6, 3).await.expect("it is sound"), 2);
    assert_eq!(store.forget_keys(NOW + 6, 3).await.expect("it is sound"), 0);
    let kept = store.claim(claim("k7", 3, NOW + 100)).await.expect("it is sound");
    assert!(matches!(kept, Claimed::Completed { .. }));
}

async fn a_key_that_many_want_is_one_requests(fresh: Fresh) {
    let stores = [fresh.store.clone(), fresh.another().await, fresh.another().await];
    for round in 0..20 {
        let wanted: Vec<_> = (0..9)
            .map(|holder| {
                let store = stores[holder % 3].clone();
                let claim = claim(&format!("k{round}"), holder as u64, NOW);
                tokio::spawn(async move {
                    match store.claim(claim.clone()).await.expect("it is sound") {
                        Claimed::Ours => {
                            store.complete(posting(&claim)).await.expect("it is sound").is_some()
                        }
                        _ => false,
                    }
                })
            })
            .collect();
        let mut done = 0;
        for one in wanted {
            done += u32::from(one.await.expect("it does not panic"));
        }
        assert_eq!(done, 1, "round {round}");
    }
    assert_eq!(fresh.log().await.len(), 20);
}
