//! The outbox and its receiver in plain code: what was promised, what arrived, and whether the two agree.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox::{Entry, Key, Reason, Tag};

/// The number of a record in its life; its content follows from it.
pub type Serial = u64;

/// What a lane of the model may give up, and the real one therefore too.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// A full lane gives up its oldest records.
    pub evicts: bool,
    /// Records may expire or be rejected.
    pub gives_up: bool,
}

/// A record that an application handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Posted {
    lane: u8,
    tag: Option<Tag>,
    /// `enqueue` returned `Ok`.
    is_acknowledged: bool,
    key: Option<Key>,
}

/// What a life has promised, and what the receiver has.
#[derive(Debug, Clone, Default)]
pub struct Model {
    posted: BTreeMap<Serial, Posted>,
    /// Which record each key stands for.
    contents: BTreeMap<Key, Serial>,
    received: BTreeSet<Key>,
    /// `settle` returned `Ok` for these.
    settled: BTreeSet<Key>,
    /// Dead letters that were given up on purpose.
    discarded: BTreeSet<Key>,
    /// Entries that the receiver has been told.
    confirmed: Vec<Entry>,
    /// Highest `issued` of each incarnation and lane.
    issued: BTreeMap<(u32, u8), u64>,
    cleared: bool,
    policies: Vec<Policy>,
}

impl Model {
    /// A model of an outbox with these lanes.
    pub fn new(policies: &[Policy]) -> Self {
        Self { policies: policies.to_vec(), ..Self::default() }
    }

    /// An application is about to enqueue a record; gives its number.
    pub fn post(&mut self, lane: u8, tag: Option<Tag>) -> Serial {
        let serial = self.posted.len() as Serial;
        self.posted.insert(serial, Posted { lane, tag, is_acknowledged: false, key: None });
        serial
    }

    /// `enqueue` returned `Ok`.
    pub fn acknowledge(&mut self, serial: Serial, key: Key) -> Result<(), String> {
        self.see(key, serial)?;
        if let Some(posted) = self.posted.get_mut(&serial) {
            posted.is_acknowledged = true;
        }
        Ok(())
    }

    /// A record was found in the outbox under this key.
    pub fn see(&mut self, key: Key, serial: Serial) -> Result<(), String> {
        let known = *self.contents.entry(key).or_insert(serial);
        if known != serial {
            return Err(format!("key {key:?} was used for record {known} and for record {serial}"));
        }
        let Some(posted) = self.posted.get_mut(&serial) else {
            return Err(format!("record {serial} was never posted"));
        };
        if *posted.key.get_or_insert(key) != key {
            return Err(format!("record {serial} appeared as {:?} and as {key:?}", posted.key));
        }
        if key.lane != posted.lane {
            return Err(format!("record {serial} of lane {} appeared as {key:?}", posted.lane));
        }
        Ok(())
    }

    /// Records as they came out of a lane, oldest first.
    pub fn see_in_order(&mut self, records: &[(Key, Serial)]) -> Result<(), String> {
        for &(key, serial) in records {
            self.see(key, serial)?;
            if self.settled.contains(&key) {
                return Err(format!("{key:?} came back although it was settled"));
            }
        }
        for pair in records.windows(2) {
            let [(before, earlier), (after, later)] = pair else {
                continue;
            };
            let counters_rise = before.incarnation != after.incarnation || before.counter < after.counter;
            if earlier >= later || !counters_rise {
                return Err(format!("order: record {earlier} {before:?} came before {later} {after:?}"));
            }
        }
        Ok(())
    }

    /// The receiver stores a record; `false` if it had it already.
    pub fn receive(&mut self, key: Key) -> bool {
        self.received.insert(key)
    }

    /// `settle` returned `Ok` for these.
    pub fn settled(&mut self, keys: &[Key]) {
        self.settled.extend(keys);
    }

    /// The application discards a dead letter.
    pub fn discarded(&mut self, key: Key) {
        self.discarded.insert(key);
    }

