//! Carries what a device writes to the server, and the answers back, through everything that goes wrong on the way.
//! One task per connection, which outlives the device: what was sent arrives, even if the sender has lost its power.

use std::rc::Rc;

use super::connection::{Arrival, Request, Wire};
use super::fault::{Fault, PLAIN_STATUSES};
use super::http::{After, answer};
use super::trace::What;
use super::{LinkShared, Reply};

const BINARY: &str = "application/octet-stream";
/// Longest body that is made up.
const FORGED_MAX: usize = 200;
/// [`Fault::KeepAliveClosed`] closes at the latest so long after the answer.
const CLOSED_WITHIN_MS: u64 = 5000;

/// Serves one connection until nothing can come over it any more.
pub(super) async fn carry(wire: Rc<Wire>) {
    while let Some(request) = wire.next_request().await {
        let link = wire.link.clone();
        if request.fate == Some(Fault::RequestLost) {
            if let Ok(body) = &request.body {
                link.network.keep_request(body);
            }
            wire.fall_silent();
            continue;
        }
        let restarts = link.network.restarts.get();
        link.travel().await;
        if request.fate == Some(Fault::RequestLate) {
            let late_ms = link.draw_late_ms();
            link.network.time.sleep(late_ms).await;
        } else if link.network.restarts.get() != restarts {
            // It was on its way to a server that is not there any more.
            continue;
        }
        if !link.network.is_server_up.get() {
            wire.reset();
            continue;
        }
        let answer = arrive_at_server(&link, &request);
        link.travel().await;
        bring_back(&wire, &request, &answer).await;
    }
}

/// The server handles the request, or somebody in its place; gives the bytes that travel back.
fn arrive_at_server(link: &Rc<LinkShared>, request: &Request) -> Rc<[u8]> {
    let body = match &request.body {
        Ok(body) => body,
        Err(status) => {
            let reply = Reply { status: *status, body: Vec::new(), retry_after_s: None };
            return answer(link.now_ms(), &reply, BINARY, After::Close).into();
        }
    };
    let after = match request.fate {
        Some(Fault::KeepAliveClosed) if link.rng.borrow_mut().bool() => After::Close,
        _ => After::KeepAlive,
    };
    let bytes = match request.fate {
        Some(Fault::CaptivePortal) => captive_portal(link),
        Some(Fault::AnswerForged) => {
            maybe_handle(link, body);
            forged(link)
        }
        Some(Fault::PlainStatus) => {
            maybe_handle(link, body);
            plain_status(link)
        }
        Some(Fault::OldRequestReplayed) => replay_around(link, body),
        Some(Fault::RequestDuplicated) => handle_twice(link, body),
        Some(Fault::OldAnswer) => {
            let earlier = link.network.draw_answer(&mut link.rng.borrow_mut());
            handle(link, body, after);
            earlier.unwrap_or_else(|| forged(link))
        }
        Some(Fault::AnswerAltered) => altered(link, &handle(link, body, after)),
        _ => handle(link, body, after),
    };
    link.network.keep_request(body);
    bytes
}

/// Lets the server handle a request and gives its answer.
fn handle(link: &LinkShared, body: &[u8], after: After) -> Rc<[u8]> {
    let now_ms = link.now_ms();
    let reply = link.network.endpoint.borrow_mut().handle(now_ms, body);
    link.counts.borrow_mut().handled += 1;
    link.note(What::Handled { request_bytes: body.len(), status: reply.status });
    let mut bytes = answer(now_ms, &reply, BINARY, after);
    if let Some(line) = &*link.network.header.borrow() {
        let at = bytes.windows(2).position(|end| end == b"\r\n").map_or(0, |at| at + 2);
        bytes.splice(at..at, format!("{line}\r\n").into_bytes());
    }
    let bytes: Rc<[u8]> = bytes.into();
    link.network.keep_answer(&bytes);
    bytes
}

fn maybe_handle(link: &LinkShared, body: &[u8]) {
    let seen = link.rng.borrow_mut().bool();
    if seen {
        handle(link, body, After::KeepAlive);
    }
}

/// A copy that comes later, when the device may have forgotten that it ever sent it.
fn handle_later(link: &Rc<LinkShared>, body: Rc<[u8]>) {
    let late_ms = link.draw_late_ms();
    let link = link.clone();
    link.network.time.clone().spawn(async move {
        link.network.time.sleep(late_ms).await;
        if link.network.is_server_up.get() {
            handle(&link, &body, After::KeepAlive);
        }
    });
}

fn handle_twice(link: &Rc<LinkShared>, body: &Rc<[u8]>) -> Rc<[u8]> {
    let first = handle(link, body, After::KeepAlive);
    if link.rng.borrow_mut().bool() {
        handle_later(link, body.clone());
        return first;
    }
    let second = handle(link, body, After::KeepAlive);
    if link.rng.borrow_mut().bool() { first } else { second }
}

