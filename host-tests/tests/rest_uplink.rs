//! Claim: over the REST uplink each record reaches an API that is not ours under one `Idempotency-Key`, the same on every
//! attempt and after every reboot; what becomes of it is what its handler makes of the answer and nothing else; and what
//! cannot be sent is kept, and never makes the dispatcher spin.

use core::cell::RefCell;
use core::future::pending;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::rc::Rc;

use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::pubsub::WaitResult;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use host_tests::device::{self, Flash, Note, RECORD, Uptime, chip, config, poll_times};
use host_tests::link::http::{Progress, progress};
use pillarbox::{
    Cause, Clock, Config, Dispatcher, EncodedSize, Event, Failure, Handler, Http, JsonHandler, Key, Kind,
    LaneConfig, LaneSet, Outbox, Outcome, Pace, Policy, RawHandler, Record, Reply, Request, RestUplink,
    Sleep, Split, Stored, Subscriber, Unwritable, Uplink, UrlError,
};
use serde::{Deserialize, Serialize};

/// What the API knows how to take, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, EncodedSize, Record)]
#[record(kind = 7)]
struct Reading {
    number: u32,
    is_final: bool,
}

fn reading(number: u32) -> Reading {
    Reading { number, is_final: false }
}

/// What the API says to a request.
#[derive(Clone, Debug)]
enum Say {
    Status(u16),
    Later(u16, u32),
    Problem(u16, &'static str),
    /// It has the request; the answer is lost.
    Lost,
    /// It has the request, and does not answer.
    Silent,
    /// It answers, and hangs up behind the device's back.
    ThenHangUp(u16),
}

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    head: String,
    body: Vec<u8>,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1);
        let mut named = lines.filter_map(|line| line.split_once(": ")).filter(|(header, _)| *header == name);
        let found = named.next().map(|(_, value)| value);
        assert!(named.next().is_none(), "two headers {name}");
        found
    }

    fn number(&self) -> u32 {
        // The JSON of these tests has one form.
        let text = core::str::from_utf8(&self.body).unwrap();
        let digits = text.strip_prefix("{\"number\":").unwrap().strip_suffix(",\"is_final\":false}");
        digits.unwrap().parse().unwrap()
    }
}

type Server = Box<dyn FnMut(&Seen) -> Say>;

/// The API and the network before it. A clone is the same.
#[derive(Clone)]
struct Api(Rc<RefCell<State>>);

struct State {
    server: Server,
    seen: Vec<Seen>,
    connections: u32,
}

impl Api {
    fn new(server: impl FnMut(&Seen) -> Say + 'static) -> Self {
        Self(Rc::new(RefCell::new(State { server: Box::new(server), seen: Vec::new(), connections: 0 })))
    }

    /// Says these things, one after the other, and then 200 for ever.
    fn script(says: impl IntoIterator<Item = Say>) -> Self {
        let mut says = says.into_iter().collect::<Vec<_>>().into_iter();
        Self::new(move |_| says.next().unwrap_or(Say::Status(200)))
    }

    fn now_says(&self, server: impl FnMut(&Seen) -> Say + 'static) {
        self.0.borrow_mut().server = Box::new(server);
    }

    fn hear(&self, seen: Seen) -> Say {
        let state = &mut *self.0.borrow_mut();
        let say = (state.server)(&seen);
        state.seen.push(seen);
        say
    }

    /// What has arrived since the last look.
    fn seen(&self) -> Vec<Seen> {
        core::mem::take(&mut self.0.borrow_mut().seen)
    }

    fn numbers(&self) -> Vec<u32> {
        self.seen().iter().map(Seen::number).collect()
    }

    fn connections(&self) -> u32 {
        self.0.borrow().connections
    }
}

struct Socket {
    api: Api,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    is_hung_up: bool,
}

impl ErrorType for Socket {
    type Error = ErrorKind;
}

