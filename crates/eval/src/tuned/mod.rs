//! Configurations that are tuned: for each workload the setting that `isotherm tune` finds from one recording of it.
//!
//! What was foretold is kept beside what is measured, so that a report can hold the one against the other. Pure: the
//! runner records and searches.

mod compared;
mod entry;
mod options;

pub(crate) use compared::gather;
pub use compared::{Compared, Errors, Foretold, Number, errors};
pub use entry::{Setting, TunedEntry};
pub use options::TuneOptions;
pub(crate) use options::fault;
