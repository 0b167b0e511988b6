//! Executes the plans of schemes: in batches, within the guard's limits, through a world's platform.

mod batches;
mod bound_by;
mod context;
mod dry_run;
mod huge;
mod trial;

pub use batches::{Executed, Throughput, execute};
pub use bound_by::BoundBy;
pub use context::{Context, Platform};
pub use dry_run::DryRun;
