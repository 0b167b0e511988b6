//! Watermarks: in which state of the system a scheme works.

use serde::{Deserialize, Serialize};

use crate::address::Nanos;

/// What watermarks measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatermarkMetric {
    /// Free memory of the system, in thousandths of all.
    FreeMemRate,
}

/// A scheme rests above `high` and below `low`; once it rests it wakes only below `mid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermarks {
    /// What is measured.
    pub metric: WatermarkMetric,
    /// How often.
    pub interval: Nanos,
    /// Above this it rests: nothing needs to be done.
    pub high_permil: u32,
    /// From rest, it works again only at or below this.
    pub mid_permil: u32,
    /// Below this it rests: what it does would only add to the pressure.
    pub low_permil: u32,
}
