//! Watermarks: in which state of the system a scheme works.
//!
//! The rule is `damos_wmark_wait_us` of the kernel's `mm/damon/core.c`. The kernel applies it with
//! every sample while some scheme works and once per `interval` while all rest; here it is applied
//! once per `interval` throughout, which is what the kernel's documentation says.

use serde::{Deserialize, Serialize};

use super::facts::SystemFacts;
use crate::address::Nanos;

/// What watermarks measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WatermarkMetric {
    /// Free memory of the system, in thousandths of all.
    FreeMemRate,
}

/// A scheme rests above `high` and below `low`; once it rests it wakes only below `mid`. Between
/// `mid` and `high` it goes on with what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watermarks {
    /// What is measured.
    pub metric: WatermarkMetric,
    /// How often.
    pub interval: Nanos,
    /// Above this it rests: nothing needs to be done.
    pub high_permil: u32,
    /// From rest, it works again only below this.
    pub mid_permil: u32,
    /// Below this it rests: what it does would only add to the pressure.
    pub low_permil: u32,
}

/// Whether a scheme works, as its watermarks have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatermarkState {
    pub(super) is_open: bool,
    /// When to look again; `None` at once.
    pub(super) next_check: Option<Nanos>,
}

impl WatermarkState {
    /// Schemes begin at work, as in the kernel.
    pub(super) const OPEN: Self = Self {
        is_open: true,
        next_check: None,
    };

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.next_check.is_none_or(|next| now >= next)
    }

    /// Looks at the system if it is time to. What is unknown changes nothing.
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
