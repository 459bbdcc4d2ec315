//! The simulator, the model and the harness that the proofs in `tests/` share.

pub mod bench;
pub mod device;
pub mod flash;
pub mod life;
pub mod model;
pub mod raw;
pub mod server;
pub mod soak;
