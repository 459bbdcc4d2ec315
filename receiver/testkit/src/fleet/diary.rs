//! What the devices know of their records: what a test compares a receiver with.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox::{DeviceId, Key};

/// What has become of a record, as far as its device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In flash, to be sent.
    Pending,
    /// The receiver has said that it has it.
    Settled,
    /// Among the dead letters: the receiver has rejected it.
    Parked,
    /// Given up, and accounted for.
    GivenUp,
}

/// A record of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Who posted it.
    pub device: DeviceId,
    /// Its name.
    pub key: Key,
    /// Which note it is: no two of a fleet have the same number.
    pub number: u32,
    /// The postcard bytes that a receiver stores.
    pub body: Vec<u8>,
    /// What has become of it.
    pub state: State,
}

/// The records of all devices.
#[derive(Debug, Default)]
pub(crate) struct Diary {
    devices: BTreeMap<DeviceId, Page>,
    pub(crate) drained: BTreeSet<DeviceId>,
    pub(crate) cuts: u64,
    pub(crate) flushes: u64,
    pub(crate) failures: u64,
}

/// The records of one device.
#[derive(Debug, Default)]
struct Page {
    records: BTreeMap<Key, Sent>,
    /// Those in flash: a device that lives long has many records, but few of these.
    in_flash: BTreeSet<Key>,
}

impl Diary {
    pub(crate) fn all(&self) -> Vec<Sent> {
        self.devices.values().flat_map(|page| page.records.values().cloned()).collect()
    }

    /// Records that may still arrive.
    pub(crate) fn open(&self) -> usize {
        self.devices.values().map(|page| page.in_flash.len()).sum()
    }

    /// A device has this record in flash. It may be known: a reboot finds what was posted before.
    pub(crate) fn note(&mut self, sent: Sent) {
        let page = self.devices.entry(sent.device.clone()).or_default();
        page.in_flash.insert(sent.key);
        let known = page.records.entry(sent.key).or_insert_with(|| sent.clone());
        assert_eq!((known.number, &known.body), (sent.number, &sent.body), "{:?} is two records", sent.key);
        known.state = sent.state;
    }

    /// A device has these records in flash and no others: what it had before is settled, unless it can say otherwise.
    pub(crate) fn reckon(&mut self, device: &DeviceId, kept: Vec<Sent>, is_given_up: impl Fn(Key) -> bool) {
        let keys: BTreeSet<Key> = kept.iter().map(|sent| sent.key).collect();
        kept.into_iter().for_each(|sent| self.note(sent));
        let Some(page) = self.devices.get_mut(device) else { return };
        for key in page.in_flash.difference(&keys) {
            if let Some(sent) = page.records.get_mut(key) {
                sent.state = if is_given_up(*key) { State::GivenUp } else { State::Settled };
            }
        }
        page.in_flash = keys;
    }
}
