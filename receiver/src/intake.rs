//! What a batch does, decided on what the store has of its device and without touching a database: SPEC.md, "The receiver's
//! books". A store loads the [`Scene`], has it judged, looks up what is to be compared, and writes what came out.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pillarbox::wire::{
    AnswerDraft, Batch, ENVELOPE_MAX, Head, TAG_LEN, TagKeys, Verdict, WireError, fingerprint,
};
use pillarbox::{Entry, Key, Kind, Reason, Stored, Timestamp};

use crate::books::{Books, Said, Seen};
use crate::kinds::Kinds;

/// A boot may have begun a little earlier than was thought, because the way of its batch took time. Less is not worth a write.
const SOONER_MS: u64 = 250;

/// A record as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its name inside its device.
    pub key: Key,
    /// What its body is.
    pub kind: u16,
    /// When it was enqueued, as the device tells it.
    pub time: Timestamp,
    /// The application's bytes.
    pub body: Bytes,
    /// Its kind has a schema, and the body does not fit it: it is kept raw.
    pub is_unreadable: bool,
}

impl Arrival {
    /// What tells it from another content under the same key.
    pub fn fingerprint(&self) -> [u8; 16] {
        let Self { key, time, body, .. } = self;
        fingerprint(&Stored { key: *key, kind: Kind(self.kind), time: *time, tag: None, cause: None, body })
    }

    /// Whether the two are one record.
    fn is_same(&self, content: &Content) -> bool {
        (self.kind, self.time, &self.body[..]) == (content.kind, content.time, &content.body[..])
    }
}

/// What a key stands for in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// What the body is.
    pub kind: u16,
    /// When it was enqueued.
    pub time: Timestamp,
    /// The application's bytes.
    pub body: Vec<u8>,
}

/// An authentic batch, taken apart.
#[derive(Clone, Debug)]
pub struct Post {
    /// What stands at its head.
    pub head: Head,
    /// What the device gave up.
    pub entries: Vec<Entry>,
    /// The outbox's own numbers; empty if there are none.
    pub report: Vec<u32>,
    /// Its records.
    pub records: Vec<Arrival>,
    /// Dead letters that are sent again.
    pub late: Vec<Arrival>,
    /// When it came, in milliseconds since 1970.
    pub now_ms: u64,
    /// Which of the device's secrets its tag was made with.
    pub with: SecretUsed,
}

/// What tells a secret from others without being one.
pub type SecretPrint = [u8; 16];

/// Which of a device's secrets a batch was tagged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretUsed {
    /// The one that it has had.
    Current,
    /// The one that is to take its place, if it still is that one: then now it does.
    Next(SecretPrint),
}

impl Post {
    /// Takes an envelope apart whose tag was right.
    pub fn decode(envelope: &Bytes, kinds: &Kinds, now_ms: u64, with: SecretUsed) -> Result<Self, WireError> {
        let batch = Batch::decode(envelope)?;
        let arrival = |record: Stored<'_>| Arrival {
            key: record.key,
            kind: record.kind.0,
            time: record.time,
            body: envelope.slice_ref(record.body),
            is_unreadable: !kinds.is_readable(record.kind.0, record.body),
        };
        Ok(Self {
            entries: batch.entries().collect(),
            report: batch.report().collect(),
            records: batch.records().map(arrival).collect(),
            late: batch.late().map(arrival).collect(),
            head: batch.head,
            now_ms,
            with,
        })
    }

    /// Its records and then the late ones: the order in which an answer counts them.
    pub fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.records.iter().chain(&self.late)
    }

    /// The one with this number.
    pub fn arrival(&self, n: usize) -> Option<&Arrival> {
        self.records.get(n).or_else(|| self.late.get(n.checked_sub(self.records.len())?))
    }

    /// The lane that it is about.
    pub fn lane(&self) -> LaneName {
        (self.head.incarnation, self.head.lane)
    }

    /// Lanes that it may change: its own, and those of its dead letters.
    pub fn lanes(&self) -> BTreeSet<LaneName> {
        let late = self.late.iter().map(|record| (record.key.incarnation, record.key.lane));
        late.chain([self.lane()]).collect()
    }

    fn said(&self) -> Said {
        Said { floor: self.head.floor, issued: self.head.issued, is_closing: self.head.is_closing }
    }
}

