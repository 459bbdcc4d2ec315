//! What the devices of the lives post, and the time that they live in.

use core::cell::Cell;

use pillarbox::{Clock, EncodedSize, Kind, Record};
use serde::{Deserialize, Serialize};

use crate::model::Serial;

/// The largest encoding of a reading with so much payload.
pub const fn record_max(payload: usize) -> usize {
    10 + 2 + payload
}

/// A reading whose payload follows from its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading<const N: usize> {
    /// Its number.
    pub serial: Serial,
    /// Bytes that nobody else would have written.
    pub payload: heapless::Vec<u8, N>,
}

impl<const N: usize> Reading<N> {
    /// The reading with this number.
    pub fn new(serial: Serial) -> Self {
        let mut rng = fastrand::Rng::with_seed(serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xB0C5);
        let mut payload = heapless::Vec::new();
        payload.resize_default(rng.usize(..=N)).expect("it is no longer than N");
        rng.fill(&mut payload);
        Self { serial, payload }
    }
}

impl<const N: usize> EncodedSize for Reading<N> {
    const MAX: usize = record_max(N);
}

impl<const N: usize> Record for Reading<N> {
    const KIND: Kind = Kind::new(7);
}

/// A clock that the test moves.
#[derive(Debug, Clone, Copy)]
pub struct VirtualClock<'c>(pub &'c Cell<u64>);

impl Clock for VirtualClock<'_> {
    fn uptime_ms(&self) -> u64 {
        self.0.get()
    }
}
