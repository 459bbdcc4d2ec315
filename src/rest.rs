//! The uplink to an API that already exists: one record per request, and a handler per kind that knows what to make of it.

mod doubts;
mod handler;
mod request;

use core::time::Duration;

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_nal_async::{Dns, TcpConnect};
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use self::{
    doubts::Doubts,
    request::{Parts, text},
};
pub use self::{
    handler::{Handler, JsonHandler, Outcome, RawHandler},
    request::{Request, Unwritable},
};
use crate::{
    Cause, Clock, DeviceId, Dispatcher, Errand, Failure, Http, Key, LaneSet, Pick, Reply, Sleep, Stored,
    Timestamp, Uplink, UrlError,
    http::{Broken, Scheme},
    ledger::LATE,
};

/// Carries records to an API, one per request, each with its `Idempotency-Key`.
///
/// Each kind has a [`Handler`]; a kind without one is passed over and kept until it would block others. The API keeps
/// no books, so what the device gives up in these lanes is told to nobody.
///
/// ```
/// # use core::time::Duration;
/// # use embedded_nal_async::{Dns, TcpConnect};
/// use pillarbox::{EncodedSize, Http, JsonHandler, Kind, RawHandler, Record, RestUplink, Sleep, UrlError};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, EncodedSize, Record)]
/// #[record(kind = 7)]
/// struct Reading {
///     watt_hours: u64,
/// }
///
/// # fn example<T: TcpConnect, D: Dns, S: Sleep>(tcp: &T, dns: &D, clock: S) -> Result<(), UrlError> {
/// let mut readings = JsonHandler::<Reading>::new("/readings").header("Authorization", "Bearer ...");
/// let mut images = RawHandler::new(Kind(8), "/images", "image/jpeg");
/// let (mut tx, mut rx) = ([0; 1024], [0; 2048]);
/// // A new kind is one more line above, and its name here.
/// let mut handlers: [&mut dyn pillarbox::Handler; 2] = [&mut readings, &mut images];
/// // With the feature `tls`, `.tls(..)` says whom to trust.
/// let http = Http::new(tcp, dns, clock, "https://api.example.com/v2");
/// let mut uplink = RestUplink::new(http, &mut handlers, &mut tx, &mut rx)?
///     .key_retention(Duration::from_secs(24 * 3600));
/// # let _ = &mut uplink;
/// # Ok(())
/// # }
/// ```
pub struct RestUplink<'n, T, D, S> {
    http: Http<'n, T, D, S>,
    tx: &'n mut [u8],
    rx: &'n mut [u8],
    desk: Desk<'n>,
}

/// What the uplink knows without its network.
struct Desk<'n> {
    handlers: &'n mut [&'n mut dyn Handler],
    doubts: Doubts,
    /// Dead letters that had their turn in this flush.
    tried: Vec<Key, LATE>,
    /// Some of them are to be tried again, no sooner than so many seconds.
    is_late_left: bool,
    late_after_s: Option<u32>,
}

/// A record that is on its way.
struct Parcel {
    key: Key,
    time: Timestamp,
    /// Whose it is.
    handler: usize,
    is_late: bool,
    parts: Parts,
}

