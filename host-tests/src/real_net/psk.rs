//! A TLS server that knows pre-shared keys: OpenSSL's, with a receiver behind its standard streams.

use core::time::Duration;
use std::io;
use std::process::Stdio;

use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::honest::{Manner, Model, serve};

/// A server on the loopback interface. Dropping it stops it.
pub struct PskServer {
    port: u16,
    _openssl: Child,
    served: JoinHandle<()>,
}

impl PskServer {
    /// Starts OpenSSL's server with this key.
    pub async fn start(model: &Model, manner: Manner, identity: &str, key: &[u8]) -> io::Result<Self> {
        // It cannot say which port it was given, so it is given one that was free a moment ago.
        let port = TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port();
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut openssl = Command::new("openssl")
            .args(["s_server", "-quiet", "-tls1_3", "-nocert", "-ciphersuites", "TLS_AES_128_GCM_SHA256"])
            .args(["-accept", &format!("127.0.0.1:{port}"), "-psk", &key, "-psk_identity", identity])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot start openssl: {error}")))?;
        let (stdin, stdout) =
            openssl.stdin.take().zip(openssl.stdout.take()).ok_or(io::ErrorKind::BrokenPipe)?;
        let model = model.clone();
        let served = tokio::spawn(async move {
            let _ = serve(&mut tokio::io::join(stdout, stdin), &model, &manner).await;
        });
        for _ in 0..500 {
            // A connection that comes to nothing does it no harm.
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(Self { port, _openssl: openssl, served });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "openssl does not listen"))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PskServer {
    fn drop(&mut self) {
        self.served.abort();
    }
}