impl Write for Socket {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.inbound.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

impl Read for Socket {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        if self.outbound.is_empty() {
            if self.is_hung_up {
                return Ok(0);
            }
            let Progress::Complete { head, end } = progress(&self.inbound) else {
                panic!("no whole request: {}", String::from_utf8_lossy(&self.inbound))
            };
            assert_eq!(end, self.inbound.len(), "one request at a time");
            let head_text = String::from_utf8(self.inbound[..head].to_vec()).unwrap();
            let seen = Seen { head: head_text, body: self.inbound[head..end].to_vec() };
            self.inbound.clear();
            let say = self.api.hear(seen);
            let (status, more, body) = match say {
                Say::Status(status) | Say::ThenHangUp(status) => (status, String::new(), ""),
                Say::Later(status, seconds) => (status, format!("Retry-After: {seconds}\r\n"), ""),
                Say::Problem(status, body) => {
                    (status, "Content-Type: application/problem+json\r\n".into(), body)
                }
                Say::Lost => return Err(ErrorKind::ConnectionReset),
                Say::Silent => pending().await,
            };
            self.is_hung_up = matches!(say, Say::ThenHangUp(_));
            let answer = format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len());
            self.outbound.extend_from_slice(answer.as_bytes());
        }
        let count = buffer.len().min(self.outbound.len());
        buffer[..count].copy_from_slice(&self.outbound[..count]);
        self.outbound.drain(..count);
        Ok(count)
    }
}

impl TcpConnect for Api {
    type Error = ErrorKind;
    type Connection<'a> = Socket;

    async fn connect(&self, _: SocketAddr) -> Result<Socket, ErrorKind> {
        self.0.borrow_mut().connections += 1;
        Ok(Socket { api: self.clone(), inbound: Vec::new(), outbound: Vec::new(), is_hung_up: false })
    }
}

impl Dns for Api {
    type Error = ErrorKind;

    async fn get_host_by_name(&self, _: &str, _: AddrType) -> Result<IpAddr, ErrorKind> {
        Ok(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    async fn get_host_by_address(&self, _: IpAddr, _: &mut [u8]) -> Result<usize, ErrorKind> {
        Err(ErrorKind::Unsupported)
    }
}

/// The device's clock, which nobody moves while the device waits: a wait never ends.
#[derive(Clone)]
struct Standstill(Uptime);

impl Clock for Standstill {
    fn uptime_ms(&self) -> u64 {
        self.0.uptime_ms()
    }
}

impl Sleep for Standstill {
    async fn sleep_until(&self, _: u64) {
        pending().await
    }
}

type Rest = RestUplink<'static, Api, Api, Standstill>;

fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

fn buffer(len: usize) -> &'static mut [u8] {
    Box::leak(vec![0; len].into_boxed_slice())
}

/// The handlers of most tests: readings as JSON.
fn readings() -> Vec<&'static mut dyn Handler> {
    vec![leak(JsonHandler::<Reading>::new("/readings"))]
}

fn http(api: &Api, uptime: &Uptime, url: &'static str) -> Http<'static, Api, Api, Standstill> {
    let api = leak(api.clone());
    Http::new(api, api, Standstill(uptime.clone()), url)
}

fn rest(api: &Api, uptime: &Uptime, handlers: Vec<&'static mut dyn Handler>) -> Rest {
    let http = http(api, uptime, "http://api.test/v2");
    RestUplink::insecure(http, handlers.leak(), buffer(512), buffer(1024)).unwrap()
}

/// A booted device that sends.
struct Sender<'c, const LANES: usize = 1> {
    outbox: Outbox<'c, &'c Flash, LANES, RECORD, NoopRawMutex, Uptime>,
    dispatcher: Dispatcher<'c, &'c Flash, LANES, RECORD, NoopRawMutex, Uptime>,
    uptime: Uptime,
    events: Subscriber<'c, NoopRawMutex>,
}

/// Waits of exactly one second after failures, and none at boot.
fn pace() -> Pace {
    let second = Duration::from_secs(1);
    Pace::new().backoff(second, second).spread(Duration::ZERO)
}

fn boot<'c, const LANES: usize>(
    chip: &'c Flash,
    config: &Config<LANES>,
    policy: Policy,
) -> Sender<'c, LANES> {
    let device::Device { outbox, drain, uptime, .. } = device::boot(chip, config);
    let dispatcher = block_on(Dispatcher::new(drain)).policies([policy; LANES]).pace(pace());
    let events = block_on(outbox.subscribe()).unwrap();
    Sender { outbox, dispatcher, uptime, events }
}

/// A device with one lane, freshly booted on a blank chip.
fn fresh(chip: &Flash) -> Sender<'_> {
    boot(chip, &one_lane(), Policy::urgent())
}

fn one_lane() -> Config<1> {
    config([LaneConfig::new(24)]).dead_letter_pages(8)
}