impl<'n, T: TcpConnect, D: Dns, S: Sleep> RestUplink<'n, T, D, S> {
    /// Sends to the API behind `http`, which must be an `https` address: over plain `http` the sign-in page of a hotel's network
    /// would "deliver" records. A request is written in `tx`: path, headers, key and body. The answer is read into `rx`, its
    /// headers in one half and its body in the other; of a body that does not fit only the status counts.
    pub fn new(
        http: Http<'n, T, D, S>,
        handlers: &'n mut [&'n mut dyn Handler],
        tx: &'n mut [u8],
        rx: &'n mut [u8],
    ) -> Result<Self, UrlError> {
        match http.check()? {
            Scheme::Https => Self::insecure(http, handlers, tx, rx),
            Scheme::Http => Err(UrlError::Insecure),
        }
    }

    /// Like [`new`](Self::new), but believes whoever answers, also over plain `http`: anybody on the way can read the records and
    /// make the device forget them.
    pub fn insecure(
        http: Http<'n, T, D, S>,
        handlers: &'n mut [&'n mut dyn Handler],
        tx: &'n mut [u8],
        rx: &'n mut [u8],
    ) -> Result<Self, UrlError> {
        http.check()?;
        let doubts = Doubts::none();
        let desk = Desk { handlers, doubts, tried: Vec::new(), is_late_left: false, late_after_s: None };
        Ok(Self { http, tx, rx, desk })
    }

    /// The API remembers keys for so long. A record that it may have, and whose key it may have forgotten, goes to the dead
    /// letters instead of being sent again.
    pub fn key_retention(mut self, retention: Duration) -> Self {
        self.desk.doubts.retention_ms = Some(retention.as_millis() as u64);
        self
    }
}

impl<T: TcpConnect, D: Dns, S: Sleep> Uplink for RestUplink<'_, T, D, S> {
    fn books(&self) -> LaneSet {
        LaneSet::NONE
    }

    async fn flush<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let Self { http, tx, rx, desk } = self;
        desk.tried.clear();
        (desk.is_late_left, desk.late_after_s) = (false, None);
        mail.drop_books().await;
        // The radio stays off until there is something to send.
        let Some(mut parcel) = desk.pack(mail, tx).await? else { return desk.end() };
        loop {
            let mut client = http.client();
            let mut connection = client.connect().await?;
            loop {
                let is_first = !parcel.is_late && desk.doubts.send(parcel.key, mail.uptime_ms());
                let Parts { path, body, .. } = &parcel.parts;
                let posted = {
                    let (headers, body) =
                        (parcel.parts.headers(tx), tx.get(body.clone()).unwrap_or_default());
                    connection.post(text(tx, path), &headers, body, rx).await
                };
                let reply = match posted {
                    Ok(reply) => reply,
                    // The same request may be sent twice: it has the same key.
                    Err(Broken::Stale) => break,
                    Err(Broken::Lost) => return Err(Failure::Network),
                };
                desk.apply(mail, &parcel, is_first, &reply).await?;
                let Some(next) = desk.pack(mail, tx).await? else { return desk.end() };
                parcel = next;
                if connection.is_over() {
                    break;
                }
            }
        }
    }
}

