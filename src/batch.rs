//! The uplink to a Pillarbox receiver: batches out, tagged answers back, and what they mean for each record.

use core::ops::Range;

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_nal_async::{Dns, TcpConnect};
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use heapless::Vec;

use crate::{
    Cause, Clock, Dispatcher, Entry, Errand, Failure, Http, Key, LaneSet, Order, Pick, Reason, Sleep, Stored,
    Uplink, UrlError,
    account::Account,
    dispatcher::talk::{Conclusion, Statement},
    http::{Broken, Reply},
    ledger::LATE,
    wire::{Answer, BATCH_CONTENT_TYPE, BatchWriter, Head, Secret, TAG_LEN, TagKeys, Verdict, WINDOW},
};

/// Where batches go, below the address.
const PATH: &str = "/v1/batch";
/// A batch is not made smaller than this, in bytes: it would carry nothing.
const SIZE_MIN: usize = 256;
/// Batches that must succeed before a larger one is tried again.
const GROW_AFTER: u8 = 16;
/// Exchanges in a row in which the receiver may ask for explanations and confirm none.
const IDLE_MAX: u8 = 3;
/// Records that one answer rejects, or finds in conflict, as far as they are looked at; the others come again.
const NAMED: usize = 8;

/// Carries batches to a Pillarbox receiver.
///
/// Batches and answers are authenticated, so plain `http` is enough for the records to be safe from being forged, forgotten or
/// counted twice. It does not hide them: for that use `https`.
pub struct BatchUplink<'n, T, D, S> {
    http: Http<'n, T, D, S>,
    tx: &'n mut [u8],
    rx: &'n mut [u8],
    desk: Desk,
}

/// What the uplink knows without its network.
struct Desk {
    keys: TagKeys,
    /// Records of a batch at most: somebody on the way found more too large.
    most: u16,
    /// Bytes of a batch at most: the receiver would rather have no more.
    preferred: usize,
    /// Batches that went well since the last that did not.
    went_well: u8,
    report_every_ms: u64,
    report_at: u64,
    /// Exchanges in a row by which nothing has changed but what is to be told.
    idle: u8,
    is_renewed: bool,
    is_late_sent: bool,
    sent: Sent,
}

/// Counters of a window, from its floor on.
#[derive(Clone)]
struct Bits([u8; WINDOW as usize / 8]);

impl Bits {
    const NONE: Self = Self([0; WINDOW as usize / 8]);

    fn set(&mut self, at: u64) {
        if let Some(byte) = self.0.get_mut((at >> 3) as usize) {
            *byte |= 1 << (at & 7);
        }
    }

    fn has(&self, at: u64) -> bool {
        self.0.get((at >> 3) as usize).is_some_and(|byte| byte & (1 << (at & 7)) != 0)
    }

    /// Those that are set, in order.
    fn iter(&self) -> impl Iterator<Item = u64> {
        (0..WINDOW).filter(|at| self.has(*at))
    }
}

/// What the batch on its way holds.
struct Sent {
    lane: u8,
    incarnation: u32,
    is_former: bool,
    has_report: bool,
    /// All that there is to say of its lane's account.
    is_all: bool,
    floor: u64,
    taken: Bits,
    count: u16,
    late: Vec<Key, LATE>,
    entries: Vec<Entry, { Account::MAX }>,
    tag: [u8; TAG_LEN],
    at_ms: u64,
}

impl Sent {
    const fn nothing() -> Self {
        Self {
            lane: 0,
            incarnation: 0,
            is_former: false,
            has_report: false,
            is_all: false,
            floor: 0,
            taken: Bits::NONE,
            count: 0,
            late: Vec::new(),
            entries: Vec::new(),
            tag: [0; TAG_LEN],
            at_ms: 0,
        }
    }

    fn key(&self, at: u64) -> Key {
        Key { incarnation: self.incarnation, lane: self.lane, counter: self.floor.saturating_add(at) }
    }
}

