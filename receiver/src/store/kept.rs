//! What both databases keep in one form, and make the same of: reports, runs of the log, clients' keys, rows as they are read.

use pillarbox::{DeviceId, Key, Timestamp};
use sha2::{Digest, Sha256};

use super::{
    Claim, Claimed, KeyState, Position, RecordQuery, Result, Row, RowTime, Source, StoreError, shard_of,
};
use crate::intake::{Aside, SecretPrint, SecretUsed};

/// What tells a secret from others.
pub(super) fn secret_print(secret: &[u8]) -> SecretPrint {
    let digest = Sha256::digest(secret);
    std::array::from_fn(|n| digest.get(n).copied().unwrap_or_default())
}

/// Which secrets a device has while a batch of it is taken: between the door and here they may have changed.
pub(super) struct Secrets {
    current: SecretPrint,
    next: Option<SecretPrint>,
}

impl Secrets {
    pub(super) fn new(current: &[u8], next: Option<&[u8]>) -> Self {
        Self { current: secret_print(current), next: next.map(secret_print) }
    }

    /// Notes which one a batch was tagged with; says whether the next one takes the place of the current one with it.
    pub(super) fn are_used(&mut self, with: SecretUsed) -> Result<bool> {
        let SecretUsed::Next(print) = with else { return Ok(false) };
        if let Some(next) = self.next.take_if(|next| *next == print) {
            self.current = next;
            return Ok(true);
        }
        match self.current == print {
            true => Ok(false),
            false => Err(StoreError::NotFound("the device has another secret by now".into())),
        }
    }
}

/// A count for those who add up a fleet. A device may say that it has handed out any number of counters: that must not make the sum
/// overflow.
pub(super) fn summed(count: u64) -> i64 {
    count.min(1 << 40) as i64
}

/// A report as it is stored: numbers of four bytes, the lowest first.
pub(super) fn pack_report(report: &[u32]) -> Vec<u8> {
    report.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A report that was stored.
pub(super) fn unpack_report(bytes: &[u8]) -> Vec<u32> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// Counters that follow each other, at places that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first.
    pub(super) key: Key,
    /// How many they are.
    pub(super) len: u64,
    /// Where the first is.
    pub(super) position: Position,
}

impl Run {
    fn goes_on_with(&self, key: Key) -> bool {
        (key.incarnation, key.lane) == (self.key.incarnation, self.key.lane)
            && key.counter == self.key.counter + self.len
    }
}

/// The runs of keys that lie side by side from a place on.
pub(super) fn runs(keys: impl Iterator<Item = Key>, mut position: Position) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for key in keys {
        match runs.last_mut() {
            Some(run) if run.goes_on_with(key) => run.len += 1,
            _ => runs.push(Run { key, len: 1, position }),
        }
        position.0 += 1;
    }
    runs
}

/// What is known of a client's key.
pub(super) struct KnownKey {
    pub(super) hash: Vec<u8>,
    pub(super) state: KeyState,
    pub(super) holder: u64,
    pub(super) lease_until_ms: u64,
    pub(super) created_ms: u64,
    pub(super) answer: Option<(u16, Vec<u8>)>,
}

impl KnownKey {
    /// What a claim to it gives; if it is [`Claimed::Ours`], the claim is still to be written.
    pub(super) fn claimed(self, claim: &Claim) -> Result<Claimed> {
        if self.created_ms < claim.expired_before_ms {
            return Ok(Claimed::Ours);
        }
        if self.hash != claim.hash {
            return Ok(Claimed::Reused);
        }
        Ok(match (self.state, self.answer) {
            (KeyState::Completed, Some((status, body))) => Claimed::Completed { status, body },
            (KeyState::Completed, None) => {
                return Err(StoreError::Damaged("a key is completed and has no answer".into()));
            }
            // The same claim comes again when the answer to its commit was lost.
            (KeyState::InProgress, _)
                if self.lease_until_ms > claim.now_ms && self.holder != claim.holder =>
            {
                Claimed::InProgress { lease_until_ms: self.lease_until_ms }
            }
            (KeyState::InProgress | KeyState::Failed, _) => Claimed::Ours,
        })
    }
}

/// The shard of a client's record.
pub(super) fn shard_of_claim(claim: &Claim, shards: u16) -> u16 {
    shard_of(&format!("{}/{}", claim.tenant, claim.key), shards)
}

/// The places that a query may name, as databases keep them: behind the first number, up to the second. The records of a device
/// are all in one shard.
pub(super) fn places(query: &RecordQuery, shards: u16) -> (i64, i64) {
    let number = |place: u64| i64::try_from(place).unwrap_or(i64::MAX);
    let after = query.after.map_or(-1, |position| number(position.0));
    let shard = query.shard.or_else(|| query.device.as_deref().map(|name| shard_of(name, shards)));
    match shard {
        Some(shard) => {
            let (first, last) = (Position::new(shard, 0).0, Position::new(shard, u64::MAX >> 16).0);
            (after.max(number(first)), number(last))
        }
        None => (after, i64::MAX),
    }
}

/// The first boot from one on that was heard of: its number, what was heard last before it, and when it began.
pub(super) type NextBoot = Option<(u32, Option<u64>, u64)>;

/// A record as it was read, with all that is needed to tell its time.
pub(super) struct RawRow {
    /// In the log or, of what is kept aside, in the order of arrival.
    pub(super) place: u64,
    pub(super) aside: Option<u8>,
    pub(super) tenant: String,
    pub(super) kind: u16,
    pub(super) received_ms: u64,
    pub(super) body: Vec<u8>,
    pub(super) from: RawSource,
}

/// Where a record comes from.
pub(super) enum RawSource {
    Device { name: String, key: Key, time: Timestamp, next_boot: NextBoot },
    Client { key: String, content_type: String },
}

impl RawRow {
    /// What people get to see.
    pub(super) fn row(self) -> Result<Row> {
        let aside = self
            .aside
            .map(|number| Aside::ALL.get(usize::from(number)).copied().ok_or_else(|| unknown("aside")));
        let aside = aside.transpose()?;
        let (source, time) = match self.from {
            RawSource::Device { name, key, time, next_boot } => {
                let name = DeviceId::new(&name).map_err(|_| unknown("device"))?;
                let row_time = RowTime::of(&time, self.received_ms, next_boot);
                (Source::Device { key: key.of(&name), time }, row_time)
            }
            RawSource::Client { key, content_type } => {
                (Source::Client { key, content_type }, RowTime::Exactly { ms: self.received_ms })
            }
        };
        Ok(Row {
            position: aside.is_none().then_some(Position(self.place)),
            arrival: self.place,
            aside,
            tenant: self.tenant,
            source,
            kind: self.kind,
            received_ms: self.received_ms,
            time,
            body: self.body,
        })
    }
}

fn unknown(what: &str) -> StoreError {
    StoreError::Damaged(format!("a record has an {what} that cannot be"))
}

/// A random number for what nobody else may have: an epoch.
pub(super) fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| StoreError::Unavailable(format!("no random numbers: {error}")))
}
