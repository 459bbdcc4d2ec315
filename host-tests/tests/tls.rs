//! Over TLS, records arrive at the one who is trusted and at nobody else: against rustls with a certificate, against OpenSSL with a
//! pre-shared key. Whoever has another key, another authority, another name or no certificate at all gets nothing, and the records are kept.

#[path = "tls/anonymous.rs"]
mod anonymous;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anonymous::{AnonymousServer, Shows};
use host_tests::link::http::After;
use host_tests::real_net::{
    Manner, Model, PskServer, RealNet, RealStation, Said, TokioClock, model, plainly, serve,
};
use host_tests::station::secret_of;
use pillarbox::{BatchUplink, Failure, Http, Timeouts, Tls, Trust, UrlError};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring, version::TLS13};

const HOST: &str = "receiver.test";
const KEY: [u8; 32] = [0x2b; 32];

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn certify(&self, name: &str) -> (CertificateDer<'static>, PrivatePkcs8KeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), key.serialize_der().into())
    }

    fn trust(&self) -> Trust<'static> {
        Trust::Authority { certificate: self.certificate.to_vec().leak() }
    }
}

/// A TLS server with a certificate in front of a receiver. Dropping it stops it.
struct TlsServer {
    address: SocketAddr,
    /// The random numbers of the clients' first messages.
    hellos: Arc<Mutex<Vec<[u8; 32]>>>,
    listener: JoinHandle<()>,
}

impl TlsServer {
    async fn start(model: &Model, manner: Manner, authority: &Authority, name: &str) -> Self {
        let (certificate, key) = authority.certify(name);
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let hellos = Arc::new(Mutex::new(Vec::new()));
        let (seen, model) = (hellos.clone(), model.clone());
        let listener = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut hello = [0; 43];
                // A record's head, a message's head and a version before it.
                if stream.peek(&mut hello).await.is_ok_and(|count| count == hello.len()) {
                    seen.lock().unwrap().push(hello[11..].try_into().unwrap());
                }
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = serve(&mut stream, &model, &manner).await;
            }
        });
        Self { address, hellos, listener }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// TLS with this trust, and how often it asked for a seed.
fn tls(trust: Trust<'static>) -> (Tls<'static>, &'static AtomicU64) {
    let asked: &'static AtomicU64 = Box::leak(Box::default());
    let random = Mutex::new(fastrand::Rng::new());
    let seed = Box::leak(Box::new(move || {
        asked.fetch_add(1, Ordering::Relaxed);
        random.lock().unwrap().u64(..)
    }));
    (Tls::new(trust, vec![0; 16_640].leak(), vec![0; 4_096].leak(), seed), asked)
}

fn psk(key: [u8; 32]) -> Trust<'static> {
    Trust::Psk { identity: b"meter-1", key: Box::leak(Box::new(key)) }
}

async fn station() -> RealStation {
    let mut station = RealStation::boot().await;
    station.timeouts = Timeouts { connect_ms: 10_000, exchange_ms: 10_000 };
    station
}

async fn delivers(port: u16, trust: Trust<'static>, model: &Model, connections: impl Fn(u64) -> bool) {
    let mut station = station().await;
    let keys = station.post_all(0..300).await;
    let (tls, seeds) = tls(trust);
    let mut uplink = station.uplink(&format!("https://{HOST}:{port}"), Some(tls), 2048);
    assert_eq!(station.flush(&mut uplink).await, Ok(()));
    assert_eq!(station.pending().await, []);
    let stored: Vec<_> = model.lock().unwrap().log().iter().map(|received| received.key).collect();
    assert_eq!(stored, keys);
    assert_eq!(seeds.load(Ordering::Relaxed), station.net.connections(), "a seed for every connection");
    assert!(connections(station.net.connections()), "{} connections", station.net.connections());
}

async fn refuses(port: u16, trust: Trust<'static>, model: &Model) {
    let mut station = station().await;
    station.timeouts = Timeouts { connect_ms: 2_000, exchange_ms: 2_000 };
    let keys = station.post_all(0..10).await;
    let mut uplink = station.uplink(&format!("https://{HOST}:{port}"), Some(tls(trust).0), 2048);
    assert_eq!(station.flush(&mut uplink).await, Err(Failure::Network));
    assert_eq!(station.pending().await, keys);
    assert!(model.lock().unwrap().log().is_empty(), "somebody else has them");
}

#[tokio::test]
async fn records_arrive_at_a_server_with_a_certificate() {
    let (model, authority) = (model(), Authority::new());
    let server = TlsServer::start(&model, plainly(), &authority, HOST).await;
    delivers(server.address.port(), authority.trust(), &model, |connections| connections == 1).await;
}

