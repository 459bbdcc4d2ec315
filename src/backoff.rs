//! How long to wait after what: after a failure, after an answer that asks for it, after the link came up.

use core::time::Duration;

use crate::random::Random;

/// The pace of a device that cannot deliver, and of a fleet that comes back all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Pace {
    min_ms: u32,
    max_ms: u32,
    long_ms: u32,
    spread_ms: u32,
    retry_after_max_s: u32,
}

impl Pace {
    /// Failures are followed by a wait of 1 second to at most 10 minutes, refusals by up to an hour; the first attempt after
    /// boot or link up comes within 5 seconds; a receiver can ask for at most an hour.
    pub const fn new() -> Self {
        Self {
            min_ms: 1_000,
            max_ms: 600_000,
            long_ms: 3_600_000,
            spread_ms: 5_000,
            retry_after_max_s: 3_600,
        }
    }

    /// After each failure in a row the wait is drawn from a range that begins at `min` and doubles up to `max`.
    ///
    /// # Panics
    /// At compile time or boot, if `min` is zero or more than `max`, or `max` is more than 49 days.
    pub const fn backoff(self, min: Duration, max: Duration) -> Self {
        let (min_ms, max_ms) = (millis(min), millis(max));
        assert!(
            min_ms > 0 && min_ms <= max_ms,
            "a back-off begins above zero and ends no earlier than it begins"
        );
        Self { min_ms, max_ms, ..self }
    }

    /// How long to wait at most when the receiver refuses to talk: a wrong secret, a moved address. At least half of it.
    pub const fn long(self, long: Duration) -> Self {
        Self { long_ms: millis(long), ..self }
    }

    /// The first attempt after boot, link up or wake comes at a random moment of this time, so that a fleet that comes
    /// back at once does not arrive at once.
    pub const fn spread(self, spread: Duration) -> Self {
        Self { spread_ms: millis(spread), ..self }
    }

    /// No receiver can silence a device for longer.
    pub const fn retry_after_max(self, most: Duration) -> Self {
        Self { retry_after_max_s: millis(most) / 1_000, ..self }
    }

    /// After so many failures in a row: exponential, with full jitter above the minimum.
    pub(crate) fn after_failures(&self, failures: u8, random: &mut Random) -> u64 {
        let doublings = failures.saturating_sub(1).min(31);
        let widest = (u64::from(self.min_ms) << doublings).min(u64::from(self.max_ms)) as u32;
        u64::from(self.min_ms) + u64::from(random.up_to(widest - self.min_ms))
    }

    /// When the receiver refuses to talk.
    pub(crate) fn after_refusal(&self, random: &mut Random) -> u64 {
        let half = self.long_ms / 2;
        u64::from(half) + u64::from(random.up_to(self.long_ms - half))
    }

    /// Before the first attempt after boot or link up.
    pub(crate) fn first(&self, random: &mut Random) -> u64 {
        u64::from(random.up_to(self.spread_ms))
    }

    /// When the receiver asks for so many seconds: no less, unless it asks for too much, and some jitter, because it
    /// asks many.
    pub(crate) fn asked(&self, seconds: u32, random: &mut Random) -> u64 {
        let asked = u64::from(seconds.min(self.retry_after_max_s)) * 1_000;
        asked + u64::from(random.up_to(self.min_ms.max(self.spread_ms)))
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

const fn millis(duration: Duration) -> u32 {
    let millis = duration.as_millis();
    assert!(millis <= u32::MAX as u128, "longer than 49 days");
    millis as u32
}
