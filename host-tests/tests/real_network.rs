//! The ground of the tests against real servers is sound: the adapter carries bytes over real TCP and counts them, names
//! are found where the test says, and the scripted server does what its script says and no more.

use std::time::{Duration, Instant};

use embedded_io_async::{Error, ErrorKind, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use host_tests::real_net::{Act, RealNet, ScriptedServer, TokioClock};
use pillarbox::{Clock, Sleep};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nHost: receiver.test\r\nContent-Length: 5\r\n\r\nhello";

fn net() -> RealNet {
    RealNet::new().with_name("receiver.test", [127, 0, 0, 1].into())
}

/// Everything up to the end of the connection, and the error if that is how it ends.
async fn read_to_end(connection: &mut impl Read) -> (Vec<u8>, Option<ErrorKind>) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match connection.read(&mut buffer).await {
            Ok(0) => return (bytes, None),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => return (bytes, Some(error.kind())),
        }
    }
}

/// Connects, sends a request and reads to the end.
async fn play(script: Vec<Act>) -> (Vec<u8>, Option<ErrorKind>, ScriptedServer) {
    let server = ScriptedServer::start(vec![script]).await.unwrap();
    let net = net();
    let mut connection = net.connect(server.address()).await.unwrap();
    connection.write_all(REQUEST).await.unwrap();
    let (bytes, error) = read_to_end(&mut connection).await;
    (bytes, error, server)
}

#[tokio::test]
async fn bytes_go_both_ways_and_are_counted() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
    });
    let net = net();
    let address = net.get_host_by_name("receiver.test", AddrType::IPv4).await.unwrap();
    let mut connection = net.connect((address, port).into()).await.unwrap();
    connection.write_all(b"hello").await.unwrap();
    connection.flush().await.unwrap();
    assert_eq!(read_to_end(&mut connection).await, (b"hellohello".to_vec(), None));
    echo.await.unwrap();
    assert_eq!((net.sent_bytes(), net.received_bytes(), net.connections()), (5, 10, 1));
}

#[tokio::test]
async fn names_come_from_the_table_and_then_from_the_host() {
    let net = net();
    assert!(net.get_host_by_name("receiver.test", AddrType::IPv6).await.is_err());
    assert!(net.get_host_by_name("localhost", AddrType::Either).await.unwrap().is_loopback());
    let literal = net.get_host_by_name("127.0.0.1", AddrType::IPv4).await.unwrap();
    assert!(literal.is_loopback());
}

#[tokio::test]
async fn the_clock_counts_from_its_boot() {
    let clock = TokioClock::boot();
    assert!(clock.uptime_ms() < 1000);
    let until_ms = clock.uptime_ms() + 20;
    clock.sleep_until(until_ms).await;
    assert!(clock.uptime_ms() >= until_ms);
}

#[tokio::test]
async fn a_script_is_played_to_the_byte() {
    let script =
        vec![Act::AwaitRequest, Act::Send(b"HTTP/1.1 200 OK\r\n".to_vec()), Act::Send(b"\xff".to_vec())];
    let (bytes, error, server) = play(script).await;
    assert_eq!((bytes.as_slice(), error), (&b"HTTP/1.1 200 OK\r\n\xff"[..], None));
    assert_eq!(server.requests(), [REQUEST]);
}

#[tokio::test]
async fn pauses_and_dribbles_take_their_time() {
    let began = Instant::now();
    let pace = Duration::from_millis(5);
    let (bytes, ..) =
        play(vec![Act::Pause(Duration::from_millis(30)), Act::Dribble(b"slow".to_vec(), pace)]).await;
    assert_eq!(bytes, b"slow");
    assert!(began.elapsed() >= Duration::from_millis(30) + 4 * pace);
}

#[tokio::test]
async fn endless_headers_end() {
    let (bytes, error, _server) =
        play(vec![Act::AwaitRequest, Act::EndlessHeaders { bytes_max: 100_001 }]).await;
    assert_eq!((bytes.len(), error), (100_001, None));
    assert!(bytes.starts_with(b"X-Filler: "));
}

#[tokio::test]
async fn no_script_sends_without_bound() {
    let (bytes, error, _server) = play(vec![Act::EndlessHeaders { bytes_max: usize::MAX }]).await;
    assert!(bytes.len() <= 4 * 1024 * 1024, "{error:?}");
}

#[tokio::test]
async fn a_reset_is_a_reset() {
    let (bytes, error, _server) = play(vec![Act::AwaitRequest, Act::Reset]).await;
    assert_eq!((bytes.as_slice(), error), (&b""[..], Some(ErrorKind::ConnectionReset)));
}

#[tokio::test]
async fn after_the_last_script_connections_are_refused() {
    let server = ScriptedServer::start(vec![vec![]]).await.unwrap();
    let net = net();
    let mut connection = net.connect(server.address()).await.unwrap();
    assert_eq!(read_to_end(&mut connection).await, (vec![], None));
    let refused = net.connect(server.address()).await.err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}
