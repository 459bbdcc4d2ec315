//! HTTP over any TCP and DNS, with a limit on every byte and every wait: nothing that a server does can hold the device up.

use embedded_nal_async::{Dns, TcpConnect};
use reqwless::{
    client::{HttpClient, HttpResource},
    headers::TransferEncoding,
    request::RequestBuilder,
    response::Response as HttpResponse,
};

#[cfg(feature = "tls")]
use crate::tls::{Session, Tls};
use crate::{Failure, Sleep};

/// How long the network may take. There is no wait without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Timeouts {
    /// To find the address, connect, and agree on keys, in milliseconds.
    pub connect_ms: u32,
    /// From the first byte of a request to the last of its answer, in milliseconds.
    pub exchange_ms: u32,
}

impl Timeouts {
    /// 20 seconds to connect, 30 for an exchange.
    pub const fn new() -> Self {
        Self { connect_ms: 20_000, exchange_ms: 30_000 }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::new()
    }
}

/// Why an address cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum UrlError {
    /// It is neither `http://host[:port][/path]` nor `https://..`.
    Malformed,
    /// It begins with `https`, and there is neither a key nor a certificate to trust: give one with `Http::tls`.
    NoTls,
    /// It begins with `http`, and this uplink believes whoever answers: use `https`, or say `insecure`.
    Insecure,
}

impl core::fmt::Display for UrlError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Malformed => "an address reads http://host[:port][/path] or https://host[:port][/path]",
            Self::NoTls => "https needs a key or a certificate to trust: give one with Http::tls",
            Self::Insecure => "anybody on the way could answer over plain http: use https, or say insecure",
        })
    }
}

impl core::error::Error for UrlError {}

/// An HTTP server's address, and all that is needed to talk to it.
pub struct Http<'n, T, D, S> {
    tcp: &'n T,
    dns: &'n D,
    clock: S,
    url: &'n str,
    timeouts: Timeouts,
    #[cfg(feature = "tls")]
    tls: Option<Tls<'n>>,
}

impl<'n, T: TcpConnect, D: Dns, S: Sleep> Http<'n, T, D, S> {
    /// Talks to the server at this address: `http://host[:port][/path]`, or `https` together with `Http::tls`.
    pub fn new(tcp: &'n T, dns: &'n D, clock: S, url: &'n str) -> Self {
        Self {
            tcp,
            dns,
            clock,
            url,
            timeouts: Timeouts::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// How long the network may take.
    pub fn timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// Speaks TLS 1.3 with the server.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls<'n>) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Whether the address can be used. Without TLS reqwless would speak plainly to an `https` address.
    pub(crate) fn check(&self) -> Result<Scheme, UrlError> {
        // By one character: to look for a longer text, tables are prepared by 670 bytes of code.
        let (scheme, rest) = self.url.split_once(':').ok_or(UrlError::Malformed)?;
        let rest = rest.strip_prefix("//").ok_or(UrlError::Malformed)?;
        let host = rest.split(['/', ':', '?', '#']).next().unwrap_or_default();
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        let authority = rest.split('/').next().unwrap_or_default();
        let port = authority.split_once(':').map(|(_, port)| port);
        if host.is_empty() || !host.is_ascii() || port.is_some_and(|port| !is_port(port)) {
            return Err(UrlError::Malformed);
        }
        #[cfg(feature = "tls")]
        let has_tls = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let has_tls = false;
        match scheme {
            "http" => Ok(Scheme::Http),
            "https" if has_tls => Ok(Scheme::Https),
            "https" => Err(UrlError::NoTls),
            _ => Err(UrlError::Malformed),
        }
    }

    /// A client for one connection: its TLS keys come from a seed of their own.
    pub(crate) fn client(&mut self) -> Client<'_, T, D, S> {
        Client {
            // reqwless' own TLS is not used: see `tls.rs`. Without it, it speaks plainly to any address.
            http: HttpClient::new(self.tcp, self.dns),
            clock: &self.clock,
            url: self.url,
            timeouts: self.timeouts,
            #[cfg(feature = "tls")]
            session: self.tls.as_mut().filter(|_| self.url.starts_with("https:")).map(Tls::session),
        }
    }
}

/// How an address is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

/// Makes one connection.
pub(crate) struct Client<'c, T: TcpConnect, D: Dns, S> {
    http: HttpClient<'c, T, D>,
    clock: &'c S,
    url: &'c str,
    timeouts: Timeouts,
    #[cfg(feature = "tls")]
    session: Option<Session<'c>>,
}

