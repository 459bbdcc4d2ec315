//! Clients that take their time, and more of them than there are places: each is dropped when its time is over, and whoever means it
//! is answered meanwhile. Nothing here is timed; what must end is waited for.

mod hostile;

use std::time::Duration;

use hostile::{NEVER, Sender, Served, answers, read_to_end, request};
use pillarbox_receiver::serve::Limits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

fn short() -> Limits {
    let soon = Duration::from_millis(400);
    Limits { header_timeout: soon, body_timeout: soon, write_timeout: soon, ..Limits::default() }
}

async fn ground(limits: Limits) -> (Served, Sender) {
    let served = Served::start(limits).await;
    let sender = Sender::new("meter-0042", 7);
    served.let_in(&sender).await;
    (served, sender)
}

/// Sends a byte now and then until nobody takes it any more. Gives how many were taken.
async fn trickle(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    for (sent, byte) in bytes.iter().enumerate() {
        if stream.write_all(&[*byte]).await.is_err() {
            return sent;
        }
        sleep(Duration::from_millis(50)).await;
    }
    bytes.len()
}

/// A device that means it is served again and again until `slow` has come to its end.
async fn served_meanwhile<T>(served: &Served, sender: &mut Sender, slow: impl Future<Output = T>) -> T {
    let mut slow = std::pin::pin!(slow);
    let mut served_for = 0;
    let ended = timeout(NEVER, async {
        loop {
            let batch = sender.batch(1);
            tokio::select! {
                ended = &mut slow => return ended,
                answer = served.post(&batch) => {
                    assert_eq!(answer.status, 200, "others are served");
                    served_for += 1;
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    });
    let ended = ended.await.expect("a slow client is dropped");
    assert!(served_for > 0, "nobody was served meanwhile");
    ended
}

#[tokio::test]
async fn a_head_that_trickles() {
    let (served, mut sender) = ground(short()).await;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: r\r\n{}", "X-Slow: 1\r\n".repeat(200));
    let mut stream = served.connect().await;
    let taken = served_meanwhile(&served, &mut sender, trickle(&mut stream, head.as_bytes())).await;
    assert!(taken < head.len());
    served.stop().await;
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_said() {
    let (served, mut sender) = ground(short()).await;
    let mut streams = [served.connect().await, served.connect().await];
    streams[1].write_all(&request(&sender.batch(1), "")).await.expect("it listens");
    let [silent, idle] = &mut streams;
    let both = async { tokio::join!(read_to_end(silent), read_to_end(idle)) };
    let (silent, idle) = served_meanwhile(&served, &mut sender, both).await;
    assert!(answers(&silent).iter().all(|answer| answer.status == 408), "{silent:?}");
    assert_eq!(answers(&idle)[0].status, 200, "it was answered, and said no more");
    served.stop().await;
}

#[tokio::test]
async fn a_body_that_trickles() {
    let (served, mut sender) = ground(short()).await;
    let before = served.rows("records");
    let bytes = request(&vec![1; 2000], "");
    let head = bytes.len() - 2000;
    let mut stream = served.connect().await;
    stream.write_all(&bytes[..head]).await.expect("it listens");
    let (mut reading, mut writing) = stream.into_split();
    let slow = async {
        let answer = async {
            let mut answer = Vec::new();
            drop(tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut answer).await);
            answer
        };
        let pour = async {
            for byte in &bytes[head..] {
                if writing.write_all(&[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
            panic!("all of it was taken");
        };
        tokio::join!(answer, pour).0
    };
    let answer = served_meanwhile(&served, &mut sender, slow).await;
    for answer in answers(&answer) {
        assert_eq!(answer.status, 408);
        answer.problem();
    }
    assert!(served.rows("records") > before);
    served.stop().await;
}

/// It asks again and again and never takes an answer, until the receiver cannot get rid of them.
#[tokio::test]
async fn answers_that_nobody_takes() {
    let (served, mut sender) = ground(short()).await;
    let mut stream = served.connect().await;
    let ask = "GET /openapi.json HTTP/1.1\r\nHost: r\r\n\r\n".repeat(100);
    let greedy = async {
        for asked in 0..100_000 {
            if stream.write_all(ask.as_bytes()).await.is_err() {
                return asked;
            }
        }
        100_000
    };
    let asked = served_meanwhile(&served, &mut sender, greedy).await;
    assert!(asked < 100_000, "it was served for ever");
    served.stop().await;
}

#[tokio::test]
async fn more_connections_than_places() {
    let (served, mut sender) = ground(Limits { connections: 4, ..short() }).await;
    // They take all places, say nothing, and wait in the kernel's queue for more.
    let mut idle = Vec::new();
    for _ in 0..24 {
        idle.push(served.connect().await);
    }
    // So does this one; its turn comes when others' time is over.
    let answer = served.post(&sender.batch(3)).await;
    assert_eq!(answer.status, 200);
    for mut stream in idle {
        assert!(answers(&read_to_end(&mut stream).await).iter().all(|answer| answer.status == 408));
    }
    assert_eq!(served.post(&sender.batch(3)).await.status, 200, "every place is free again");
    served.stop().await;
}

/// A stop does not wait for clients that say nothing.
#[tokio::test]
async fn a_stop_amid_slow_clients() {
    let stop_timeout = Duration::from_millis(500);
    let (served, mut sender) = ground(Limits { stop_timeout, ..Limits::default() }).await;
    let mut streams = Vec::new();
    for bytes in [&b""[..], b"GET /heal", &request(&[1; 50], "")[..120]] {
        let mut stream = served.connect().await;
        stream.write_all(bytes).await.expect("it listens");
        streams.push(stream);
    }
    assert_eq!(served.post(&sender.batch(1)).await.status, 200);
    served.stop().await;
}
