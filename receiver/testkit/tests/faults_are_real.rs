//! The proxy does to an exchange what each fault says, no more and no less, and the same seed does the same again.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use receiver_testkit::{Fault, FaultyProxy};

const REQUEST: &[u8] =
    b"POST /v1/batch HTTP/1.1\r\nHost: receiver.test\r\nContent-Length: 11\r\n\r\nhello world";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nserved";

/// Answers whole requests, and keeps what it has read.
struct Server {
    address: SocketAddr,
    /// By connection, in the order in which they came.
    read: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let read = Arc::new(Mutex::new(Vec::new()));
        let all = read.clone();
        // The thread ends with the process; no test has many.
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                all.lock().unwrap().push(Vec::new());
                let all = all.clone();
                std::thread::spawn(move || {
                    serve(stream.unwrap(), |bytes| all.lock().unwrap()[number].extend(bytes))
                });
            }
        });
        Self { address, read }
    }

    /// Whole requests, over all connections.
    fn served(&self) -> usize {
        self.read
            .lock()
            .unwrap()
            .iter()
            .map(|bytes| bytes.chunks_exact(REQUEST.len()).filter(|&one| one == REQUEST).count())
            .sum()
    }

    fn wait_until_served(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.served() < count {
            assert!(Instant::now() < deadline, "{} of {count} were served", self.served());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve(mut stream: TcpStream, mut keep: impl FnMut(&[u8])) {
    let (mut buffer, mut unread) = ([0; 1024], Vec::new());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        keep(&buffer[..count]);
        unread.extend_from_slice(&buffer[..count]);
        while unread.starts_with(REQUEST) {
            unread.drain(..REQUEST.len());
            let _ = stream.write_all(ANSWER);
        }
    }
}

/// Sends a request over a new connection, and reads until the end or the whole answer.
fn ask(proxy: &FaultyProxy) -> Vec<u8> {
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    exchange(&mut stream)
}

fn exchange(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(REQUEST).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
    while bytes != ANSWER {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}"),
        }
    }
    bytes
}

fn with(fault: Fault, seed: u64) -> (Server, FaultyProxy) {
    let server = Server::start();
    let proxy = FaultyProxy::start(server.address, seed);
    proxy.only(&[fault]);
    proxy.rate(1.0);
    (server, proxy)
}

/// Each fault several times: a seed also draws where, when, and how a connection ends.
fn for_seeds(fault: Fault, check: impl Fn(&Server, Vec<u8>)) {
    for seed in 0..8 {
        let (server, proxy) = with(fault, seed);
        let answer = ask(&proxy);
        check(&server, answer);
        let deadline = Instant::now() + Duration::from_secs(10);
        while proxy.count(fault) == 0 {
            assert!(Instant::now() < deadline, "{fault:?} was not counted");
        }
        assert_eq!((proxy.counts().len(), proxy.exchanges(), proxy.connections()), (1, 1, 1));
    }
}

#[test]
fn a_request_is_cut() {
    for_seeds(Fault::CutInRequest, |server, answer| {
        assert_eq!((answer.len(), server.served()), (0, 0));
        let read = server.read.lock().unwrap();
        assert!(read.iter().all(|bytes| REQUEST.starts_with(bytes)), "nothing but a part of it");
    });
}

#[test]
fn a_connection_is_cut_after_the_request() {
    for_seeds(Fault::CutAfterRequest, |_, answer| assert_eq!(answer.len(), 0));
}

#[test]
fn what_was_served_is_not_answered() {
    for_seeds(Fault::CutBeforeAnswer, |server, answer| {
        assert_eq!((answer.len(), server.served()), (0, 1));
    });
}

#[test]
fn an_answer_is_cut() {
    for_seeds(Fault::CutInAnswer, |server, answer| {
        assert!(ANSWER.starts_with(&answer) && answer != ANSWER);
        assert_eq!(server.served(), 1);
    });
}

#[test]
fn a_request_is_served_twice_and_answered_once() {
    for_seeds(Fault::Duplicate, |server, answer| {
        assert_eq!(answer, ANSWER);
        server.wait_until_served(2);
        assert_eq!(server.read.lock().unwrap().len(), 2, "over a connection of its own");
    });
}

#[test]
fn a_delayed_exchange_is_whole() {
    for_seeds(Fault::Delay, |server, answer| assert_eq!((answer.as_slice(), server.served()), (ANSWER, 1)));
}

#[test]
fn a_client_reads_garbage() {
    for_seeds(Fault::GarbageToClient, |server, answer| {
        assert_eq!(server.served(), 1);
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    });
}

#[test]
fn a_server_reads_garbage() {
    for_seeds(Fault::GarbageToServer, |server, answer| {
        assert_eq!((answer.len(), server.served()), (0, 0));
        let read = server.read.lock().unwrap();
        assert!(read.iter().any(|bytes| !bytes.is_empty()) && !read[0].starts_with(b"POST"));
    });
}

#[test]
fn in_calm_weather_everything_passes_over_one_connection() {
    let (server, proxy) = with(Fault::CutInAnswer, 1);
    proxy.calm();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    for _ in 0..20 {
        assert_eq!(exchange(&mut stream), ANSWER);
    }
    assert_eq!((server.served(), proxy.exchanges(), proxy.connections()), (20, 20, 1));
    assert!(proxy.counts().is_empty());
}

#[test]
fn what_is_no_request_passes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = FaultyProxy::start(listener.local_addr().unwrap(), 1);
    proxy.rate(1.0);
    for words in [
        &b"\x16\x03\x01 is how TLS begins"[..],
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        client.write_all(words).unwrap();
        let mut server = listener.accept().unwrap().0;
        let mut read = vec![0; words.len()];
        server.read_exact(&mut read).unwrap();
        assert_eq!(read, words);
        server.write_all(b"back").unwrap();
        drop(server);
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"back");
    }
    assert_eq!(proxy.exchanges(), 0);
}

#[test]
fn a_server_that_is_not_there_is_an_end() {
    let (server, proxy) = with(Fault::Delay, 1);
    // Port 1 is nobody's.
    proxy.forward_to(([127, 0, 0, 1], 1).into());
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    proxy.forward_to(server.address);
    assert_eq!(ask(&proxy), ANSWER);
}

#[test]
fn the_same_seed_does_the_same() {
    let lived = |seed| {
        let server = Server::start();
        let proxy = FaultyProxy::start(server.address, seed);
        let answers: Vec<_> = (0..40).map(|_| ask(&proxy)).collect();
        proxy.calm();
        assert_eq!(ask(&proxy), ANSWER);
        (answers, proxy.counts())
    };
    let (first, counts) = lived(7);
    assert_eq!((first.clone(), counts.clone()), lived(7));
    assert_ne!(first, lived(8).0);
    assert!(counts.len() >= 4, "{counts:?}");
}
