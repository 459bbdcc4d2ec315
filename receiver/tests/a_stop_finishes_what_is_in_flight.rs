//! A receiver that is told to stop finishes what it has begun, closes connections that only wait, takes no new ones, and ends:
//! over plain HTTP and over TLS, and also when something never ends.

mod served;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use pillarbox_receiver::serve::{self, ServeSettings};
use pillarbox_receiver::store::Role;
use served::authority::{Authority, HOST};
use served::device::Speaker;
use served::gate::{Closed, Gate};
use served::{Client, Ground, START_MS, Served, records, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How it is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Plain,
    Tls,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_flight_is_finished_and_nothing_else_is_begun() {
    for over in [Over::Plain, Over::Tls] {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let acceptor = (over == Over::Tls)
            .then(|| serve::acceptor(&authority.files(directory.path(), "ours")).expect("they are good"));
        let ground = Ground::sqlite().await;
        let gate = Gate::new(&ground.store, Closed::Complete);
        let mut served = Served::over(gate.clone(), acceptor, START_MS, |_| {}).await;
        let token = ground.token(Role::Client, Some("acme")).await;
        let (scheme, port) = (if over == Over::Tls { "https" } else { "http" }, served.address.port());
        let http = authority.client(served.address);
        let client = Client { http, url: format!("{scheme}://{HOST}:{port}"), token };

        // One connection that has been used and waits, one that never said anything, one with half a request.
        let alive = client.http.get(format!("{}/healthz", client.url)).send().await.unwrap();
        assert_eq!(alive.text().await.unwrap(), "alive\n");
        let mut silent = TcpStream::connect(served.address).await.unwrap();
        let in_flight = tokio::spawn({
            let client = Client { http: authority.client(served.address), ..client.clone() };
            async move { client.post("photo", "k", "[1]").await }
        });
        until("the request is in flight", || async { gate.waiting() == 1 }).await;

        served.tell_to_stop();
        until("nobody is let in any more", || async {
            let refused = TcpStream::connect(served.address).await;
            refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        })
        .await;
        if over == Over::Plain {
            let mut rest = Vec::new();
            let closed = tokio::time::timeout(Duration::from_secs(5), silent.read_to_end(&mut rest)).await;
            assert!(closed.is_ok(), "a connection that waits is closed");
        } else {
            drop(silent);
        }
        let again = client.http.get(format!("{}/healthz", client.url)).send().await;
        assert!(again.is_err(), "{over:?}: a connection that waited was used again");
        assert!(!in_flight.is_finished());
        assert!(!served.has_stopped(), "it ended before its work was done");
        assert_eq!(records(&*ground.store).await.len(), 0);

        gate.open();
        let answer = in_flight.await.unwrap();
        assert_eq!(answer.status, 201, "{over:?}: {answer:?}");
        served.stopped().await;
        assert_eq!(records(&*ground.store).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_in_flight_is_finished_too() {
    let ground = Ground::sqlite().await;
    let gate = Gate::new(&ground.store, Closed::Take);
    let mut served = Served::with(gate.clone(), |_| {}).await;
    let device = Speaker::new("meter-1", 1);
    device.register(&*ground.store, START_MS).await;
    let url = served.url.clone();
    let delivery =
        tokio::spawn(
            async move { device.deliver(&reqwest::Client::new(), &url, &[(0, b"a"), (1, b"b")]).await },
        );
    until("the batch is in flight", || async { gate.waiting() == 1 }).await;
    served.tell_to_stop();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!served.has_stopped(), "it ended before its work was done");
    gate.open();
    assert_eq!(delivery.await.unwrap(), [true, true]);
    served.stopped().await;
    assert_eq!(records(&*ground.store).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_ends_does_not_keep_the_receiver_from_stopping() {
    let ground = Ground::sqlite().await;
    let gate = Gate::new(&ground.store, Closed::Complete);
    let mut settings = ServeSettings::default();
    settings.limits.stop_timeout = Duration::from_millis(300);
    let limits = settings.limits;
    let served = Served::with(gate.clone(), |settings| settings.limits = limits).await;
    let client = served.client(&ground.token(Role::Client, Some("acme")).await);
    let stuck = tokio::spawn(async move { client.try_post("photo", "k", "application/json", b"[1]").await });
    until("the request is in flight", || async { gate.waiting() == 1 }).await;
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    slow.write_all(b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let since = Instant::now();
    served.stopped().await;
    assert!(since.elapsed() >= Duration::from_millis(250), "it waits as long as it was told to");
    stuck.abort();
}
