//! What kind of world a seed makes.

use fastrand::Rng;

use crate::link::LinkFaults;

/// A world's character.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Devices at the beginning.
    pub devices: u8,
    /// For so long everything goes wrong.
    pub stormy_ms: u64,
    /// After that everything must have arrived within this time.
    pub calm_ms_max: u64,
    /// The longest time between two turns of the weather.
    pub weather_ms_max: u64,
    /// The longest time between two records of a device.
    pub post_ms_max: u64,
    /// The longest time between two power cuts.
    pub boot_ms_max: u64,
    /// Mutating flash operations before a cut in the middle of one, at most.
    pub cut_ops_max: u64,
    /// What the network does.
    pub faults: LinkFaults,
    /// Futures are interleaved between any two flash operations.
    pub yields: bool,
    /// The server refuses some records.
    pub has_moods: bool,
    /// The server is restored from old backups.
    pub has_restores: bool,
    /// Flash images are put back.
    pub has_rollbacks: bool,
    /// Flash images are copied to other devices that run beside the first.
    pub has_clones: bool,
}

impl Plan {
    /// The world of a seed.
    pub fn of(seed: u64) -> Self {
        Self::draw(&mut Rng::with_seed(seed))
    }

    pub(super) fn draw(rng: &mut Rng) -> Self {
        let minute = 60_000;
        let drama = rng.u8(..10);
        Self {
            devices: rng.u8(1..=3),
            stormy_ms: rng.u64(3..30) * minute,
            calm_ms_max: 72 * 60 * minute,
            weather_ms_max: rng.u64(1..5) * minute,
            post_ms_max: 1 << rng.u32(13..18),
            boot_ms_max: rng.u64(1..12) * minute,
            cut_ops_max: 1 << rng.u32(3..9),
            faults: LinkFaults::each(*rng.choice(&[0.0, 0.005, 0.02, 0.05]).unwrap_or(&0.0)),
            yields: rng.u8(..3) == 0,
            has_moods: rng.u8(..4) == 0,
            has_restores: drama == 0,
            has_rollbacks: drama == 1,
            has_clones: drama == 2,
        }
    }

    /// Whether some flash or the database may go back in time, or exist twice.
    pub fn is_disputed(&self) -> bool {
        self.has_restores || self.has_rollbacks || self.has_clones
    }
}
