//! The simulator, the model and the harness that the proofs in `tests/` share.

pub mod abstract_device;
pub mod bench;
pub mod device;
pub mod flash;
pub mod life;
pub mod link;
pub mod middle;
pub mod model;
pub mod raw;
pub mod real_net;
pub mod server;
pub mod soak;
pub mod station;
pub mod virtual_time;
pub mod wire_costs;
pub mod world;
