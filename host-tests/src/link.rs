//! A network in virtual time that fails as networks fail, between devices that speak through the traits of
//! embedded-nal-async and one server.
//!
//! Every fault comes from a script or from the link's own random numbers, so a seed is a world. What the faults are is
//! in `fault.rs`, what they do in `carrier.rs` and `connection.rs`.

mod carrier;
mod connection;
mod fault;
pub mod http;
mod trace;

use core::cell::{Cell, RefCell};
use core::future::pending;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use embedded_io_async::ErrorKind;
use embedded_nal_async::{AddrType, Dns, TcpConnect};
use fastrand::Rng;

use crate::server::{Reply, Server};
use crate::virtual_time::VirtualTime;

pub use connection::Connection;
pub use fault::{Fault, LinkFaults, PLAIN_STATUSES, Stage};
pub use trace::{Event, LinkCounts, Trace, What};

use connection::Wire;

/// Requests, and answers, that somebody on the network has recorded.
const RECORDED_MAX: usize = 32;

/// The server and what leads to it. A clone is the same network.
#[derive(Clone)]
pub struct Network(Rc<NetworkShared>);

struct NetworkShared {
    time: VirtualTime,
    seed: u64,
    endpoint: Rc<RefCell<dyn Server>>,
    is_server_up: Cell<bool>,
    restarts: Cell<u64>,
    links: Cell<u16>,
    wires: RefCell<Vec<Weak<Wire>>>,
    requests: RefCell<VecDeque<Rc<[u8]>>>,
    answers: RefCell<VecDeque<Rc<[u8]>>>,
    last_head: RefCell<Vec<u8>>,
    header: RefCell<Option<String>>,
    trace: RefCell<Trace>,
}

impl Network {
    /// The name of the server, the only one that is found.
    pub const SERVER_NAME: &str = "receiver.test";
    /// The address of the server, the only one where anybody listens, on every port.
    pub const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    /// A network with this server, which is up.
    pub fn new(time: &VirtualTime, seed: u64, endpoint: Rc<RefCell<dyn Server>>) -> Self {
        Self(Rc::new(NetworkShared {
            time: time.clone(),
            seed,
            endpoint,
            is_server_up: Cell::new(true),
            restarts: Cell::new(0),
            links: Cell::new(0),
            wires: RefCell::default(),
            requests: RefCell::default(),
            answers: RefCell::default(),
            last_head: RefCell::default(),
            header: RefCell::default(),
            trace: RefCell::default(),
        }))
    }

    /// A new device's link: up, quick and without faults. Its random numbers follow from the network's seed and its
    /// place in the order of links.
    pub fn link(&self) -> Link {
        let number = self.0.links.get();
        self.0.links.set(number + 1);
        let seed =
            Rng::with_seed(self.0.seed).u64(..) ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Link(Rc::new(LinkShared {
            network: self.0.clone(),
            number,
            rng: RefCell::new(Rng::with_seed(seed)),
            state: Cell::new(State::Up),
            latency_ms: Cell::new((20, 80)),
            faults: RefCell::default(),
            script: RefCell::default(),
            counts: RefCell::default(),
        }))
    }

    /// The server goes down: open connections are reset, new ones refused, and requests on their way lost.
    pub fn server_down(&self) {
        self.0.is_server_up.set(false);
        self.0.note(None, What::ServerDown);
        self.0.reset_all();
    }

    /// The server listens again.
    pub fn server_up(&self) {
        self.0.is_server_up.set(true);
        self.0.note(None, What::ServerUp);
    }

    /// The server goes down and is up again at once.
    pub fn server_restart(&self) {
        self.0.note(None, What::ServerRestarted);
        self.0.is_server_up.set(true);
        self.0.reset_all();
    }

    /// From now on, the server's answers have this line among their headers.
    pub fn set_header(&self, line: Option<&str>) {
        *self.0.header.borrow_mut() = line.map(str::to_owned);
    }

    /// What happened so far.
    pub fn trace(&self) -> Trace {
        self.0.trace.borrow().clone()
    }