impl<const LANES: usize> Sender<'_, LANES> {
    fn post(&self, number: u32) -> Key {
        block_on(self.outbox.enqueue(&reading(number))).unwrap()
    }

    fn post_all(&self, numbers: core::ops::Range<u32>) {
        for number in numbers {
            self.post(number);
        }
    }

    fn flush(&mut self, uplink: &mut impl Uplink) -> Result<(), Failure> {
        self.try_flush(uplink).expect("a flush is due")
    }

    fn try_flush(&mut self, uplink: &mut impl Uplink) -> Option<Result<(), Failure>> {
        block_on(self.dispatcher.step(uplink))
    }

    fn wakeup(&mut self, uplink: &impl Uplink) -> Option<u64> {
        block_on(self.dispatcher.next_wakeup(uplink))
    }

    fn pending(&self, lane: u8) -> Vec<Key> {
        let mut keys = Vec::new();
        block_on(self.outbox.inspect(lane, |stored| keys.push(stored.key))).unwrap();
        keys
    }

    fn dead(&self) -> Vec<(Key, Cause)> {
        let mut dead = Vec::new();
        let list = |stored: &Stored<'_>| dead.push((stored.key, stored.cause.unwrap()));
        block_on(self.outbox.dead_letters().list(list)).unwrap();
        dead
    }

    fn has_event(&mut self, is_it: impl Fn(&Event) -> bool) -> bool {
        let mut found = false;
        while let Some(message) = self.events.try_next_message() {
            found |= matches!(message, WaitResult::Message(event) if is_it(&event));
        }
        found
    }
}

fn key_header(key: Key) -> String {
    format!("\"meter-1.{:08x}.{}.{}\"", key.incarnation, key.lane, key.counter)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Settled,
    Kept,
    Dead,
}

/// Sends one record, to which the API says this.
fn fate(say: Say) -> (Fate, Result<(), Failure>) {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([say]);
    let mut uplink = rest(&api, &sender.uptime, readings());
    let key = sender.post(1);
    let flushed = sender.flush(&mut uplink);
    assert_eq!(api.seen().len(), 1, "it is asked once");
    let fate = match (sender.pending(0).as_slice(), sender.dead().as_slice()) {
        ([], []) => Fate::Settled,
        ([kept], []) if *kept == key => Fate::Kept,
        ([], [(dead, Cause::Rejected)]) if *dead == key => Fate::Dead,
        other => panic!("{other:?}"),
    };
    (fate, flushed)
}

#[test]
fn every_row_of_the_default_table_means_what_it_says() {
    for status in [200, 201, 202, 204, 226, 299] {
        assert_eq!(fate(Say::Status(status)), (Fate::Settled, Ok(())), "{status}");
    }
    for status in [400, 404, 410, 413, 422] {
        assert_eq!(fate(Say::Status(status)), (Fate::Dead, Ok(())), "{status}");
    }
    for status in [301, 302, 307, 308, 402, 405, 406, 408, 412, 415, 418, 425, 428, 429, 431, 451] {
        assert_eq!(fate(Say::Status(status)), (Fate::Kept, Ok(())), "{status}");
    }
    for status in [500, 501, 502, 503, 504, 507, 511, 599] {
        assert_eq!(fate(Say::Status(status)), (Fate::Kept, Ok(())), "{status}");
    }
    for status in [401, 403] {
        assert_eq!(fate(Say::Status(status)), (Fate::Kept, Err(Failure::Refused { status })), "{status}");
    }
    assert_eq!(fate(Say::Lost), (Fate::Kept, Err(Failure::Network)));
}

#[test]
fn a_conflict_is_judged_by_the_type_of_its_problem() {
    let in_progress = [
        r#"{"type":"https://api.test/problems/in-progress","title":"Wait"}"#,
        r#"{"title":"Wait","status":409,"nested":{"a":[1,2.5,null,{"type":"no"}]},"type":"in-progress"}"#,
        r#"{"type":"https:\/\/api.test\/problems\/in-progress"}"#,
        " {\n \"type\" : \"tag:in-progress\" \n}\n",
    ];
    for body in in_progress {
        assert_eq!(fate(Say::Problem(409, body)), (Fate::Kept, Ok(())), "{body}");
    }
    let conflict = [
        r#"{"type":"https://api.test/problems/key-conflict"}"#,
        r#"{"type":"in-progress-no-more"}"#,
        r#"{"title":"in-progress"}"#,
        r#"{"type":7}"#,
        "in-progress",
        "",
    ];
    for body in conflict {
        assert_eq!(fate(Say::Problem(409, body)), (Fate::Dead, Ok(())), "{body}");
    }
}

