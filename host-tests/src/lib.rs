//! The simulator, the model and the harness that the proofs in `tests/` share.