    /// Follows from everything that happened so far; cheaper than [`trace`](Self::trace).
    pub fn digest(&self) -> u64 {
        self.0.trace.borrow().digest()
    }

    /// The request line and the headers of the last request that any device finished.
    pub fn last_head(&self) -> String {
        String::from_utf8_lossy(&self.0.last_head.borrow()).into_owned()
    }
}

impl NetworkShared {
    fn note(&self, link: Option<u16>, what: What) {
        self.trace.borrow_mut().push(Event { at_ms: self.time.now_ms(), link, what });
    }

    fn reset_all(&self) {
        self.restarts.set(self.restarts.get() + 1);
        for wire in self.open_wires() {
            wire.reset();
        }
    }

    /// Those that anybody still holds.
    fn open_wires(&self) -> Vec<Rc<Wire>> {
        self.wires.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn add_wire(&self, wire: &Rc<Wire>) {
        let mut wires = self.wires.borrow_mut();
        wires.retain(|wire| wire.strong_count() > 0);
        wires.push(Rc::downgrade(wire));
    }

    fn keep_head(&self, head: &[u8]) {
        let mut last = self.last_head.borrow_mut();
        last.clear();
        last.extend_from_slice(head);
    }

    fn keep_request(&self, body: &Rc<[u8]>) {
        keep(&mut self.requests.borrow_mut(), body);
    }

    fn keep_answer(&self, bytes: &Rc<[u8]>) {
        keep(&mut self.answers.borrow_mut(), bytes);
    }

    fn draw_request(&self, rng: &mut Rng) -> Option<Rc<[u8]>> {
        rng.choice(self.requests.borrow().iter()).cloned()
    }

    fn draw_answer(&self, rng: &mut Rng) -> Option<Rc<[u8]>> {
        rng.choice(self.answers.borrow().iter()).cloned()
    }
}

fn keep(recorded: &mut VecDeque<Rc<[u8]>>, bytes: &Rc<[u8]>) {
    if recorded.len() == RECORDED_MAX {
        recorded.pop_front();
    }
    recorded.push_back(bytes.clone());
}

/// One device's way to the server. It outlives the device's boots; a clone is the same link.
#[derive(Clone)]
pub struct Link(Rc<LinkShared>);

struct LinkShared {
    network: Rc<NetworkShared>,
    number: u16,
    rng: RefCell<Rng>,
    state: Cell<State>,
    latency_ms: Cell<(u64, u64)>,
    faults: RefCell<LinkFaults>,
    script: RefCell<Script>,
    counts: RefCell<LinkCounts>,
}

/// What is to happen before anything is drawn.
#[derive(Default)]
struct Script {
    lookups: VecDeque<Option<Fault>>,
    connects: VecDeque<Option<Fault>>,
    requests: VecDeque<Option<Fault>>,
}

impl Script {
    fn of(&mut self, stage: Stage) -> &mut VecDeque<Option<Fault>> {
        match stage {
            Stage::Lookup => &mut self.lookups,
            Stage::Connect => &mut self.connects,
            Stage::Request => &mut self.requests,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Down(Outage),
}

/// How a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The device notices: open connections are reset, lookups and new connections fail.
    Reset,
    /// Nothing fails and nothing comes: open connections stay silent, also when the link is back, and lookups and
    /// new connections hang until the device gives them up.
    BlackHole,
}

impl Link {
    /// Its place in the order of links, as events name it.
    pub fn number(&self) -> u16 {
        self.0.number
    }

    /// From now on, this goes wrong.
    pub fn set_faults(&self, faults: LinkFaults) {
        *self.0.faults.borrow_mut() = faults;
    }

    /// From now on, each way takes so long.
    pub fn set_latency_ms(&self, range: RangeInclusive<u64>) {
        assert!(!range.is_empty());
        self.0.latency_ms.set((*range.start(), *range.end()));
    }

    /// The next opportunity for this fault that the script does not speak of has it, whatever is drawn.
    pub fn inject(&self, fault: Fault) {
        self.0.script.borrow_mut().of(fault.stage()).push_back(Some(fault));
    }

