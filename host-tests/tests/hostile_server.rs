//! Nothing that a server does can hold a device up, make it panic or make it forget: over real TCP, whatever comes back,
//! the flush ends within its time, every record is kept, and an honest server gets all of them afterwards, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use host_tests::link::http::After;
use host_tests::real_net::{
    Act, Exchange, HonestServer, Manner, Model, RealStation, Said, ScriptedServer, model, plainly,
};
use pillarbox::{Failure, Timeouts};

const CONNECT_MS: u32 = 300;
const EXCHANGE_MS: u32 = 300;
/// A test machine may be slow; a device that waits for a server is slower.
const SLACK: Duration = Duration::from_secs(2);
const RECORDS: u32 = 10;

/// Ends the test from outside: a future that never yields would stop every other clock.
struct Watchdog(std::sync::mpsc::Sender<()>);

fn watchdog() -> Watchdog {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if receiver.recv_timeout(Duration::from_secs(120)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            eprintln!("the device hangs");
            std::process::abort();
        }
    });
    Watchdog(sender)
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

async fn station() -> RealStation {
    let mut station = RealStation::boot().await;
    station.timeouts = Timeouts { connect_ms: CONNECT_MS, exchange_ms: EXCHANGE_MS };
    station
}

/// Everything is still there, and an honest server gets it.
async fn deliver(mut station: RealStation, model: &Model, keys: &[pillarbox::Key], name: &str) {
    assert_eq!(station.pending().await, keys, "{name}: something is gone");
    station.timeouts = Timeouts { connect_ms: 10_000, exchange_ms: 10_000 };
    let honest = HonestServer::start(model, plainly()).await.unwrap();
    let mut uplink = station.plain(honest.address().port());
    assert_eq!(station.flush(&mut uplink).await, Ok(()), "{name}");
    assert_eq!(station.pending().await, [], "{name}");
    let server = model.lock().unwrap();
    let stored: Vec<_> = server.log().iter().map(|received| received.key).collect();
    assert_eq!(stored, keys, "{name}");
    server.check();
}

/// Plays a script, on every connection the same, to a device that wants to deliver.
async fn survives(name: &str, script: Vec<Act>) -> Failure {
    let hostile = ScriptedServer::start(vec![script; 16]).await.unwrap();
    let mut station = station().await;
    let keys = station.post_all(0..RECORDS).await;
    let mut uplink = station.plain(hostile.address().port());
    let began = Instant::now();
    let failure = station.flush(&mut uplink).await.expect_err(name);
    let most = Duration::from_millis(u64::from(CONNECT_MS + EXCHANGE_MS)) + SLACK;
    assert!(began.elapsed() < most, "{name}: took {:?}", began.elapsed());
    deliver(station, &model(), &keys, name).await;
    failure
}

/// The same for a server of which only the bytes of the answer are wrong.
async fn survives_answer(name: &str, answer: impl AsRef<[u8]>) -> Failure {
    survives(name, vec![Act::AwaitRequest, Act::Send(answer.as_ref().to_vec())]).await
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    [head.as_bytes(), b"\r\n\r\n", body].concat()
}

