//! Statistics of a scheme, in DAMOS's counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::port::{Operation, Outcome, Refusal};
use isotherm_engine::NodeMoves;
use isotherm_engine::address::Nanos;

/// Counters of one scheme; they only grow. `nr` counts regions, `sz` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stats {
    /// Regions that the action was tried on, including those of which no whole page fitted into the quota (as in the
    /// kernel).
    pub nr_tried: u64,
    /// Bytes of memory in these regions, as far as they fitted.
    pub sz_tried: u64,
    /// Regions of which at least a part was acted on.
    pub nr_applied: u64,
    /// Bytes that were acted on.
    pub sz_applied: u64,
    /// Bytes that passed the filters which only the world can apply.
    pub sz_ops_filter_passed: u64,
    /// Quota windows that ended with the quota used up.
    pub qt_exceeds: u64,
    /// Snapshots, one for each target, that were walked to their end.
    pub nr_snapshots: u64,
    /// Bytes that were not acted on, by reason. Not in the kernel.
    pub refused: BTreeMap<Refusal, u64>,
    /// Total time of the operations. Not in the kernel.
    pub took: Nanos,
    /// Bytes moved from node to node. Not in the kernel.
    #[serde(default)]
    pub moved: NodeMoves,
}

impl Stats {
    pub(super) fn count(&mut self, operation: &Operation, outcome: &Outcome) {
        let refused = outcome.refused_of_tried(operation);
        self.nr_tried += 1;
        self.sz_tried += outcome.tried(operation, &refused);
        self.nr_applied += u64::from(outcome.applied > 0);
        self.sz_applied += outcome.applied;
        self.sz_ops_filter_passed += outcome.filter_passed;
        self.took = self.took + outcome.took;
        self.moved.merge(&outcome.moved);
        for (refusal, bytes) in refused {
            *self.refused.entry(refusal).or_default() += bytes;
        }
    }
}
