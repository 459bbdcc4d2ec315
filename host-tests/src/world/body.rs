//! A device's body: flash, link, and the application that lives on it through many boots.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use embassy_futures::select::{Either4, select, select4};
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use fastrand::Rng;
use pillarbox::{
    BatchUplink, Config, DeviceId, Dispatcher, EnqueueError, Entry, Error, Http, Key, LaneConfig, OpenError,
    Outbox, Pace, Policy, Resources, Trigger, buffer_size,
};

use super::{Ground, Witness};
use crate::device::{Flash, Note, RECORD};
use crate::flash::{Chip, FaultClass, FlashError};
use crate::link::Link;
use crate::station::{URL, secret_of};
use crate::virtual_time::{DeviceClock, VirtualTime};

/// Lanes of every device: a strict one that refuses records when it is full, and one that gives up old ones.
pub(super) const LANES: usize = 2;
/// The lane that may give records up.
pub(super) const LOOSE: u8 = 1;
const BUFFER: usize = buffer_size(LANES, RECORD);
const PAGES: usize = 96;
/// How often a device looks whether it still has power.
const POWER_MS: u64 = 500;
/// A slice of the last boot, after which it is asked whether all is done.
const SLICE_MS: u64 = 60_000;

type Post<'r> = Outbox<'r, &'r Flash, LANES, RECORD, NoopRawMutex, DeviceClock>;
type Sender<'r> = Dispatcher<'r, &'r Flash, LANES, RECORD, NoopRawMutex, DeviceClock>;

/// A record that an application handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// In which lane.
    pub lane: u8,
    /// `enqueue` returned `Ok` with this key.
    pub key: Option<Key>,
    /// It may be superseded.
    pub is_tagged: bool,
    /// The flash was put back to a state before it.
    pub is_undone: bool,
}

/// What a device knows at the very end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Final {
    /// The incarnation of new records.
    pub incarnation: u32,
    /// Floor and issued of each lane.
    pub lanes: [(u64, u64); LANES],
    /// What it has not been able to tell.
    pub account: Vec<Entry>,
    /// Records that it could not send.
    pub dead: Vec<Key>,
}

/// A device's body.
pub(super) struct Body {
    pub(super) number: u8,
    pub(super) device: DeviceId,
    pub(super) chip: Flash,
    pub(super) link: Link,
    /// It was made from another's flash.
    pub(super) is_clone: bool,
    /// Its flash was copied or put back.
    pub(super) is_disputed: Cell<bool>,
    pub(super) posted: RefCell<BTreeMap<u32, Posted>>,
    pub(super) boots: Cell<u64>,
    pub(super) cuts: Cell<u64>,
    /// Boots that ended without a clean stop.
    pub(super) unclean: Cell<u64>,
    pub(super) last: RefCell<Option<Final>>,
    saved: RefCell<Option<(Vec<u8>, u32)>>,
    put_back: Cell<bool>,
    next: Cell<u32>,
    rng: RefCell<Rng>,
    /// Rings when the link is up.
    online: Cell<bool>,
}

impl Body {
    pub(super) fn new<S: Witness>(
        ground: &Ground<S>,
        number: u8,
        name: &str,
        image: Option<&[u8]>,
        seed: u64,
    ) -> Rc<Self> {
        let chip = image.map_or_else(|| Chip::new(PAGES, seed), |image| Chip::from_image(image, seed));
        let link = ground.network.link();
        link.set_faults(ground.plan.faults.clone());
        let body = Rc::new(Self {
            number,
            device: DeviceId::new(name).expect("it is a device id"),
            chip,
            link,
            is_clone: image.is_some(),
            is_disputed: Cell::new(image.is_some()),
            posted: RefCell::default(),
            boots: Cell::new(0),
            cuts: Cell::new(0),
            unclean: Cell::new(0),
            last: RefCell::default(),
            saved: RefCell::default(),
            put_back: Cell::new(false),
            next: Cell::new(0),
            rng: RefCell::new(Rng::with_seed(seed)),
            online: Cell::new(false),
        });
        ground.bodies.borrow_mut().push(body.clone());
        body
    }

    /// The link comes up, and the device notices.
    pub(super) fn come_online(&self) {
        self.link.bring_up();
        self.online.set(true);
    }

    /// Remembers the flash as it is, or has it put back at the next boot.
    pub(super) fn save_or_put_back(&self, rng: &mut Rng) {
        let mut saved = self.saved.borrow_mut();
        if saved.is_none() || rng.bool() {
            *saved = Some((self.chip.image(), self.next.get()));
        } else {
            self.put_back.set(true);
        }
    }

