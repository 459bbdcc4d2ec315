//! What goes wrong between a device and a receiver, on real connections: cut at the worst moments, doubled, late, garbled.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// Of ten exchanges so many meet a fault, unless the test wants it otherwise.
const RATE: f64 = 0.3;
/// No delay is longer.
const DELAY_MS_MAX: u64 = 300;
/// A request that is longer passes without being understood.
const REQUEST_MAX: usize = 4 * 1024 * 1024;
const HEADERS_MAX: usize = 64;
const GARBAGE_MAX: usize = 400;
/// For a server to say what it thinks of garbage, or to hang up.
const GARBAGE_READ_WITHIN: Duration = Duration::from_secs(2);
/// For the answer to a doubled request that nobody else waits for.
const SECOND_ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What happens to one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Both connections are cut in the middle of the request.
    CutInRequest,
    /// Both connections are cut as soon as the whole request was forwarded: nobody knows whether it is served.
    CutAfterRequest,
    /// Both connections are cut when the answer comes, before the client has any of it: it was served.
    CutBeforeAnswer,
    /// Both connections are cut in the middle of the answer.
    CutInAnswer,
    /// The request is sent a second time over a connection of its own, at the same time or after the answer. The second
    /// answer is dropped.
    Duplicate,
    /// The request, or the answer, comes later.
    Delay,
    /// The client reads random bytes instead of the answer, and then the end.
    GarbageToClient,
    /// The server reads random bytes instead of the request, and then the end.
    GarbageToServer,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::CutInRequest,
        Self::CutAfterRequest,
        Self::CutBeforeAnswer,
        Self::CutInAnswer,
        Self::Duplicate,
        Self::Delay,
        Self::GarbageToClient,
        Self::GarbageToServer,
    ];
}

/// A TCP proxy on the loopback interface. It has a thread of its own, so that a test may wait however it likes. Dropping it cuts
/// every connection.
///
/// What each connection meets follows from the seed and from which connection it is. The proxy knows of HTTP/1.1 only where a
/// request ends, by its Content-Length; what it does not understand passes.
pub struct FaultyProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

struct Shared {
    seed: u64,
    now: Mutex<Now>,
}

struct Now {
    server: SocketAddr,
    faults: Vec<Fault>,
    rate: f64,
    connections: u64,
    exchanges: u64,
    counts: BTreeMap<Fault, u64>,
}