impl<'n, T: TcpConnect, D: Dns, S: Sleep> BatchUplink<'n, T, D, S> {
    /// Sends to the receiver behind `http`, which knows the device's secret. A batch is put together in `tx`: its size bounds that of
    /// a batch, and must hold the largest record with 512 bytes to spare. The answer is read into `rx`, its headers in one half and its
    /// body in the other: 2,048 bytes are plenty.
    pub fn new(
        http: Http<'n, T, D, S>,
        secret: &Secret,
        tx: &'n mut [u8],
        rx: &'n mut [u8],
    ) -> Result<Self, UrlError> {
        http.check()?;
        let desk = Desk {
            keys: TagKeys::new(secret),
            most: u16::MAX,
            preferred: tx.len(),
            went_well: 0,
            report_every_ms: 15 * 60 * 1_000,
            report_at: 0,
            idle: 0,
            is_renewed: false,
            is_late_sent: false,
            sent: Sent::nothing(),
        };
        Ok(Self { http, tx, rx, desk })
    }

    /// Sends the outbox's numbers along at most this often.
    pub fn report_every(mut self, every: core::time::Duration) -> Self {
        self.desk.report_every_ms = every.as_millis() as u64;
        self
    }
}

impl<T: TcpConnect, D: Dns, S: Sleep> Uplink for BatchUplink<'_, T, D, S> {
    fn books(&self) -> LaneSet {
        LaneSet::ALL
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
        (desk.is_renewed, desk.is_late_sent, desk.idle) = (false, false, 0);
        // The radio stays off until there is something to send.
        let Some(mut batch) = desk.pack(mail, tx).await? else { return Ok(()) };
        loop {
            let mut client = http.client();
            let mut connection = client.connect().await?;
            loop {
                let headers = [("Content-Type", BATCH_CONTENT_TYPE)];
                let body = tx.get(batch.clone()).unwrap_or_default();
                // What it took to connect is not on the answer's way.
                desk.sent.at_ms = mail.uptime_ms();
                let reply = match connection.post(PATH, &headers, body, rx).await {
                    Ok(reply) => reply,
                    // The same envelope may be sent twice: to the receiver it is the same.
                    Err(Broken::Stale) => break,
                    Err(Broken::Lost) => return Err(Failure::Network),
                };
                match desk.read(&reply) {
                    Some(answer) => desk.apply(mail, reply.status, &answer).await?,
                    None => desk.shrink(&reply)?,
                }
                let Some(next) = desk.pack(mail, tx).await? else { return Ok(()) };
                batch = next;
                if connection.is_over() {
                    break;
                }
            }
        }
    }
}

