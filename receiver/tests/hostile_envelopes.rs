//! Envelopes that no honest device sends: forged, cut, bent, copied, of another version. Each gets a clear answer, and none that is
//! refused leaves a trace in any table.

mod hostile;

use hostile::{Answer, Sender, Served};
use pillarbox::wire::TAG_LEN;
use pillarbox_receiver::serve::Limits;
use pillarbox_receiver::store::{Change, Store};

/// A receiver with a device that has delivered something, so that there is something to change.
async fn ground() -> (Served, Sender) {
    let served = Served::start(Limits::default()).await;
    let mut sender = Sender::new("meter-0042", 7);
    served.let_in(&sender).await;
    assert_eq!(served.post(&sender.batch(5)).await.status, 200);
    (served, sender)
}

#[tokio::test]
async fn unknown_revoked_and_wrong_look_the_same() {
    let (served, mut sender) = ground().await;
    let mut forger = Sender::new("meter-0042", 8);
    let mut stranger = Sender::new("meter-9999", 7);
    let mut revoked = Sender::new("meter-0043", 9);
    served.let_in(&revoked).await;
    served.store.change(Change::Revoke(revoked.device.clone()), 2).await.expect("it is known");
    let before = served.dump();
    let wrong: Vec<Answer> = vec![
        served.post(&forger.batch(1)).await,
        served.post(&stranger.batch(1)).await,
        served.post(&revoked.batch(1)).await,
        served.post(&Sender::new("meter-0043", 1).batch(1)).await,
    ];
    for answer in &wrong {
        assert_eq!(answer.status, 401);
        assert_eq!(answer, &wrong[0]);
        answer.problem();
    }
    assert_eq!(served.dump(), before);
    assert_eq!(served.post(&sender.batch(1)).await.status, 200, "the real one is not harmed");
    served.stop().await;
}

/// A device cannot speak for another: its name is in what the tag covers.
#[tokio::test]
async fn with_another_device_s_name() {
    let (served, sender) = ground().await;
    let mut other = Sender::new("meter-0043", 9);
    served.let_in(&other).await;
    let before = served.dump();
    let own = other.batch(3);
    let at = own.windows(10).position(|name| name == b"meter-0043").expect("the name is in it");
    let mut borrowed = own.clone();
    borrowed[at..at + 10].copy_from_slice(b"meter-0042");
    assert_eq!(served.post(&borrowed).await.status, 401, "with the old tag");
    assert_eq!(served.post(&other.tagged(borrowed.clone())).await.status, 401, "with its own");
    assert_eq!(served.dump(), before);
    assert_eq!(
        served.post(&sender.tagged(borrowed)).await.status,
        200,
        "only the secret makes it the device's"
    );
    assert_eq!(served.post(&own).await.status, 200);
    served.stop().await;
}

/// Cuts, bends or stretches an envelope.
fn mutated(rng: &mut fastrand::Rng, envelope: &[u8]) -> Vec<u8> {
    let mut bytes = envelope.to_vec();
    for _ in 0..rng.usize(1..4) {
        match rng.u8(..5) {
            0 => bytes.truncate(rng.usize(..=bytes.len())),
            1 => (0..1 << rng.u8(..6)).for_each(|_| {
                if let Some(at) = (!bytes.is_empty()).then(|| rng.usize(..bytes.len())) {
                    bytes[at] ^= 1 << rng.u8(..8);
                }
            }),
            2 => bytes.extend((0..rng.usize(1..40)).map(|_| rng.u8(..)).collect::<Vec<_>>()),
            3 => {
                let at = rng.usize(..=bytes.len());
                bytes.splice(at..at, (0..rng.usize(1..12)).map(|_| [0x00, 0x80, 0xff][rng.usize(..3)]));
            }
            _ => {
                let from = rng.usize(..=bytes.len());
                let to = (from + rng.usize(..8)).min(bytes.len());
                bytes.drain(from..to);
            }
        }
    }
    bytes
}

