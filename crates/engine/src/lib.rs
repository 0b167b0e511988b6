//! The engine: facts in, decisions out. No clock, no file, no system call, no thread.
//!
//! Start reading at `monitor/mod.rs`.

#![forbid(unsafe_code)]

pub mod address;
pub mod attributes;
pub mod calibration;
mod cpu_ledger;
pub mod damon;
pub mod drive;
pub mod monitor;
mod moves;
mod named;
pub mod port;
mod refault_rate;
pub mod snapshot;
pub mod statistics;
pub mod units;

#[cfg(test)]
mod test_pictures;
#[cfg(test)]
mod test_regions;

pub use address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK};
pub use attributes::{Attributes, AttributesError, IntervalsGoal};
pub use cpu_ledger::{CpuAccount, CpuLedger};
pub use damon::{DamonTarget, KernelSettings, Operations};
pub use monitor::Intervals;
pub use monitor::block_pages::BlockPages;
pub use monitor::budget::BudgetShares;
pub use monitor::frames;
pub use monitor::page_cache;
// Other crates use the monitors under these names.
pub use monitor::page_table as table;
pub use monitor::region as engine;
pub use monitor::region::{Engine, Facts, Plan};
pub use moves::{NodeMove, NodeMoves};
pub use port::{AccessProbe, Cost, Gap, Sample, Touch};
pub use refault_rate::RefaultRate;
pub use snapshot::{GroupCharge, MemoryTotals, RegionMemory, RegionSnapshot, Snapshot, TargetId};