impl<T: TcpConnect, D: Dns, S: Sleep> Client<'_, T, D, S> {
    /// Connects, within its time.
    pub(crate) async fn connect(&mut self) -> Result<Connection<'_, T::Connection<'_>, S>, Failure> {
        let (clock, connect_ms) = (self.clock, self.timeouts.connect_ms);
        let exchange_ms = self.timeouts.exchange_ms;
        let connecting = async {
            let resource = self.http.resource(self.url).await.ok()?;
            #[cfg(feature = "tls")]
            if let Some(session) = &mut self.session {
                return session.open(resource).await;
            }
            Some(resource)
        };
        let connected = clock.within(connect_ms, connecting).await;
        let resource = connected.flatten().ok_or(Failure::Network)?;
        Ok(Connection { resource, clock, exchange_ms, is_used: false, is_over: false })
    }
}

/// A connection that is kept while there is something to send.
pub(crate) struct Connection<'c, C: embedded_io_async::Read + embedded_io_async::Write, S> {
    resource: HttpResource<'c, C>,
    clock: &'c S,
    exchange_ms: u32,
    /// It has carried an exchange.
    is_used: bool,
    /// It carries no more.
    is_over: bool,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Reply<'b> {
    /// The status.
    pub status: u16,
    /// Seconds that the Retry-After header asks for; dates are not understood.
    pub retry_after_s: Option<u32>,
    /// The body; empty if there was no room for all of it.
    pub body: &'b [u8],
}

/// Why nothing came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The server had closed the connection after the last exchange, as it may: worth another one at once.
    Stale,
    /// Anything else.
    Lost,
}

impl<C, S> Connection<'_, C, S>
where
    C: embedded_io_async::Read + embedded_io_async::Write,
    S: Sleep,
{
    /// Posts a body and reads the answer, headers and body each into a half of the buffer.
    pub(crate) async fn post<'b>(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        buffer: &'b mut [u8],
    ) -> Result<Reply<'b>, Broken> {
        let was_used = core::mem::replace(&mut self.is_used, true);
        // Until the answer is complete, the connection is in the middle of something.
        self.is_over = true;
        let half = buffer.len() / 2;
        let (head, content) = buffer.split_at_mut(half);
        let exchange = async {
            let request = self.resource.post(path).headers(headers).body(body);
            let response = request.send(head).await.map_err(|_| Broken::Stale)?;
            read(response, content).await
        };
        let read = self.clock.within(self.exchange_ms, exchange).await.unwrap_or(Err(Broken::Lost));
        let (status, retry_after_s, len, is_last) = match read {
            Ok(read) => read,
            Err(Broken::Stale) if was_used => return Err(Broken::Stale),
            Err(_) => return Err(Broken::Lost),
        };
        self.is_over = is_last;
        Ok(Reply { status, retry_after_s, body: content.get(..len).unwrap_or_default() })
    }

    /// Whether it carries no more exchanges.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Reads an answer's status, the headers that matter, and as much of the body as there is room for.
async fn read<C: embedded_io_async::Read>(
    response: HttpResponse<'_, '_, C>,
    content: &mut [u8],
) -> Result<(u16, Option<u32>, usize, bool), Broken> {
    use embedded_io_async::Read;

    let status = response.status.0;
    // An interim answer is followed by another that nobody would read.
    if status < 200 {
        return Err(Broken::Lost);
    }
    let mut retry_after_s = None;
    let announced = response.content_length;
    let mut is_last = announced.is_none() && !response.transfer_encoding.contains(&TransferEncoding::Chunked);
    for (name, value) in response.headers() {
        let value = core::str::from_utf8(value.trim_ascii()).unwrap_or_default();
        if name.eq_ignore_ascii_case("retry-after") {
            retry_after_s = value.parse().ok();
        } else if name.eq_ignore_ascii_case("connection") {
            is_last |= value.eq_ignore_ascii_case("close");
        }
    }
    let mut reader = response.body().reader();
    let (mut len, mut left) = (0, announced.unwrap_or(usize::MAX));
    while left > 0 {
        let room = content.get_mut(len..).unwrap_or_default();
        // reqwless counts what it reads, and reads more than was announced if there is more.
        let most = room.len().min(left);
        let Some(room) = room.get_mut(..most).filter(|room| !room.is_empty()) else {
            // More than there is room for: what it says cannot be complete, but its status is.
            return Ok((status, retry_after_s, 0, true));
        };
        match reader.read(room).await {
            Ok(0) => {
                is_last |= announced.is_some();
                break;
            }
            Ok(read) => {
                len += read;
                left = left.saturating_sub(read);
            }
            Err(_) => return Err(Broken::Lost),
        }
    }
    Ok((status, retry_after_s, len, is_last))
}
