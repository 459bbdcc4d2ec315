//! Over TLS the receiver proves itself to devices, which use the library's own TLS, and to ordinary clients; who trusts another
//! authority says nothing. Files that cannot work are told of at the start, by name.

mod served;

use std::path::Path;
use std::sync::Arc;

use host_tests::real_net::{RealStation, RealUplink};
use host_tests::station::secret_of;
use pillarbox::{DeviceId, Failure, Timeouts, Tls, Trust};
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::serve::{self, ServeSettings, TlsFiles};
use pillarbox_receiver::store::{Change, Role};
use served::authority::{Authority, HOST};
use served::{Client, Ground, START_MS, Served, records};

async fn start(ground: &Ground, files: &TlsFiles) -> Served {
    let acceptor = serve::acceptor(files).expect("the files are good");
    Served::over(ground.store.clone(), Some(acceptor), START_MS, |_| {}).await
}

fn uplink(station: &RealStation, port: u16, authority: &Authority) -> RealUplink {
    let trust = Trust::Authority { certificate: authority.certificate.clone().leak() };
    let seed = Box::leak(Box::new(|| fastrand::u64(..)));
    let tls = Tls::new(trust, vec![0; 16_640].leak(), vec![0; 4_096].leak(), seed);
    station.uplink(&format!("https://{HOST}:{port}"), Some(tls), 2048)
}

#[tokio::test]
async fn devices_deliver_to_the_one_whom_they_trust_and_to_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, another) = (Authority::new(), Authority::new());
    let ground = Ground::sqlite().await;
    let device = DeviceId::new("meter-1").unwrap();
    let secret = *secret_of("meter-1").expose();
    ground.store.change(Change::Add { device, tenant: "default".into(), secret }, START_MS).await.unwrap();
    let served = start(&ground, &ours.files(directory.path(), "ours")).await;

    let mut station = RealStation::boot().await;
    station.timeouts = Timeouts { connect_ms: 10_000, exchange_ms: 10_000 };
    let keys = station.post_all(0..100).await;
    let mut suspicious = uplink(&station, served.address.port(), &another);
    assert_eq!(station.flush(&mut suspicious).await, Err(Failure::Network));
    assert_eq!((station.pending().await.len(), records(&*ground.store).await.len()), (100, 0));
    let mut trusting = uplink(&station, served.address.port(), &ours);
    assert_eq!(station.flush(&mut trusting).await, Ok(()));
    assert_eq!(station.pending().await, []);
    let stored: Vec<String> = records(&*ground.store).await.into_iter().map(|(key, _)| key).collect();
    let device = DeviceId::new("meter-1").unwrap();
    assert_eq!(stored, keys.iter().map(|key| key.of(&device).to_string()).collect::<Vec<_>>());
    served.stopped().await;
}

#[tokio::test]
async fn clients_post_to_the_one_whom_they_trust_and_to_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, another) = (Authority::new(), Authority::new());
    let ground = Ground::sqlite().await;
    let served = start(&ground, &ours.files(directory.path(), "ours")).await;
    let token = ground.token(Role::Client, Some("acme")).await;
    let client = |authority: &Authority, url: String| Client {
        http: authority.client(served.address),
        url,
        token: token.clone(),
    };
    let named = format!("https://{HOST}:{}", served.address.port());
    let post = async |client: Client| client.try_post("photo", "k", "application/json", b"[]").await;
    assert!(post(client(&another, named.clone())).await.unwrap_err().is_connect());
    assert!(post(client(&ours, served.url.clone())).await.unwrap_err().is_connect(), "it has another name");
    let plain = format!("http://{HOST}:{}", served.address.port());
    assert!(post(client(&ours, plain)).await.is_err(), "it speaks no plain HTTP here");
    assert_eq!(records(&*ground.store).await.len(), 0);
    assert_eq!(post(client(&ours, named)).await.unwrap().status, 201);
    served.stopped().await;
}

#[test]
fn files_that_cannot_work_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ours = authority.files(directory.path(), "ours");
    let others = authority.files(directory.path(), "others");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let says = |cert: &Path, key: &Path, words: [&str; 2]| {
        let files = TlsFiles { cert: cert.into(), key: key.into() };
        let Err(error) = serve::acceptor(&files) else { panic!("{words:?}: it was taken") };
        let sentence = format!("{error:#}");
        assert!(words.iter().all(|word| sentence.contains(word)), "{words:?}: {sentence}");
    };
    assert!(serve::acceptor(&ours).is_ok());
    let missing = directory.path().join("missing.pem");
    let (empty, text) = (file("empty.pem", ""), file("text.pem", "not PEM at all"));
    let broken = file("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    says(&missing, &ours.key, ["cannot read", "missing.pem"]);
    says(&ours.cert, &missing, ["cannot read", "missing.pem"]);
    says(&empty, &ours.key, ["empty.pem", "no certificate"]);
    says(&text, &ours.key, ["text.pem", "no certificate"]);
    says(&ours.key, &ours.key, ["ours.key", "no certificate"]);
    says(&broken, &ours.key, ["broken.pem", "can be used"]);
    says(&ours.cert, &empty, ["empty.pem", "no private key"]);
    says(&ours.cert, &ours.cert, ["ours.crt", "no private key"]);
    says(&ours.cert, &others.key, ["others.key", "not the key of"]);
}

#[tokio::test]
async fn a_receiver_does_not_start_with_such_files() {
    let directory = tempfile::tempdir().unwrap();
    let missing = TlsFiles { cert: directory.path().join("a.crt"), key: directory.path().join("a.key") };
    let settings =
        ServeSettings { listen: ([127, 0, 0, 1], 0).into(), tls: Some(missing), ..ServeSettings::default() };
    let ground = Ground::sqlite().await;
    let error = serve::run(settings, Arc::clone(&ground.store), Kinds::default()).await.unwrap_err();
    assert!(format!("{error:#}").contains("a.crt"), "{error:#}");
}
