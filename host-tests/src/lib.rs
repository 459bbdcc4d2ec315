//! The simulator, the model and the harness that the proofs in `tests/` share.

pub mod flash;
pub mod raw;
