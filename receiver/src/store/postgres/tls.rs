//! What a URL says about the way to the server, and TLS on it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, Socket};
use tokio_rustls::TlsConnector;

use crate::store::{Result, StoreError};

/// Takes a URL apart. Gives how to speak TLS, if the URL wants it.
pub(super) fn settings(url: &str) -> Result<(Config, Option<Tls>)> {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    let mut mode = "disable";
    let mut roots = None;
    let mut others = Vec::new();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("sslmode", value)) => mode = value,
            Some(("sslrootcert", value)) => roots = Some(unescape(value)?),
            _ => others.push(option),
        }
    }
    let is_encrypted = match mode {
        // Who would put up with none is not told apart from who wants none.
        "disable" | "allow" | "prefer" => false,
        "require" | "verify-ca" | "verify-full" => true,
        _ => return Err(StoreError::Refused("sslmode is disable, require or verify-full".into())),
    };
    if roots.is_some() && !is_encrypted {
        let why = "sslrootcert says whom to believe, so sslmode has to be verify-full";
        return Err(StoreError::Refused(why.into()));
    }
    let separator = if others.is_empty() { "" } else { "?" };
    // Why it is not understood is not said: it might be the password.
    let mut config = Config::from_str(&format!("{address}{separator}{}", others.join("&")))
        .map_err(|_| not_understood())?;
    config.ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable });
    let tls = is_encrypted.then(|| Tls::believing(roots.as_deref())).transpose()?;
    Ok((config, tls))
}

fn not_understood() -> StoreError {
    StoreError::Refused(
        "the database's URL is not understood: it is postgres://user:password@host:port/database, and what has a meaning in \
         a URL is written in the password as %40 and so on"
            .into(),
    )
}

/// A file's name as it stands in a URL.
fn unescape(text: &str) -> Result<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).ok_or_else(not_understood)?;
        bytes.push(u8::from_str_radix(code, 16).map_err(|_| not_understood())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| not_understood())
}

/// TLS in which the server has to prove its name.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Believes the authorities of this file, or the public ones.
    fn believing(file: Option<&str>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        match file {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(file) => {
                let wrong =
                    |why: String| StoreError::Refused(format!("sslrootcert {file} cannot be used: {why}"));
                let certificates = CertificateDer::pem_file_iter(file)
                    .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
                    .map_err(|error| wrong(error.to_string()))?;
                if certificates.is_empty() {
                    return Err(wrong("there is no certificate in it".into()));
                }
                for certificate in certificates {
                    roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| StoreError::Unavailable(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connect;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> std::result::Result<Connect, InvalidDnsNameError> {
        Ok(Connect { tls: self.0.clone(), name: ServerName::try_from(host.to_owned())? })
    }
}

/// TLS to a server of this name.
pub(super) struct Connect {
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Connect {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.tls.connect(self.name, socket).await.map(Stream) })
    }
}

/// What the client of PostgreSQL speaks over.
pub(super) struct Stream(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        // The server has proved its name by its certificate.
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
