//! A TLS 1.3 server without a key of its own: it agrees on secrets with whoever comes, as anybody on the way can, and ends the
//! handshake without the proof of who it is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes128Gcm, Nonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use p256::PublicKey;
use p256::ecdh::EphemeralSecret;
use p256::elliptic_curve::sec1::ToEncodedPoint;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it shows of itself.
#[derive(Clone)]
pub(crate) enum Shows {
    /// Neither a certificate nor a signature.
    Nothing,
    /// The true server's certificate, which everybody can have, and no signature.
    Certificate(Vec<u8>),
    /// The same twice, where the signature belongs.
    Twice(Vec<u8>),
}

/// Dropping it stops it.
pub(crate) struct AnonymousServer {
    address: SocketAddr,
    heard: Arc<AtomicU64>,
    finished: Arc<AtomicBool>,
    listener: JoinHandle<()>,
}

impl AnonymousServer {
    pub(crate) async fn start(shows: Shows) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, finished) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, is_finished) = (heard.clone(), finished.clone());
        let listener = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = play(stream, &shows, &count, &is_finished).await;
            }
        });
        Self { address, heard, finished, listener }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Bytes of application data that it was sent.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// It said all that it had to say.
    pub(crate) fn has_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Drop for AnonymousServer {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn expand<const N: usize>(secret: &[u8], label: &str, context: &[u8]) -> [u8; N] {
    let label = format!("tls13 {label}");
    let info = [
        &(N as u16).to_be_bytes()[..],
        &[label.len() as u8],
        label.as_bytes(),
        &[context.len() as u8],
        context,
    ]
    .concat();
    let mut out = [0; N];
    Hkdf::<Sha256>::from_prk(secret).unwrap().expand(&info, &mut out).unwrap();
    out
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[kind][..], &length[1..], body].concat()
}

fn certificate(der: &[u8]) -> Vec<u8> {
    let length = |len: usize| (len as u32).to_be_bytes()[1..].to_vec();
    let entry = [length(der.len()), der.to_vec(), vec![0, 0]].concat();
    message(11, &[vec![0], length(entry.len()), entry].concat())
}

/// The client's P-256 share in its first message: 65 bytes after the group and the length.
fn key_share(hello: &[u8]) -> Option<(Vec<u8>, PublicKey)> {
    let session = usize::from(*hello.get(38)?);
    let session_id = hello.get(39..39 + session)?.to_vec();
    let at = hello.windows(4).position(|four| four == [0x00, 0x17, 0x00, 0x41])? + 4;
    Some((session_id, PublicKey::from_sec1_bytes(hello.get(at..at + 65)?).ok()?))
}

async fn record(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).await?;
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut body).await?;
    Ok((head[0], body))
}

async fn play(
    mut stream: TcpStream,
    shows: &Shows,
    heard: &AtomicU64,
    finished: &AtomicBool,
) -> std::io::Result<()> {
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let (_, hello) = record(&mut stream).await?;
    let (session_id, theirs) = key_share(&hello).ok_or_else(invalid)?;
    let ours = EphemeralSecret::random(&mut rand_core::OsRng);
    let share = ours.public_key().to_encoded_point(false);
    let extensions = [
        &[0x00, 0x2b, 0x00, 0x02, 0x03, 0x04, 0x00, 0x33, 0x00, 0x45, 0x00, 0x17, 0x00, 0x41][..],
        share.as_bytes(),
    ]
    .concat();
    let server_hello = message(
        2,
        &[
            &[0x03, 0x03][..],
            &[0x5a; 32],
            &[session_id.len() as u8],
            &session_id,
            &[0x13, 0x01, 0x00],
            &(extensions.len() as u16).to_be_bytes(),
            &extensions,
        ]
        .concat(),
    );
    let mut transcript = Sha256::new();
    transcript.update(&hello);
    transcript.update(&server_hello);

    let nothing = Sha256::digest([]);
    let (early, _) = Hkdf::<Sha256>::extract(None, &[0; 32]);
    let derived: [u8; 32] = expand(&early, "derived", &nothing);
    let shared = ours.diffie_hellman(&theirs);
    let (handshake, _) = Hkdf::<Sha256>::extract(Some(&derived), shared.raw_secret_bytes());
    let traffic: [u8; 32] = expand(&handshake, "s hs traffic", &transcript.clone().finalize());

    let mut flight = message(8, &[0, 0]);
    match shows {
        Shows::Nothing => {}
        Shows::Certificate(der) => flight.extend(certificate(der)),
        Shows::Twice(der) => {
            flight.extend(certificate(der));
            flight.extend(certificate(der));
        }
    }
    transcript.update(&flight);
    let finished_key: [u8; 32] = expand(&traffic, "finished", &[]);
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&finished_key).unwrap();
    mac.update(&transcript.clone().finalize());
    flight.extend(message(20, &mac.finalize().into_bytes()));
    flight.push(22);

    let cipher = Aes128Gcm::new_from_slice(&expand::<16>(&traffic, "key", &[])).unwrap();
    let nonce: [u8; 12] = expand(&traffic, "iv", &[]);
    let head = [&[0x17, 0x03, 0x03][..], &(flight.len() as u16 + 16).to_be_bytes()].concat();
    let sealed = cipher.encrypt(Nonce::from_slice(&nonce), Payload { msg: &flight, aad: &head }).unwrap();
    let plain_head = [&[0x16, 0x03, 0x03][..], &(server_hello.len() as u16).to_be_bytes()].concat();
    stream.write_all(&[plain_head, server_hello, head, sealed].concat()).await?;
    finished.store(true, Ordering::Relaxed);

    // The client's own end of the handshake is one record; what comes behind it is meant for the true server.
    let mut ends = 0;
    for _ in 0..100 {
        let (kind, body) = record(&mut stream).await?;
        if kind == 0x17 {
            ends += 1;
            if ends > 1 {
                heard.fetch_add(body.len() as u64, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}
