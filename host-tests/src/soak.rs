//! Lives by name: every geometry, every fault class, any seed, so that a failure can be replayed in one line.

use core::fmt;
use core::ops::AddAssign;

use pillarbox::buffer_size;

use crate::flash::FaultClass;
use crate::life;

/// What happened in many lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lives.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Cuts while the outbox was being opened after another.
    pub cuts_in_recovery: u64,
    /// Records whose `enqueue` returned `Ok`.
    pub acknowledged: u64,
    /// Records that the receiver has.
    pub delivered: u64,
    /// Acknowledged records given up for a good reason.
    pub accounted: u64,
    /// Records that were sent again although the receiver had them.
    pub redelivered: u64,
    /// Futures dropped before they were ready.
    pub dropped_futures: u64,
    /// Failures of the flash driver without loss of power.
    pub driver_errors: u64,
    /// Acknowledged records that are neither there nor accounted for.
    pub lost: u64,
    /// Counters that were issued and are neither received nor explained.
    pub unaccounted: u64,
    /// Keys used for two contents.
    pub reused_keys: u64,
    /// Records out of order.
    pub inversions: u64,
    /// Outboxes that would not work any more.
    pub wedges: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, life: Self) {
        self.lives += life.lives;
        self.cuts += life.cuts;
        self.cuts_in_recovery += life.cuts_in_recovery;
        self.acknowledged += life.acknowledged;
        self.delivered += life.delivered;
        self.accounted += life.accounted;
        self.redelivered += life.redelivered;
        self.dropped_futures += life.dropped_futures;
        self.driver_errors += life.driver_errors;
        self.lost += life.lost;
        self.unaccounted += life.unaccounted;
        self.reused_keys += life.reused_keys;
        self.inversions += life.inversions;
        self.wedges += life.wedges;
    }
}

/// A broken promise, and how to see it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub what: String,
    /// The life in which it did: class, geometry and seed.
    pub replay: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nreplay: cargo xtask soak --replay {}", self.what, self.replay)
    }
}

impl std::error::Error for Failure {}

macro_rules! geometries {
    ($($name:literal = $read:literal $write:literal $erase:literal, payload $payload:literal;)+) => {
        /// The names of the simulated chips: read size, write size, page size.
        pub fn geometries() -> &'static [&'static str] {
            &[$($name),+]
        }

        fn dispatch(geometry: &str, class: FaultClass, seed: u64) -> Result<Tally, String> {
            match geometry {
                $($name => life::run::<
                    $read, $write, $erase, $payload,
                    { life::record_max($payload) },
                    { buffer_size(life::LANES, life::record_max($payload)) },
                >(class, seed),)+
                _ => Err(format!("no geometry is called {geometry:?}; there are: {}", geometries().join(" "))),
            }
        }
    };
}

// Larger pages get larger records, so that a short life goes round its rings all the same.
geometries! {
    "1-1-256" = 1 1 256, payload 20;
    "4-1-256" = 4 1 256, payload 20;
    "4-4-256" = 4 4 256, payload 20;
    "8-8-256" = 8 8 256, payload 20;
    "16-16-256" = 16 16 256, payload 20;
    "32-32-256" = 32 32 256, payload 20;
    "1-1-2048" = 1 1 2048, payload 300;
    "4-1-2048" = 4 1 2048, payload 300;
    "4-4-2048" = 4 4 2048, payload 300;
    "8-8-2048" = 8 8 2048, payload 300;
    "16-16-2048" = 16 16 2048, payload 300;
    "32-32-2048" = 32 32 2048, payload 300;
    "1-1-4096" = 1 1 4096, payload 600;
    "4-1-4096" = 4 1 4096, payload 600;
    "4-4-4096" = 4 4 4096, payload 600;
    "8-8-4096" = 8 8 4096, payload 600;
    "16-16-4096" = 16 16 4096, payload 600;
    "32-32-4096" = 32 32 4096, payload 600;
}

/// Runs one life from this seed to its end.
pub fn run_life(geometry: &str, class: FaultClass, seed: u64) -> Result<Tally, Failure> {
    dispatch(geometry, class, seed)
        .map_err(|what| Failure { what, replay: format!("{class}:{geometry}:{seed}") })
}
