//! What knows how to deliver one kind of record to an API, and what the API's answers mean.

use core::marker::PhantomData;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Request, Unwritable};
use crate::{Kind, Record, Reply, Stored};

/// What an answer means for the record that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Outcome {
    /// It has arrived.
    Delivered,
    /// It is sent again, with the same key.
    Retry {
        /// After no less than so many seconds.
        after_s: Option<u32>,
    },
    /// It will never be accepted: it goes to the dead letters.
    Rejected,
}

impl Outcome {
    /// What an answer means where nobody knows better: 2xx is delivered; 400, 404, 410, 413 and 422 are rejected; 409 is
    /// rejected too, unless its problem `type` ends in `in-progress`; all else is to be tried again.
    pub fn of(reply: &Reply<'_>) -> Self {
        match reply.status {
            200..=299 => Self::Delivered,
            400 | 404 | 410 | 413 | 422 => Self::Rejected,
            409 if !is_in_progress(reply.body) => Self::Rejected,
            _ => Self::Retry { after_s: reply.retry_after_s },
        }
    }
}

/// Whether a problem (RFC 9457) says that the first request with this key is still being worked on.
fn is_in_progress(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Problem<'b> {
        #[serde(rename = "type")]
        kind: &'b str,
    }
    let problem = serde_json_core::from_slice::<Problem<'_>>(body);
    problem.is_ok_and(|(problem, _)| problem.kind.ends_with("in-progress"))
}

/// Delivers the records of one kind.
///
/// The uplink promises that every attempt for a record has the same `Idempotency-Key`, and that nothing is settled or given
/// up but by what `judge` says. The handler promises that the same record always makes the same request: an API that
/// remembers a key may refuse it with another body.
pub trait Handler {
    /// The kind of its records.
    fn kind(&self) -> Kind;

    /// Writes the request for a record: its path, its body, and headers if it needs them. The storage is locked meanwhile, so it
    /// should not take long. It may be called for requests that are not sent.
    fn write(&mut self, record: &Stored<'_>, request: &mut Request<'_>) -> Result<(), Unwritable>;

    /// What an answer means. 401 and 403 that are to be tried again end the flush, since every other record would meet the same.
    fn judge(&mut self, reply: &Reply<'_>) -> Outcome {
        Outcome::of(reply)
    }
}

/// What the ready-made handlers have in common.
struct Address<'a> {
    path: &'a str,
    header: Option<(&'static str, &'a str)>,
    judge: fn(&Reply<'_>) -> Outcome,
}

impl<'a> Address<'a> {
    fn new(path: &'a str) -> Self {
        Self { path, header: None, judge: Outcome::of }
    }

    fn write(&self, request: &mut Request<'_>) -> Result<(), Unwritable> {
        request.path(self.path)?;
        self.header.map_or(Ok(()), |(name, value)| request.header(name, value))
    }
}

/// Posts records of one type as JSON to one path.
pub struct JsonHandler<'a, T> {
    address: Address<'a>,
    of: PhantomData<fn() -> T>,
}

impl<'a, T: Record + DeserializeOwned> JsonHandler<'a, T> {
    /// Posts them there, below the uplink's address.
    pub fn new(path: &'a str) -> Self {
        Self { address: Address::new(path), of: PhantomData }
    }

    /// Sends this header along: `Authorization`, for example.
    pub fn header(mut self, name: &'static str, value: &'a str) -> Self {
        self.address.header = Some((name, value));
        self
    }

    /// This API's answers mean something else than [`Outcome::of`] says.
    pub fn judged_by(mut self, judge: fn(&Reply<'_>) -> Outcome) -> Self {
        self.address.judge = judge;
        self
    }
}

impl<T: Record + Serialize + DeserializeOwned> Handler for JsonHandler<'_, T> {
    fn kind(&self) -> Kind {
        T::KIND
    }

    fn write(&mut self, record: &Stored<'_>, request: &mut Request<'_>) -> Result<(), Unwritable> {
        let body: T = postcard::from_bytes(record.body).map_err(|_| Unwritable)?;
        self.address.write(request)?;
        request.json(&body)
    }

    fn judge(&mut self, reply: &Reply<'_>) -> Outcome {
        (self.address.judge)(reply)
    }
}

/// Posts the stored bytes of one kind, as they are, to one path.
pub struct RawHandler<'a> {
    kind: Kind,
    content_type: &'a str,
    address: Address<'a>,
}

impl<'a> RawHandler<'a> {
    /// Posts them there, below the uplink's address, under this content type.
    pub fn new(kind: Kind, path: &'a str, content_type: &'a str) -> Self {
        Self { kind, content_type, address: Address::new(path) }
    }

    /// Sends this header along: `Authorization`, for example.
    pub fn header(mut self, name: &'static str, value: &'a str) -> Self {
        self.address.header = Some((name, value));
        self
    }

    /// This API's answers mean something else than [`Outcome::of`] says.
    pub fn judged_by(mut self, judge: fn(&Reply<'_>) -> Outcome) -> Self {
        self.address.judge = judge;
        self
    }
}

impl Handler for RawHandler<'_> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn write(&mut self, record: &Stored<'_>, request: &mut Request<'_>) -> Result<(), Unwritable> {
        self.address.write(request)?;
        request.bytes(self.content_type, record.body)
    }

    fn judge(&mut self, reply: &Reply<'_>) -> Outcome {
        (self.address.judge)(reply)
    }
}