    fn go_back(&self) {
        if let Some((image, next)) = self.saved.borrow().as_ref().filter(|_| self.put_back.take()) {
            self.chip.set_image(image);
            self.is_disputed.set(true);
            // What is younger than the image went with it, unless it was sent.
            for (_, posted) in self.posted.borrow_mut().range_mut(next..) {
                posted.is_undone = true;
            }
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    /// A number that no other record of the world has.
    fn number(&self) -> u32 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// What a record with this number holds.
    pub(super) fn note(&self, number: u32) -> Note {
        Note::new(u32::from(self.number) << 24 | number)
    }

    fn config(&self) -> Config<LANES> {
        let loose = LaneConfig::new(6).evict_oldest().max_attempts(3).max_age(Duration::from_secs(12 * 3600));
        Config::new(self.device.clone(), [LaneConfig::new(8).max_attempts(3), loose]).dead_letter_pages(4)
    }
}

fn policies() -> [Policy; LANES] {
    [Policy::urgent(), Policy::gather(512, Duration::from_secs(60)).any_order()]
}

fn pace() -> Pace {
    Pace::new()
        .backoff(Duration::from_secs(1), Duration::from_secs(300))
        .long(Duration::from_secs(900))
        .retry_after_max(Duration::from_secs(600))
}

/// Why a boot ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// The power went.
    Cut,
    /// It was switched off, cleanly.
    Clean,
    /// All was sent, and the world is calm.
    Home,
    /// A promise was broken.
    Broken(String),
}

/// A device's life: boots until the world is calm and everything was sent.
pub(super) async fn live<S: Witness + 'static>(ground: Rc<Ground<S>>, body: Rc<Body>) {
    loop {
        body.boots.set(body.boots.get() + 1);
        body.go_back();
        body.chip.power_on();
        let is_calm = ground.is_calm.get();
        if is_calm {
            body.chip.cancel_cut();
        } else if body.draw(|rng| rng.u8(..3)) > 0 {
            let (operation, tear) =
                body.draw(|rng| (rng.u64(..ground.plan.cut_ops_max), FaultClass::Mixed.tear(rng)));
            body.chip.cut_after(operation, tear);
        }
        body.chip.set_yields(ground.plan.yields && !is_calm);
        let end = boot(&ground, &body).await;
        let was_cut = !body.chip.is_powered();
        body.chip.power_off();
        body.chip.cancel_cut();
        match end {
            End::Home => return,
            End::Broken(what) => {
                let mut broken = ground.broken.borrow_mut();
                broken
                    .get_or_insert_with(|| format!("{} at {} ms: {what}", body.device, ground.time.now_ms()));
                return;
            }
            End::Clean => {}
            End::Cut => {
                body.cuts.set(body.cuts.get() + u64::from(was_cut));
                body.unclean.set(body.unclean.get() + 1);
            }
        }
        let dark_ms = body.draw(|rng| rng.u64(10..120_000));
        ground.time.sleep(dark_ms).await;
    }
}

async fn boot<S: Witness + 'static>(ground: &Ground<S>, body: &Body) -> End {
    let clock = DeviceClock::boot(&ground.time);
    let mut resources = Resources::<&Flash, LANES, RECORD, BUFFER, NoopRawMutex, DeviceClock>::new();
    let entropy = body.draw(|rng| rng.u64(..));
    let opened = pillarbox::new(&mut resources, &body.chip, clock.clone(), entropy, body.config()).await;
    let (outbox, drain) = match opened {
        Ok(opened) => opened,
        Err(OpenError::Storage(Error::Flash(FlashError::PowerCut))) => return End::Cut,
        Err(error) => return End::Broken(format!("opening failed: {error}")),
    };
    let mut sender: Sender<'_> = Dispatcher::new(drain).await.policies(policies()).pace(pace());
    let (mut tx, mut rx) = (vec![0; body.draw(|rng| rng.usize(700..2500))], vec![0; 2048]);
    let http = Http::new(&body.link, &body.link, clock, URL);
    let uplink = BatchUplink::new(http, &secret_of(body.device.as_str()), &mut tx, &mut rx);
    let mut uplink = uplink.expect("it is an address");
    if ground.is_calm.get() {
        return go_home(ground, body, outbox, &mut sender, &mut uplink).await;
    }
    let lasts_ms = body.draw(|rng| rng.u64(1..ground.plan.boot_ms_max));
    let trigger = outbox.trigger().await;
    let ended = select4(
        post(ground, body, outbox),
        watch(&ground.time, body, trigger),
        ground.time.sleep(lasts_ms),
        sender.run(&mut uplink),
    )
    .await;
    match ended {
        Either4::First(end) => end,
        _ => End::Cut,
    }
}

