//! The engine: facts in, decisions out. No clock, no file, no system call, no thread.
//!
//! Start reading at `engine.rs`.

#![forbid(unsafe_code)]

pub mod address;
pub mod attributes;
pub mod budget;
mod by_page;
pub mod compaction;
pub mod drive;
pub mod engine;
pub mod guard;
pub mod intervals;
pub mod layout;
pub mod port;
pub mod scheme;
pub mod snapshot;
pub mod statistics;
pub mod table;
pub mod units;

mod region;
mod sampler;

#[cfg(test)]
mod picture;

pub use address::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK};
pub use attributes::{Attributes, AttributesError, CpuBudget, IntervalsGoal, Strategy};
pub use budget::BudgetController;
pub use by_page::BlockPages;
pub use compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, NodeFacts, ZoneFacts,
};
pub use engine::{Engine, Facts, Plan};
pub use intervals::Intervals;
pub use layout::Layout;
pub use port::{AccessProbe, Actuator, Cost, Gap, Operation, Outcome, Refusal, Sample, Touch};
pub use scheme::{Scheme, SchemeEngine};
pub use snapshot::{MemoryTotals, RegionMemory, RegionSnapshot, Snapshot, TargetId};
