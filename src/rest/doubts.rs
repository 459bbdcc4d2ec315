//! Records that the API may have although it never said so: while it remembers their keys they are sent again, and not
//! afterwards.

use heapless::Vec;

use crate::{Key, LaneSet, Timestamp, list::take_where};

/// Records in doubt at a time. In a lane with a strict order there is one; if there are ever more, the first are sent again
/// however old they are.
const DOUBTS: usize = 8;

/// A record whose answer was lost, or may have been.
#[derive(Clone, Copy)]
struct Doubt {
    key: Key,
    /// When it was first sent in this boot.
    sent_at: Option<u64>,
    /// It may have been sent in an earlier boot, at any time since it was enqueued.
    is_inherited: bool,
}

/// What is known about the API's memory and about records in doubt.
pub(super) struct Doubts {
    /// How long the API remembers a key.
    pub(super) retention_ms: Option<u64>,
    list: Vec<Doubt, DOUBTS>,
    /// Lanes of which the first record of this boot has been seen.
    seen: LaneSet,
}

impl Doubts {
    pub(super) const fn none() -> Self {
        Self { retention_ms: None, list: Vec::new(), seen: LaneSet::NONE }
    }

    /// A lane's record is about to be sent. The first of a boot may be the one whose answer the last boot waited for when it
    /// ended.
    pub(super) fn see(&mut self, key: Key, time: &Timestamp, boot: u32) {
        if !self.seen.contains(key.lane) {
            self.seen = self.seen.or(LaneSet::of(&[key.lane]));
            if time.boot != boot {
                self.push(Doubt { key, sent_at: None, is_inherited: true });
            }
        }
    }

    /// A record is being sent. Whether there was no doubt about it before.
    pub(super) fn send(&mut self, key: Key, now: u64) -> bool {
        match self.list.iter_mut().find(|doubt| doubt.key == key) {
            Some(doubt) => {
                doubt.sent_at.get_or_insert(now);
                false
            }
            None => {
                self.push(Doubt { key, sent_at: Some(now), is_inherited: false });
                true
            }
        }
    }

    /// There is no doubt any more.
    pub(super) fn forget(&mut self, key: Key) {
        take_where(&mut self.list, |doubt| doubt.key == key);
    }

    /// Whether the API may have had a record and forgotten its key since.
    pub(super) fn is_forgotten(&self, key: Key, now: u64, age_ms: Option<u64>) -> bool {
        let Some(retention) = self.retention_ms else { return false };
        self.list.iter().filter(|doubt| doubt.key == key).any(|doubt| {
            let since_sent = doubt.sent_at.map(|sent| now.saturating_sub(sent));
            let since_enqueued = age_ms.filter(|_| doubt.is_inherited);
            since_sent.max(since_enqueued).is_some_and(|longest| longest > retention)
        })
    }

    fn push(&mut self, doubt: Doubt) {
        if self.retention_ms.is_none() {
            return;
        }
        if self.list.is_full() {
            self.list.remove(0);
        }
        let _ = self.list.push(doubt);
    }
}
