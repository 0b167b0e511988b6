//! Common parts of reports: scope, series, samples, rows.

pub mod context;
pub(crate) mod exact;
pub(crate) mod frames_once;
pub(crate) mod latest;
pub mod mapping;
pub(crate) mod ranges;
pub mod read;
pub(crate) mod rows;
pub mod series;
pub(crate) mod working_set;
