//! What batches claim about the counters below their floor. The receiver believes no floor without proof and asks, so a claim
//! that is too high does no harm in the end: only who remembers it sees that it was not true.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pillarbox::DeviceId;
use pillarbox::wire::{Batch, Head};

use super::Witness;
use crate::server::{Reply, Server};
use crate::station::Shared;

/// Boot and uptime of a batch: the order in which a device has put its batches together, whatever the network makes of it.
type Made = (u32, u64);

/// The server, and the highest floor that each device, incarnation and lane has claimed so far.
pub(super) struct Watched<S> {
    server: Shared<S>,
    /// Ever higher floors, by when they were claimed.
    floors: BTreeMap<(DeviceId, u32, u8), BTreeMap<Made, u64>>,
    broken: Rc<RefCell<Option<String>>>,
}

impl<S: Witness> Watched<S> {
    /// Says in `broken` what is not true.
    pub(super) fn new(server: Shared<S>, broken: Rc<RefCell<Option<String>>>) -> Self {
        Self { server, floors: BTreeMap::new(), broken }
    }

    /// A record that comes for the first time must not be below a floor that was claimed before.
    fn look(&mut self, batch: &Batch<'_>) {
        let Head { device, incarnation, lane, floor, boot, uptime_ms, .. } = &batch.head;
        let made = (*boot, *uptime_ms);
        let floors = self.floors.entry((device.clone(), *incarnation, *lane)).or_default();
        let claimed = floors.range(..made).next_back().map_or(0, |(_, floor)| *floor);
        if *floor > claimed {
            floors.insert(made, *floor);
            // One of an envelope that was late: those after it that claim no more are no longer needed.
            floors.retain(|later, known| *later <= made || *known > *floor);
        }
        if *floor >= claimed {
            return;
        }
        // What the server has may come again: its removal was cut.
        let log = self.server.borrow().log();
        let is_known = |key| log.iter().any(|known| known.device == *device && known.key == key);
        let mut keys = batch.records().map(|record| record.key).filter(|key| key.counter < claimed);
        if let Some(key) = keys.find(|key| !is_known(*key)) {
            self.broken.borrow_mut().get_or_insert_with(|| {
                format!("{device} {key:?} comes, and a batch before has claimed the floor {claimed}")
            });
        }
    }
}

impl<S: Witness> Server for Watched<S> {
    fn handle(&mut self, now_ms: u64, body: &[u8]) -> Reply {
        if let Ok(batch) = Batch::decode(body) {
            self.look(&batch);
        }
        self.server.borrow_mut().handle(now_ms, body)
    }
}
