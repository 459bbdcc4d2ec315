//! A real HTTP server in front of a receiver. What it says is true; how it says it, a test may choose.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pillarbox::DeviceId;
use pillarbox::wire::BATCH_CONTENT_TYPE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::link::http::{After, Progress, WORLD_BEGAN_S, answer, progress};
use crate::server::{ModelServer, Reply, Server};
use crate::station::secret_of;

/// Between two parts of an answer, so that they do not arrive together.
const APART: Duration = Duration::from_millis(10);
/// No connection carries more exchanges.
const EXCHANGES_MAX: usize = 1_000;

/// A receiver that servers of several tasks share.
pub type Model = Arc<Mutex<ModelServer>>;

/// A model server that knows `meter-1`.
pub fn model() -> Model {
    let mut server = ModelServer::new(1);
    server.register(DeviceId::new("meter-1").expect("it is a device id"), &secret_of("meter-1"));
    Arc::new(Mutex::new(server))
}

/// An answer as it goes out.
pub struct Said {
    /// Sent one after the other, and not at once.
    pub parts: Vec<Vec<u8>>,
    /// The server closes the connection after it.
    pub is_last: bool,
}

impl Said {
    /// As an ordinary server says it.
    pub fn plainly(reply: &Reply, after: After) -> Self {
        let now_ms = now_ms().saturating_sub(WORLD_BEGAN_S * 1_000);
        Self { parts: vec![answer(now_ms, reply, BATCH_CONTENT_TYPE, after)], is_last: after == After::Close }
    }
}

/// What an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// How many the connection has carried before.
    pub number: usize,
    /// Bytes of the request, with its head.
    pub request: usize,
}

/// How an answer is said.
pub type Manner = Arc<dyn Fn(Exchange, &Reply) -> Said + Send + Sync>;

/// As an ordinary server says it, and keeps the connection.
pub fn plainly() -> Manner {
    Arc::new(|_, reply| Said::plainly(reply, After::KeepAlive))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Answers requests until the device hangs up.
pub async fn serve(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    model: &Mutex<ModelServer>,
    manner: &Manner,
) -> io::Result<()> {
    let mut unread = Vec::new();
    for number in 0..EXCHANGES_MAX {
        let (head, end) = loop {
            match progress(&unread) {
                Progress::Complete { head, end } => break (head, end),
                Progress::Bad(status) => {
                    let reply = Reply { status, body: Vec::new(), retry_after_s: None };
                    stream.write_all(&Said::plainly(&reply, After::Close).parts.concat()).await?;
                    return stream.shutdown().await;
                }
                Progress::Incomplete => {}
            }
            if stream.read_buf(&mut unread).await? == 0 {
                return Ok(());
            }
        };
        let reply = model.lock().unwrap().handle(now_ms(), &unread[head..end]);
        unread.drain(..end);
        let said = manner(Exchange { number, request: end }, &reply);
        for (at, part) in said.parts.iter().enumerate() {
            if at > 0 {
                tokio::time::sleep(APART).await;
            }
            stream.write_all(part).await?;
            stream.flush().await?;
        }
        if said.is_last {
            return stream.shutdown().await;
        }
    }
    Ok(())
}

/// A server on the loopback interface. Dropping it stops it.
pub struct HonestServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    listener: JoinHandle<()>,
}

impl HonestServer {
    /// Listens, in a task of the current runtime.
    pub async fn start(model: &Model, manner: Manner) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let connections = Arc::new(AtomicUsize::new(0));
        let (model, count) = (model.clone(), connections.clone());
        let listener = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (model, manner) = (model.clone(), manner.clone());
                serving.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    // A device that hangs up is no error of the server's.
                    let _ = serve(&mut stream, &model, &manner).await;
                });
            }
        });
        Ok(Self { address, connections, listener })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that were accepted.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for HonestServer {
    fn drop(&mut self) {
        self.listener.abort();
    }
}
