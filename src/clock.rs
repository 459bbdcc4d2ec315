//! Time as the device knows it: always since boot, and of the world once somebody trustworthy has told it.

use embassy_futures::select::{Either, select};

use crate::Timestamp;

/// Counts milliseconds since boot.
pub trait Clock: Clone {
    /// Milliseconds since boot; never goes back.
    fn uptime_ms(&self) -> u64;
}

/// A clock that can be waited for: back-off and timeouts go by it.
#[allow(async_fn_in_trait, reason = "executors of one thread need no Send")]
pub trait Sleep: Clock {
    /// Waits until the uptime is at least this. May be cancelled.
    async fn sleep_until(&self, uptime_ms: u64);

    /// Waits for something, but no longer than so many milliseconds.
    async fn within<T>(&self, ms: u32, what: impl Future<Output = T>) -> Option<T> {
        let until = self.uptime_ms().saturating_add(ms.into());
        match select(what, self.sleep_until(until)).await {
            Either::First(done) => Some(done),
            Either::Second(()) => None,
        }
    }
}

impl<C: Clock> Clock for &C {
    fn uptime_ms(&self) -> u64 {
        (**self).uptime_ms()
    }
}

impl<C: Sleep> Sleep for &C {
    async fn sleep_until(&self, uptime_ms: u64) {
        (**self).sleep_until(uptime_ms).await;
    }
}

/// embassy-time's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbassyClock;

impl Clock for EmbassyClock {
    fn uptime_ms(&self) -> u64 {
        embassy_time::Instant::now().as_millis()
    }
}

impl Sleep for EmbassyClock {
    async fn sleep_until(&self, uptime_ms: u64) {
        embassy_time::Timer::at(embassy_time::Instant::from_millis(uptime_ms)).await;
    }
}

/// A wall clock that differs from the one known by more than this has jumped.
const JUMP_MS: u64 = 5 * 60 * 1000;

/// What the device knows about the time of the world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WallClock {
    /// Wall time minus uptime.
    offset_ms: Option<u64>,
    /// A first answer said so; until a second agrees, nothing expires by it.
    doubted: Option<u64>,
}

impl WallClock {
    pub(crate) const fn unknown() -> Self {
        Self { offset_ms: None, doubted: None }
    }

    /// Someone trustworthy said what time it is. A jump is believed for new records at once, since the old time
    /// is no better, but nothing expires until a second answer agrees.
    pub(crate) fn learn(&mut self, wall_ms: u64, uptime_ms: u64) {
        let Some(offset) = wall_ms.checked_sub(uptime_ms) else {
            return;
        };
        let near = |known: u64| known.abs_diff(offset) <= JUMP_MS;
        self.doubted = match (self.offset_ms, self.doubted) {
            (_, Some(doubted)) if near(doubted) => None,
            (Some(known), None) if near(known) => None,
            _ => Some(offset),
        };
        self.offset_ms = Some(offset);
    }

    pub(crate) fn now(&self, uptime_ms: u64) -> Option<u64> {
        self.offset_ms.map(|offset| offset.saturating_add(uptime_ms))
    }

    /// For how long a record has waited, where that is known beyond doubt.
    pub(crate) fn age_ms(&self, time: &Timestamp, boot: u32, uptime_ms: u64) -> Option<u64> {
        if time.boot == boot {
            return uptime_ms.checked_sub(time.uptime_ms);
        }
        if self.doubted.is_some() {
            return None;
        }
        self.now(uptime_ms)?.checked_sub(time.wall_ms?)
    }
}
