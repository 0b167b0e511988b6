//! Measurements of the system that goals and watermarks use. A missing value is unknown, which is not zero.

use std::collections::BTreeMap;

use super::quota::{Goal, GoalMetric};
use isotherm_engine::address::{AddressRange, Nanos};
use isotherm_engine::monitor::page_cache::PAGE_CACHE;
use isotherm_engine::snapshot::TargetId;

/// The whole of a share in ten-thousandths.
const WHOLE_BP: u64 = 10_000;

/// A node's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    /// Total memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
}

/// Memory on the lists that reclaim works on, in bytes (`Active` and `Inactive` of `/proc/meminfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LruMemory {
    /// Memory on active lists.
    pub active: u64,
    /// Memory on inactive lists.
    pub inactive: u64,
}

/// Known state of the system. [`super::SchemeEngine::wanted_metrics`] lists the metrics that are needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SystemFacts {
    /// Free memory in thousandths of all.
    pub free_mem_permil: Option<u32>,
    /// Microseconds in which some task waited for memory, since the system started (`total` in the
    /// line `some` of `/proc/pressure/memory`).
    pub some_mem_psi_total_us: Option<u64>,
    /// Memory of each node.
    pub nodes: BTreeMap<u32, NodeUsage>,
    /// Bytes that a control group uses on a node, by node and path.
    pub node_memcg_used: BTreeMap<(u32, String), u64>,
    /// Memory by activity.
    pub lru: Option<LruMemory>,
    /// Share of the memory matching the scheme's pattern that lies on the node, in ten-thousandths, by scheme and node.
    /// [`super::SchemeEngine::matching`] gives that memory's ranges.
    pub eligible_bp: BTreeMap<(usize, u32), u64>,
    /// Factor on the idle time that schemes ask of processes' memory before it is paged out
    /// ([`crate::Guard::backoff`]); 0 and 1: as long as they ask.
    pub backoff: u32,
    /// Least age of a target's memory before it is paged out ([`crate::Guard::least_age`]).
    pub out_age: BTreeMap<TargetId, Nanos>,
    /// Unreclaimable ranges of each target, disjoint and in address order. Schemes that reclaim exclude them.
    pub left_alone: BTreeMap<TargetId, Vec<AddressRange>>,
    /// Least idle time of these targets' memory, for schemes about idle memory. It applies beyond the schemes' own.
    pub least_age: BTreeMap<TargetId, Nanos>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Least age of memory for schemes about idle memory.
    pub(super) at_least: Nanos,
    /// Factor on the age that page-out schemes ask for.
    pub(super) older: u32,
    /// Least age for page-out schemes.
    pub(super) out_age: Nanos,
}

/// A metric to be measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// [`SystemFacts::free_mem_permil`].
    FreeMem,
    /// [`SystemFacts::some_mem_psi_total_us`].
    SomeMemPsi,
    /// [`SystemFacts::nodes`] of this node.
    Node(u32),
    /// [`SystemFacts::node_memcg_used`] of this node and path.
    NodeMemcg(u32, String),
    /// [`SystemFacts::lru`].
    Lru,
    /// [`SystemFacts::eligible_bp`] of this scheme and node.
    Eligible(usize, u32),
}

/// Returns the metrics that a goal of the scheme with this index needs.
pub(super) fn metrics_of(goal: &Goal, scheme: usize) -> Vec<Metric> {
    match &goal.metric {
        GoalMetric::UserInput => Vec::new(),
        GoalMetric::SomeMemPsiUs => vec![Metric::SomeMemPsi],
        GoalMetric::NodeMemUsedBp { node } | GoalMetric::NodeMemFreeBp { node } => {
            vec![Metric::Node(*node)]
        }
        GoalMetric::NodeMemcgUsedBp { node, memcg_path }
        | GoalMetric::NodeMemcgFreeBp { node, memcg_path } => vec![
            Metric::Node(*node),
            Metric::NodeMemcg(*node, memcg_path.clone()),
        ],
        GoalMetric::ActiveMemBp | GoalMetric::InactiveMemBp => vec![Metric::Lru],
        GoalMetric::NodeEligibleMemBp { node } => vec![Metric::Eligible(scheme, *node)],
    }
}

impl SystemFacts {
    /// Returns the demands on ages of `target`'s memory beyond those of schemes. There is no back-off where the idle
    /// times of the target's own memory give the age.
    pub(super) fn asked(&self, target: TargetId) -> Asked {
        let out_age = self.out_age.get(&target).copied();
        let backs_off = target != PAGE_CACHE && out_age.is_none();
        Asked {
            at_least: self.least_age.get(&target).copied().unwrap_or_default(),
            older: if backs_off { self.backoff.max(1) } else { 1 },
            out_age: out_age.unwrap_or_default(),
        }
    }

    /// Returns the value of a goal. For `some_mem_psi_us`, which is a difference, it returns the total.
    pub(super) fn value(&self, goal: &Goal, scheme: usize) -> Option<u64> {
        let value = self.of_metric(goal, scheme)?;
        Some(if goal.complement {
            WHOLE_BP.saturating_sub(value)
        } else {
            value
        })
    }

    fn of_metric(&self, goal: &Goal, scheme: usize) -> Option<u64> {
        let metric = &goal.metric;
        let node = metric.node().and_then(|node| self.nodes.get(&node));
        let node = node.filter(|memory| memory.total > 0);
        let of_node = |bytes: u64| Some(ten_thousandths(bytes, node?.total));
        let memcg = || {
            let key = (metric.node()?, metric.memcg_path()?.to_owned());
            self.node_memcg_used.get(&key).copied()
        };
        match metric {
            GoalMetric::UserInput => Some(goal.current_value),
            GoalMetric::SomeMemPsiUs => self.some_mem_psi_total_us,
            GoalMetric::NodeMemUsedBp { .. } => of_node(node?.total.saturating_sub(node?.free)),
            GoalMetric::NodeMemFreeBp { .. } => of_node(node?.free),
            GoalMetric::NodeMemcgUsedBp { .. } => of_node(memcg()?),
            GoalMetric::NodeMemcgFreeBp { .. } => of_node(node?.total.saturating_sub(memcg()?)),
            GoalMetric::ActiveMemBp => self.of_lru(|lru| lru.active),
            GoalMetric::InactiveMemBp => self.of_lru(|lru| lru.inactive),
            GoalMetric::NodeEligibleMemBp { node } => {
                self.eligible_bp.get(&(scheme, *node)).copied()
            }
        }
    }

    fn of_lru(&self, part: impl Fn(LruMemory) -> u64) -> Option<u64> {
        let lru = self.lru?;
        let total = lru.active.saturating_add(lru.inactive);
        (total > 0).then(|| ten_thousandths(part(lru), total))
    }
}

/// Returns `part / whole` in ten-thousandths, rounded down; `whole` is not zero.
pub(super) fn ten_thousandths(part: u64, whole: u64) -> u64 {
    let bp = u128::from(part) * u128::from(WHOLE_BP) / u128::from(whole);
    u64::try_from(bp).unwrap_or(u64::MAX)
}
