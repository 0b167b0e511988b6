//! Memory of several processes, with each page counted once.
//!
//! Problem: processes of a group share much of their memory, so the sum over processes is more than they use.
//!
//! Approach: samples of the record count each frame once, regardless of the number of processes that map it
//! ([`MachineSample::mapped`](isotherm_record::MachineSample)). The sum over targets takes its bytes from the last
//! sample, and its working set from the mean of all.

use std::collections::BTreeMap;

use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes};
use isotherm_engine::{Nanos, TargetId};
use isotherm_record::item::Header;
use isotherm_record::machine::{ChargedMemory, MachineSample};

use super::context::Scope;

/// Samples up to a moment: the last one, and the mean of the accessed bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct FramesOnce {
    /// Whether samples cover the targets of the report.
    is_of_targets: bool,
    /// All mapped memory at the last sample.
    all: AgeBytes,
    /// Memory that only one target maps.
    alone: BTreeMap<TargetId, AgeBytes>,
    charged: Option<ChargedMemory>,
    /// Accessed bytes times nanoseconds: each sample stands for the time since the one before it.
    touched_sum: u128,
    since: Nanos,
    last: Option<Nanos>,
}

impl FramesOnce {
    /// Creates the state for a record that begins with `header`. Samples cover all targets, and not physical memory as
    /// a target.
    pub(super) fn new(header: &Header, scope: Scope) -> Self {
        Self {
            since: header.started,
            is_of_targets: scope.target.is_none() && header.operations == "vaddr",
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, sample: &MachineSample) {
        if !self.is_of_targets {
            return;
        }
        self.all = sample.mapped_once();
        self.alone.clear();
        for memory in &sample.mapped {
            if let Some(target) = memory.target {
                self.alone.entry(target).or_default().add(&memory.bytes);
            }
        }
        self.charged.clone_from(&sample.charged);
        let before = self.last.replace(sample.time).unwrap_or(self.since);
        self.touched_sum += u128::from(self.all.touched) * u128::from(sample.time.since(before).0);
    }

    /// Returns all mapped memory at the last sample; `None` without one.
    pub(super) fn all(&self) -> Option<&AgeBytes> {
        self.last.map(|_| &self.all)
    }

    /// Returns the mean of the accessed bytes over time; 0 without a sample.
    pub(super) fn working_set(&self) -> u64 {
        let watched = self.last.unwrap_or(self.since).since(self.since);
        let mean = self.touched_sum.checked_div(u128::from(watched.0));
        mean.and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0)
    }

    /// Returns the bytes that only this target maps and that have been idle for `at_least`.
    pub(super) fn idle_alone(&self, target: TargetId, at_least: Nanos) -> u64 {
        let bytes = self.alone.get(&target);
        bytes
            .and_then(|bytes| idle_for(bytes, at_least))
            .unwrap_or(0)
    }

    /// Returns the charge of the control group at the last sample.
    pub(super) fn charged(&self) -> Option<&ChargedMemory> {
        self.charged.as_ref()
    }
}

/// Returns the bytes idle for `at_least`; `None` for a time that is not an age bound.
pub(super) fn idle_for(bytes: &AgeBytes, at_least: Nanos) -> Option<u64> {
    let bound = AGE_BOUNDS.iter().position(|bound| *bound == at_least)?;
    Some(bytes.idle_from(bound))
}
