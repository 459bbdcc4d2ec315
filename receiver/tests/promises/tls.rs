//! The way to PostgreSQL over TLS: the server has to prove its name, or nothing is said to it.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pillarbox_receiver::store::{self, StoreError};
use rcgen::{CertificateParams, KeyPair};
use receiver_testkit::Postgres;

/// A certificate for this address that vouches for itself, and its key.
fn certificate() -> (String, String) {
    let key = KeyPair::generate().expect("there are random numbers");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("it is an address");
    let certificate = params.self_signed(&key).expect("it can sign");
    (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", &key.serialize_der()))
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// Has the server speak TLS with this certificate.
fn equip(postgres: &Postgres, certificate: &str, key: &str) {
    let data = postgres.query(&postgres.url(), "SHOW data_directory");
    let data = Path::new(&data);
    let owner = data.metadata().expect("it is there");
    for (name, text) in [("server.crt", certificate), ("server.key", key)] {
        let file = data.join(name);
        std::fs::write(&file, text).expect("there is room");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        chown(&file, Some(owner.uid()), Some(owner.gid())).expect("it is ours");
    }
    postgres.query(&postgres.url(), "ALTER SYSTEM SET ssl = on");
    postgres.query(&postgres.url(), "SELECT pg_reload_conf()");
    let hears_of_it = || postgres.query(&postgres.url(), "SHOW ssl") == "on";
    assert!((0..500).any(|_| hears_of_it() || {
        std::thread::sleep(std::time::Duration::from_millis(10));
        false
    }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_tls_proves_its_name() {
    let directory = tempfile::tempdir().expect("there is a disk");
    let (own, strange) = (directory.path().join("own root.pem"), directory.path().join("strange.pem"));
    let postgres = tokio::task::block_in_place(Postgres::start);
    let plain = postgres.fresh_database();
    let (cert, key) = certificate();
    std::fs::write(&own, &cert).expect("there is room");
    std::fs::write(&strange, certificate().0).expect("there is room");
    let with = |mode: &str, roots: &Path| {
        let roots = roots.display().to_string().replace(' ', "%20");
        format!("{plain}?sslmode={mode}&sslrootcert={roots}")
    };
    let error =
        store::open(&with("verify-full", &own)).await.err().expect("it speaks no TLS yet").to_string();
    assert!(error.contains("server does not support TLS"), "{error}");
    tokio::task::block_in_place(|| equip(&postgres, &cert, &key));

    let store = store::open(&with("verify-full", &own)).await.expect("it is the one");
    store.is_ready().await.expect("it can be written to");
    let over = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'pillarbox'";
    assert_eq!(tokio::task::block_in_place(|| postgres.query(&plain, over)), "t");

    for mode in ["require", "verify-ca", "verify-full"] {
        let error = store::open(&with(mode, &strange)).await.err().expect("it is a stranger");
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        let public = store::open(&format!("{plain}?sslmode={mode}")).await.err();
        assert!(public.is_some(), "no public authority knows it");
    }
    let other_name = with("verify-full", &own).replace("127.0.0.1", "localhost");
    assert!(store::open(&other_name).await.is_err(), "the certificate is for another name");
    for wrong in [with("prefer", &own), with("perhaps", &own), with("require", Path::new("/nowhere"))] {
        let error = store::open(&wrong).await.err().expect("it makes no sense");
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    }
}
