//! One device of a fleet: boots, posts, flushes, loses power, and boots again on the same flash.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use fastrand::Rng;
use host_tests::device::{Flash, Note, RECORD};
use host_tests::flash::{Chip, FaultClass};
use host_tests::real_net::{RealNet, TokioClock};
use pillarbox::{
    BatchUplink, Config, Dispatcher, EnqueueError, Http, Key, LaneConfig, Outbox, Pace, Policy, Reason,
    Resources, Stored, Timeouts, buffer_size,
};
use tokio::sync::watch;

use super::diary::{Diary, Sent, State};
use super::{Habits, Member, NOTES_MAX, Order};

const LANES: usize = 2;
/// Some 700 notes in all: what a device posts while its receiver is away for a while.
const LANE_PAGES: u16 = 36;
const PAGES: usize = 96;
const BUFFER: usize = buffer_size(LANES, RECORD);
/// Notes of one round.
const NOTES_OF_ROUND: u32 = 3;
/// An operation of the flash that loses power is one of so many next ones.
const OPS_BEFORE_CUT: u64 = 12;
/// A request is under way no longer than this when the power goes.
const MS_BEFORE_CUT: u64 = 30;
/// While there is nothing to do but wait.
const IDLE: Duration = Duration::from_millis(5);

type Post<'r> = Outbox<'r, &'r Flash, LANES, RECORD, NoopRawMutex, TokioClock>;
type Link<'r> = BatchUplink<'r, RealNet, RealNet, TokioClock>;
type Sender<'r> = Dispatcher<'r, &'r Flash, LANES, RECORD, NoopRawMutex, TokioClock>;

/// Why a session is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    PowerCut,
    Drained,
}

pub(super) struct Device {
    member: Member,
    url: String,
    habits: Habits,
    rng: Rng,
    diary: Arc<Mutex<Diary>>,
    chip: Flash,
    net: RealNet,
    /// The number of the first note, and of the next.
    first: u32,
    next: u32,
}

impl Device {
    pub(super) fn new(
        number: u32,
        member: Member,
        url: &str,
        habits: Habits,
        mut rng: Rng,
        diary: Arc<Mutex<Diary>>,
    ) -> Self {
        let chip = Chip::new(PAGES, rng.u64(..));
        let first = number * NOTES_MAX;
        Self {
            member,
            url: url.to_owned(),
            habits,
            rng,
            diary,
            chip,
            net: RealNet::new(),
            first,
            next: first,
        }
    }

    /// Lives until it has nothing more to say and nothing more to come.
    pub(super) async fn live(mut self, ordered: watch::Receiver<Order>) {
        // The flash and the network stay when the power goes; all else is new.
        let (chip, net, url) = (self.chip.clone(), self.net.clone(), self.url.clone());
        while self.session(&chip, &net, &url, &ordered).await == End::PowerCut {
            self.diary().cuts += 1;
            chip.cancel_cut();
            chip.power_on();
        }
    }

