//! The ledger of a device: what became of every record that it ever numbered, and what is to be said about the device itself. The
//! books have the numbers; here they get the names and the words that people and programs read.

use std::collections::BTreeMap;

use pillarbox::Reason;
use serde::{Deserialize, Serialize};

use crate::admin::IncarnationName;
use crate::intake::{LaneState, reason_name};
use crate::moment::Moment;
use crate::store::{self, Device, IncarnationRow, LaneRow, Store};

/// Everything that is known of a device but its records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLedger {
    /// Its name.
    pub device: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was let in.
    pub created_at: Moment,
    /// Since when it may not come in any more.
    pub revoked_at: Option<Moment>,
    /// A new secret waits for its first use.
    pub is_rotating: bool,
    /// The incarnation that new records were last heard under.
    pub current_incarnation: Option<IncarnationName>,
    /// When it was last heard.
    pub heard_at: Option<Moment>,
    /// Batches of boots that were over, or that were another's.
    pub stale_batches: u64,
    /// Keys that came with two contents.
    pub conflicts: u64,
    /// How often an incarnation took records again after another had begun.
    pub interleavings: u64,
    /// All incarnations and lanes together.
    pub totals: Totals,
    /// What needs somebody's attention, the worst first.
    pub problems: Vec<Problem>,
    /// Its incarnations, in the order in which they were heard of.
    pub incarnations: Vec<IncarnationLedger>,
}

/// What a lane, or a device, adds up to. Every issued counter is in exactly one of `received`, `pending`, `given_up`, `unexplained`
/// and `explained`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Counters that were handed out, as far as the receiver has heard.
    pub issued: u64,
    /// Records that were stored.
    pub received: u64,
    /// Still to come.
    pub pending: u64,
    /// Still to come, in incarnations of which an operator said that nothing will.
    pub given_up: u64,
    /// The device says that it is done with them, and has not said why.
    pub unexplained: u64,
    /// Will not come, by reason: every reason is named.
    pub explained: BTreeMap<String, u64>,
    /// Of the explained ones: at most so many were handed out and lost before the receiver heard of them.
    pub uncertain_at_most: u64,
    /// Of the explained ones: gone, and the device cannot say why.
    pub lost: u64,
    /// The oldest that is pending has been so at least since then.
    pub pending_since: Option<Moment>,
}

/// One incarnation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncarnationLedger {
    /// Its number.
    pub incarnation: IncarnationName,
    /// How it stands.
    pub state: IncarnationState,
    /// The highest boot.
    pub boot: u32,
    /// When it was first heard.
    pub first_heard_at: Moment,
    /// Its lanes.
    pub lanes: Vec<LaneLedger>,
}

/// How an incarnation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationState {
    /// New records come under it.
    Current,
    /// A later one has begun, and the books of this one are not closed.
    Open,
    /// The device takes no more records under it, and nothing is missing.
    Closed,
    /// An operator expects nothing more of it.
    GivenUp,
    /// An operator has said that nothing of it counts.
    Fenced,
}

impl IncarnationState {
    /// Its name, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::GivenUp => "given up",
            Self::Fenced => "fenced",
        }
    }
}

/// One lane of an incarnation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneLedger {
    /// Its number.
    pub lane: u8,
    /// The device takes no more records under this incarnation, and nothing of this lane is missing.
    pub is_closed: bool,
    /// What it adds up to.
    #[serde(flatten)]
    pub totals: Totals,
    /// When a batch about it last came.
    pub heard_at: Moment,
    /// The device's clock less the receiver's, when it last told it.
    pub clock_offset_ms: Option<i64>,
    /// What the outbox last said about itself.
    pub report: Option<Report>,
}

/// What an outbox says about itself: SPEC.md, "Report". Sums are since its boot. What it left out is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// When it came.
    pub reported_at: Moment,
    /// Records pending in this lane, at most.
    pub pending: Option<u32>,
    /// Bytes of flash that they take.
    pub bytes: Option<u32>,
    /// Erases.
    pub erases: Option<u32>,
    /// Corrupt items and pages found.
    pub corrupt: Option<u32>,
    /// Records enqueued in this lane.
    pub enqueued: Option<u32>,
    /// Records delivered from this lane.
    pub delivered: Option<u32>,
    /// Rejections that were not final in this lane.
    pub rejections: Option<u32>,
    /// Exchanges with the receiver that failed.
    pub failed_exchanges: Option<u32>,
}

