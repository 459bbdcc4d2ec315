//! Who certifies receivers, and the files that an operator would have from there.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pillarbox_receiver::serve::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The name that certificates are for.
pub(crate) const HOST: &str = "receiver.test";

pub(crate) struct Authority {
    pub(crate) certificate: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("there are random numbers");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let certificate = params.self_signed(&key).expect("it can sign").der().to_vec();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate for [`HOST`] and its key, in this directory under this name.
    pub(crate) fn files(&self, directory: &Path, name: &str) -> TlsFiles {
        let key = KeyPair::generate().expect("there are random numbers");
        let mut params = CertificateParams::new(vec![HOST.to_owned()]).expect("it is a name");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, HOST);
        let certificate = params.signed_by(&key, &self.issuer).expect("it can sign");
        let cert = write(directory, &format!("{name}.crt"), "CERTIFICATE", certificate.der());
        let key = write(directory, &format!("{name}.key"), "PRIVATE KEY", &key.serialize_der());
        TlsFiles { cert, key }
    }

    /// A client that trusts this authority and nobody else, and finds [`HOST`] here.
    pub(crate) fn client(&self, address: std::net::SocketAddr) -> reqwest::Client {
        let certificate = reqwest::Certificate::from_der(&self.certificate).expect("it is one");
        let client = reqwest::Client::builder().tls_built_in_root_certs(false);
        client.add_root_certificate(certificate).resolve(HOST, address).build().expect("it can be built")
    }
}

fn write(directory: &Path, name: &str, label: &str, der: &[u8]) -> PathBuf {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| str::from_utf8(line).expect("ASCII")).collect();
    let path = directory.join(name);
    let pem = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"));
    std::fs::write(&path, pem).expect("there is room");
    path
}
