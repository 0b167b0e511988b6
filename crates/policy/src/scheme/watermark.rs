//! Watermarks: states of the system in which a scheme is active.
//!
//! The rule is `damos_wmark_wait_us` of the kernel's `mm/damon/core.c`. The kernel applies it with every sample while
//! some scheme is active and once per `interval` while none is. Here it is applied once per `interval` throughout, as
//! the kernel's documentation says.

use serde::{Deserialize, Serialize};

use super::facts::SystemFacts;
use isotherm_engine::address::Nanos;

/// Metric of watermarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WatermarkMetric {
    /// Free memory of the system, in thousandths of all.
    FreeMemRate,
}

/// Bounds of a metric. A scheme is inactive above `high` and below `low`; an inactive scheme becomes active only below
/// `mid`. Between `mid` and `high` its state does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watermarks {
    /// Measured metric.
    pub metric: WatermarkMetric,
    /// Time between two checks.
    pub interval: Nanos,
    /// Value above which it is inactive: no action is needed.
    pub high_permil: u32,
    /// Value below which an inactive scheme becomes active again.
    pub mid_permil: u32,
    /// Value below which it is inactive: its work would only add to the pressure.
    pub low_permil: u32,
}

/// State of a scheme's watermarks: active or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatermarkState {
    pub(super) is_open: bool,
    /// Time of the next check; `None`: at once.
    pub(super) next_check: Option<Nanos>,
}

impl WatermarkState {
    /// Initial state: schemes begin active, as in the kernel.
    pub(super) const OPEN: Self = Self {
        is_open: true,
        next_check: None,
    };

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.next_check.is_none_or(|next| now >= next)
    }

    /// Checks the metric if that is due. An unknown value changes nothing.
    pub(super) fn update(&mut self, marks: &Watermarks, now: Nanos, facts: &SystemFacts) {
        if !self.is_due(now) {
            return;
        }
        self.next_check = Some(now + marks.interval);
        let WatermarkMetric::FreeMemRate = marks.metric;
        let Some(metric) = facts.free_mem_permil else {
            return;
        };
        if metric > marks.high_permil || metric < marks.low_permil {
            self.is_open = false;
        } else if metric < marks.mid_permil {
            self.is_open = true;
        }
    }
}