/// Incarnation and lane.
pub type LaneName = (u32, u8);

/// What the store has of an incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    /// The highest boot, and its nonce.
    pub boot: Option<(u32, u32)>,
    /// When that boot began.
    pub started_ms: u64,
    /// When a batch of it last came.
    pub heard_ms: Option<u64>,
    /// An operator has said that nothing of it counts.
    pub is_fenced: bool,
    /// An operator has said that nothing more will come.
    pub is_given_up: bool,
}

/// What the store has of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneState {
    /// Its books.
    pub books: Books,
    /// When a batch about it last came.
    pub heard_ms: u64,
    /// A counter that is still to come was heard of when `mark_ms` was: it is below `mark`.
    pub mark: u64,
    /// So long something has been pending, at least. It is told in two numbers and is never too early.
    pub mark_ms: u64,
    /// The device's clock less the receiver's, when it last told it.
    pub clock_offset_ms: Option<i64>,
    /// The last report, and when it came.
    pub report: Option<(u64, Vec<u32>)>,
}

impl LaneState {
    /// Takes note of when the oldest record that is still to come was first heard of, as well as one can without a list: it was
    /// heard of before `mark_ms`, for it is below `mark`.
    fn note(&mut self, post: &Post) {
        let now_ms = post.now_ms;
        self.mark(now_ms);
        self.heard_ms = now_ms;
        if let Some(wall_ms) = post.head.wall_ms {
            self.clock_offset_ms = Some((wall_ms as i64).wrapping_sub(now_ms as i64));
        }
        if !post.report.is_empty() {
            self.report = Some((now_ms, post.report.clone()));
        }
    }

    fn mark(&mut self, now_ms: u64) {
        if self.books.floor() >= self.mark {
            (self.mark, self.mark_ms) = (self.books.issued(), now_ms);
        }
    }

    /// Since when something is pending or unexplained, if anything is.
    pub fn pending_since_ms(&self) -> Option<u64> {
        (self.books.floor() < self.books.issued()).then_some(self.mark_ms)
    }
}

/// What the store has of a device, as far as a batch may change it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scene {
    /// The incarnation that new records were last heard under.
    pub current: Option<u32>,
    /// Batches of boots that were over, or that were another's.
    pub stale: u64,
    /// Keys that came with two contents.
    pub conflicts: u64,
    /// How often an incarnation took records again after another had begun.
    pub interleavings: u64,
    /// Something of it is kept aside.
    pub has_asides: bool,
    /// Incarnations of [`Post::lanes`] that are known.
    pub incarnations: BTreeMap<u32, Incarnation>,
    /// Lanes of [`Post::lanes`] that are known.
    pub lanes: BTreeMap<LaneName, LaneState>,
}

/// Why a record is kept aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// It counts as received, but nobody can read it.
    Unreadable,
    /// It came with a boot that is over, in a fenced incarnation, or when nobody could know any more whether it was received.
    Quarantined,
    /// Its key had come with another content.
    Conflict,
}

impl Aside {
    /// Every one, by the number that stores keep.
    pub const ALL: [Self; 3] = [Self::Unreadable, Self::Quarantined, Self::Conflict];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Quarantined => "quarantined",
            Self::Conflict => "conflict",
        }
    }
}

/// What is to be done with one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It goes to the log.
    Store,
    /// It counts as received, and nobody can read it.
    KeepRaw,
    /// The key is known: the content decides. Without any it is a duplicate of something that is no longer kept.
    Compare,
    /// The same, but without any content it goes to the quarantine.
    CompareOrQuarantine,
    /// To the quarantine, whatever the log has.
    Quarantine,
    /// It is kept by the device.
    Keep,
}

/// What became of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the log now.
    Stored,
    /// It was there before.
    Duplicate,
    /// It is kept aside; a quarantine of content and of origin look the same from outside.
    Aside(Aside),
    /// The device keeps it.
    Kept,
}