#[test]
fn the_key_is_the_same_on_every_attempt_and_after_a_reboot() {
    let chip = chip();
    let api = Api::script([Say::Status(503), Say::Lost, Say::Status(200)]);
    let (key, mut requests) = {
        let mut sender = fresh(&chip);
        let mut uplink = rest(&api, &sender.uptime, readings());
        let key = sender.post(5);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        sender.uptime.advance(5_000);
        assert_eq!(sender.flush(&mut uplink), Err(Failure::Network));
        (key, api.seen())
    };
    let mut sender = fresh(&chip);
    let mut uplink = rest(&api, &sender.uptime, readings());
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    requests.extend(api.seen());
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert_eq!(request, &requests[0], "the same request, byte for byte");
        assert_eq!(request.header("Idempotency-Key"), Some(key_header(key).as_str()));
    }
    assert_eq!(sender.pending(0), []);
}

#[test]
fn bodies_are_json_or_the_stored_bytes_and_go_where_the_handler_says() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([]);
    let handlers: Vec<&'static mut dyn Handler> = vec![
        leak(JsonHandler::<Reading>::new("/readings").header("Authorization", "Bearer abc.def")),
        leak(RawHandler::new(Note::KIND, "/notes", "application/octet-stream")),
    ];
    let mut uplink = rest(&api, &sender.uptime, handlers);
    sender.post(12);
    block_on(sender.outbox.enqueue(&Note::new(3))).unwrap();
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    let [json, raw] = api.seen().try_into().unwrap();
    assert!(json.head.starts_with("POST /v2/readings HTTP/1.1\r\n"), "{}", json.head);
    assert_eq!(json.body, br#"{"number":12,"is_final":false}"#);
    assert_eq!(json.header("Content-Type"), Some("application/json"));
    assert_eq!(json.header("Authorization"), Some("Bearer abc.def"));
    assert_eq!(json.header("Host"), Some("api.test"));
    assert!(raw.head.starts_with("POST /v2/notes HTTP/1.1\r\n"), "{}", raw.head);
    assert_eq!(raw.body, postcard::to_allocvec(&Note::new(3)).unwrap());
    assert_eq!(raw.header("Content-Type"), Some("application/octet-stream"));
    assert_eq!(raw.header("Authorization"), None);
    assert_eq!(api.connections(), 1, "the connection is kept while there is something to send");
}

/// A handler of an application's own: its path depends on the record, and its API says 404 before a meter is known.
struct ByNumber;

impl Handler for ByNumber {
    fn kind(&self) -> Kind {
        Reading::KIND
    }

    fn write(&mut self, record: &Stored<'_>, request: &mut Request<'_>) -> Result<(), Unwritable> {
        let reading: Reading = postcard::from_bytes(record.body).map_err(|_| Unwritable)?;
        request.path(format_args!("/readings/{}", reading.number))?;
        request.json(&reading)
    }

    fn judge(&mut self, reply: &Reply<'_>) -> Outcome {
        match reply.status {
            404 => Outcome::Retry { after_s: None },
            403 => Outcome::Rejected,
            _ => Outcome::of(reply),
        }
    }
}

#[test]
fn a_new_handler_is_one_line_and_knows_better_than_the_table() {
    let chip = chip();
    let mut sender = boot(&chip, &one_lane(), Policy::urgent().any_order());
    let api = Api::script([Say::Status(404), Say::Status(403), Say::Status(200)]);
    let mut uplink = rest(&api, &sender.uptime, vec![leak(ByNumber)]);
    let keys = [1, 2, 3].map(|number| sender.post(number));
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert!(api.seen()[2].head.starts_with("POST /v2/readings/3 "));
    assert_eq!(sender.pending(0), [keys[0]]);
    assert_eq!(sender.dead(), [(keys[1], Cause::Rejected)]);

    let judged = JsonHandler::<Reading>::new("/r").judged_by(|_| Outcome::Delivered);
    let mut uplink = rest(&Api::script([Say::Status(500)]), &sender.uptime, vec![leak(judged)]);
    sender.uptime.advance(5_000);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(sender.pending(0), []);
}

/// Something that would begin another header.
struct Smuggler;

impl Handler for Smuggler {
    fn kind(&self) -> Kind {
        Reading::KIND
    }

