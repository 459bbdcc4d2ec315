//! TLS 1.3 below HTTP, so that nobody who listens learns anything and nobody else is believed.

use embedded_io_async::{Read, Write};
use embedded_tls::{
    Aes128GcmSha256, Certificate, CryptoProvider, CryptoRngCore, NoClock, TlsConfig, TlsConnection,
    TlsContext, TlsError, TlsVerifier, UnsecureProvider, pki::CertVerifier,
};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use reqwless::client::{HttpConnection, HttpResource};

/// Bytes of a server's certificates at most.
const CERTIFICATES_MAX: usize = 4096;

/// Whom to trust on the other end of a TLS connection.
///
/// Prefer a key: without it nobody gets far enough into the handshake to find a fault in the reading of certificates, and there is no
/// authority that has to be renewed.
#[derive(Clone, Copy)]
pub enum Trust<'n> {
    /// Whoever has this key. The identity says to the server which of its keys that is.
    ///
    /// Few servers know keys of this kind; one in front of them does, for example stunnel.
    Psk {
        /// Name of the key.
        identity: &'n [u8],
        /// The key: 32 random bytes, used for nothing else.
        key: &'n [u8],
    },
    /// Whoever has a certificate of this authority for the address's host.
    ///
    /// What is checked: that the server has signed the handshake with the key of its certificate, that each certificate of its chain
    /// is signed by the next and the last by this authority, with ECDSA on P-256 or P-384, and that the first one's CommonName
    /// is the host, of at most 64 characters.
    ///
    /// What is **not** checked: dates (an old certificate is as good as a new one), alternative names (they are not looked at, so the
    /// CommonName must be there), revocation, and what a certificate may be used for. Whoever has any certificate of the authority can
    /// therefore sign one for this host: the authority must be one that has certified nobody but the receiver.
    Authority {
        /// The authority's certificate, DER.
        certificate: &'n [u8],
    },
}

/// What TLS needs besides a connection: TLS 1.3 with AES-128-GCM and P-256. Each connection makes a full handshake; sessions are not
/// resumed.
pub struct Tls<'n> {
    trust: Trust<'n>,
    read: &'n mut [u8],
    write: &'n mut [u8],
    seed: &'n mut dyn FnMut() -> u64,
}

impl<'n> Tls<'n> {
    /// `read` must hold a whole TLS record: 16,640 bytes, unless the server is known to send smaller ones. `write` bounds the
    /// records that are sent; 4,096 bytes are plenty. `seed` is asked for a number from the chip's entropy for every
    /// connection: the session's keys come from it, so it must not be guessable and never repeat.
    pub fn new(
        trust: Trust<'n>,
        read: &'n mut [u8],
        write: &'n mut [u8],
        seed: &'n mut dyn FnMut() -> u64,
    ) -> Self {
        Self { trust, read, write, seed }
    }

    /// What one connection needs.
    pub(crate) fn session(&mut self) -> Session<'_> {
        Session { trust: self.trust, read: self.read, write: self.write, seed: (self.seed)() }
    }
}

/// The keys of one connection, before it is opened.
pub(crate) struct Session<'s> {
    trust: Trust<'s>,
    read: &'s mut [u8],
    write: &'s mut [u8],
    seed: u64,
}

impl Session<'_> {
    /// Agrees on keys with the server. `None` if that fails, or it is not the one to trust.
    pub(crate) async fn open<'r, C: Read + Write + 'r>(
        &'r mut self,
        resource: HttpResource<'r, C>,
    ) -> Option<HttpResource<'r, C>> {
        let HttpResource { conn: HttpConnection::Plain(tcp), host, base_path } = resource else {
            return None;
        };
        let random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut tls = TlsConnection::<_, Aes128GcmSha256>::new(tcp, self.read, self.write);
        let config = TlsConfig::new().with_server_name(host);
        match self.trust {
            Trust::Psk { identity, key } => {
                // A server that does not use the key has other secrets, and cannot end the handshake.
                let config = config.with_psk(key, &[identity]);
                tls.open(TlsContext::new(&config, UnsecureProvider::new(random))).await.ok()?;
            }
            Trust::Authority { certificate } => {
                let config = config.with_ca(Certificate::X509(certificate));
                let mut judge = Judge { random, verifier: CertVerifier::new(), asked: 0 };
                tls.open(TlsContext::new(&config, &mut judge)).await.ok()?;
                if !judge.is_satisfied() {
                    return None;
                }
            }
        }
        Some(HttpResource { conn: HttpConnection::Tls(tls), host, base_path })
    }
}

/// Sees to it that the server has shown a certificate and that it is its own.
///
/// embedded-tls 0.18 verifies whatever the server shows, and takes a server that shows nothing: neither a missing
/// certificate nor a missing signature ends its handshake. It asks for the verifier once for the host's name, once for a
/// certificate and once for a signature, so counting shows what was missing.
struct Judge {
    random: ChaCha8Rng,
    verifier: CertVerifier<Aes128GcmSha256, NoClock, CERTIFICATES_MAX>,
    asked: u8,
}

impl Judge {
    const FOR_CERTIFICATE: u8 = 2;
    const FOR_SIGNATURE: u8 = 3;

    fn is_satisfied(&self) -> bool {
        self.asked == Self::FOR_SIGNATURE
    }
}

impl CryptoProvider for Judge {
    type CipherSuite = Aes128GcmSha256;
    type Signature = [u8; 0];

    fn rng(&mut self) -> impl CryptoRngCore {
        &mut self.random
    }

    fn verifier(&mut self) -> Result<&mut impl TlsVerifier<Aes128GcmSha256>, TlsError> {
        self.asked = self.asked.saturating_add(1);
        if self.asked > Self::FOR_CERTIFICATE {
            // The certificate is verified. A second one in the place of the signature has no host that it could be for.
            TlsVerifier::<Aes128GcmSha256>::set_hostname_verification(&mut self.verifier, "")?;
        }
        Ok(&mut self.verifier)
    }
}