impl Report {
    fn new(reported_ms: u64, places: &[u32]) -> Self {
        let place = |n: usize| places.get(n).copied();
        Self {
            reported_at: Moment(reported_ms),
            pending: place(0),
            bytes: place(1),
            erases: place(2),
            corrupt: place(3),
            enqueued: place(4),
            delivered: place(5),
            rejections: place(6),
            failed_exchanges: place(7),
        }
    }
}

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Of what sort it is.
    pub sort: ProblemSort,
    /// In a few words, for a list.
    pub brief: String,
    /// In sentences: what it means, and what can be done.
    pub sentence: String,
}

/// Sorts of problems, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemSort {
    /// Records are gone, and nobody knows why.
    Lost,
    /// The device owes an explanation.
    Unexplained,
    /// Keys came with two contents.
    Conflicts,
    /// Batches came from a boot that was over.
    Stale,
    /// Two incarnations take turns.
    Interleaving,
    /// A former incarnation is not closed.
    Open,
}

impl DeviceLedger {
    /// Reads what the store has of a device and adds it up.
    pub async fn load(store: &dyn Store, device: Device) -> store::Result<Self> {
        let incarnations = store.incarnations(device.id).await?;
        let lanes = store.lanes(device.id).await?;
        Ok(Self::new(device, &incarnations, &lanes))
    }

    /// Adds up what the store has of a device.
    pub fn new(device: Device, incarnations: &[IncarnationRow], lanes: &[LaneRow]) -> Self {
        let incarnations: Vec<IncarnationLedger> =
            incarnations.iter().map(|row| IncarnationLedger::new(&device, row, lanes)).collect();
        let mut totals = Totals::default();
        for lane in incarnations.iter().flat_map(|incarnation| &incarnation.lanes) {
            totals.add(&lane.totals);
        }
        let mut ledger = Self {
            device: device.name,
            tenant: device.tenant,
            created_at: Moment(device.created_ms),
            revoked_at: device.revoked_ms.map(Moment),
            is_rotating: device.is_rotating,
            current_incarnation: device.current_incarnation.map(IncarnationName),
            heard_at: device.heard_ms.map(Moment),
            stale_batches: device.stale,
            conflicts: device.conflicts,
            interleavings: device.interleavings,
            totals,
            problems: Vec::new(),
            incarnations,
        };
        ledger.problems = ledger.find_problems();
        ledger
    }

    fn find_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |sort, count: u64, brief: String, sentence: String| {
            if count > 0 {
                problems.push(Problem { sort, brief, sentence });
            }
        };
        let Totals { lost, unexplained, .. } = self.totals;
        let were = counted(lost, "record was", "records were");
        add(
            ProblemSort::Lost,
            lost,
            format!("{lost} lost"),
            format!("{were} handed out and will not come, and the device cannot say why."),
        );
        let are = counted(unexplained, "record is", "records are");
        add(
            ProblemSort::Unexplained,
            unexplained,
            format!("{unexplained} unexplained"),
            format!(
                "{are} neither here nor pending, and the device has not said why. It was asked, and answers when it next calls."
            ),
        );
        let conflicts = self.conflicts;
        add(
            ProblemSort::Conflicts,
            conflicts,
            counted(conflicts, "conflict", "conflicts"),
            format!(
                "{} with two contents, so two devices write under one name. Both contents are kept: `pillarbox records export \
                 --asides --device {}` shows what came second.",
                counted(conflicts, "key came", "keys came"),
                self.device
            ),
        );
        let stale = self.stale_batches;
        add(
            ProblemSort::Stale,
            stale,
            counted(stale, "stale batch", "stale batches"),
            format!(
                "{} of a boot that was over, or of another boot with the same number: the device was set back to an older image, or \
                 a copy of it is alive.{} Their new records are kept aside: `pillarbox records export --asides --device {}`.",
                counted(stale, "batch was", "batches were"),
                self.fenced_too(),
                self.device
            ),
        );
        let turns = self.interleavings;
        add(
            ProblemSort::Interleaving,
            turns,
            "two at once".into(),
            format!(
                "Records came again under a former incarnation, {}: two devices with this name and secret are alive. Give one of \
                 them another name.",
                counted(turns, "time", "times")
            ),
        );
        problems.extend(self.open_incarnations());
        problems
    }

    fn fenced_too(&self) -> &'static str {
        match self.incarnations.iter().any(|of| of.state == IncarnationState::Fenced) {
            true => " Batches of a fenced incarnation count here too.",
            false => "",
        }
    }

    fn open_incarnations(&self) -> Option<Problem> {
        let is_open = |of: &&IncarnationLedger| of.state == IncarnationState::Open;
        let open: Vec<String> =
            self.incarnations.iter().filter(is_open).map(|open| open.incarnation.to_string()).collect();
        let first = open.first()?;
        let sentence = format!(
            "{} not closed: {}. The device may still do it. If it cannot any more: pillarbox device close {} {first}",
            counted(open.len() as u64, "former incarnation is", "former incarnations are"),
            open.join(", "),
            self.device
        );
        Some(Problem { sort: ProblemSort::Open, brief: format!("{} open", open.len()), sentence })
    }
}