impl Desk {
    /// Puts the next batch together. `None` if there is nothing more to say.
    async fn pack<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
        tx: &mut [u8],
    ) -> Result<Option<Range<usize>>, Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        while let Some(opening) = mail.open_batch(LaneSet::ALL).await {
            let (current, boot, boot_nonce) = opening.identity;
            let (lane, told) = match opening.errand {
                Errand::Records { lane } => (lane, None),
                Errand::Books { incarnation, lane } => (lane, Some(incarnation)),
            };
            let (uptime_ms, wall_ms) = (mail.uptime_ms(), opening.wall_ms);
            // One or two may be added while the records are read.
            let room = tx.len() / 2 / BatchWriter::ENTRY_MAX;
            let entries = (opening.entries + 2).min(room);
            let mut writer = BatchWriter::new(&mut *tx, boot, uptime_ms, wall_ms, entries);
            let sent = &mut self.sent;
            *sent = Sent { lane, at_ms: uptime_ms, ..Sent::nothing() };
            let mut first: Option<Key> = None;
            let held = mail.held();
            let take = |stored: &Stored<'_>| {
                let key = stored.key;
                let floor = first.get_or_insert_with(|| {
                    writer.set_floor(key.counter);
                    key
                });
                let at = key.counter.saturating_sub(floor.counter);
                if told.is_some() || sent.count >= self.most {
                    return Pick::Stop;
                }
                if held.contains(&key) {
                    return Pick::Skip;
                }
                let at_most = if sent.count == 0 { usize::MAX } else { self.preferred };
                match writer.record(stored, at_most) {
                    true => {
                        sent.taken.set(at);
                        sent.count += 1;
                        Pick::Take
                    }
                    // It does not fit in any batch: those behind it need not wait.
                    false if sent.count == 0 => Pick::Skip,
                    false => Pick::Stop,
                }
            };
            let window = mail.window(lane, take).await?;
            if told.is_none() && sent.count == 0 {
                // Nothing of the window can be sent. If there is more behind it, its first record is in the way.
                let blocking = first.filter(|_| window.has_more);
                if mail.park(lane, blocking.as_slice(), Cause::Blocking).await?.parked == 0 {
                    mail.leave(lane).await;
                }
                continue;
            }
            let incarnation = told.unwrap_or(window.incarnation);
            if !self.is_late_sent {
                let (late, most, count) = (&mut sent.late, self.most, sent.count);
                mail.late(|stored| {
                    let has_room = usize::from(count) + late.len() < usize::from(most) && !late.is_full();
                    let is_taken = has_room && writer.late(stored, usize::MAX);
                    is_taken && late.push(stored.key).is_ok()
                })
                .await?;
                self.is_late_sent = true;
            }
            let Statement { device, span, entries, report } = mail.state(incarnation, &window).await;
            let Some((floor, issued)) = span else { continue };
            sent.entries = entries;
            (sent.incarnation, sent.floor, sent.is_former) = (incarnation, floor, incarnation != current);
            sent.has_report = uptime_ms >= self.report_at;
            let report = if sent.has_report { &report[..] } else { &[] };
            let mut head = Head {
                device,
                incarnation,
                lane,
                is_closing: sent.is_former,
                is_in_order: mail.order(lane) == Order::Strict,
                floor,
                issued,
                boot,
                boot_nonce,
                attempt_nonce: mail.random(),
                uptime_ms,
                wall_ms,
            };
            let finished = writer.finish(&mut head, &sent.entries, report, &self.keys);
            let (batch, told) = finished.map_err(|_| Failure::NoProgress)?;
            sent.is_all = told == sent.entries.len();
            sent.entries.truncate(told);
            let tag = tx.get(batch.clone()).and_then(|batch| batch.last_chunk());
            sent.tag = *tag.ok_or(Failure::NoProgress)?;
            return Ok(Some(batch));
        }
        Ok(None)
    }

    /// The answer, if the receiver gave it, to this batch.
    fn read<'b>(&self, reply: &Reply<'b>) -> Option<Answer<'b>> {
        Answer::decode(self.keys.open_answer(&self.sent.tag, reply.body)?).ok()
    }

    /// Somebody on the way has answered, or nobody knows who. Nothing that it says counts, but a smaller batch may pass.
    fn shrink(&mut self, reply: &Reply<'_>) -> Result<(), Failure> {
        let status = reply.status;
        self.went_well = 0;
        match status {
            401 | 403 | 404 | 405 => Err(Failure::Refused { status }),
            400 | 413 => {
                let count = self.sent.count + self.sent.late.len() as u16;
                if count <= 1 {
                    return Err(Failure::Refused { status });
                }
                self.most = count / 2;
                Ok(())
            }
            _ => Err(Failure::Busy { retry_after_s: reply.retry_after_s }),
        }
    }

    /// The receiver has answered: does what it says.
    async fn apply<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
        status: u16,
        answer: &Answer<'_>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let now = mail.uptime_ms();
        let way = now.saturating_sub(self.sent.at_ms) / 2;
        let is_done = (200..300).contains(&status);
        mail.learn(answer.server_time_ms.saturating_add(way), is_done.then_some(answer.epoch)).await;
        if !is_done {
            return Err(asked(answer).unwrap_or(Failure::Busy { retry_after_s: None }));
        }
        if let Some(size) = answer.preferred_size {
            self.preferred = (size as usize).max(SIZE_MIN);
        }
        if self.sent.has_report {
            self.report_at = now.saturating_add(self.report_every_ms);
        }
        self.grow();
        let is_new = self.act(mail, answer).await?;
        self.idle = if is_new { 0 } else { self.idle + 1 };
        // An answer by which nothing changes is no success: a receiver that says so again and again is asked ever more rarely.
        if is_new {
            mail.succeeded();
        }
        // What the receiver has no explanation for is explained in the next batch; but not for ever.
        for (first, len) in answer.explain() {
            let Sent { incarnation, lane, .. } = self.sent;
            mail.explain(Entry { incarnation, lane, reason: Reason::Lost, first, len }).await?;
        }
        let is_asking = answer.explain().next().is_some();
        match asked(answer) {
            Some(asked) => Err(asked),
            None if is_new || (is_asking && self.idle < IDLE_MAX) => Ok(()),
            None => Err(Failure::NoProgress),
        }
    }

    /// Settles, holds and rejects records as the answer says, closes what the receiver has in its books, and takes a new
    /// incarnation if it must. Whether anything has changed.
    async fn act<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
        answer: &Answer<'_>,
    ) -> Result<bool, Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        let sent = &self.sent;
        let mut settled = Bits::NONE;
        let mut count = 0;
        for (_, at) in sent.taken.iter().enumerate().filter(|(n, _)| answer.is_settled(*n)) {
            settled.set(at);
            count += 1;
        }
        let is_settled = |key: &Key| {
            key.incarnation == sent.incarnation
                && key.counter.checked_sub(sent.floor).is_some_and(|at| settled.has(at))
        };
        mail.settle_where(sent.lane, count, &is_settled).await?;
        let is_late_settled = |(n, _): &(usize, &Key)| answer.is_late_settled(*n);
        let late: Vec<Key, LATE> =
            sent.late.iter().enumerate().filter(is_late_settled).map(|(_, key)| *key).collect();
        mail.remove_late(&late).await?;

        let mut rejected: Vec<Key, NAMED> = Vec::new();
        let (mut refused_late, mut conflicts) = (Vec::<Key, LATE>::new(), Vec::<Key, NAMED>::new());
        let (mut is_held, mut is_stuck) = (false, false);
        for (n, verdict) in answer.verdicts() {
            let key = sent.taken.iter().nth(n.into()).map(|at| sent.key(at));
            let late = n.checked_sub(sent.count).and_then(|n| sent.late.get(usize::from(n)));
            match (verdict, key, late) {
                // It is out of the way of others for the rest of the flush.
                (Verdict::Retry, Some(key), _) => {
                    is_held = true;
                    mail.hold(key, answer.retry_after_s);
                    is_stuck |= key.counter == sent.floor;
                }
                (Verdict::Rejected, Some(key), _) => drop(rejected.push(key)),
                (Verdict::Rejected, None, Some(key)) => drop(refused_late.push(*key)),
                (Verdict::Conflict, Some(key), _) => drop(conflicts.push(key)),
                _ => {}
            }
        }
        let judged = mail.reject(sent.lane, &rejected).await?;
        if judged.retrying > 0 {
            rejected.iter().for_each(|key| mail.hold(*key, None));
            is_stuck |= rejected.iter().any(|key| key.counter == sent.floor);
        }
        let is_new = count > 0 || !late.is_empty() || judged.parked > 0 || judged.retrying > 0 || is_held;
        // To a stale device nobody listens: its books are another's.
        let is_confirmed = |(n, _): &(usize, &Entry)| answer.is_stale || answer.confirmed & (1 << *n) != 0;
        let confirmed: Vec<Entry, { Account::MAX }> =
            sent.entries.iter().enumerate().filter(is_confirmed).map(|(_, entry)| *entry).collect();
        // All is said when nothing is asked. Whether the books can be closed is then not for this device to decide: under a name
        // that another one uses too they may never be.
        let is_all_said =
            answer.explain().next().is_none() && confirmed.len() == sent.entries.len() && sent.is_all;
        let is_over = sent.is_former && sent.count == 0 && (answer.is_stale || is_all_said);
        mail.conclude(&Conclusion {
            arrived_late: &late,
            refused_late: &refused_late,
            conflicts: &conflicts,
            stuck: is_stuck.then(|| sent.key(0)),
            confirmed: &confirmed,
            closed: is_over.then_some((sent.incarnation, sent.lane)),
        })
        .await;
        // Should the receiver not like the new one either, there is no point in another.
        let is_renewed = answer.is_renew && !sent.is_former && !self.is_renewed;
        if is_renewed {
            self.is_renewed = true;
            mail.renew_incarnation().await?;
        }
        Ok(is_new || !confirmed.is_empty() || is_over || is_renewed)
    }

    /// A batch went well: after some of them, a larger one may too.
    fn grow(&mut self) {
        self.went_well += 1;
        if self.went_well >= GROW_AFTER {
            self.went_well = 0;
            self.most = self.most.saturating_mul(2);
        }
    }
}

/// The receiver asks to be left alone for a while.
fn asked(answer: &Answer<'_>) -> Option<Failure> {
    answer.retry_after_s.map(|retry_after_s| Failure::Asked { retry_after_s })
}