fn replay_around(link: &Rc<LinkShared>, body: &Rc<[u8]>) -> Rc<[u8]> {
    let old = link.network.draw_request(&mut link.rng.borrow_mut()).unwrap_or_else(|| body.clone());
    let when = link.rng.borrow_mut().u8(0..3);
    if when == 0 {
        handle(link, &old, After::KeepAlive);
    }
    let bytes = handle(link, body, After::KeepAlive);
    match when {
        1 => drop(handle(link, &old, After::KeepAlive)),
        2 => handle_later(link, old),
        _ => {}
    }
    bytes
}

fn forged(link: &LinkShared) -> Rc<[u8]> {
    let mut rng = link.rng.borrow_mut();
    let body = (0..rng.usize(0..=FORGED_MAX)).map(|_| rng.u8(..)).collect();
    let reply = Reply { status: 200, body, retry_after_s: None };
    answer(link.now_ms(), &reply, BINARY, After::KeepAlive).into()
}

fn captive_portal(link: &LinkShared) -> Rc<[u8]> {
    let page = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Please log in.</body></html>";
    let reply = Reply { status: 200, body: page.to_vec(), retry_after_s: None };
    answer(link.now_ms(), &reply, "text/html; charset=utf-8", After::Close).into()
}

fn plain_status(link: &LinkShared) -> Rc<[u8]> {
    let mut rng = link.rng.borrow_mut();
    let status = PLAIN_STATUSES[rng.usize(..PLAIN_STATUSES.len())];
    let retry_after_s = rng.bool().then(|| rng.u32(0..=600));
    let body = if rng.bool() { Vec::new() } else { format!("{status}\n").into_bytes() };
    let reply = Reply { status, body, retry_after_s };
    answer(link.now_ms(), &reply, "text/plain", After::KeepAlive).into()
}

/// Inverts a few bits: mostly of the body, which the device's parser of HTTP does not protect.
fn altered(link: &LinkShared, bytes: &[u8]) -> Rc<[u8]> {
    let mut rng = link.rng.borrow_mut();
    let mut bytes = bytes.to_vec();
    let body = bytes.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |at| at + 4);
    let from = if body < bytes.len() && rng.u8(0..8) > 0 { body } else { 0 };
    let first = rng.usize(from..bytes.len());
    bytes[first] ^= 1 << rng.u8(0..8);
    for _ in 0..rng.u8(0..4) {
        // Never the first one again, which would restore it.
        let at = rng.usize(from..bytes.len());
        if at != first {
            bytes[at] ^= 1 << rng.u8(0..8);
        }
    }
    bytes.into()
}

/// The answer's way back, from the last hop on.
async fn bring_back(wire: &Rc<Wire>, request: &Request, bytes: &[u8]) {
    let link = &wire.link;
    let arrival = match request.fate {
        Some(Fault::AnswerLost) => return wire.fall_silent(),
        Some(Fault::ResetInAnswer) => {
            let part = link.rng.borrow_mut().usize(0..bytes.len());
            wire.arrive(&bytes[..part]);
            let is_reset = link.rng.borrow_mut().bool();
            return if is_reset { wire.reset() } else { wire.close() };
        }
        Some(Fault::AnswerDribbled) => dribble(wire, bytes).await,
        _ => in_two_segments(wire, bytes).await,
    };
    if arrival == Arrival::Arrived {
        link.counts.borrow_mut().answers += 1;
        link.note(What::AnswerArrived { bytes: bytes.len() });
    }
    let announced = bytes.windows(19).any(|line| line == b"Connection: close\r\n");
    if announced {
        wire.close();
    } else if request.fate == Some(Fault::KeepAliveClosed) {
        close_soon(wire);
    }
}

/// An answer rarely fits the device's buffers in one piece.
async fn in_two_segments(wire: &Wire, bytes: &[u8]) -> Arrival {
    let split = wire.link.rng.borrow_mut().usize(0..=bytes.len());
    if split > 0 && wire.arrive(&bytes[..split]) == Arrival::Lost {
        return Arrival::Lost;
    }
    if split == bytes.len() {
        return Arrival::Arrived;
    }
    let gap_ms = wire.link.rng.borrow_mut().u64(0..=1);
    wire.link.network.time.sleep(gap_ms).await;
    wire.arrive(&bytes[split..])
}

async fn dribble(wire: &Wire, bytes: &[u8]) -> Arrival {
    let slowest_ms = wire.link.faults.borrow().dribble_ms_max.max(1);
    let pace_ms = wire.link.rng.borrow_mut().u64(1..=slowest_ms);
    for byte in bytes {
        if wire.arrive(core::slice::from_ref(byte)) == Arrival::Lost {
            return Arrival::Lost;
        }
        wire.link.network.time.sleep(pace_ms).await;
    }
    Arrival::Arrived
}

fn close_soon(wire: &Rc<Wire>) {
    let after_ms = wire.link.rng.borrow_mut().u64(0..=CLOSED_WITHIN_MS);
    let time = wire.link.network.time.clone();
    let wire = Rc::downgrade(wire);
    time.clone().spawn(async move {
        time.sleep(after_ms).await;
        if let Some(wire) = wire.upgrade() {
            wire.close();
        }
    });
}