#[tokio::test]
async fn every_connection_has_a_seed_of_its_own() {
    let (model, authority) = (model(), Authority::new());
    let closing: Manner = Arc::new(|_, reply| Said::plainly(reply, After::Close));
    let server = TlsServer::start(&model, closing, &authority, HOST).await;
    delivers(server.address.port(), authority.trust(), &model, |connections| connections > 3).await;
    let hellos = server.hellos.lock().unwrap();
    assert!(hellos.len() > 3);
    for (at, hello) in hellos.iter().enumerate() {
        assert!(!hellos[..at].contains(hello), "two connections with the same random numbers");
    }
}

#[tokio::test]
async fn another_authority_is_not_trusted() {
    let (model, authority) = (model(), Authority::new());
    let server = TlsServer::start(&model, plainly(), &authority, HOST).await;
    refuses(server.address.port(), Authority::new().trust(), &model).await;
}

#[tokio::test]
async fn another_name_is_not_trusted() {
    let (model, authority) = (model(), Authority::new());
    for name in ["other.test", "receiver.test.evil.test", "eceiver.test"] {
        let server = TlsServer::start(&model, plainly(), &authority, name).await;
        refuses(server.address.port(), authority.trust(), &model).await;
    }
}

#[tokio::test]
async fn a_server_that_shows_no_certificate_is_not_trusted() {
    let (model, authority) = (model(), Authority::new());
    let (certificate, _) = authority.certify(HOST);
    for shows in
        [Shows::Nothing, Shows::Certificate(certificate.to_vec()), Shows::Twice(certificate.to_vec())]
    {
        let server = AnonymousServer::start(shows).await;
        refuses(server.port(), authority.trust(), &model).await;
        assert_eq!(server.heard(), 0, "it was told something");
        assert!(server.has_finished(), "the handshake was not what failed");
    }
}

#[tokio::test]
async fn records_arrive_at_a_server_with_the_key() {
    let model = model();
    let server = PskServer::start(&model, plainly(), "meter-1", &KEY).await.unwrap();
    delivers(server.port(), psk(KEY), &model, |connections| connections == 1).await;
}

#[tokio::test]
async fn another_key_is_not_trusted() {
    let model = model();
    let server = PskServer::start(&model, plainly(), "meter-1", &KEY).await.unwrap();
    refuses(server.port(), psk([0x2c; 32]), &model).await;
}

#[tokio::test]
async fn a_certificate_does_not_replace_the_key() {
    let (model, authority) = (model(), Authority::new());
    let server = TlsServer::start(&model, plainly(), &authority, HOST).await;
    refuses(server.address.port(), psk(KEY), &model).await;
    let server = AnonymousServer::start(Shows::Nothing).await;
    refuses(server.port(), psk(KEY), &model).await;
    assert_eq!(server.heard(), 0);
}

#[tokio::test]
async fn no_server_hangs_the_handshake() {
    use host_tests::real_net::{Act, ScriptedServer};
    let hello = [vec![0x16, 0x03, 0x03, 0xff, 0xff], vec![0x02; 70_000]].concat();
    let specs = [0x14, 0x03, 0x03, 0x00, 0x01, 0x01].repeat(10_000);
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = (0..50_000).map(|_| random.u8(..)).collect();
    let plain = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec();
    let empty = [0x17, 0x03, 0x03, 0x00, 0x00].repeat(1_000);
    for bytes in [vec![], vec![0x16], hello, specs, noise, plain, empty] {
        for trust in [psk(KEY), Authority::new().trust()] {
            let act = vec![Act::Send(bytes.clone())];
            let server = ScriptedServer::start(vec![act]).await.unwrap();
            refuses(server.address().port(), trust, &model()).await;
        }
    }
    let silent = vec![Act::Pause(core::time::Duration::from_secs(20))];
    let server = ScriptedServer::start(vec![silent]).await.unwrap();
    refuses(server.address().port(), psk(KEY), &model()).await;
}

#[tokio::test]
async fn an_address_with_https_needs_somebody_to_trust() {
    let (net, clock) = (RealNet::new(), TokioClock::boot());
    let made = |url: &'static str| {
        let http = Http::new(&net, &net, clock, url);
        BatchUplink::new(http, &secret_of("meter-1"), vec![0; 2048].leak(), vec![0; 2048].leak()).err()
    };
    assert_eq!(made("https://receiver.test"), Some(UrlError::NoTls));
    assert_eq!(made("https://receiver.test:8443/base"), Some(UrlError::NoTls));
    assert_eq!(made("http://receiver.test"), None);
    for url in [
        "HTTPS://receiver.test",
        "receiver.test",
        "https:receiver.test",
        "ftp://receiver.test",
        "http://",
        "http://:80",
        "http://a:b",
    ] {
        assert_eq!(made(url), Some(UrlError::Malformed), "{url}");
    }
}