#[tokio::test]
async fn garbage_instead_of_http() {
    let _watchdog = watchdog();
    let random = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..4_000).map(|_| random.u8(..)).collect::<Vec<_>>()
    };
    for seed in 0..4 {
        assert_eq!(survives_answer("random bytes", random(seed)).await, Failure::Network);
    }
    for (name, bytes) in [
        ("zeros", vec![0; 5_000]),
        ("line ends", b"\r\n".repeat(2_000)),
        ("another protocol", b"220 mail.test ESMTP\r\n".to_vec()),
        ("a TLS alert", vec![0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28]),
        ("a web page of the days before HTTP/1.0", b"<html>hello</html>".to_vec()),
        ("no status", b"HTTP/1.1 \r\n\r\n".to_vec()),
        ("a status of two digits", b"HTTP/1.1 20 OK\r\n\r\n".to_vec()),
        ("a status of four digits", b"HTTP/1.1 2000 OK\r\n\r\n".to_vec()),
        ("a version of the future", b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("headers that are not UTF-8", b"HTTP/1.1 200 OK\r\nX-\xff: \xfe\r\n\r\n".to_vec()),
        ("a request", b"POST / HTTP/1.1\r\nHost: you\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ] {
        assert_eq!(survives_answer(name, bytes).await, Failure::Network, "{name}");
    }
}

#[tokio::test]
async fn headers_without_an_end() {
    let _watchdog = watchdog();
    let status = Act::Send(b"HTTP/1.1 200 OK\r\n".to_vec());
    let endless = vec![Act::AwaitRequest, status, Act::EndlessHeaders { bytes_max: 1_000_000 }];
    assert_eq!(survives("endless headers", endless).await, Failure::Network);
    let line = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; 100_000]].concat();
    assert_eq!(survives_answer("an endless header", line).await, Failure::Network);
    let many: String = (0..70).map(|n| format!("a{n}: 1\r\n")).collect();
    let many = format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 0\r\n\r\n");
    assert_eq!(survives_answer("more headers than are looked at", many).await, Failure::Network);
}

#[tokio::test]
async fn bytes_that_come_slowly() {
    let _watchdog = watchdog();
    let bytes = answer("HTTP/1.1 200 OK\r\nContent-Length: 100", &[b'x'; 100]);
    let pace = Duration::from_millis(50);
    let dribble = |bytes: Vec<u8>| vec![Act::AwaitRequest, Act::Dribble(bytes, pace)];
    assert_eq!(survives("a slow head", dribble(bytes.clone())).await, Failure::Network);
    let (head, body) = bytes.split_at(bytes.len() - 100);
    let slow_body = vec![Act::AwaitRequest, Act::Send(head.to_vec()), Act::Dribble(body.to_vec(), pace)];
    assert_eq!(survives("a slow body", slow_body).await, Failure::Network);
    let silent = vec![Act::AwaitRequest, Act::Pause(Duration::from_secs(20))];
    assert_eq!(survives("silence", silent).await, Failure::Network);
    let deaf = vec![Act::Pause(Duration::from_secs(20))];
    assert_eq!(survives("a server that does not even read", deaf).await, Failure::Network);
}

#[tokio::test]
async fn bodies_that_end_too_early_or_not_at_all() {
    let _watchdog = watchdog();
    let busy = Failure::Busy { retry_after_s: None };
    for (length, sent) in [(100, 0), (100, 1), (100, 99), (5_000, 4_000)] {
        let bytes = answer(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}"), &vec![b'x'; sent]);
        assert_eq!(survives_answer("a truncated body", bytes).await, busy, "{sent} of {length}");
    }
    let stalled = answer("HTTP/1.1 200 OK\r\nContent-Length: 100", b"half");
    let stalls = vec![Act::AwaitRequest, Act::Send(stalled), Act::Pause(Duration::from_secs(20))];
    assert_eq!(survives("a body that stalls", stalls).await, Failure::Network);
    let unbounded = answer("HTTP/1.1 200 OK", b"up to the end");
    let stays_open =
        vec![Act::AwaitRequest, Act::Send(unbounded.clone()), Act::Pause(Duration::from_secs(20))];
    assert_eq!(survives("a body up to an end that never comes", stays_open).await, Failure::Network);
    assert_eq!(survives_answer("a body up to the end", unbounded).await, busy);
}

#[tokio::test]
async fn lengths_that_cannot_be() {
    let _watchdog = watchdog();
    let busy = Failure::Busy { retry_after_s: None };
    for (length, expected) in [
        ("18446744073709551615", busy),
        ("9223372036854775808", busy),
        ("4294967296", busy),
        ("1000000000", busy),
        ("18446744073709551616", Failure::Network),
        ("99999999999999999999999999", Failure::Network),
        ("-1", Failure::Network),
        ("-9223372036854775808", Failure::Network),
        ("0x10", Failure::Network),
        ("1e3", Failure::Network),
        ("", Failure::Network),
        ("5, 5", Failure::Network),
    ] {
        let bytes = answer(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}"), &[b'x'; 6_000]);
        assert_eq!(survives_answer(length, &bytes).await, expected, "Content-Length: {length}");
    }
    let two = answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 7", b"1234567");
    assert_eq!(survives_answer("two lengths", two).await, busy);
}