    fn write(&mut self, _: &Stored<'_>, request: &mut Request<'_>) -> Result<(), Unwritable> {
        assert_eq!(request.path("/a b"), Err(Unwritable));
        assert_eq!(request.header("X-A", "1\r\nX-B: 2"), Err(Unwritable));
        request.header("X-A", "1")?;
        request.header("X-B", "2")?;
        request.header("X-C", "3")?;
        request.json(&1)
    }
}

#[test]
fn a_line_break_in_a_header_and_more_headers_than_there_is_room_for_are_no_request() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([]);
    let mut uplink = rest(&api, &sender.uptime, vec![leak(Smuggler)]);
    let key = sender.post(1);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!((api.connections(), sender.pending(0)), (0, vec![key]));
}

#[test]
fn a_record_that_has_to_wait_holds_up_a_strict_lane_and_no_other() {
    for (policy, sent, left) in
        [(Policy::urgent(), vec![1], 3), (Policy::urgent().any_order(), vec![1, 2, 3], 1)]
    {
        let chip = chip();
        let mut sender = boot(&chip, &one_lane(), policy);
        let api = Api::new(|seen| Say::Status(if seen.number() == 1 { 503 } else { 200 }));
        let mut uplink = rest(&api, &sender.uptime, readings());
        let keys = [1, 2, 3].map(|number| sender.post(number));
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert_eq!(api.numbers(), sent);
        assert_eq!(sender.pending(0), if left == 3 { keys.to_vec() } else { vec![keys[0]] });
        assert!(sender.wakeup(&uplink).is_some_and(|at| at >= 1_000), "not at once");
        assert_eq!(sender.try_flush(&mut uplink), None);

        api.now_says(|_| Say::Status(200));
        sender.uptime.advance(2_000);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert_eq!(api.numbers().len(), left);
        assert_eq!(sender.wakeup(&uplink), None);
    }
}

#[test]
fn an_outage_of_the_api_does_not_send_the_whole_backlog() {
    let chip = chip();
    let mut sender = boot(&chip, &one_lane(), Policy::urgent().any_order());
    let api = Api::new(|_| Say::Status(503));
    let mut uplink = rest(&api, &sender.uptime, readings());
    sender.post_all(0..30);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(api.numbers(), (0..9).collect::<Vec<_>>());
    assert_eq!(sender.pending(0).len(), 30);
    assert_eq!(sender.try_flush(&mut uplink), None);
}

#[test]
fn retry_after_is_honoured_also_when_others_are_enqueued() {
    for policy in [Policy::urgent(), Policy::urgent().any_order()] {
        let chip = chip();
        let mut sender = boot(&chip, &one_lane(), policy);
        let api = Api::new(|seen| if seen.number() == 1 { Say::Later(429, 120) } else { Say::Status(200) });
        let mut uplink = rest(&api, &sender.uptime, readings());
        sender.post(1);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert!(sender.wakeup(&uplink).is_some_and(|at| (120_000..125_000).contains(&at)));
        api.seen();
        for number in 2..40 {
            sender.uptime.advance(2_000);
            sender.post(number);
            let _ = sender.try_flush(&mut uplink);
        }
        assert!(!api.numbers().contains(&1), "it was asked to wait");
        api.now_says(|_| Say::Status(200));
        sender.uptime.advance(60_000);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert_eq!(api.numbers()[0], 1, "{policy:?}: nobody makes it wait for ever");
        assert_eq!(sender.wakeup(&uplink), None);
    }
}

#[test]
fn a_storm_of_records_neither_hastens_nor_starves_one_that_waits() {
    let chip = chip();
    let mut sender = boot(&chip, &one_lane(), Policy::urgent().any_order());
    let api = Api::new(|seen| Say::Status(if seen.number() == 0 { 503 } else { 200 }));
    let mut uplink = rest(&api, &sender.uptime, readings());
    for number in 0..100 {
        sender.post(number);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        sender.uptime.advance(500);
    }
    let tries = api.numbers().iter().filter(|number| **number == 0).count();
    assert!((20..=50).contains(&tries), "once a second or so in 50 seconds, not {tries} times");
}