    async fn session(
        &mut self,
        chip: &Flash,
        net: &RealNet,
        url: &str,
        ordered: &watch::Receiver<Order>,
    ) -> End {
        let clock = TokioClock::boot();
        let lanes = [LaneConfig::new(LANE_PAGES); LANES];
        let config = Config::new(self.member.device.clone(), lanes);
        let mut resources = Resources::<&Flash, LANES, RECORD, BUFFER, NoopRawMutex, TokioClock>::new();
        let opened = pillarbox::new(&mut resources, chip, clock, self.rng.u64(..), config).await;
        let (outbox, drain) = match opened {
            Ok(opened) => opened,
            Err(_) if !chip.is_powered() => return End::PowerCut,
            Err(error) => panic!("{} does not boot: {error:?}", self.member.device),
        };
        let mut dispatcher = Dispatcher::new(drain).await.policies([Policy::urgent(); LANES]).pace(pace());
        let (mut tx, mut rx) = ([0; 2048], [0; 2048]);
        let patience_ms = self.habits.patience.as_millis() as u32;
        let timeouts = Timeouts { connect_ms: patience_ms, exchange_ms: patience_ms };
        let http = Http::new(net, net, clock, url).timeouts(timeouts);
        let uplink = BatchUplink::new(http, &self.member.secret(), &mut tx, &mut rx);
        let mut uplink = uplink.expect("a receiver's address reads http://host:port");
        // An enqueue that lost power may have written its record all the same: it is known before it can be sent.
        self.reckon(chip, &outbox, &mut dispatcher).await;
        loop {
            let order = *ordered.borrow();
            let end = match order {
                Order::Post => self.round(chip, &outbox, &mut dispatcher, &mut uplink).await,
                Order::Drain | Order::Stop => self.drain(chip, &outbox, &mut dispatcher, &mut uplink).await,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Posts and flushes, as long as the power is there.
    async fn round(
        &mut self,
        chip: &Flash,
        outbox: &Post<'_>,
        dispatcher: &mut Sender<'_>,
        uplink: &mut Link<'_>,
    ) -> Option<End> {
        let cut = self.draw_cut();
        if cut == Some(Cut::AtFlash) {
            let class = self.rng.choice(FaultClass::ALL).copied().unwrap_or(FaultClass::Mixed);
            chip.cut_after(self.rng.u64(..OPS_BEFORE_CUT), class.tear(&mut self.rng));
        }
        self.post(chip, outbox).await;
        if cut == Some(Cut::UnderWay) {
            let until = Duration::from_millis(self.rng.u64(..MS_BEFORE_CUT));
            let _ = tokio::time::timeout(until, dispatcher.step(uplink)).await;
            return Some(End::PowerCut);
        }
        if self.flush(chip, outbox, dispatcher, uplink).await == Power::Off {
            return Some(End::PowerCut);
        }
        tokio::time::sleep(Duration::from_millis(self.rng.u64(self.habits.pause_ms.clone()))).await;
        None
    }

    /// Flushes until there is nothing more to say.
    async fn drain(
        &mut self,
        chip: &Flash,
        outbox: &Post<'_>,
        dispatcher: &mut Sender<'_>,
        uplink: &mut Link<'_>,
    ) -> Option<End> {
        // A cut that has not come to pass is over with the storm.
        chip.cancel_cut();
        if self.flush(chip, outbox, dispatcher, uplink).await == Power::Off {
            return Some(End::PowerCut);
        }
        if dispatcher.next_wakeup(uplink).await.is_none() {
            self.diary().drained.insert(self.member.device.clone());
            return Some(End::Drained);
        }
        tokio::time::sleep(IDLE).await;
        None
    }

    /// Flushes if a flush is due, and writes down what it has changed.
    async fn flush(
        &mut self,
        chip: &Flash,
        outbox: &Post<'_>,
        dispatcher: &mut Sender<'_>,
        uplink: &mut Link<'_>,
    ) -> Power {
        let flushed = dispatcher.step(uplink).await;
        if let Some(flushed) = flushed.filter(|_| chip.is_powered()) {
            self.tell(flushed.is_ok());
            self.reckon(chip, outbox, dispatcher).await;
        }
        if chip.is_powered() { Power::On } else { Power::Off }
    }

    fn draw_cut(&mut self) -> Option<Cut> {
        let is_cut = self.rng.u8(..100) < self.habits.cuts_percent;
        let cut = if self.rng.bool() { Cut::AtFlash } else { Cut::UnderWay };
        is_cut.then_some(cut)
    }

    /// Posts up to three notes, each in any lane.
    async fn post(&mut self, chip: &Flash, outbox: &Post<'_>) {
        for _ in 0..self.rng.u32(..=NOTES_OF_ROUND) {
            if self.next - self.first >= self.habits.notes_max {
                return;
            }
            let note = Note::new(self.next);
            match outbox.enqueue_in(self.rng.u8(..LANES as u8), &note).await {
                Ok(key) => {
                    let body = postcard::to_stdvec(&note).expect("a note can be written");
                    let device = self.member.device.clone();
                    let sent = Sent { device, key, number: note.number, body, state: State::Pending };
                    self.diary().note(sent);
                }
                // The number is not used again: the record may be there all the same.
                Err(_) if !chip.is_powered() => {}
                // The receiver was away for so long that there is no room.
                Err(EnqueueError::Full) => return,
                Err(error) => panic!("{} cannot post: {error:?}", self.member.device),
            }
            self.next += 1;
        }
    }

    /// Writes down what the flash holds, unless the power goes meanwhile: then the next boot does.
    async fn reckon(&mut self, chip: &Flash, outbox: &Post<'_>, dispatcher: &mut Sender<'_>) {
        let device = &self.member.device;
        let mut kept = Vec::new();
        let mut keep = |stored: &Stored<'_>, state| {
            let note: Note = postcard::from_bytes(stored.body).expect("a body that is no note");
            let (device, body) = (device.clone(), stored.body.to_vec());
            kept.push(Sent { device, key: stored.key, number: note.number, body, state });
        };
        let mut is_read = true;
        for lane in 0..LANES as u8 {
            is_read &= outbox.inspect(lane, |stored| keep(stored, State::Pending)).await.is_ok();
        }
        let dead = outbox.dead_letters();
        is_read &= dead.list(|stored| keep(stored, State::Parked)).await.is_ok();
        let account = dispatcher.account().await;
        if !is_read {
            assert!(!chip.is_powered(), "{device} cannot read its flash");
            return;
        }
        // A device that lost power while it settled a record may not know afterwards whether there ever was one. We do: it was
        // there, and only a receiver's word removes it.
        let gives_up = |reason: Reason| reason != Reason::Uncertain;
        let is_given_up = |key: Key| {
            account
                .iter()
                .any(|entry| gives_up(entry.reason) && entry.covers(key.incarnation, key.lane, key.counter))
        };
        self.diary().reckon(&self.member.device, kept, is_given_up);
    }

    fn tell(&self, is_ok: bool) {
        let mut diary = self.diary();
        *(if is_ok { &mut diary.flushes } else { &mut diary.failures }) += 1;
    }

    fn diary(&self) -> std::sync::MutexGuard<'_, Diary> {
        self.diary.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

/// How a device loses power.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    AtFlash,
    UnderWay,
}

/// A test has no hour to wait for a device that was refused once.
fn pace() -> Pace {
    Pace::new()
        .spread(Duration::from_millis(20))
        .backoff(Duration::from_millis(20), Duration::from_millis(500))
        .long(Duration::from_secs(1))
        .retry_after_max(Duration::from_secs(1))
}
