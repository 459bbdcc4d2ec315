//! The timers of a virtual time. A cancelled one must not even move the time, or a world that gives up a wait of
//! an hour would be an hour late.

use core::cmp::Reverse;
use core::task::Waker;
use std::collections::BinaryHeap;

/// Cancelled timers that may lie in the heap before it is tidied.
const TIDY_AT: usize = 64;

#[derive(Default)]
pub(super) struct Timers {
    /// When, which in the order of setting, and where its waker is.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    slots: Vec<Armed>,
    free: Vec<u32>,
    set_so_far: u64,
}

/// A slot is used again; the number tells whose it is now.
struct Armed {
    number: u64,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
pub(super) struct TimerId {
    slot: u32,
    number: u64,
}

impl Timers {
    /// Sets a timer, or moves one that is set to another waker.
    pub(super) fn set(&mut self, known: Option<TimerId>, at_ms: u64, waker: &Waker) -> TimerId {
        if let Some(id) = known {
            let armed = &mut self.slots[id.slot as usize];
            if armed.number == id.number
                && let Some(before) = &mut armed.waker
            {
                before.clone_from(waker);
                return id;
            }
        }
        self.tidy();
        let number = self.set_so_far;
        self.set_so_far += 1;
        let armed = Armed { number, waker: Some(waker.clone()) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = armed;
                slot
            }
            None => {
                self.slots.push(armed);
                self.slots.len() as u32 - 1
            }
        };
        self.heap.push(Reverse((at_ms, number, slot)));
        TimerId { slot, number }
    }

    /// Takes a timer back; one that has fired is left alone.
    pub(super) fn cancel(&mut self, id: TimerId) {
        self.disarm(id.slot, id.number);
    }

    /// When the next timer fires.
    pub(super) fn earliest(&mut self) -> Option<u64> {
        while let Some(&Reverse((at_ms, number, slot))) = self.heap.peek() {
            if is_armed(&self.slots, slot, number) {
                return Some(at_ms);
            }
            self.heap.pop();
        }
        None
    }

    /// Wakes everything that waits for this time or an earlier one.
    pub(super) fn fire(&mut self, now_ms: u64) {
        while let Some(&Reverse((at_ms, number, slot))) = self.heap.peek() {
            if at_ms > now_ms {
                return;
            }
            self.heap.pop();
            if let Some(waker) = self.disarm(slot, number) {
                waker.wake();
            }
        }
    }

    fn disarm(&mut self, slot: u32, number: u64) -> Option<Waker> {
        let armed = &mut self.slots[slot as usize];
        if armed.number != number {
            return None;
        }
        let waker = armed.waker.take()?;
        self.free.push(slot);
        Some(waker)
    }

    fn tidy(&mut self) {
        let armed = self.slots.len() - self.free.len();
        if self.heap.len() > TIDY_AT + 2 * armed {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, number, slot))| is_armed(slots, *slot, *number));
        }
    }
}

fn is_armed(slots: &[Armed], slot: u32, number: u64) -> bool {
    let armed = &slots[slot as usize];
    armed.number == number && armed.waker.is_some()
}
