//! The device's end of a connection, and the wire behind it: what was written and not yet carried, what has
//! arrived and was not yet read.

use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};

use super::fault::{Fault, Stage};
use super::http::{Progress, progress};
use super::trace::What;
use super::{LinkShared, Outage, State};

/// A device's stack takes no more at once, so a write is often shorter than what it was given.
const SEGMENT: usize = 536;
/// [`Fault::ResetInRequest`] strikes within so many bytes, or else when the request is complete.
const RESET_WITHIN: usize = 600;

/// An open connection, as the device holds it. Dropping it hangs up: what was written whole is on its way, an
/// unfinished request is not.
pub struct Connection(pub(super) Rc<Wire>);

pub(super) struct Wire {
    pub(super) link: Rc<LinkShared>,
    ends: RefCell<Ends>,
}

#[derive(Default)]
struct Ends {
    /// Of a request that is not complete.
    written: Vec<u8>,
    /// What the request that is being written will suffer, from its first byte on.
    fate: Option<Option<Fault>>,
    reset_after: Option<usize>,
    requests: VecDeque<Request>,
    arrived: VecDeque<u8>,
    condition: Condition,
    device_hung_up: bool,
    reader: Option<Waker>,
    carrier: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Condition {
    #[default]
    Open,
    /// Looks open to the device, and nothing ever comes or goes.
    Silent,
    /// The server has closed it: the device reads what arrived, then the end.
    Closed,
    Reset,
}

/// A request that left the device.
pub(super) struct Request {
    /// Its body, or the status that refuses it.
    pub(super) body: Result<Rc<[u8]>, u16>,
    pub(super) fate: Option<Fault>,
}

impl Wire {
    pub(super) fn new(link: Rc<LinkShared>) -> Rc<Self> {
        Rc::new(Self { link, ends: RefCell::default() })
    }

    /// The next request, or nothing if none will come.
    pub(super) async fn next_request(&self) -> Option<Request> {
        poll_fn(|context| {
            let mut ends = self.ends.borrow_mut();
            if let Some(request) = ends.requests.pop_front() {
                return Poll::Ready(Some(request));
            }
            if ends.device_hung_up || ends.condition != Condition::Open {
                return Poll::Ready(None);
            }
            ends.carrier = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Bytes arrive at the device, if they can.
    pub(super) fn arrive(&self, bytes: &[u8]) -> Arrival {
        let mut ends = self.ends.borrow_mut();
        if ends.device_hung_up || ends.condition != Condition::Open || self.link.state.get() != State::Up {
            return Arrival::Lost;
        }
        ends.arrived.extend(bytes);
        ends.wake_reader();
        self.link.counts.borrow_mut().received_bytes += bytes.len() as u64;
        Arrival::Arrived
    }

    pub(super) fn reset(&self) {
        self.end(Condition::Reset, Some(What::ConnectionReset));
    }

    pub(super) fn close(&self) {
        self.end(Condition::Closed, Some(What::ConnectionClosed));
    }

    pub(super) fn fall_silent(&self) {
        self.end(Condition::Silent, None);
    }

    fn end(&self, condition: Condition, event: Option<What>) {
        let mut ends = self.ends.borrow_mut();
        if ends.device_hung_up || ends.condition != Condition::Open {
            return;
        }
        ends.condition = condition;
        ends.written.clear();
        ends.requests.clear();
        ends.wake_reader();
        ends.wake_carrier();
        if let Some(event) = event {
            self.link.note(event);
        }
    }

    fn read(&self, buffer: &mut [u8], waker: &Waker) -> Poll<Result<usize, ErrorKind>> {
        let mut ends = self.ends.borrow_mut();
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if !ends.arrived.is_empty() {
            let count = buffer.len().min(ends.arrived.len());
            for (to, from) in buffer.iter_mut().zip(ends.arrived.drain(..count)) {
                *to = from;
            }
            return Poll::Ready(Ok(count));
        }
        match ends.condition {
            Condition::Closed => Poll::Ready(Ok(0)),
            Condition::Reset => Poll::Ready(Err(ErrorKind::ConnectionReset)),
            Condition::Open | Condition::Silent => {
                ends.reader = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let mut ends = self.ends.borrow_mut();
        let taken = &bytes[..bytes.len().min(SEGMENT)];
        match ends.condition {
            Condition::Reset => return Err(ErrorKind::ConnectionReset),
            // The first bytes after the server's end go out, and it answers them with a reset.
            Condition::Closed => ends.condition = Condition::Reset,
            Condition::Silent => {}
            Condition::Open => return self.write_open(&mut ends, taken),
        }
        self.link.counts.borrow_mut().sent_bytes += taken.len() as u64;
        Ok(taken.len())
    }

    fn write_open(&self, ends: &mut Ends, mut taken: &[u8]) -> Result<usize, ErrorKind> {
        if taken.is_empty() {
            return Ok(0);
        }
        let fate = *ends.fate.get_or_insert_with(|| self.link.draw(Stage::Request));
        if fate == Some(Fault::ResetInRequest) {
            let limit =
                *ends.reset_after.get_or_insert_with(|| self.link.rng.borrow_mut().usize(1..=RESET_WITHIN));
            taken = &taken[..taken.len().min(limit - ends.written.len())];
        }
        ends.written.extend_from_slice(taken);
        self.link.counts.borrow_mut().sent_bytes += taken.len() as u64;
        let progress = progress(&ends.written);
        if fate == Some(Fault::ResetInRequest) {
            let is_cut = ends.reset_after == Some(ends.written.len()) || progress != Progress::Incomplete;
            if is_cut {
                ends.condition = Condition::Reset;
                ends.wake_reader();
                ends.wake_carrier();
                self.link.note(What::ConnectionReset);
            }
            return Ok(taken.len());
        }
        self.send(ends, progress, fate);
        Ok(taken.len())
    }

    /// Hands a request that is complete to the carrier. Bytes of a next one stay, and draw its fate when they grow.
    fn send(&self, ends: &mut Ends, progress: Progress, fate: Option<Fault>) {
        let body = match progress {
            Progress::Incomplete => return,
            Progress::Complete { head, end } => {
                let body: Rc<[u8]> = Rc::from(&ends.written[head..end]);
                self.link.network.keep_head(&ends.written[..head]);
                ends.written.drain(..end);
                Ok(body)
            }
            Progress::Bad(status) => {
                ends.written.clear();
                Err(status)
            }
        };
        self.link.counts.borrow_mut().requests += 1;
        self.link.note(What::RequestSent { bytes: body.as_ref().map_or(0, |body| body.len()) });
        ends.fate = None;
        ends.requests.push_back(Request { body, fate });
        ends.wake_carrier();
    }

    /// The link went down under it.
    pub(super) fn suffer(&self, outage: Outage) {
        match outage {
            Outage::Reset => self.reset(),
            Outage::BlackHole => self.fall_silent(),
        }
    }

    fn hang_up(&self) {
        let mut ends = self.ends.borrow_mut();
        ends.device_hung_up = true;
        ends.arrived.clear();
        ends.wake_carrier();
        drop(ends);
        self.link.note(What::DeviceHungUp);
    }
}

/// Whether bytes came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Arrived,
    Lost,
}

impl Ends {
    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn wake_carrier(&mut self) {
        if let Some(waker) = self.carrier.take() {
            waker.wake();
        }
    }
}

impl ErrorType for Connection {
    type Error = ErrorKind;
}

impl Read for Connection {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        poll_fn(|context| self.0.read(buffer, context.waker())).await
    }
}

impl Write for Connection {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.write(bytes)
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}
