//! A real server that does exactly what it is told, however wrong: for tests of how a device survives a hostile one.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::link::http::{Progress, progress};

/// No connection is played for longer.
const TIME_MAX: Duration = Duration::from_secs(30);
/// No connection is sent, or sends, more.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// One thing that the server does with a connection. After the last it closes.
#[derive(Clone, Debug)]
pub enum Act {
    /// Reads until a request is complete. What is no request, it reads to its end.
    AwaitRequest,
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes one by one, so long apart.
    Dribble(Vec<u8>, Duration),
    /// Sends a header line over and over, until so many bytes are sent or the device has enough.
    EndlessHeaders {
        /// At most so many.
        bytes_max: usize,
    },
    /// Does nothing for so long.
    Pause(Duration),
    /// Resets the connection instead of closing it.
    Reset,
}

/// A server on the loopback interface that plays one script per connection, in the order of connections, and refuses
/// those after the last. Dropping it stops it.
pub struct ScriptedServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    listener: JoinHandle<()>,
}

impl ScriptedServer {
    /// Listens, in a task of the current runtime.
    pub async fn start(scripts: Vec<Vec<Act>>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let listener = tokio::spawn(async move {
            let mut playing = tokio::task::JoinSet::new();
            for script in scripts {
                let Ok((stream, _)) = listener.accept().await else { return };
                let seen = seen.clone();
                playing.spawn(async move {
                    // A device that hangs up early is part of the play.
                    let _ = tokio::time::timeout(TIME_MAX, play(stream, &script, &seen)).await;
                });
            }
            drop(listener);
            while playing.join_next().await.is_some() {}
        });
        Ok(Self { address, requests, listener })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has read in answer to each [`Act::AwaitRequest`] so far, heads and all.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn play(mut stream: TcpStream, script: &[Act], seen: &Mutex<Vec<Vec<u8>>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut unread = Vec::new();
    let mut left = BYTES_MAX;
    for act in script {
        match act {
            Act::AwaitRequest => {
                let request = read_request(&mut stream, &mut unread).await?;
                seen.lock().unwrap().push(request);
            }
            Act::Send(bytes) => send(&mut stream, bytes, &mut left).await?,
            Act::Dribble(bytes, pace) => {
                for byte in bytes {
                    send(&mut stream, core::slice::from_ref(byte), &mut left).await?;
                    tokio::time::sleep(*pace).await;
                }
            }
            Act::EndlessHeaders { bytes_max } => {
                let line = b"X-Filler: 0123456789abcdef0123456789abcdef\r\n";
                let mut to_send = *bytes_max;
                while to_send > 0 {
                    let part = &line[..line.len().min(to_send)];
                    send(&mut stream, part, &mut left).await?;
                    to_send -= part.len();
                }
            }
            Act::Pause(duration) => tokio::time::sleep(*duration).await,
            Act::Reset => {
                stream.set_zero_linger()?;
                return Ok(());
            }
        }
    }
    stream.shutdown().await?;
    // What is not read when a socket closes makes it a reset, which could overtake what was sent.
    let mut rest = [0; 1024];
    let mut drained = 0;
    while drained < BYTES_MAX {
        match stream.read(&mut rest).await? {
            0 => break,
            count => drained += count,
        }
    }
    Ok(())
}

async fn send(stream: &mut TcpStream, bytes: &[u8], left: &mut usize) -> io::Result<()> {
    *left = left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
    stream.write_all(bytes).await
}

/// Bytes after the request stay in `unread`.
async fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    loop {
        if let Progress::Complete { end, .. } = progress(unread) {
            let rest = unread.split_off(end);
            return Ok(core::mem::replace(unread, rest));
        }
        if stream.read_buf(unread).await? == 0 || unread.len() > BYTES_MAX {
            return Ok(core::mem::take(unread));
        }
    }
}
