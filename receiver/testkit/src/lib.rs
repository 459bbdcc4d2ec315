//! What the receiver's tests stand on: the real things that it meets, each small enough to start in a test, to break on
//! purpose, and to leave nothing behind.

// What the machine has.
pub mod tools;

// What runs beside the test, and ends with it.
mod postgres;
mod program;
mod small_disk;
mod watchdog;

// The devices, and what goes wrong between them and the receiver.
mod faulty_proxy;
mod fleet;

pub use faulty_proxy::{Fault, FaultyProxy};
pub use fleet::{Drained, Fleet, Habits, Member, Sent, State};
pub use postgres::{Postgres, Storage};
pub use program::{Program, Running};
pub use small_disk::SmallDisk;
