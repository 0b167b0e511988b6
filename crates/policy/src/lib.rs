//! Policy: snapshots in, operations out, within limits. No clock, no file, no system call, no thread.
//!
//! `scheme` chooses memory by access pattern, `guard` limits losses, `apply` executes plans in batches through a
//! platform, `compaction` controls compaction ahead of demand. Start reading at `apply/context.rs`.

#![forbid(unsafe_code)]

pub mod apply;
pub mod compaction;
pub mod guard;
pub mod port;
pub mod scheme;

#[cfg(test)]
use isotherm_engine::address;
#[cfg(test)]
#[path = "../../engine/src/test_pictures.rs"]
mod test_pictures;

pub use apply::{BoundBy, Context, DryRun, Executed, Platform, Throughput, execute};
pub use compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, NodeFacts, ZoneFacts,
};
pub use port::{Actuator, Operation, Outcome, Refusal, ThpPolicy, Unreclaimable};
pub use scheme::{Scheme, SchemeEngine};