    /// The application asked for everything to be given up.
    pub fn cleared(&mut self) {
        self.cleared = true;
    }

    /// The receiver takes note of an account.
    pub fn confirm(&mut self, entries: &[Entry]) {
        self.confirmed.extend(entries);
    }

    /// A lane has issued so many counters under this incarnation.
    pub fn issued(&mut self, incarnation: u32, lane: u8, issued: u64) {
        let known = self.issued.entry((incarnation, lane)).or_default();
        *known = issued.max(*known);
    }

    /// Number of acknowledged records.
    pub fn acknowledged(&self) -> u64 {
        self.posted.values().filter(|posted| posted.is_acknowledged).count() as u64
    }

    /// Number of records that the receiver has.
    pub fn received(&self) -> u64 {
        self.received.len() as u64
    }

    /// Acknowledged records that did not arrive and were given up for a good reason; an error if one was not.
    ///
    /// Everything was delivered that would go; `account` is what the device still has to tell.
    pub fn check(&self, account: &[Entry]) -> Result<u64, String> {
        let entries: Vec<Entry> = self.confirmed.iter().chain(account).copied().collect();
        let mut accounted = 0;
        for (serial, posted) in self.posted.iter().filter(|(_, posted)| posted.is_acknowledged) {
            let key = posted.key.ok_or("an acknowledged record has a key")?;
            if self.received.contains(&key) {
                continue;
            }
            let explained = entries
                .iter()
                .any(|entry| covers(entry, key) && self.is_good_reason(entry.reason, *serial, posted, key));
            if !explained {
                let said: Vec<_> = entries.iter().filter(|entry| covers(entry, key)).collect();
                return Err(format!(
                    "lost: record {serial} {key:?} was acknowledged; the account says {said:?}"
                ));
            }
            accounted += 1;
        }
        for (&(incarnation, lane), &issued) in &self.issued {
            for counter in 0..issued {
                let key = Key { incarnation, lane, counter };
                if !self.received.contains(&key) && !entries.iter().any(|entry| covers(entry, key)) {
                    return Err(format!(
                        "{key:?} was issued ({issued} are) and is neither received nor explained"
                    ));
                }
            }
        }
        Ok(accounted)
    }

    /// An acknowledged record may be given up only for what really happened to it.
    fn is_good_reason(&self, reason: Reason, serial: Serial, posted: &Posted, key: Key) -> bool {
        let policy = self.policies[usize::from(posted.lane)];
        match reason {
            Reason::Superseded => self.posted.range(serial + 1..).any(|(_, later)| {
                posted.tag.is_some() && later.tag == posted.tag && later.lane == posted.lane
            }),
            Reason::Cleared => self.cleared,
            // Dead letters that made room end as what they died of, or as evicted if they only stood in the way.
            Reason::Evicted => policy.evicts || policy.gives_up || self.stood_in_the_way(key),
            Reason::Rejected | Reason::Expired => policy.gives_up || self.discarded.contains(&key),
            Reason::Uncertain | Reason::Parked | Reason::Aborted | Reason::Corrupt | Reason::Lost => false,
        }
    }

    /// Whether younger records of its lane were delivered before this one.
    fn stood_in_the_way(&self, key: Key) -> bool {
        let younger = Key { counter: key.counter + 1, ..key }..=Key { counter: u64::MAX, ..key };
        self.received.range(younger).next().is_some()
    }
}

fn covers(entry: &Entry, key: Key) -> bool {
    entry.covers(key.incarnation, key.lane, key.counter)
}

/// Whether no two entries of one account explain the same counter.
pub fn check_disjoint(account: &[Entry]) -> Result<(), String> {
    for (at, a) in account.iter().enumerate() {
        for b in account.iter().skip(at + 1) {
            let alike = a.incarnation == b.incarnation && a.lane == b.lane;
            if alike && a.first < b.end() && b.first < a.end() {
                return Err(format!("two entries explain the same counter: {a:?} and {b:?}"));
            }
        }
    }
    Ok(())
}
