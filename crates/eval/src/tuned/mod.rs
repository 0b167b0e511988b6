//! Configurations that are tuned: for each workload, the setting that `isotherm tune` finds from one recording of it.
//!
//! Predictions are kept beside measurements, so that a report can compare them. This module is pure: the runner records
//! and searches.

mod compared;
mod entry;
mod options;

pub(crate) use compared::gather;
pub use compared::{ComparedSetting, Errors, Number, Predicted, errors};
pub use entry::{TunedEntry, TunedSetting};
pub use options::TuneOptions;
pub(crate) use options::fault;