/// Ends when the power is gone; tells the dispatcher when the link comes up.
async fn watch(time: &VirtualTime, body: &Body, trigger: Trigger<'_, NoopRawMutex>) {
    while body.chip.is_powered() {
        if body.online.take() {
            trigger.link_up();
        }
        time.sleep(POWER_MS).await;
    }
}

/// The application.
async fn post<S: Witness>(ground: &Ground<S>, body: &Body, outbox: Post<'_>) -> End {
    loop {
        ground.time.sleep(body.draw(|rng| rng.u64(1..ground.plan.post_ms_max))).await;
        let done = match body.draw(|rng| rng.u8(..100)) {
            0..3 => match outbox.suspend().await {
                Ok(()) if body.draw(|rng| rng.bool()) => return End::Clean,
                done => done,
            },
            3..8 => tend_dead_letters(body, outbox).await,
            8 => {
                outbox.trigger().await.flush();
                Ok(())
            }
            9..25 => post_some(body, outbox).await,
            _ => post_one(body, outbox).await,
        };
        match done {
            Ok(()) => {}
            Err(Error::Flash(FlashError::PowerCut)) => return End::Cut,
            Err(error) => return End::Broken(format!("posting failed: {error}")),
        }
    }
}

async fn post_some(body: &Body, outbox: Post<'_>) -> Result<(), Error<FlashError>> {
    for _ in 0..body.draw(|rng| rng.u8(2..20)) {
        post_one(body, outbox).await?;
    }
    Ok(())
}

async fn post_one(body: &Body, outbox: Post<'_>) -> Result<(), Error<FlashError>> {
    let lane = body.draw(|rng| rng.u8(..LANES as u8));
    let tag = body.draw(|rng| (lane == LOOSE && rng.u8(..8) == 0).then(|| rng.u32(..3)));
    let number = body.number();
    let posted = Posted { lane, key: None, is_tagged: tag.is_some(), is_undone: false };
    body.posted.borrow_mut().insert(number, posted);
    let note = body.note(number);
    let result = match tag {
        Some(tag) => outbox.enqueue_once_in(lane, tag, &note).await,
        None => outbox.enqueue_in(lane, &note).await,
    };
    match result {
        Ok(key) => {
            if let Some(posted) = body.posted.borrow_mut().get_mut(&number) {
                posted.key = Some(key);
            }
            Ok(())
        }
        Err(EnqueueError::Storage(error)) => Err(error),
        Err(_) => Ok(()),
    }
}

async fn tend_dead_letters(body: &Body, outbox: Post<'_>) -> Result<(), Error<FlashError>> {
    let mut dead = Vec::new();
    outbox.dead_letters().list(|stored| dead.push(stored.key)).await?;
    if let Some(key) = body.draw(|rng| rng.choice(&dead).copied()) {
        match body.draw(|rng| rng.u8(..4)) {
            0 => outbox.dead_letters().discard(key).await.map(drop)?,
            _ => outbox.dead_letters().retry(key).await.map(drop)?,
        }
    }
    Ok(())
}

/// The last boot: sends until there is nothing left to say.
async fn go_home<S: Witness>(
    ground: &Ground<S>,
    body: &Body,
    outbox: Post<'_>,
    sender: &mut Sender<'_>,
    uplink: &mut BatchUplink<'_, Link, Link, DeviceClock>,
) -> End {
    loop {
        // Cancelled again and again, which must not matter.
        select(sender.run(uplink), ground.time.sleep(SLICE_MS)).await;
        match at_rest(outbox, sender).await {
            Ok(Some(rest)) => {
                *body.last.borrow_mut() = Some(rest);
                return End::Home;
            }
            Ok(None) => {}
            Err(error) => return End::Broken(format!("going home failed: {error}")),
        }
    }
}

/// What the device knows, if it has nothing left to send or to tell.
async fn at_rest(outbox: Post<'_>, sender: &mut Sender<'_>) -> Result<Option<Final>, Error<FlashError>> {
    let mut lanes = [(0, 0); LANES];
    for (number, lane) in (0..).zip(&mut lanes) {
        let mut pending = 0;
        outbox.inspect(number, |_| pending += 1).await?;
        let window = sender.window(number, |_| false).await?;
        if pending > 0 || window.has_more {
            return Ok(None);
        }
        *lane = (window.floor, window.issued);
    }
    let mut late = 0;
    sender
        .late(|_| {
            late += 1;
            true
        })
        .await?;
    let mut formers = 0;
    sender.former_incarnations(|_, _| formers += 1).await;
    let account = sender.account().await.to_vec();
    if late > 0 || formers > 0 || !account.is_empty() {
        return Ok(None);
    }
    let mut dead = Vec::new();
    outbox.dead_letters().list(|stored| dead.push(stored.key)).await?;
    let (incarnation, ..) = sender.identity().await;
    Ok(Some(Final { incarnation, lanes, account, dead }))
}