impl Outcome {
    /// Every name, for those who count.
    pub const NAMES: [&str; 6] = ["stored", "duplicate", "unreadable", "quarantined", "conflict", "kept"];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Duplicate => "duplicate",
            Self::Aside(aside) => aside.name(),
            Self::Kept => "kept",
        }
    }

    fn is_settled(self) -> bool {
        self != Self::Kept
    }

    fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Aside(Aside::Conflict) => Some(Verdict::Conflict),
            Self::Aside(_) => Some(Verdict::Quarantined),
            Self::Stored | Self::Duplicate | Self::Kept => None,
        }
    }
}

/// A batch that was judged: the scene is as it will be, and some keys are to be looked up.
#[derive(Debug)]
pub struct Judged<'p> {
    post: &'p Post,
    fates: Vec<Fate>,
    is_stale: bool,
    is_closed: bool,
    confirmed: u32,
    explain: Vec<(u64, u64)>,
    /// The boot is new, or began earlier than was thought: when the incarnation was last heard before it, and when it began.
    pub boot: Option<BootNote>,
}

/// What is to be remembered of a boot, to tell the time of its records and of those of boots that were never heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootNote {
    /// Whose.
    pub incarnation: u32,
    /// Its number.
    pub boot: u32,
    /// The last that was heard of the incarnation before it.
    pub after_ms: Option<u64>,
    /// When it began.
    pub started_ms: u64,
}

/// Judges a batch: changes the scene as it will be, and says what of the store must be looked at.
pub fn judge<'p>(scene: &mut Scene, post: &'p Post) -> Judged<'p> {
    let head = &post.head;
    let is_stale = scene.is_stale(head);
    let mut judged = Judged {
        post,
        fates: Vec::with_capacity(post.records.len() + post.late.len()),
        is_stale,
        is_closed: false,
        confirmed: 0,
        explain: Vec::new(),
        boot: None,
    };
    if is_stale {
        scene.stale = scene.stale.saturating_add(1);
        judged.fates.extend(post.arrivals().map(|_| Fate::CompareOrQuarantine));
        return judged;
    }
    judged.boot = scene.note_boot(post);
    scene.note_incarnation(head);
    let said = post.said();
    scene.lane(post.lane()).books.begin(&said, &post.entries);
    for section in [&post.records, &post.late] {
        let mut is_held_up = false;
        for record in section {
            let fate = scene.fate(head, record, is_held_up);
            is_held_up |= head.is_in_order && fate == Fate::Keep;
            judged.fates.push(fate);
        }
    }
    for record in &post.late {
        let name = (record.key.incarnation, record.key.lane);
        if let Some(lane) = scene.lanes.get_mut(&name) {
            lane.mark(post.now_ms);
        }
    }
    let lane = scene.lane(post.lane());
    let closing = lane.books.finish(&said, &post.entries);
    lane.note(post);
    judged.confirmed = closing.confirmed;
    judged.explain = closing.explain;
    judged.is_closed = lane.books.is_closed();
    judged
}

impl Scene {
    /// Adds what follows from the lanes: when their incarnations were last heard; and one that is known only from dead letters is one
    /// all the same.
    pub(crate) fn refresh(&mut self) {
        for incarnation in self.incarnations.values_mut() {
            incarnation.heard_ms = None;
        }
        for ((name, _), lane) in &self.lanes {
            let incarnation = self.incarnations.entry(*name).or_default();
            incarnation.heard_ms = incarnation.heard_ms.max(Some(lane.heard_ms));
        }
    }

    fn lane(&mut self, name: LaneName) -> &mut LaneState {
        self.lanes.entry(name).or_default()
    }

    /// Boot and nonce against the highest that were seen.
    fn is_stale(&self, head: &Head) -> bool {
        let Some(known) = self.incarnations.get(&head.incarnation) else { return false };
        let is_over = known
            .boot
            .is_some_and(|(boot, nonce)| head.boot < boot || (head.boot == boot && head.boot_nonce != nonce));
        known.is_fenced || is_over
    }

