//! Batches as devices send them: in order, with bodies of 128 bytes.

use std::sync::Arc;

use bytes::Bytes;
use pillarbox::wire::{Head, Secret};
use pillarbox::{DeviceId, Entry, Key, Timestamp};
use pillarbox_receiver::intake::{Arrival, Post, SecretUsed};
use pillarbox_receiver::store::{Change, Store};

pub(crate) const BODY: usize = 128;
pub(crate) const NOW: u64 = 1_800_000_000_000;
pub(crate) const INCARNATION: u32 = 0x9f3c_1a77;

pub(crate) fn secret() -> Secret {
    Secret::new([7; 32])
}

pub(crate) fn name(n: usize) -> DeviceId {
    DeviceId::new(&format!("meter-{n:06}")).expect("it is a name")
}

/// A device, and how far it has come.
pub(crate) struct Sender {
    pub(crate) id: i64,
    pub(crate) device: DeviceId,
    next: u64,
}

impl Sender {
    /// Lets a device in.
    pub(crate) async fn register(store: &dyn Store, n: usize) -> Self {
        let device = name(n);
        let change =
            Change::Add { device: device.clone(), tenant: "bench".into(), secret: *secret().expose() };
        store.change(change, NOW).await.expect("it is new");
        let id = store.door(&device).await.expect("it is there").expect("it was added").id;
        Self { id, device, next: 0 }
    }

    /// A sender that no store knows.
    pub(crate) fn stranger(n: usize) -> Self {
        Self { id: n as i64, device: name(n), next: 0 }
    }

    /// Its next records.
    pub(crate) fn post(&mut self, count: usize) -> Arc<Post> {
        let floor = self.next;
        self.next += count as u64;
        Arc::new(self.batch(floor, Vec::new(), floor..self.next))
    }

    /// A batch with this floor, these entries of its account, and records with these counters.
    pub(crate) fn batch(
        &mut self,
        floor: u64,
        entries: Vec<Entry>,
        counters: impl IntoIterator<Item = u64>,
    ) -> Post {
        let body = Bytes::from(vec![0x5a; BODY]);
        let record = |counter| Arrival {
            key: Key { incarnation: INCARNATION, lane: 0, counter },
            kind: 1,
            time: Timestamp { boot: 1, uptime_ms: 1000 * counter, wall_ms: Some(NOW) },
            body: body.clone(),
            is_unreadable: false,
        };
        let records: Vec<Arrival> = counters.into_iter().map(record).collect();
        self.next = records.last().map_or(self.next, |record| self.next.max(record.key.counter + 1));
        let head = Head {
            device: self.device.clone(),
            incarnation: INCARNATION,
            lane: 0,
            is_closing: false,
            // Nothing is held up by what is missing before it.
            is_in_order: false,
            floor,
            issued: self.next,
            boot: 1,
            boot_nonce: 1,
            attempt_nonce: floor,
            uptime_ms: 1000 * self.next,
            wall_ms: Some(NOW),
        };
        let (report, late, with) = (Vec::new(), Vec::new(), SecretUsed::Current);
        Post { head, entries, report, records, late, now_ms: NOW, with }
    }
}
