//! Requests that no HTTP client sends. Each is answered with a clear refusal or the connection ends, the store sees nothing of them, and
//! whoever asks next is served.

mod hostile;

use hostile::{Sender, Served, answers, request};
use pillarbox::wire::{BATCH_CONTENT_TYPE, ENVELOPE_MAX};
use pillarbox_receiver::serve::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

async fn ground() -> (Served, Sender) {
    let served = Served::start(Limits::default()).await;
    let sender = Sender::new("meter-0042", 7);
    served.let_in(&sender).await;
    (served, sender)
}

#[tokio::test]
async fn malformed_requests() {
    let (served, mut sender) = ground().await;
    let before = served.dump();
    let flood: String = (0..500).map(|n| format!("X-{n}: {n}\r\n")).collect();
    let huge = format!("X-Huge: {}\r\n", "a".repeat(600_000));
    let path = format!("/{}", "a".repeat(100_000));
    let post = format!("POST /v1/batch HTTP/1.1\r\nHost: r\r\nContent-Type: {BATCH_CONTENT_TYPE}\r\n");
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", b"".to_vec()),
        ("an empty line", b"\r\n\r\n\r\n".to_vec()),
        ("no request line", b"hello\r\n\r\n".to_vec()),
        ("no version", b"GET /\r\n\r\n".to_vec()),
        ("another version", b"GET / HTTP/9.9\r\nHost: r\r\n\r\n".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaa\r\n\r\n".to_vec()),
        ("null bytes", vec![0; 5000]),
        ("a null byte in the path", b"GET /a\0b HTTP/1.1\r\nHost: r\r\n\r\n".to_vec()),
        ("a null byte in a header", b"GET / HTTP/1.1\r\nHost: r\r\nX: a\0b\r\n\r\n".to_vec()),
        ("a header without a name", b"GET / HTTP/1.1\r\n: x\r\n\r\n".to_vec()),
        ("a header that is folded", b"GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n".to_vec()),
        ("a flood of headers", format!("GET / HTTP/1.1\r\n{flood}\r\n").into_bytes()),
        ("a huge header", format!("GET / HTTP/1.1\r\n{huge}\r\n").into_bytes()),
        ("a huge path", format!("GET {path} HTTP/1.1\r\n\r\n").into_bytes()),
        ("half a head", post.clone().into_bytes()),
        ("half a body", format!("{post}Content-Length: 100\r\n\r\nabc").into_bytes()),
        ("a length that is none", format!("{post}Content-Length: ten\r\n\r\n").into_bytes()),
        ("a negative length", format!("{post}Content-Length: -1\r\n\r\n").into_bytes()),
        (
            "a length beyond all",
            format!("{post}Content-Length: 99999999999999999999999\r\n\r\n").into_bytes(),
        ),
        ("two lengths", format!("{post}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd").into_bytes()),
        (
            "a chunk of no length",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n").into_bytes(),
        ),
        (
            "a chunk beyond all",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc").into_bytes(),
        ),
        ("half a chunk", format!("{post}Transfer-Encoding: chunked\r\n\r\nff\r\nabc").into_bytes()),
        ("an unknown encoding", format!("{post}Transfer-Encoding: gzip\r\n\r\nabc").into_bytes()),
        (
            "length and chunks",
            format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").into_bytes(),
        ),
        ("another method", b"DELETE /v1/batch HTTP/1.1\r\nHost: r\r\n\r\n".to_vec()),
        ("somewhere else", b"GET /../../etc/passwd HTTP/1.1\r\nHost: r\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in cases {
        let answers = served.say(&bytes).await;
        for answer in &answers {
            assert!((400..500).contains(&answer.status), "{what}: {answer:?}");
            // What is no request at all is refused by the HTTP library, in a status without words.
            if !answer.body.is_empty() {
                answer.problem();
            }
        }
        assert_eq!(served.dump(), before, "{what}");
        println!("{what}: {:?}", answers.iter().map(|answer| answer.status).collect::<Vec<_>>());
    }
    assert_eq!(served.post(&sender.batch(3)).await.status, 200, "the next one is served");
    served.stop().await;
}

/// Bytes behind a body are the next request; if they are none, the connection ends after the answer.
#[tokio::test]
async fn a_length_that_is_too_short() {
    let (served, mut sender) = ground().await;
    let before = served.dump();
    let envelope = sender.batch(3);
    let short = request(&envelope[..envelope.len() - 4], "");
    let answers = served.say(&[&short[..], &envelope[envelope.len() - 4..]].concat()).await;
    assert_eq!(answers[0].status, 401, "what is cut has no right tag");
    assert!(answers[1..].iter().all(|answer| answer.status == 400), "{answers:?}");
    assert_eq!(served.dump(), before);
    served.stop().await;
}

#[tokio::test]
async fn bodies_that_are_too_long() {
    let (served, mut sender) = ground().await;
    let before = served.dump();
    for len in [ENVELOPE_MAX + 1, 2 * ENVELOPE_MAX, 1 << 20] {
        // A body that is a little too long is read to its end, and the connection goes on.
        let bytes = [request(&vec![1; len], ""), request(&sender.batch(0), "Connection: close\r\n")].concat();
        let answers = served.say(&bytes).await;
        assert_eq!(answers.len(), 2, "{len}: {answers:?}");
        assert_eq!((answers[0].status, answers[1].status), (413, 200), "{len}");
        assert!(answers[0].problem().contains(&ENVELOPE_MAX.to_string()));
    }
    let after_empty = served.dump();
    assert_eq!(served.rows("records"), 0);
    // One that goes on for ever is answered, and the connection ends.
    let head = format!("POST /v1/batch HTTP/1.1\r\nHost: r\r\nContent-Type: {BATCH_CONTENT_TYPE}\r\n");
    for length in ["Content-Length: 1000000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"] {
        let mut stream = served.connect().await;
        stream.write_all(format!("{head}{length}").as_bytes()).await.expect("it listens");
        let (mut reading, mut writing) = stream.into_split();
        let pour = async {
            let chunk = [b"1000\r\n", &[1; 4096][..], b"\r\n"].concat();
            for sent in 0..20_000 {
                if writing.write_all(&chunk).await.is_err() {
                    return sent;
                }
            }
            20_000
        };
        let drink = async {
            let mut bytes = Vec::new();
            drop(reading.read_to_end(&mut bytes).await);
            bytes
        };
        let ended = timeout(hostile::NEVER, async { tokio::join!(pour, drink) }).await;
        let (poured, answer) = ended.expect("the connection ends");
        assert!(poured < 20_000, "all of it was read");
        // What was on its way when the receiver hung up may have swept the answer away.
        for answer in answers(&answer) {
            assert_eq!(answer.status, 413);
            answer.problem();
        }
    }
    assert_eq!(served.dump(), after_empty);
    assert_ne!(before, after_empty, "the empty batches between were heard");
    served.stop().await;
}

#[tokio::test]
async fn requests_in_a_row_are_answered_in_a_row() {
    let (served, mut sender) = ground().await;
    let mut bytes = Vec::new();
    let mut tags = Vec::new();
    for n in 0..20 {
        let envelope = sender.batch(2);
        tags.push(*envelope.last_chunk().expect("a tag"));
        // A refused one in between holds nobody up.
        if n % 5 == 4 {
            bytes.extend(request(b"nonsense", ""));
        }
        bytes.extend(request(&envelope, if n == 19 { "Connection: close\r\n" } else { "" }));
    }
    let answers = served.say(&bytes).await;
    let good: Vec<_> = answers.iter().filter(|answer| answer.status == 200).collect();
    assert_eq!((answers.len(), good.len()), (24, 20));
    for (answer, tag) in good.iter().zip(&tags) {
        assert!(sender.keys().open_answer(tag, &answer.body).is_some(), "each is the answer to its own");
    }
    assert_eq!(served.rows("records"), 40);
    served.stop().await;
}

/// Noise in the shape of HTTP: whatever it is, it ends.
#[tokio::test]
async fn bent_requests() {
    let (served, mut sender) = ground().await;
    let before = served.dump();
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = request(&sender.batch(1), "");
        // The tag is broken, so that nothing of it is believed even if the rest stays whole.
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..bytes.len());
            match rng.u8(..3) {
                0 => bytes[at] = rng.u8(..),
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, [0, b'\r', b'\n', b':', b' ', 0xff][rng.usize(..6)]),
            }
        }
        for answer in served.say(&bytes).await {
            assert!((400..500).contains(&answer.status), "seed {seed}: {answer:?}");
        }
    }
    assert_eq!(served.dump(), before);
    assert_eq!(served.post(&sender.batch(1)).await.status, 200);
    served.stop().await;
}