    fn note_boot(&mut self, post: &Post) -> Option<BootNote> {
        let head = &post.head;
        let known = self.incarnations.entry(head.incarnation).or_default();
        let after_ms = known.heard_ms;
        known.heard_ms = Some(post.now_ms);
        // It is heard again, whatever an operator thought.
        known.is_given_up = false;
        let started_ms = post.now_ms.saturating_sub(head.uptime_ms);
        let is_new = known.boot != Some((head.boot, head.boot_nonce));
        if !is_new && started_ms.saturating_add(SOONER_MS) > known.started_ms {
            return None;
        }
        known.boot = Some((head.boot, head.boot_nonce));
        known.started_ms = started_ms;
        let after_ms = after_ms.filter(|_| is_new);
        Some(BootNote { incarnation: head.incarnation, boot: head.boot, after_ms, started_ms })
    }

    /// A device that takes records under one incarnation, then another, then the first again, is two devices.
    fn note_incarnation(&mut self, head: &Head) {
        if head.is_closing || self.current == Some(head.incarnation) {
            return;
        }
        let is_known = self.lanes.keys().any(|(incarnation, _)| *incarnation == head.incarnation);
        if is_known && self.current.is_some() {
            self.interleavings = self.interleavings.saturating_add(1);
        }
        self.current = Some(head.incarnation);
    }

    fn fate(&mut self, head: &Head, record: &Arrival, is_held_up: bool) -> Fate {
        let key = record.key;
        if self.incarnations.get(&key.incarnation).is_some_and(|known| known.is_fenced) {
            // A dead letter of an incarnation of which nothing counts.
            return Fate::CompareOrQuarantine;
        }
        let lane = self.lane((key.incarnation, key.lane));
        match lane.books.seen(key.counter) {
            Seen::Duplicate => Fate::Compare,
            Seen::Doubtful => Fate::CompareOrQuarantine,
            // Nobody may be left to move the floor of a former incarnation.
            Seen::Beyond if key.incarnation != head.incarnation => Fate::Quarantine,
            Seen::Beyond => Fate::Keep,
            Seen::New if is_held_up => Fate::Keep,
            Seen::New => {
                lane.books.store(key.counter);
                if record.is_unreadable { Fate::KeepRaw } else { Fate::Store }
            }
        }
    }
}

impl Judged<'_> {
    /// The batch changes nothing in the books.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Numbers of the records that go to the log, in its order.
    pub fn stored(&self) -> impl Iterator<Item = usize> + '_ {
        self.numbers(|fate| fate == Fate::Store)
    }

    /// Numbers of the records whose keys are to be looked up, in the log, among what the batch itself stores, and among what is
    /// kept as unreadable.
    pub fn compared(&self) -> impl Iterator<Item = usize> + '_ {
        self.numbers(|fate| matches!(fate, Fate::Compare | Fate::CompareOrQuarantine))
    }

    fn numbers(&self, is_wanted: impl Fn(Fate) -> bool) -> impl Iterator<Item = usize> {
        self.fates.iter().enumerate().filter(move |(_, fate)| is_wanted(**fate)).map(|(n, _)| n)
    }

    /// What became of each record, now that the contents of the compared keys are known, in the order of
    /// [`compared`](Self::compared).
    pub fn conclude(self, scene: &mut Scene, found: &[Option<Content>]) -> Concluded {
        let mut found = found.iter();
        let outcomes: Vec<Outcome> = self
            .fates
            .iter()
            .zip(self.post.arrivals())
            .map(|(fate, record)| match fate {
                Fate::Store => Outcome::Stored,
                Fate::KeepRaw => Outcome::Aside(Aside::Unreadable),
                Fate::Quarantine => Outcome::Aside(Aside::Quarantined),
                Fate::Keep => Outcome::Kept,
                Fate::Compare | Fate::CompareOrQuarantine => match found.next().and_then(Option::as_ref) {
                    Some(known) if record.is_same(known) => Outcome::Duplicate,
                    Some(_) if self.is_stale => Outcome::Aside(Aside::Quarantined),
                    Some(_) => Outcome::Aside(Aside::Conflict),
                    None if *fate == Fate::Compare => Outcome::Duplicate,
                    None => Outcome::Aside(Aside::Quarantined),
                },
            })
            .collect();
        let conflicts =
            outcomes.iter().filter(|outcome| **outcome == Outcome::Aside(Aside::Conflict)).count();
        scene.conflicts = scene.conflicts.saturating_add(conflicts as u64);
        scene.has_asides |= outcomes.iter().any(|outcome| matches!(outcome, Outcome::Aside(_)));
        Concluded {
            is_renew: self.is_stale || conflicts > 0,
            is_stale: self.is_stale,
            is_closed: self.is_closed,
            confirmed: self.confirmed,
            explain: self.explain,
            records: self.post.records.len(),
            outcomes,
        }
    }
}