impl IncarnationLedger {
    fn new(device: &Device, row: &IncarnationRow, lanes: &[LaneRow]) -> Self {
        let lanes: Vec<LaneLedger> = lanes
            .iter()
            .filter(|lane| lane.incarnation == row.incarnation)
            .map(|lane| LaneLedger::new(lane.lane, &lane.state, row.is_given_up))
            .collect();
        let is_closed = !lanes.is_empty() && lanes.iter().all(|lane| lane.is_closed);
        let state = match row {
            row if row.is_fenced => IncarnationState::Fenced,
            _ if is_closed => IncarnationState::Closed,
            row if row.is_given_up => IncarnationState::GivenUp,
            row if device.current_incarnation == Some(row.incarnation) => IncarnationState::Current,
            _ => IncarnationState::Open,
        };
        Self {
            incarnation: IncarnationName(row.incarnation),
            state,
            boot: row.boot,
            first_heard_at: Moment(row.first_heard_ms),
            lanes,
        }
    }
}

impl LaneLedger {
    fn new(lane: u8, state: &LaneState, is_given_up: bool) -> Self {
        let ledger = state.books.ledger();
        let explained =
            Reason::ALL.map(|reason| (reason_name(reason).to_owned(), ledger.explained_as(reason)));
        let (pending, given_up) = if is_given_up { (0, ledger.pending) } else { (ledger.pending, 0) };
        Self {
            lane,
            is_closed: ledger.is_closed,
            totals: Totals {
                issued: ledger.issued,
                received: ledger.received,
                pending,
                given_up,
                unexplained: ledger.unexplained,
                explained: explained.into(),
                uncertain_at_most: ledger.uncertain(),
                lost: ledger.lost(),
                pending_since: state.pending_since_ms().filter(|_| pending > 0).map(Moment),
            },
            heard_at: Moment(state.heard_ms),
            clock_offset_ms: state.clock_offset_ms,
            report: state.report.as_ref().map(|(ms, places)| Report::new(*ms, places)),
        }
    }
}

impl Totals {
    /// What was explained in ways that are neither a doubt nor an alarm, by reason, without those that never happened.
    pub fn plainly_explained(&self) -> impl Iterator<Item = (&str, u64)> {
        let is_plain =
            |name: &str| name != reason_name(Reason::Uncertain) && name != reason_name(Reason::Lost);
        let all = self.explained.iter().map(|(name, count)| (name.as_str(), *count));
        all.filter(move |(name, count)| *count > 0 && is_plain(name))
    }

    fn add(&mut self, other: &Self) {
        let Self { issued, received, pending, given_up, unexplained, uncertain_at_most, lost, .. } = self;
        let sums = [issued, received, pending, given_up, unexplained, uncertain_at_most, lost];
        let more = [
            other.issued,
            other.received,
            other.pending,
            other.given_up,
            other.unexplained,
            other.uncertain_at_most,
            other.lost,
        ];
        for (sum, more) in sums.into_iter().zip(more) {
            *sum = sum.saturating_add(more);
        }
        for (name, count) in &other.explained {
            let sum = self.explained.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.pending_since = [self.pending_since, other.pending_since].into_iter().flatten().min();
    }
}

/// A number and its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
