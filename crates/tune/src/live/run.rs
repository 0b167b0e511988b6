//! Measurements of one live run.

use serde::{Deserialize, Serialize};

/// Measurements of a live run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LiveRun {
    /// [`Settings::key`](crate::Settings::key); `None` without schemes.
    pub settings: Option<String>,
    /// Seconds for a unit of the program's work: for all of it, unless the program reports its throughput.
    pub seconds_of_work: f64,
    /// Mean resident memory, bytes.
    pub resident_mean_bytes: f64,
    /// Seconds that were measured.
    pub seconds: f64,
    /// CPU time of acting; `None` without schemes.
    pub acting_cpu_seconds: Option<f64>,
    /// Number of times that the guard stopped the schemes.
    pub guard_stops: Option<u64>,
}