/// What became of a batch: all that its answer says, but for the time and the name of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concluded {
    /// What became of each record, and then of each late one.
    pub outcomes: Vec<Outcome>,
    /// How many of them are no late ones.
    pub records: usize,
    /// The device is to take another incarnation.
    pub is_renew: bool,
    /// Nothing of it counts in the books.
    pub is_stale: bool,
    /// The books of its lane are closed.
    pub is_closed: bool,
    /// Bit n: entry n is in the books.
    pub confirmed: u32,
    /// Counters that nobody has explained.
    pub explain: Vec<(u64, u64)>,
}

impl Concluded {
    /// Nothing became of it: the answer of a store that could not be reached.
    pub fn nothing(post: &Post) -> Self {
        Self {
            outcomes: post.arrivals().map(|_| Outcome::Kept).collect(),
            records: post.records.len(),
            is_renew: false,
            is_stale: false,
            is_closed: false,
            confirmed: 0,
            explain: Vec::new(),
        }
    }

    /// Records that are kept aside, by their numbers.
    pub fn asides(&self) -> impl Iterator<Item = (usize, Aside)> + '_ {
        self.outcomes.iter().enumerate().filter_map(|(n, outcome)| match outcome {
            Outcome::Aside(aside) => Some((n, *aside)),
            _ => None,
        })
    }

    /// The answer, tagged.
    pub fn answer(&self, to: &AnswerTo<'_>) -> Result<Vec<u8>, WireError> {
        let (records, late) = self.outcomes.split_at(self.records.min(self.outcomes.len()));
        let verdicts: Vec<(u16, Verdict)> = self
            .outcomes
            .iter()
            .enumerate()
            .filter_map(|(n, outcome)| Some((n as u16, outcome.verdict()?)))
            .take(pillarbox::wire::VERDICTS_MAX)
            .collect();
        let draft = AnswerDraft {
            is_renew: self.is_renew,
            is_stale: self.is_stale,
            is_closed: self.is_closed,
            server_time_ms: to.now_ms,
            epoch: to.epoch,
            confirmed: self.confirmed,
            retry_after_s: to.retry_after_s,
            settled: &bitmap(records),
            late_settled: &bitmap(late),
            verdicts: &verdicts,
            explain: &self.explain,
            ..AnswerDraft::default()
        };
        let mut bytes = vec![0; ENVELOPE_MAX];
        let len = draft.encode(&mut bytes, to.keys, to.tag)?;
        bytes.truncate(len);
        // It lives until its device has taken it, and a thousand others with it.
        bytes.shrink_to_fit();
        Ok(bytes)
    }
}

/// Whom an answer goes to, and what it says beside what became of the batch.
#[derive(Debug)]
pub struct AnswerTo<'a> {
    /// The keys that the batch was tagged with.
    pub keys: &'a TagKeys,
    /// The batch's tag.
    pub tag: &'a [u8; TAG_LEN],
    /// The receiver's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The name of the database.
    pub epoch: u64,
    /// When the next batch is welcome.
    pub retry_after_s: Option<u32>,
}

/// One bit for each record, set if it is settled.
fn bitmap(outcomes: &[Outcome]) -> Vec<u8> {
    outcomes
        .chunks(8)
        .map(|eight| eight.iter().rev().fold(0, |byte, outcome| byte << 1 | u8::from(outcome.is_settled())))
        .collect()
}

/// How often each reason explains a counter, by its name: what people and metrics read.
pub fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Superseded => "superseded",
        Reason::Uncertain => "uncertain",
        Reason::Parked => "parked",
        Reason::Aborted => "aborted",
        Reason::Cleared => "cleared",
        Reason::Rejected => "rejected",
        Reason::Expired => "expired",
        Reason::Evicted => "evicted",
        Reason::Corrupt => "corrupt",
        Reason::Lost => "lost",
    }
}