#[tokio::test]
async fn cut_bent_and_stretched() {
    let (served, mut sender) = ground().await;
    let mut tally = std::collections::BTreeMap::new();
    let mut before = served.dump();
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let records = rng.u64(..20);
        let envelope = sender.batch(records);
        let forged = mutated(&mut rng, &envelope);
        // Half of them have a tag that is right: a broken firmware, or somebody who has got hold of a secret.
        let is_tagged = rng.bool() && forged.len() >= TAG_LEN;
        let sent = if is_tagged { sender.tagged(forged) } else { forged };
        let answer = served.post(&sent).await;
        *tally.entry((is_tagged, answer.status)).or_insert(0) += 1;
        if answer.status == 200 {
            assert!(is_tagged || sent == envelope, "seed {seed}: a broken tag was believed");
            let tag: [u8; TAG_LEN] = *sent.last_chunk().expect("it has a tag");
            assert!(
                sender.keys().open_answer(&tag, &answer.body).is_some(),
                "seed {seed}: an answer has a tag"
            );
            // What is said with the secret is believed, whatever it is; but the next may be said of another boot.
            before = served.dump();
        } else {
            answer.problem();
            let is_clear = matches!((is_tagged, answer.status), (true, 400 | 401) | (false, 400 | 401));
            assert!(is_clear, "seed {seed}: {answer:?}");
            assert_eq!(served.dump(), before, "seed {seed}");
        }
    }
    println!("{tally:?}");
    assert!(tally.get(&(false, 401)).is_some_and(|count| *count > 50), "{tally:?}");
    assert!(tally.get(&(true, 400)).is_some_and(|count| *count > 20), "{tally:?}");
    served.stop().await;
}

/// Whoever has recorded what a device has sent may send it again as often as it likes: nothing grows.
#[tokio::test]
async fn replayed() {
    let (served, mut sender) = ground().await;
    let mut heard = Vec::new();
    for boot in 1..=3 {
        sender.boot = boot;
        for _ in 0..5 {
            let envelope = sender.batch(7);
            assert_eq!(served.post(&envelope).await.status, 200);
            heard.push(envelope);
        }
    }
    let counted = |served: &Served| {
        let mut tables: Vec<(String, usize)> = Vec::new();
        for row in served.dump() {
            let table = row.split(": ").next().unwrap_or_default().to_owned();
            match tables.iter_mut().find(|(name, _)| *name == table) {
                Some((_, count)) => *count += 1,
                None => tables.push((table, 1)),
            }
        }
        tables
    };
    let lanes = served.dump().into_iter().filter(|row| row.starts_with("page_count")).collect::<Vec<_>>();
    let before = counted(&served);
    for round in 0..10 {
        for envelope in &heard {
            let answer = served.post(envelope).await;
            assert_eq!(answer.status, 200, "round {round}: it is authentic");
        }
    }
    assert_eq!(counted(&served), before, "no table has a row more");
    let after = served.dump().into_iter().filter(|row| row.starts_with("page_count")).collect::<Vec<_>>();
    assert_eq!(after, lanes, "nor the file a page");
    let answer = served.post(&sender.batch(1)).await;
    assert_eq!(answer.status, 200, "the device goes on as if nothing had happened");
    assert_eq!(
        counted(&served).iter().map(|(_, count)| count).sum::<usize>(),
        before.iter().map(|(_, count)| count).sum::<usize>() + 2,
        "a record and its run"
    );
    served.stop().await;
}

#[tokio::test]
async fn of_another_version() {
    let (served, mut sender) = ground().await;
    let before = served.dump();
    for version in [0, 2, 3, 0x7f, 0xff] {
        let mut envelope = sender.batch(1);
        envelope[0] = version;
        let answer = served.post(&sender.tagged(envelope)).await;
        assert_eq!(answer.status, 400, "version {version}");
        assert!(answer.problem().contains("version"), "{}", answer.problem());
    }
    // A flag that must be understood, and is not.
    let mut envelope = sender.batch(1);
    envelope[1] |= 0x80;
    let answer = served.post(&sender.tagged(envelope)).await;
    assert_eq!(answer.status, 400);
    answer.problem();
    for other in ["text/plain", "application/json", "application/vnd.pillarbox.answer"] {
        let request = format!(
            "POST /v1/batch HTTP/1.1\r\nHost: r\r\nContent-Type: {other}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let answers = served.say(request.as_bytes()).await;
        assert_eq!(answers[0].status, 415, "{other}");
        answers[0].problem();
    }
    assert_eq!(served.post(b"").await.status, 400, "nothing at all");
    assert_eq!(served.dump(), before);
    served.stop().await;
}