    /// What happens to the next requests, one after the other, before faults are drawn again.
    pub fn script(&self, requests: impl IntoIterator<Item = Option<Fault>>) {
        self.0.script.borrow_mut().requests.extend(requests);
    }

    /// The link goes down. Requests that are on their way arrive; answers do not.
    pub fn take_down(&self, outage: Outage) {
        self.0.state.set(State::Down(outage));
        self.0.note(What::LinkDown);
        for wire in self.0.network.open_wires() {
            if Rc::ptr_eq(&wire.link, &self.0) {
                wire.suffer(outage);
            }
        }
    }

    /// The link is there again; what was open is not.
    pub fn bring_up(&self) {
        self.0.state.set(State::Up);
        self.0.note(What::LinkUp);
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.0.state.get() == State::Up
    }

    /// What it has carried and suffered so far.
    pub fn counts(&self) -> LinkCounts {
        self.0.counts.borrow().clone()
    }
}

impl LinkShared {
    fn now_ms(&self) -> u64 {
        self.network.time.now_ms()
    }

    fn note(&self, what: What) {
        self.network.note(Some(self.number), what);
    }

    /// What goes wrong this time.
    fn draw(&self, stage: Stage) -> Option<Fault> {
        let scripted = self.script.borrow_mut().of(stage).pop_front();
        let fault =
            scripted.unwrap_or_else(|| self.faults.borrow().draw(stage, &mut self.rng.borrow_mut()))?;
        self.counts.borrow_mut().count_fault(fault);
        self.note(What::Suffered(fault));
        Some(fault)
    }

    fn draw_late_ms(&self) -> u64 {
        let longest_ms = self.faults.borrow().late_ms_max.max(1);
        self.rng.borrow_mut().u64(1..=longest_ms)
    }

    /// One way.
    async fn travel(&self) {
        let (least, most) = self.latency_ms.get();
        let ms = self.rng.borrow_mut().u64(least..=most);
        self.network.time.sleep(ms).await;
    }

    /// There and back, before there is a connection: fails if the link is down, or goes down on the way.
    async fn round_trip(&self) -> Result<(), ErrorKind> {
        self.pass().await?;
        self.travel().await;
        self.travel().await;
        self.pass().await
    }

    async fn pass(&self) -> Result<(), ErrorKind> {
        match self.state.get() {
            State::Up => Ok(()),
            State::Down(Outage::Reset) => Err(ErrorKind::NotConnected),
            State::Down(Outage::BlackHole) => pending().await,
        }
    }
}

impl TcpConnect for Link {
    type Error = ErrorKind;
    type Connection<'a> = Connection;

    async fn connect(&self, remote: SocketAddr) -> Result<Connection, ErrorKind> {
        self.0.round_trip().await?;
        // Only now: a link that is down uses up no fault.
        let fault = self.0.draw(Stage::Connect);
        let network = &self.0.network;
        let is_listening = network.is_server_up.get() && remote.ip() == Network::SERVER_ADDRESS;
        if fault.is_some() || !is_listening {
            return Err(ErrorKind::ConnectionRefused);
        }
        let wire = Wire::new(self.0.clone());
        network.add_wire(&wire);
        network.time.spawn(carrier::carry(wire.clone()));
        self.0.counts.borrow_mut().connections += 1;
        self.0.note(What::Connected);
        Ok(Connection(wire))
    }
}

impl Dns for Link {
    type Error = ErrorKind;

    async fn get_host_by_name(&self, host: &str, _: AddrType) -> Result<IpAddr, ErrorKind> {
        if let Ok(address) = host.parse() {
            return Ok(address);
        }
        self.0.round_trip().await?;
        let fault = self.0.draw(Stage::Lookup);
        if fault.is_some() || host != Network::SERVER_NAME {
            return Err(ErrorKind::NotFound);
        }
        self.0.note(What::NameFound);
        Ok(Network::SERVER_ADDRESS)
    }

    async fn get_host_by_address(&self, _: IpAddr, _: &mut [u8]) -> Result<usize, ErrorKind> {
        Err(ErrorKind::Unsupported)
    }
}