#[test]
fn a_kind_without_a_handler_is_kept_until_it_would_block_the_window() {
    // With one such record the storage finds it alone in its window, with two the uplink finds nothing to send.
    for strangers in [1, 2] {
        let chip = chip();
        // So large that its end is not reached: a ring that goes round would park them too.
        let lanes = config([LaneConfig::new(64)]);
        let mut sender = boot(&chip, &lanes, Policy::urgent());
        let api = Api::script([]);
        let mut uplink = rest(&api, &sender.uptime, readings());
        let note = |number| block_on(sender.outbox.enqueue(&Note::new(number))).unwrap();
        let unknown: Vec<Key> = (0..strangers).map(note).collect();
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert_eq!(api.connections(), 0, "the radio stays off");
        let mut next = 0;
        while next < 1_023 - strangers {
            let chunk = (1_023 - strangers - next).min(60);
            sender.post_all(next..next + chunk);
            assert_eq!(sender.flush(&mut uplink), Ok(()));
            assert_eq!(api.numbers(), (next..next + chunk).collect::<Vec<_>>());
            next += chunk;
        }
        assert_eq!(sender.pending(0), unknown, "they are kept");
        assert_eq!(sender.dead(), []);
        sender.post_all(next..next + 10);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert_eq!(api.numbers(), (next..next + 10).collect::<Vec<_>>(), "nothing is blocked");
        assert_eq!(sender.dead()[0], (unknown[0], Cause::Blocking));
        assert_eq!(sender.dead().len() + sender.pending(0).len(), unknown.len());
    }
}

#[test]
fn what_cannot_be_written_is_passed_over_and_kept() {
    // Another firmware had another type under this kind.
    #[derive(Serialize, Deserialize, EncodedSize, Record)]
    #[record(kind = 1)]
    struct Other(heapless::String<8>, heapless::String<8>);

    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([]);
    let handlers: Vec<&'static mut dyn Handler> =
        vec![leak(JsonHandler::<Other>::new("/others")), leak(JsonHandler::<Reading>::new("/readings"))];
    let mut uplink = rest(&api, &sender.uptime, handlers);
    let note = block_on(sender.outbox.enqueue(&Note::new(1))).unwrap();
    sender.post(2);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(api.numbers(), [2]);
    assert_eq!(sender.pending(0), [note]);

    // There is no room for it.
    let http = http(&api, &sender.uptime, "http://api.test");
    let handlers: Vec<&'static mut dyn Handler> = vec![leak(RawHandler::new(Note::KIND, "/notes", "x/y"))];
    let mut small = RestUplink::insecure(http, handlers.leak(), buffer(40), buffer(512)).unwrap();
    sender.uptime.advance(5_000);
    assert_eq!(sender.flush(&mut small), Ok(()));
    assert_eq!((api.seen().len(), sender.pending(0)), (0, vec![note]));
    assert!(sender.wakeup(&small).is_some_and(|at| at > sender.uptime.uptime_ms()), "it does not spin");
}

#[test]
fn plain_http_has_to_be_asked_for_in_so_many_words() {
    let (api, uptime) = (Api::script([]), Uptime::default());
    let new =
        |url| RestUplink::new(http(&api, &uptime, url), readings().leak(), buffer(64), buffer(64)).err();
    assert_eq!(new("http://api.test"), Some(UrlError::Insecure));
    assert_eq!(new("https://api.test"), Some(UrlError::NoTls), "and https needs somebody to trust");
    assert_eq!(new("api.test"), Some(UrlError::Malformed));
    let insecure =
        |url| RestUplink::insecure(http(&api, &uptime, url), readings().leak(), buffer(64), buffer(64)).err();
    assert_eq!(insecure("http://api.test"), None);
    assert_eq!(insecure("https://api.test"), Some(UrlError::NoTls));
}

const DAY_MS: u64 = 24 * 3_600_000;

fn with_retention(api: &Api, uptime: &Uptime) -> Rest {
    rest(api, uptime, readings()).key_retention(Duration::from_millis(DAY_MS))
}

