//! Loops around the engine that every world shares: they fix the order of reading, deciding and acting.
//!
//! The engine takes facts and returns plans. The loops call a world's probe and actuator by the traits of
//! [`crate::port`]: the same code monitors a real process and a simulated one. They read no clock and no file and make
//! no system call: the caller passes the time, and all else is the world's.

mod monitor;
mod numbering;
mod regions;
mod tables;

pub use monitor::MonitorLoop;
pub use numbering::Numbering;
pub use regions::RegionLoop;
pub use tables::{TableLoop, TableProbe, TargetSource};
