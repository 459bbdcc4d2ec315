//! Somebody between the devices and the receiver, who sees every request and may answer in the receiver's place. With the
//! devices' secrets it also plays a receiver that says what a test wants it to say.

use core::cell::RefCell;
use std::rc::Rc;

use pillarbox::wire::{Answer, AnswerDraft, Batch, TAG_LEN, TagKeys, Verdict};
use pillarbox::{Config, DeviceId, Key, LaneConfig, Policy};

use crate::device::Flash;
use crate::link::{Link, Network};
use crate::server::{ModelServer, Reply, Server};
use crate::station::{BEGIN_MS, Shared, Station, chip, network, quick, secret_of};
use crate::virtual_time::VirtualTime;

/// Answers a request; the receiver is there to be asked.
pub type Rule = Box<dyn FnMut(&mut ModelServer, u64, &[u8]) -> Reply>;

/// A request that came by.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When, in milliseconds since the world began.
    pub at_ms: u64,
    /// Its body.
    pub body: Vec<u8>,
    /// What was answered.
    pub reply: Reply,
}

impl Seen {
    /// The keys of its records.
    pub fn keys(&self) -> Vec<Key> {
        Batch::decode(&self.body)
            .expect("a device sends batches")
            .records()
            .map(|stored| stored.key)
            .collect()
    }
}

/// See the file's head.
pub struct Middle {
    /// The receiver.
    pub server: ModelServer,
    /// What happens instead of asking it.
    pub rule: Option<Rule>,
    /// Every request so far.
    pub seen: Vec<Seen>,
}

impl Server for Middle {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        let reply = match &mut self.rule {
            Some(rule) => rule(&mut self.server, now_ms, body),
            None => self.server.handle(now_ms, body),
        };
        self.seen.push(Seen { at_ms: now_ms - BEGIN_MS, body: body.to_vec(), reply: reply.clone() });
        reply
    }
}

impl Middle {
    /// From now on, this happens to requests.
    pub fn set(&mut self, rule: impl FnMut(&mut ModelServer, u64, &[u8]) -> Reply + 'static) {
        self.rule = Some(Box::new(rule));
    }

    /// From now on, everybody is honest.
    pub fn clear(&mut self) {
        self.rule = None;
    }

    /// Something on the way answers with a status and no more; the receiver sees nothing.
    pub fn set_plain(&mut self, status: u16, retry_after_s: Option<u32>) {
        self.set(move |_, _, _| plain(status, retry_after_s));
    }

    /// When the requests came.
    pub fn times(&self) -> Vec<u64> {
        self.seen.iter().map(|seen| seen.at_ms).collect()
    }

    /// How many records each request had.
    pub fn sizes(&self) -> Vec<usize> {
        self.seen.iter().map(|seen| seen.keys().len()).collect()
    }
}

/// A status and no more.
pub fn plain(status: u16, retry_after_s: Option<u32>) -> Reply {
    Reply { status, body: Vec::new(), retry_after_s }
}

/// The keys of `meter-1`.
pub fn keys() -> TagKeys {
    TagKeys::new(&secret_of("meter-1"))
}

/// The tag of a request of `meter-1`.
pub fn tag_of(body: &[u8]) -> [u8; TAG_LEN] {
    keys().verify_batch(body).expect("it is meter-1's batch")
}

/// An answer with the right tag for `meter-1`.
pub fn tagged(status: u16, body: &[u8], draft: &AnswerDraft<'_>) -> Reply {
    let mut bytes = vec![0; 4096];
    let len = draft.encode(&mut bytes, &keys(), &tag_of(body)).expect("there is room");
    bytes.truncate(len);
    Reply { status, body: bytes, retry_after_s: None }
}

/// The receiver's answer, changed and tagged again.
pub fn edited(
    server: &mut ModelServer,
    now_ms: u64,
    body: &[u8],
    edit: impl FnOnce(&mut AnswerDraft<'_>),
) -> Reply {
    let reply = server.handle(now_ms, body);
    let opened = keys().open_answer(&tag_of(body), &reply.body).expect("the receiver's answer");
    let answer = Answer::decode(opened).expect("the receiver's answer");
    let bits = |is: &dyn Fn(usize) -> bool| -> Vec<u8> {
        (0..128).map(|byte| (0..8).map(|bit| u8::from(is(byte * 8 + bit)) << bit).sum()).collect()
    };
    let settled = bits(&|n| answer.is_settled(n));
    let late_settled = bits(&|n| answer.is_late_settled(n));
    let verdicts: Vec<(u16, Verdict)> = answer.verdicts().collect();
    let explain: Vec<(u64, u64)> = answer.explain().collect();
    let mut draft = AnswerDraft {
        is_renew: answer.is_renew,
        is_stale: answer.is_stale,
        is_closed: answer.is_closed,
        server_time_ms: answer.server_time_ms,
        epoch: answer.epoch,
        confirmed: answer.confirmed,
        settled: &settled,
        late_settled: &late_settled,
        verdicts: &verdicts,
        explain: &explain,
        retry_after_s: answer.retry_after_s,
        preferred_size: answer.preferred_size,
    };
    edit(&mut draft);
    tagged(reply.status, body, &draft)
}

/// A device that can be rebooted, with somebody between it and the receiver.
pub struct World<const LANES: usize> {
    /// Its time.
    pub time: VirtualTime,
    /// Whom it talks to.
    pub middle: Shared<Middle>,
    /// What leads there.
    pub network: Network,
    /// The device's link.
    pub link: Link,
    /// The device's flash.
    pub chip: &'static Flash,
    /// The device's configuration.
    pub config: Config<LANES>,
    /// When its lanes are sent.
    pub policies: [Policy; LANES],
    boots: u64,
}

impl<const LANES: usize> World<LANES> {
    /// `meter-1` with these lanes, each urgent.
    pub fn new(lanes: [LaneConfig; LANES]) -> Self {
        Self::on(chip(), lanes)
    }

    /// The same on another chip.
    pub fn on(chip: &'static Flash, lanes: [LaneConfig; LANES]) -> Self {
        let time = VirtualTime::new();
        let mut server = ModelServer::new(1);
        server.register(meter(), &secret_of("meter-1"));
        let middle = Rc::new(RefCell::new(Middle { server, rule: None, seen: Vec::new() }));
        let network = network(&time, 1, &middle);
        let link = network.link();
        let config = crate::device::config(lanes);
        Self { time, middle, network, link, chip, config, policies: [Policy::urgent(); LANES], boots: 0 }
    }

    /// Boots the device; a former boot has lost its power.
    pub fn boot(&mut self) -> Station<LANES> {
        self.boots += 1;
        let entropy = 0x5eed_0000 + self.boots * 0x1_0001;
        Station::boot(&self.time, &self.link, self.chip, &self.config, entropy).with(self.policies, quick())
    }

    /// Numbers of the notes that the receiver has stored, in their order.
    pub fn stored(&self) -> Vec<u32> {
        let middle = self.middle.borrow();
        let number = |body: &[u8]| postcard::from_bytes::<crate::device::Note>(body).expect("a note").number;
        middle.server.log().iter().map(|received| number(&received.body)).collect()
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.middle.borrow().seen.len()
    }
}

/// The device of most tests.
pub fn meter() -> DeviceId {
    DeviceId::new("meter-1").expect("it is a device id")
}

/// One lane of 16 pages.
pub fn world() -> (World<1>, Station<1>) {
    let mut world = World::new([LaneConfig::new(16)]);
    let station = world.boot();
    (world, station)
}