#[tokio::test]
async fn more_body_than_was_announced() {
    let _watchdog = watchdog();
    for length in [0, 1, 4, 1_023, 1_024, 1_025] {
        let head = answer(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}"), b"");
        let more = vec![b'x'; 3_000];
        let at_once = [head.clone(), more.clone()].concat();
        survives_answer("more than announced, at once", at_once).await;
        let apart = vec![
            Act::AwaitRequest,
            Act::Send(head),
            Act::Pause(Duration::from_millis(30)),
            Act::Send(more),
            Act::Pause(Duration::from_millis(500)),
        ];
        survives(&format!("more than {length}, apart"), apart).await;
    }
}

#[tokio::test]
async fn chunks_that_are_wrong() {
    let _watchdog = watchdog();
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked";
    for (name, body) in [
        ("no chunk", &b""[..]),
        ("half a length", b"1"),
        ("a length and no end of line", b"10\r"),
        ("half a chunk", b"10\r\nhalf"),
        ("a chunk without its end", b"4\r\nfour"),
        ("a chunk with half its end", b"4\r\nfour\r"),
        ("no last chunk", b"4\r\nfour\r\n"),
        ("half of the last chunk", b"4\r\nfour\r\n0\r\n"),
        ("a chunk that ends in another way", b"4\r\nfourXX0\r\n\r\n"),
        ("a length that is none", b"zz\r\nfour\r\n0\r\n\r\n"),
        ("an empty length", b"\r\nfour\r\n0\r\n\r\n"),
        ("a length of 4 GB", b"ffffffff\r\nfour"),
        ("a length beyond 32 bits", b"100000000\r\nfour"),
        ("a negative length", b"-4\r\nfour\r\n0\r\n\r\n"),
        ("an odd number of digits", b"004\r\nfour\r\n0\r\n\r\n"),
        ("an extension", b"4;name=value\r\nfour\r\n0\r\n\r\n"),
        ("a bare line end", b"4\nfour\n0\n\n"),
        ("a trailer", b"4\r\nfour\r\n0\r\nX: y\r\n\r\n"),
        ("nobody's answer", b"4\r\nfour\r\n0\r\n\r\n"),
    ] {
        survives_answer(name, answer(head, body)).await;
    }
    let endless = [answer(head, b""), b"1\r\nx\r\n".repeat(100_000)].concat();
    survives_answer("chunks without an end", endless).await;
    let stalls = answer(head, b"10\r\nhalf");
    let stalls = vec![Act::AwaitRequest, Act::Send(stalls), Act::Pause(Duration::from_secs(20))];
    assert_eq!(survives("a chunk that stalls", stalls).await, Failure::Network);
    let unknown = answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: zstd", b"x");
    assert_eq!(survives_answer("an encoding that nobody knows", unknown).await, Failure::Network);
}

#[tokio::test]
async fn answers_that_are_none() {
    let _watchdog = watchdog();
    let busy = Failure::Busy { retry_after_s: None };
    for status in ["100 Continue", "101 Switching Protocols", "103 Early Hints"] {
        let interim = format!("HTTP/1.1 {status}\r\n\r\n");
        assert_eq!(survives_answer(status, &interim).await, Failure::Network);
        let both = format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(survives_answer(status, both).await, Failure::Network);
    }
    let forever = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(10_000);
    assert_eq!(survives_answer("only interim answers", forever).await, Failure::Network);
    assert_eq!(survives_answer("204", "HTTP/1.1 204 No Content\r\n\r\n").await, busy);
    let lying = "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nfour";
    assert_eq!(survives_answer("204 with a body", lying).await, Failure::Network);
    assert_eq!(survives_answer("304", "HTTP/1.1 304 Not Modified\r\n\r\n").await, busy);
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = format!(
            "HTTP/1.1 {status} Elsewhere\r\nLocation: http://127.0.0.1:1/v1/batch\r\nContent-Length: 0\r\n\r\n"
        );
        assert_eq!(survives_answer("a redirect", elsewhere).await, busy, "{status}");
    }
    let portal = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>";
    assert_eq!(survives_answer("a captive portal", portal).await, busy);
    for status in ["000 Nothing", "099 Less", "999 More"] {
        survives_answer(status, format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")).await;
    }
    let one_zero = "HTTP/1.0 200 OK\r\n\r\nhello";
    assert_eq!(survives_answer("HTTP/1.0", one_zero).await, busy);
}