impl Desk<'_> {
    /// Writes the next request. `None` if there is nothing more to send. May be cancelled: nothing is on its way yet.
    async fn pack<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
        tx: &mut [u8],
    ) -> Result<Option<Parcel>, Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let (device, (_, boot, _)) = (mail.device().await, mail.identity().await);
        while let Some(Errand::Records { lane }) = mail.next_errand(LaneSet::NONE).await {
            let (mut first, mut parcel) = (None, None);
            let held = mail.held();
            let take = |stored: &Stored<'_>| {
                first.get_or_insert(stored.key);
                if parcel.is_some() {
                    return Pick::Stop;
                }
                if !held.contains(&stored.key) {
                    parcel = write(self.handlers, &device, stored, tx);
                }
                if parcel.is_some() { Pick::Take } else { Pick::Skip }
            };
            let window = mail.window(lane, take).await?;
            let Some(parcel) = parcel else {
                // Nothing of the window can be sent. If there is more behind it, its first record is in the way.
                match first.filter(|_| window.has_more) {
                    Some(key) => drop(mail.park(lane, &[key], Cause::Blocking).await?),
                    None => mail.leave(lane).await,
                }
                continue;
            };
            self.doubts.see(parcel.key, &parcel.time, boot);
            let age_ms = mail.age_ms(&parcel.time).await;
            if !self.doubts.is_forgotten(parcel.key, mail.uptime_ms(), age_ms) {
                return Ok(Some(parcel));
            }
            mail.park(lane, &[parcel.key], Cause::Expired).await?;
            self.doubts.forget(parcel.key);
        }
        self.pack_late(mail, &device, tx).await
    }

    /// Writes the request for a dead letter that the application wants to be sent again. May be cancelled.
    async fn pack_late<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
        device: &DeviceId,
        tx: &mut [u8],
    ) -> Result<Option<Parcel>, Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let mut parcel: Option<Parcel> = None;
        let mut unwritable: Vec<Key, LATE> = Vec::new();
        mail.late(|stored| {
            if !self.tried.contains(&stored.key) {
                parcel = write(self.handlers, device, stored, tx);
                let tried = if parcel.is_some() { &mut self.tried } else { &mut unwritable };
                let _ = tried.push(stored.key);
            }
            parcel.is_none()
        })
        .await?;
        // They stay what they are.
        mail.refuse_late(&unwritable).await;
        Ok(parcel.map(|parcel| Parcel { is_late: true, ..parcel }))
    }

    /// Does what the answer says. When it is cancelled, the record is sent again or what the answer says is finished at the next
    /// boot.
    async fn apply<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
        parcel: &Parcel,
        is_first: bool,
        reply: &Reply<'_>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let (key, lane, status) = (parcel.key, parcel.key.lane, reply.status);
        let handler = self.handlers.get_mut(parcel.handler);
        let outcome = handler.map_or(Outcome::of(reply), |handler| handler.judge(reply));
        // Behind these answers the request may have done its work, or still be doing it.
        let is_doubtful = !is_first || matches!(status, 408 | 409 | 500..);
        if !(matches!(outcome, Outcome::Retry { .. }) && is_doubtful) {
            self.doubts.forget(key);
        }
        match outcome {
            Outcome::Delivered => {
                mail.succeeded();
                match parcel.is_late {
                    true => mail.settle_late(&[key]).await?,
                    false => mail.settle(lane, &[key]).await?,
                };
            }
            Outcome::Rejected if parcel.is_late => mail.refuse_late(&[key]).await,
            Outcome::Rejected => {
                mail.succeeded();
                if mail.park(lane, &[key], Cause::Rejected).await?.is_paused {
                    mail.hold(key, None);
                }
            }
            Outcome::Retry { after_s } => {
                if matches!(status, 401 | 403) {
                    return Err(Failure::Refused { status });
                }
                if parcel.is_late {
                    self.is_late_left = true;
                    self.late_after_s = self.late_after_s.max(after_s);
                } else {
                    mail.hold(key, after_s);
                }
            }
        }
        Ok(())
    }

    /// The flush is over. Lanes know themselves how long they have to wait, dead letters do not.
    fn end(&self) -> Result<(), Failure> {
        match self.is_late_left {
            true => Err(Failure::Busy { retry_after_s: self.late_after_s }),
            false => Ok(()),
        }
    }
}

/// Lets the record's handler write its request. `None` if it has no handler, or the handler cannot.
fn write(
    handlers: &mut [&mut dyn Handler],
    device: &DeviceId,
    stored: &Stored<'_>,
    tx: &mut [u8],
) -> Option<Parcel> {
    let handler = handlers.iter().position(|handler| handler.kind() == stored.kind)?;
    let mut request = Request::new(tx);
    // A quoted string, as structured fields have it (RFC 9651). A key holds nothing that would have to be escaped.
    let key = stored.key.of(device);
    let written = request.header("Idempotency-Key", format_args!("\"{key}\"")).and_then(|()| {
        handlers.get_mut(handler).map_or(Err(Unwritable), |handler| handler.write(stored, &mut request))
    });
    if written.is_err() {
        warning!("a record of kind {} cannot be written as a request", stored.kind.0);
        return None;
    }
    Some(Parcel { key: stored.key, time: stored.time, handler, is_late: false, parts: request.finish() })
}
