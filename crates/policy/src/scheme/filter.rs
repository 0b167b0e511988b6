//! Filters: restrict an action to a part of the memory with a scheme's pattern.
//!
//! The rules are the kernel's (`damos_core_filter_out`, `damos_set_filters_default_reject` in `mm/damon/core.c`).
//! Filters that the engine can apply alone come first, wherever they stand in the list; each kind keeps its order.
//! Memory that a match of the engine's own filters allows is not passed to the others. If there are others, they decide
//! on memory that matches none of the engine's.
//!
//! Difference from the kernel: it rounds both ends of an address filter down to a page. Here a page that lies across an
//! end is left alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use isotherm_engine::address::{AddressRange, PAGE_SIZE};
use isotherm_engine::snapshot::TargetId;

/// One rule. The first that matches decides. If none does, the opposite of the last one's `allow` applies, separately
/// for the engine's own rules and the world's (see above).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Filter {
    /// Property that the filter checks.
    pub kind: FilterKind,
    /// Whether it matches memory with the property, or memory without it.
    pub matching: bool,
    /// Whether matching memory is acted on, or left alone.
    pub allow: bool,
}

/// Property that a filter checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FilterKind {
    /// Memory in this range. Handled by the engine: excluded memory is not even tried.
    Addr(AddressRange),
    /// Memory of this target. Handled by the engine.
    Target(TargetId),
    /// Regions whose weighted sum of probes' hits is within these bounds. Only the kernel has probes: here none matches.
    ProbeHits { min: u64, max: u64 },
    /// A property of single pages that only the world knows: excluded memory counts as tried.
    Ops(OpsFilter),
}

impl FilterKind {
    /// Returns DAMOS's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Addr(_) => "addr",
            Self::Target(_) => "target",
            Self::ProbeHits { .. } => "probe_hits_wsum",
            Self::Ops(OpsFilter::Anon) => "anon",
            Self::Ops(OpsFilter::Active) => "active",
            Self::Ops(OpsFilter::Memcg { .. }) => "memcg",
            Self::Ops(OpsFilter::Young) => "young",
            Self::Ops(OpsFilter::HugepageSize { .. }) => "hugepage_size",
            Self::Ops(OpsFilter::Unmapped) => "unmapped",
        }
    }
}

/// Property of single pages that only the world knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OpsFilter {
    /// Anonymous memory.
    Anon,
    /// Memory on an active list.
    Active,
    /// Memory charged to this control group.
    Memcg {
        /// Path below the cgroup file system.
        path: String,
    },
    /// Memory accessed since the last check; the check itself clears the bit.
    Young,
    /// Memory in a folio of a size within these bounds, in bytes.
    HugepageSize { min: u64, max: u64 },
    /// Unmapped file pages.
    Unmapped,
}

#[derive(Clone, Debug)]
pub(super) struct FilterSet {
    core: Vec<CoreRule>,
    /// Verdict on memory that no rule of `core` matches.
    core_default: Verdict,
    /// Rules as in [`crate::port::Operation::filters`].
    pub(super) ops: Arc<[(OpsFilter, bool, bool)]>,
    /// Default as in [`crate::port::Operation::pass_unmatched`].
    pub(super) ops_pass_unmatched: bool,
    /// [`super::SystemFacts::left_alone`], for schemes that reclaim.
    left_alone: BTreeMap<TargetId, Vec<AddressRange>>,
}

/// Verdict of the engine's own filters on some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Leave it alone.
    Reject,
    /// Act on the memory that the world's filters let through.
    Ask,
    /// Act on it.
    Allow,
}

#[derive(Clone, Debug)]
struct CoreRule {
    what: CoreFilter,
    matching: bool,
    allow: bool,
}

#[derive(Clone, Debug)]
enum CoreFilter {
    /// Start and end, whole pages; may be empty.
    Addr(u64, u64),
    Target(TargetId),
}

impl FilterSet {
    pub(super) fn new(filters: &[Filter]) -> Self {
        let (mut core, mut ops) = (Vec::new(), Vec::new());
        for filter in filters {
            let (matching, allow) = (filter.matching, filter.allow);
            let what = match &filter.kind {
                FilterKind::Ops(filter) => {
                    ops.push((filter.clone(), matching, allow));
                    continue;
                }
                FilterKind::Target(target) => CoreFilter::Target(*target),
                FilterKind::Addr(range) => whole_pages(*range, matching == allow),
                FilterKind::ProbeHits { .. } => CoreFilter::Addr(0, 0),
            };
            core.push(CoreRule {
                what,
                matching,
                allow,
            });
        }
        let rejects_rest = core.last().is_some_and(|last| last.allow);
        Self {
            core_default: if ops.is_empty() && rejects_rest {
                Verdict::Reject
            } else {
                Verdict::Ask
            },
            ops_pass_unmatched: ops.last().is_none_or(|(_, _, allow)| !allow),
            core,
            ops: ops.into(),
            left_alone: BTreeMap::new(),
        }
    }

    /// Rejects these ranges before all filters. They are disjoint and in address order.
    pub(super) fn leave_alone(&mut self, ranges: &BTreeMap<TargetId, Vec<AddressRange>>) {
        if self.left_alone != *ranges {
            self.left_alone.clone_from(ranges);
        }
    }

    /// Returns the verdict on the first part of `range`, and the address at which that part ends, since a rule may end
    /// there. The rest must be evaluated separately.
    pub(super) fn evaluate(&self, target: TargetId, range: AddressRange) -> (Verdict, u64) {
        let mut end = range.end;
        if let Some(ranges) = self.left_alone.get(&target) {
            let at = ranges.partition_point(|alone| alone.end <= range.start);
            match ranges.get(at) {
                Some(alone) if alone.start <= range.start => {
                    return (Verdict::Reject, alone.end.min(end));
                }
                Some(alone) => end = end.min(alone.start),
                None => {}
            }
        }
        for rule in &self.core {
            let is_so = match rule.what {
                CoreFilter::Target(wanted) => wanted == target,
                CoreFilter::Addr(from, to) => {
                    let is_inside = from <= range.start && range.start < to;
                    let border = if is_inside { to } else { from };
                    if range.start < border && from < to {
                        end = end.min(border);
                    }
                    is_inside
                }
            };
            if is_so == rule.matching {
                let verdict = if rule.allow {
                    Verdict::Allow
                } else {
                    Verdict::Reject
                };
                return (verdict, end);
            }
        }
        (self.core_default, end)
    }

    /// Returns the bytes of `range` that the engine's own filters do not reject.
    pub(super) fn passed(&self, target: TargetId, range: AddressRange) -> u64 {
        let mut passed = 0;
        let mut rest = Some(range);
        while let Some(range) = rest {
            let (verdict, end) = self.evaluate(target, range);
            if verdict != Verdict::Reject {
                passed += end - range.start;
            }
            rest = AddressRange::checked(end, range.end);
        }
        passed
    }
}

/// Returns the whole pages in `range` if it selects memory to act on, else the pages that it touches: no page is acted
/// on in part.
fn whole_pages(range: AddressRange, is_for_action: bool) -> CoreFilter {
    let down = |address: u64| address / PAGE_SIZE * PAGE_SIZE;
    let next = |address: u64| address.checked_next_multiple_of(PAGE_SIZE);
    let up = |address: u64| next(address).unwrap_or(u64::MAX);
    if is_for_action {
        CoreFilter::Addr(up(range.start), down(range.end))
    } else {
        CoreFilter::Addr(down(range.start), up(range.end))
    }
}