#[tokio::test]
async fn refusals_of_everything() {
    let _watchdog = watchdog();
    let refuse = |status: u16| format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
    for status in [400, 413] {
        // On one connection as long as the server likes, and on a new one each time.
        let patient = [Act::AwaitRequest, Act::Send(refuse(status).into_bytes())];
        let patient = patient.iter().cycle().take(2 * 16).cloned().collect();
        assert_eq!(survives("too large, however small", patient).await, Failure::Refused { status });
        assert_eq!(survives_answer("the same", refuse(status)).await, Failure::Refused { status });
    }
    for status in [401, 403, 404, 405] {
        assert_eq!(survives_answer("unwanted", refuse(status)).await, Failure::Refused { status });
    }
    let later = "HTTP/1.1 503 Later\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(survives_answer("later", later).await, Failure::Busy { retry_after_s: Some(7) });
    for never in ["99999999999999999999", "-1", "Wed, 21 Oct 2015 07:28:00 GMT", "\u{fffd}"] {
        let later = format!("HTTP/1.1 503 Later\r\nRetry-After: {never}\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(survives_answer(never, later).await, Failure::Busy { retry_after_s: None });
    }
}

#[tokio::test]
async fn answers_that_come_too_early_and_connections_that_close() {
    let _watchdog = watchdog();
    let ok = answer("HTTP/1.1 200 OK\r\nContent-Length: 2", b"ok");
    for (name, script) in [
        ("an answer before the request", vec![Act::Send(ok.clone()), Act::AwaitRequest]),
        ("an answer instead of reading", vec![Act::Send(ok.clone())]),
        ("a reset after an answer", vec![Act::Send(ok.clone()), Act::Reset]),
        ("a reset at once", vec![Act::Reset]),
        ("a reset after the request", vec![Act::AwaitRequest, Act::Reset]),
        ("a close at once", vec![]),
        ("a close after the request", vec![Act::AwaitRequest]),
    ] {
        survives(name, script).await;
    }
    for end in 0..ok.len() {
        survives_answer("a close in the middle of an answer", &ok[..end]).await;
        if end % 8 == 0 {
            let reset = vec![Act::AwaitRequest, Act::Send(ok[..end].to_vec()), Act::Reset];
            survives("a reset in the middle of an answer", reset).await;
        }
    }
}

#[tokio::test]
async fn two_answers_at_once() {
    let _watchdog = watchdog();
    for status in [200, 400, 413, 503] {
        let one = answer(&format!("HTTP/1.1 {status} Twice\r\nContent-Length: 2"), b"no");
        let both = [one.clone(), one.clone()].concat();
        survives_answer("two answers in one piece", &both).await;
        let apart = vec![
            Act::AwaitRequest,
            Act::Send(one.clone()),
            Act::Send(one.clone()),
            Act::AwaitRequest,
            Act::Send(both),
        ];
        survives("two answers", apart).await;
    }
}

#[tokio::test]
async fn nobody_there() {
    let _watchdog = watchdog();
    let mut station = station().await;
    let keys = station.post_all(0..RECORDS).await;
    let gone = ScriptedServer::start(vec![]).await.unwrap().address();
    let mut uplink = station.plain(gone.port());
    assert_eq!(station.flush(&mut uplink).await, Err(Failure::Network));
    let mut uplink = station.uplink("http://nobody.invalid", None, 2048);
    assert_eq!(station.flush(&mut uplink).await, Err(Failure::Network));
    deliver(station, &model(), &keys, "nobody there").await;
}

/// The device gets what is the receiver's true answer in an unusual manner: `expected` connections for `batches`.
async fn understands(name: &str, manner: Manner, expected: impl Fn(usize) -> bool) {
    let model = model();
    let server = HonestServer::start(&model, manner).await.unwrap();
    let mut station = RealStation::boot().await;
    station.timeouts = Timeouts { connect_ms: 10_000, exchange_ms: 20_000 };
    let keys = station.post_all(0..400).await;
    let mut uplink = station.plain(server.address().port());
    assert_eq!(station.flush(&mut uplink).await, Ok(()), "{name}");
    assert_eq!(station.pending().await, [], "{name}");
    let stored: Vec<_> = model.lock().unwrap().log().iter().map(|received| received.key).collect();
    assert_eq!(stored, keys, "{name}");
    assert!(expected(server.connections()), "{name}: {} connections", server.connections());
}

fn chunked(sizes: &[usize], body: &[u8]) -> Vec<u8> {
    let mut bytes = answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"");
    let (mut rest, mut sizes) = (body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (chunk, others) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
        rest = others;
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

#[tokio::test]
async fn one_connection_carries_many_batches() {
    let _watchdog = watchdog();
    understands("keep-alive", plainly(), |connections| connections == 1).await;
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_is_served() {
    let _watchdog = watchdog();
    understands("close", Arc::new(|_, reply| Said::plainly(reply, After::Close)), |many| many > 3).await;
    // It does not say so.
    let lying = |_: Exchange, reply: &_| Said { is_last: true, ..Said::plainly(reply, After::KeepAlive) };
    understands("a keep-alive that is none", Arc::new(lying), |many| many > 3).await;
    let every_other = |n: Exchange, reply: &_| Said {
        is_last: n.number % 2 == 1,
        ..Said::plainly(reply, After::KeepAlive)
    };
    understands("close after two", Arc::new(every_other), |many| many > 1).await;
    let promising = |_: Exchange, reply: &host_tests::server::Reply| Said {
        parts: vec![answer(
            &format!(
                "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=999, max=-1\r\nContent-Length: {}",
                reply.body.len()
            ),
            &reply.body,
        )],
        is_last: true,
    };
    understands("a keep-alive that lies", Arc::new(promising), |many| many > 3).await;
    let one_zero = |_: Exchange, reply: &host_tests::server::Reply| Said {
        parts: vec![answer("HTTP/1.0 200 OK\r\nServer: old", &reply.body)],
        is_last: true,
    };
    understands("HTTP/1.0", Arc::new(one_zero), |many| many > 3).await;
}

#[tokio::test]
async fn answers_in_any_pieces_are_understood() {
    let _watchdog = watchdog();
    for sizes in [&[1][..], &[7, 1, 30], &[10_000]] {
        let manner = move |_: Exchange, reply: &host_tests::server::Reply| Said {
            parts: vec![chunked(sizes, &reply.body)],
            is_last: false,
        };
        understands("chunked", Arc::new(manner), |_| true).await;
    }
    for size in [1, 16, 100] {
        // Only the first in small pieces: the others would take their time.
        let manner = move |n: Exchange, reply: &host_tests::server::Reply| {
            let said = Said::plainly(reply, After::KeepAlive);
            let parts = if n.number == 0 {
                said.parts.concat().chunks(size).map(<[u8]>::to_vec).collect()
            } else {
                said.parts
            };
            Said { parts, ..said }
        };
        understands("pieces", Arc::new(manner), |connections| connections == 1).await;
    }
    let apart = |n: Exchange, reply: &host_tests::server::Reply| Said {
        parts: if n.number == 0 {
            chunked(&[5], &reply.body).chunks(3).map(<[u8]>::to_vec).collect()
        } else {
            vec![chunked(&[5], &reply.body)]
        },
        is_last: false,
    };
    understands("chunks in pieces", Arc::new(apart), |_| true).await;
}