#[test]
fn a_lost_answer_is_asked_for_again_only_while_the_api_remembers_the_key() {
    for (say, wait_ms, is_parked) in [
        (Say::Lost, DAY_MS - 10_000, false),
        (Say::Lost, DAY_MS + 10_000, true),
        // The request may have done its work behind these.
        (Say::Status(504), DAY_MS + 10_000, true),
        (Say::Problem(409, r#"{"type":"in-progress"}"#), DAY_MS + 10_000, true),
        // These say that it has not.
        (Say::Status(429), DAY_MS + 10_000, false),
        (Say::Status(401), DAY_MS + 10_000, false),
    ] {
        let chip = chip();
        let mut sender = fresh(&chip);
        let api = Api::script([say.clone()]);
        let mut uplink = with_retention(&api, &sender.uptime);
        let keys = [1, 2].map(|number| sender.post(number));
        let _ = sender.flush(&mut uplink);
        assert_eq!(api.numbers(), [1]);
        sender.uptime.advance(wait_ms);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        let (sent, dead) =
            if is_parked { (vec![2], vec![(keys[0], Cause::Expired)]) } else { (vec![1, 2], vec![]) };
        assert_eq!((api.numbers(), sender.dead()), (sent, dead), "{say:?} after {wait_ms}");
        assert_eq!(sender.pending(0), []);
    }
}

#[test]
fn a_record_that_waited_long_before_it_was_first_sent_is_not_in_doubt() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([Say::Lost]);
    let mut uplink = with_retention(&api, &sender.uptime);
    sender.post(1);
    sender.uptime.advance(5 * DAY_MS);
    assert_eq!(sender.flush(&mut uplink), Err(Failure::Network));
    sender.uptime.advance(10_000);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!((api.numbers(), sender.dead()), (vec![1, 1], vec![]), "the API has known its key for seconds");
}

#[test]
fn after_a_reboot_the_first_record_of_a_lane_is_in_doubt_and_the_others_are_not() {
    const WALL_MS: u64 = 1_800_000_000_000;
    for (slept_ms, is_known, is_parked) in
        [(2 * DAY_MS, true, true), (DAY_MS / 2, true, false), (2 * DAY_MS, false, false)]
    {
        let chip = chip();
        let keys = {
            let mut sender = fresh(&chip);
            block_on(sender.dispatcher.learn_time(WALL_MS));
            let keys = [1, 2, 3].map(|number| sender.post(number));
            // The power goes while the first is under way.
            let mut uplink = with_retention(&Api::script([Say::Lost]), &sender.uptime);
            assert_eq!(sender.flush(&mut uplink), Err(Failure::Network));
            keys
        };
        let mut sender = fresh(&chip);
        if is_known {
            // A jump counts when a second answer agrees.
            block_on(sender.dispatcher.learn_time(WALL_MS + slept_ms));
            block_on(sender.dispatcher.learn_time(WALL_MS + slept_ms));
        }
        let api = Api::script([]);
        let mut uplink = with_retention(&api, &sender.uptime);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        let (sent, dead) =
            if is_parked { (vec![2, 3], vec![(keys[0], Cause::Expired)]) } else { (vec![1, 2, 3], vec![]) };
        assert_eq!((api.numbers(), sender.dead()), (sent, dead), "{slept_ms} {is_known}");
    }
}

#[test]
fn many_rejections_in_a_row_stop_the_parking() {
    for policy in [Policy::urgent(), Policy::urgent().any_order()] {
        let chip = chip();
        let mut sender = boot(&chip, &one_lane(), policy);
        let api = Api::new(|_| Say::Status(422));
        let mut uplink = rest(&api, &sender.uptime, readings());
        sender.post_all(0..30);
        sender.has_event(|_| true);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        let is_paused = sender.has_event(|event| matches!(event, Event::ParkingPaused { lane: 0 }));
        assert!(is_paused, "somebody is told");
        for _ in 0..20 {
            sender.uptime.advance(5_000);
            let _ = sender.try_flush(&mut uplink);
        }
        assert_eq!((sender.dead().len(), sender.pending(0).len()), (8, 22), "the others are kept");
        // The right server is there again.
        api.now_says(|_| Say::Status(200));
        sender.uptime.advance(5_000);
        assert_eq!(sender.flush(&mut uplink), Ok(()));
        assert_eq!(sender.pending(0), []);
    }
}

#[test]
fn what_the_device_gave_up_is_told_to_nobody_and_wakes_nobody() {
    let chip = chip();
    {
        let sender = fresh(&chip);
        sender.post(1);
    }
    // The power was cut: counters are uncertain, and the account says so.
    let mut sender = fresh(&chip);
    let api = Api::script([Say::Status(410)]);
    let mut uplink = rest(&api, &sender.uptime, readings());
    assert!(!block_on(sender.dispatcher.account()).is_empty());
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(sender.dead().len(), 1);
    assert!(!block_on(sender.dispatcher.account()).is_empty(), "the dead letter is in the account");
    assert_eq!(sender.wakeup(&uplink), None);
    assert_eq!(sender.try_flush(&mut uplink), None);

    // A former incarnation's books are nobody's either.
    sender.post(2);
    let former = block_on(sender.outbox.clear()).unwrap();
    assert_eq!(sender.wakeup(&uplink), None);
    sender.post(3);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(block_on(sender.dispatcher.account()).to_vec(), []);
    let mut formers = Vec::new();
    block_on(sender.dispatcher.former_incarnations(|incarnation, _| formers.push(incarnation)));
    assert_eq!(formers, [0; 0], "but {former:08x} is the one of today");
    assert_eq!(sender.wakeup(&uplink), None);
}

#[test]
fn a_dead_letter_that_is_sent_again_has_its_old_key() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([Say::Status(400), Say::Status(422), Say::Status(503), Say::Status(200)]);
    let mut uplink = rest(&api, &sender.uptime, readings());
    let key = sender.post(1);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    let retry = |sender: &Sender<'_>| assert!(block_on(sender.outbox.dead_letters().retry(key)).unwrap());

    retry(&sender);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(sender.dead(), [(key, Cause::Rejected)], "rejected again, it stays what it was");
    assert_eq!(sender.wakeup(&uplink), None);

    retry(&sender);
    assert_eq!(sender.flush(&mut uplink), Err(Failure::Busy { retry_after_s: None }));
    assert_eq!(sender.try_flush(&mut uplink), None, "not at once");
    sender.uptime.advance(5_000);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!(sender.dead(), []);
    assert_eq!(sender.wakeup(&uplink), None);
    let requests = api.seen();
    assert_eq!(requests.len(), 4);
    assert!(requests.iter().all(|request| request == &requests[0]));
}

