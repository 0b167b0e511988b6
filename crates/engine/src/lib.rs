//! The engine: facts in, decisions out. No clock, no file, no system call, no thread.
//!
//! Start reading at `engine.rs`.

#![forbid(unsafe_code)]

pub mod address;
pub mod port;
pub mod snapshot;
pub mod table;

pub use address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK};
pub use port::{AccessProbe, Cost, Gap, Sample, SnapshotSource, Touch};
pub use snapshot::{RegionSnapshot, Snapshot, TargetId};