impl FaultyProxy {
    /// Listens on a free port, and forwards to this server with every kind of fault.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn start(server: SocketAddr, seed: u64) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be started");
        let _inside = runtime.enter();
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a loopback interface");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("it is a socket");
        let listener = TcpListener::from_std(listener).expect("it does not block");
        let now = Now {
            server,
            faults: Fault::ALL.to_vec(),
            rate: RATE,
            connections: 0,
            exchanges: 0,
            counts: BTreeMap::new(),
        };
        let shared = Arc::new(Shared { seed, now: Mutex::new(now) });
        runtime.spawn(accept(listener, shared.clone()));
        Self { address, shared, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as the beginning of a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From the next exchange on everything passes.
    pub fn calm(&self) {
        self.shared.with(|now| now.faults.clear());
    }

    /// From the next exchange on only these faults happen, each as often as the others.
    pub fn only(&self, faults: &[Fault]) {
        self.shared.with(|now| now.faults = faults.to_vec());
    }

    /// From the next exchange on this part of them meets a fault: 0 for none, 1 for all.
    pub fn rate(&self, rate: f64) {
        self.shared.with(|now| now.rate = rate);
    }

    /// New connections go there: the server was started again elsewhere.
    pub fn forward_to(&self, server: SocketAddr) {
        self.shared.with(|now| now.server = server);
    }

    /// How often a fault has happened.
    pub fn count(&self, fault: Fault) -> u64 {
        self.shared.with(|now| now.counts.get(&fault).copied().unwrap_or_default())
    }

    /// How often each fault has happened.
    pub fn counts(&self) -> BTreeMap<Fault, u64> {
        self.shared.with(|now| now.counts.clone())
    }

    /// Connections that were accepted.
    pub fn connections(&self) -> u64 {
        self.shared.with(|now| now.connections)
    }

    /// Requests that have come, those included that met a fault.
    pub fn exchanges(&self) -> u64 {
        self.shared.with(|now| now.exchanges)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The test may itself be a task, which must not wait for another runtime.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut Now) -> T) -> T {
        act(&mut self.now.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// What the next exchange of a connection meets.
    fn draw(&self, rng: &mut Rng) -> Option<Fault> {
        // Always the same number of draws, so that one change of the weather does not change all that follows.
        let (chance, pick) = (rng.f64(), rng.usize(..));
        self.with(|now| {
            now.exchanges += 1;
            let fault = now.faults.get(pick % now.faults.len().max(1)).copied();
            fault.filter(|_| chance < now.rate)
        })
    }

    fn count(&self, fault: Fault) {
        self.with(|now| *now.counts.entry(fault).or_default() += 1);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let (number, server) = shared.with(|now| {
            now.connections += 1;
            (now.connections, now.server)
        });
        let rng = Rng::with_seed(shared.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let shared = shared.clone();
        tokio::spawn(async move {
            // A server that is not there, and an end that hangs up, are what the other end has to live with.
            if let Ok(server_end) = TcpStream::connect(server).await {
                let _ = client.set_nodelay(true);
                let _ = server_end.set_nodelay(true);
                let pair = Pair { client, server: server_end, at: server, rng, shared, unread: Vec::new() };
                let _ = pair.serve().await;
            }
        });
    }
}

/// A client's connection, and the one to the server that belongs to it.
struct Pair {
    client: TcpStream,
    server: TcpStream,
    at: SocketAddr,
    rng: Rng,
    shared: Arc<Shared>,
    /// What the client has sent beyond the request of the moment.
    unread: Vec<u8>,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Exchange,
    End,
}

impl Pair {
    async fn serve(mut self) -> io::Result<()> {
        loop {
            let Some(request) = self.next_request().await? else {
                // Not a request, or no more of them.
                self.server.write_all(&self.unread).await?;
                copy_bidirectional(&mut self.client, &mut self.server).await?;
                return Ok(());
            };
            let fault = self.shared.draw(&mut self.rng);
            let next = match fault {
                None => self.pass(&request).await?,
                Some(fault) => self.meet(fault, &request).await?,
            };
            if next == Next::End {
                // An end that is closed and an end that is reset look different to those who read.
                if self.rng.bool() {
                    let _ = self.client.set_zero_linger();
                    let _ = self.server.set_zero_linger();
                }
                return Ok(());
            }
        }
    }

    /// Reads a whole request; `None` when there is none that could be understood.
    async fn next_request(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match request_len(&self.unread) {
                Parsed::Complete(len) => {
                    let rest = self.unread.split_off(len);
                    return Ok(Some(std::mem::replace(&mut self.unread, rest)));
                }
                Parsed::Unknown => return Ok(None),
                Parsed::Partial => {}
            }
            // The server may close a connection that stays silent.
            tokio::select! {
                read = self.client.read_buf(&mut self.unread) => if read? == 0 { return Ok(None) },
                ready = await_bytes(&self.server) => {
                    ready?;
                    if self.carry_answer().await? == Next::End {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                }
            }
        }
    }

    /// Forwards what the server has to say; says whether it has closed.
    async fn carry_answer(&mut self) -> io::Result<Next> {
        let mut answer = Vec::with_capacity(16 * 1024);
        if self.server.read_buf(&mut answer).await? == 0 {
            return Ok(Next::End);
        }
        self.client.write_all(&answer).await?;
        Ok(Next::Exchange)
    }

    /// Forwards a request and the beginning of its answer. What is left of the answer passes while the next request is
    /// awaited.
    async fn pass(&mut self, request: &[u8]) -> io::Result<Next> {
        self.server.write_all(request).await?;
        self.carry_answer().await
    }

    async fn meet(&mut self, fault: Fault, request: &[u8]) -> io::Result<Next> {
        match fault {
            Fault::CutInRequest => {
                let part = self.rng.usize(1..request.len());
                self.server.write_all(&request[..part]).await?;
            }
            Fault::CutAfterRequest => self.server.write_all(request).await?,
            Fault::CutBeforeAnswer => {
                self.server.write_all(request).await?;
                await_bytes(&self.server).await?;
            }
            Fault::CutInAnswer => {
                self.server.write_all(request).await?;
                let mut answer = Vec::with_capacity(16 * 1024);
                self.server.read_buf(&mut answer).await?;
                let part = self.rng.usize(..answer.len().max(1));
                self.client.write_all(&answer[..part]).await?;
            }
            Fault::Duplicate => {
                self.shared.count(fault);
                return self.duplicate(request).await;
            }
            Fault::Delay => {
                self.shared.count(fault);
                return self.delay(request).await;
            }
            Fault::GarbageToClient => {
                self.server.write_all(request).await?;
                await_bytes(&self.server).await?;
                let garbage = self.garbage();
                self.client.write_all(&garbage).await?;
            }
            Fault::GarbageToServer => {
                let garbage = self.garbage();
                self.server.write_all(&garbage).await?;
                self.server.shutdown().await?;
                // A reset would take back what the server has not read.
                let _ = tokio::time::timeout(GARBAGE_READ_WITHIN, await_bytes(&self.server)).await;
            }
        }
        self.shared.count(fault);
        Ok(Next::End)
    }

    async fn duplicate(&mut self, request: &[u8]) -> io::Result<Next> {
        let again = send_alone(self.at, request.to_vec());
        if self.rng.bool() {
            let (next, _) = tokio::join!(self.pass(request), again);
            return next;
        }
        let next = self.pass(request).await;
        // A client that leaves does not take it back.
        tokio::spawn(again);
        next
    }

    async fn delay(&mut self, request: &[u8]) -> io::Result<Next> {
        let delay = Duration::from_millis(self.rng.u64(1..=DELAY_MS_MAX));
        if self.rng.bool() {
            tokio::time::sleep(delay).await;
            return self.pass(request).await;
        }
        self.server.write_all(request).await?;
        await_bytes(&self.server).await?;
        tokio::time::sleep(delay).await;
        self.carry_answer().await
    }

    fn garbage(&mut self) -> Vec<u8> {
        let len = self.rng.usize(1..=GARBAGE_MAX);
        std::iter::repeat_with(|| self.rng.u8(..)).take(len).collect()
    }
}

/// Sends a request over a connection of its own and waits until the server answers, so that it was surely served.
async fn send_alone(server: SocketAddr, request: Vec<u8>) {
    let sent = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(&request).await?;
        await_bytes(&stream).await
    };
    let _ = tokio::time::timeout(SECOND_ANSWER_WITHIN, sent).await;
}

/// Waits until there is something to read, or nothing ever again. A socket that only says that it is readable may be mistaken.
async fn await_bytes(stream: &TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).await.map(drop)
}

enum Parsed {
    Partial,
    /// So many bytes.
    Complete(usize),
    Unknown,
}

fn request_len(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => return Parsed::Partial,
        _ => return Parsed::Unknown,
    };
    let header = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if header("transfer-encoding").is_some() {
        return Parsed::Unknown;
    }
    let body = header("content-length").map_or(Some(0), |header| {
        std::str::from_utf8(header.value).ok().and_then(|text| text.trim().parse::<usize>().ok())
    });
    match body {
        Some(body) if body > REQUEST_MAX => Parsed::Unknown,
        Some(body) if bytes.len() < head + body => Parsed::Partial,
        Some(body) => Parsed::Complete(head + body),
        None => Parsed::Unknown,
    }
}