#[test]
fn a_dead_letter_of_a_kind_without_a_handler_stays_one() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([Say::Status(400)]);
    let mut uplink = rest(&api, &sender.uptime, readings());
    let key = sender.post(1);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert!(block_on(sender.outbox.dead_letters().retry(key)).unwrap());
    let mut without = rest(&api, &sender.uptime, vec![]);
    assert_eq!(sender.flush(&mut without), Ok(()));
    assert_eq!(sender.dead(), [(key, Cause::Rejected)]);
    assert_eq!(sender.wakeup(&without), None);
}

#[test]
fn each_of_two_uplinks_has_its_own_lanes_and_dead_letters() {
    let chip = chip();
    let config = config([LaneConfig::new(8), LaneConfig::new(8)]);
    let mut sender = boot(&chip, &config, Policy::urgent());
    let (one, two) = (Api::script([]), Api::script([Say::Status(400)]));
    let uplinks = (rest(&one, &sender.uptime, readings()), rest(&two, &sender.uptime, readings()));
    let mut uplink = Split::new(LaneSet::of(&[0]), uplinks.0, uplinks.1);
    let post = |lane, number| block_on(sender.outbox.enqueue_in(lane, &reading(number))).unwrap();
    post(0, 1);
    let key = post(1, 2);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!((one.numbers(), two.numbers()), (vec![1], vec![2]));
    assert!(block_on(sender.outbox.dead_letters().retry(key)).unwrap());
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!((one.numbers(), two.numbers()), (vec![], vec![2]));
    assert_eq!((sender.dead(), sender.wakeup(&uplink)), (vec![], None));
}

#[test]
fn a_connection_that_the_server_has_closed_is_replaced_once() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([Say::ThenHangUp(200), Say::ThenHangUp(200), Say::Status(200)]);
    let mut uplink = rest(&api, &sender.uptime, readings());
    sender.post_all(1..4);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    assert_eq!((api.numbers(), api.connections()), (vec![1, 2, 3], 3));
    assert_eq!(sender.pending(0), []);
}

#[test]
fn a_flush_that_is_dropped_loses_nothing() {
    let chip = chip();
    let mut sender = fresh(&chip);
    let api = Api::script([Say::Silent]);
    let mut uplink = rest(&api, &sender.uptime, readings());
    let key = sender.post(1);
    assert_eq!(poll_times(sender.dispatcher.step(&mut uplink), 10), None);
    assert_eq!(sender.flush(&mut uplink), Ok(()));
    let requests = api.seen();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0], requests[1]);
    assert_eq!(requests[0].header("Idempotency-Key"), Some(key_header(key).as_str()));
    assert_eq!(sender.pending(0), []);
}
