//! A receiver is stopped with every update. What is in flight then must be finished, and connections that only wait must not hold it up.

mod operator;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use operator::{Operator, Receiver};
use receiver_testkit::Running;

fn connect(receiver: &Receiver) -> TcpStream {
    TcpStream::connect(receiver.url.trim_start_matches("http://")).expect("it listens")
}

/// Who has nothing left to do does not take so long.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

const GET: &str = "GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n";

/// Reads an answer without a body that is longer than it looks.
fn read_some(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes).expect("it answers");
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

fn terminate(running: &Running) {
    let pid = rustix::process::Pid::from_raw(running.pid() as i32).expect("it is a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
}

#[test]
fn connections_that_are_kept_alive_do_not_keep_it() {
    let operator = Operator::new();
    let receiver = operator.serve("--header-timeout 1h --stop-timeout 1h");
    let mut waiting: Vec<TcpStream> = (0..5).map(|_| connect(&receiver)).collect();
    for stream in &mut waiting {
        stream.write_all(GET.as_bytes()).unwrap();
        assert!(read_some(stream).starts_with("HTTP/1.1 200"));
    }
    // And one that has said nothing yet.
    waiting.push(connect(&receiver));
    // Its clients hold on to their connections; it ends all the same, well within its hour.
    receiver.stop();
    for mut stream in waiting {
        // Who was not even accepted is reset.
        assert!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)));
    }
}

#[test]
fn what_is_in_flight_is_finished() {
    let operator = Operator::new();
    let token = operator.token("--role client");
    let mut receiver = operator.serve("--stop-timeout 1h --log debug");
    let body = "{\"a\":1}";
    let head = format!(
        "POST /v1/records/1 HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: \"k\"\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{{",
        body.len()
    );
    let mut stream = connect(&receiver);
    stream.write_all(head.as_bytes()).unwrap();
    // The receiver has begun with it when it answers others that came later.
    let mut other = connect(&receiver);
    other.write_all(GET.as_bytes()).unwrap();
    read_some(&mut other);
    terminate(&receiver.running);
    receiver.running.line_with("stopping");
    assert!(receiver.running.ended().is_none());
    stream.write_all(&body.as_bytes()[1..]).unwrap();
    assert!(read_some(&mut stream).starts_with("HTTP/1.1 201"));
    let status = receiver.running.wait_for_end(ENDS_WITHIN);
    assert!(status.success(), "{status}: {}", receiver.running.output());
    assert_eq!(operator.run("records export").done().lines().count(), 1);
}

#[test]
fn told_a_second_time_it_does_not_wait() {
    let operator = Operator::new();
    let mut receiver = operator.serve("--stop-timeout 1h --header-timeout 1h --body-timeout 1h");
    let mut stream = connect(&receiver);
    stream.write_all(b"POST /v1/batch HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\n1").unwrap();
    let mut other = connect(&receiver);
    other.write_all(GET.as_bytes()).unwrap();
    read_some(&mut other);
    terminate(&receiver.running);
    receiver.running.line_with("stopping");
    let status = receiver.running.stop();
    assert_eq!(status.code(), Some(1), "{}", receiver.running.output());
    assert!(receiver.running.output().contains("a second time"));
}
