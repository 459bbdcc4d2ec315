//! When a flush is worth the energy, and whether records may overtake each other.

use core::time::Duration;

/// Whether a record that has to wait holds up those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Order {
    /// First in, first out: it does.
    #[default]
    Strict,
    /// The order does not matter: the others go on.
    Any,
}

/// When a lane's records are worth a flush. What a flush finds pending in other lanes goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Policy {
    pub(crate) min_bytes: u32,
    pub(crate) max_wait_ms: u64,
    pub(crate) order: Order,
}

impl Policy {
    /// At once.
    pub const fn urgent() -> Self {
        Self { min_bytes: 0, max_wait_ms: 0, order: Order::Strict }
    }

    /// When so many bytes of flash are pending, or the oldest record has waited so long.
    pub const fn gather(min_bytes: u32, max_wait: Duration) -> Self {
        Self { min_bytes, max_wait_ms: max_wait.as_millis() as u64, order: Order::Strict }
    }

    /// Records may overtake one that has to wait.
    pub const fn any_order(self) -> Self {
        Self { order: Order::Any, ..self }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::urgent()
    }
}
