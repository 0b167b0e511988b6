//! The loops around the engine, which every world shares: what is looked at and done in which order.
//!
//! The engine is handed facts and hands out plans; here a world's probe and actuator are called, by
//! the traits of [`crate::port`], so that a real process and a simulated one are watched and acted
//! on by the same code. Still no clock, no file and no system call: time is told, and all else is the
//! world's.

mod context;
mod dry_run;
mod huge;
mod monitor;
mod numbering;
mod portions;
mod regions;
mod tables;

pub use context::{Context, World};
pub use dry_run::DryRun;
pub use monitor::MonitorLoop;
pub use numbering::Numbering;
pub use portions::{Carried, Pace, carry_out};
pub use regions::RegionLoop;
pub use tables::{TableLoop, TableProbe, TargetSource};
