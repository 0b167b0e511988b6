//! Memory of several processes, with each page counted once.
//!
//! Problem: processes of a group share much of their memory, so the sum over processes is more than they use.
//!
//! Approach: samples of the record count each frame once, regardless of the number of processes that map it
//! ([`MachineSample::mapped`](isotherm_record::MachineSample)). The sum over targets takes its bytes from the last
//! sample of each context, and its working set from the mean of all.
//!
//! Limit: memory that targets of two contexts share counts for each context.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes};
use isotherm_engine::{Nanos, TargetId};
use isotherm_record::item::Header;
use isotherm_record::machine::{ChargedMemory, MachineSample};

use crate::context::{Scope, TargetInfo};

/// Limit of the contexts that are counted; it bounds memory.
const CONTEXTS_MAX: usize = 256;

/// Samples up to a moment, by context.
#[derive(Clone, Debug, Default)]
pub(crate) struct FramesOnce {
    /// Whether samples cover the targets of the report.
    is_of_targets: bool,
    since: Nanos,
    contexts: BTreeMap<Option<String>, Samples>,
}

/// Samples of a context: the last one, and the mean of the accessed bytes.
#[derive(Clone, Debug, Default)]
struct Samples {
    all: AgeBytes,
    /// Memory that only one target maps.
    alone: BTreeMap<TargetId, AgeBytes>,
    charged: Option<ChargedMemory>,
    /// Accessed bytes times nanoseconds: each sample stands for the time since the one before it.
    touched_sum: u128,
    last: Nanos,
}

impl FramesOnce {
    /// Creates the state for a record that begins with `header`. Samples cover all targets, and not physical memory as
    /// a target.
    pub(crate) fn new(header: &Header, scope: Scope) -> Self {
        Self {
            since: header.started,
            is_of_targets: scope.target.is_none() && header.operations == "vaddr",
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, sample: &MachineSample) {
        if !self.is_of_targets {
            return;
        }
        if self.contexts.len() == CONTEXTS_MAX && !self.contexts.contains_key(&sample.context) {
            return;
        }
        let samples = self.contexts.entry(sample.context.clone());
        let samples = samples.or_insert_with(|| Samples {
            last: self.since,
            ..Samples::default()
        });
        samples.all = sample.mapped_once();
        samples.alone.clear();
        for memory in &sample.mapped {
            if let Some(target) = memory.target {
                let alone = samples.alone.entry(target).or_default();
                alone.add(&memory.bytes);
            }
        }
        samples.charged.clone_from(&sample.charged);
        let elapsed = sample.time.since(samples.last).0;
        samples.last = sample.time;
        samples.touched_sum += u128::from(samples.all.touched) * u128::from(elapsed);
    }

    /// Returns all memory that these targets' contexts map, and the mean of the accessed bytes over time; `None` if a
    /// context has no sample.
    pub(crate) fn of<'a>(
        &self,
        targets: impl IntoIterator<Item = &'a TargetInfo>,
    ) -> Option<(AgeBytes, u64)> {
        let contexts: BTreeSet<_> = targets.into_iter().map(|of| &of.context).collect();
        // Older records do not name the context of their only samples.
        let is_unnamed = self.contexts.len() == 1 && self.contexts.contains_key(&None);
        let samples: Vec<&Samples> = if contexts.is_empty() || is_unnamed {
            self.contexts.values().collect()
        } else {
            let samples = contexts.into_iter().map(|of| self.contexts.get(of));
            samples.collect::<Option<_>>()?
        };
        let mean = |samples: &&Samples| {
            let watched = samples.last.since(self.since);
            let mean = samples.touched_sum.checked_div(u128::from(watched.0));
            mean.and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0)
        };
        let working_set = samples.iter().map(mean).fold(0, u64::saturating_add);
        let all = samples.iter().map(|of| &of.all).sum();
        (!samples.is_empty()).then_some((all, working_set))
    }

    /// Returns the bytes that only this target maps and that have been idle for `at_least`.
    pub(crate) fn idle_alone(&self, target: TargetId, at_least: Nanos) -> u64 {
        let mut samples = self.contexts.values();
        let alone = samples.find_map(|samples| samples.alone.get(&target));
        let bytes = alone.and_then(|bytes| idle_for(bytes, at_least));
        bytes.unwrap_or(0)
    }

    /// Returns the charge of the control group at the last sample; `None` where several contexts have one each.
    pub(crate) fn charged(&self) -> Option<&ChargedMemory> {
        let mut charged = self.contexts.values().filter_map(|of| of.charged.as_ref());
        charged.next().filter(|_| charged.next().is_none())
    }
}

/// Returns the bytes idle for `at_least`; `None` for a time that is not an age bound.
pub(crate) fn idle_for(bytes: &AgeBytes, at_least: Nanos) -> Option<u64> {
    let bound = AGE_BOUNDS.iter().position(|bound| *bound == at_least)?;
    Some(bytes.idle_from(bound))
}
