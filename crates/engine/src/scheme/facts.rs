//! What goals and watermarks measure of the system. Whatever is missing is unknown, which is not
//! zero.

use std::collections::BTreeMap;

use super::quota::{Goal, GoalMetric};
use crate::address::{AddressRange, Nanos};
use crate::monitor::page_cache::PAGE_CACHE;
use crate::snapshot::TargetId;

/// Of a scheme of 5 s: 21 minutes.
const OLDER_MAX: f64 = 256.0;

/// A node's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// All of it.
    pub total: u64,
    /// Of that, what is free.
    pub free: u64,
}

/// Memory on the lists that reclaim works on, in bytes (`Active` and `Inactive` of `/proc/meminfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LruMemory {
    /// On active lists.
    pub active: u64,
    /// On inactive lists.
    pub inactive: u64,
}

/// The state of the system, as far as it is known. [`super::SchemeEngine::wanted_metrics`] says what
/// of it is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SystemFacts {
    /// Free memory in thousandths of all.
    pub free_mem_permil: Option<u32>,
    /// Microseconds in which some task waited for memory, since the system started (`total` in the
    /// line `some` of `/proc/pressure/memory`).
    pub some_mem_psi_total_us: Option<u64>,
    /// Memory of each node.
    pub nodes: BTreeMap<u32, NodeMemory>,
    /// Bytes that a control group has on a node, by node and path.
    pub node_memcg_used: BTreeMap<(u32, String), u64>,
    /// Memory by activity.
    pub lru: Option<LruMemory>,
    /// By scheme and node: of the memory that has the scheme's pattern, the ten-thousandths that lie
    /// on the node. [`super::SchemeEngine::matching`] gives that memory's ranges.
    pub eligible_bp: BTreeMap<(usize, u32), u64>,
    /// Of what was paged out of a target lately, the part that came back, 0 to 1; none: nothing did.
    pub returned: BTreeMap<TargetId, f64>,
    /// What is to be paged out of processes must be idle so many times as long as schemes say ([`crate::Guard::patience`]);
    /// 0 and 1: as they say.
    pub patience: u32,
    /// Unreclaimable ranges of each target, disjoint and in address order. Schemes that reclaim exclude them.
    pub left_alone: BTreeMap<TargetId, Vec<AddressRange>>,
    /// Memory of these targets that schemes take for idle must be idle for at least so long, whatever they say.
    pub least_age: BTreeMap<TargetId, Nanos>,
}

/// What is asked of ages beyond what schemes say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Of what schemes about idle memory are for.
    pub(super) at_least: Nanos,
    /// So many times as old as that, what they page out.
    pub(super) older: f64,
}

/// One thing to be measured.
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

/// What must be measured for a goal of the scheme with this index.
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
    /// Of an age in `target`, the part that counts: the square of the part of its memory that stayed away. What is saved
    /// goes down by that part, and what it costs goes up.
    pub(super) fn age_counts(&self, target: TargetId) -> f64 {
        let stayed = 1.0 - self.returned.get(&target).copied().unwrap_or(0.0);
        stayed * stayed
    }

    /// How many times as old as schemes say memory of `target` must be that is paged out. Without strain all goes that they
    /// ask for.
    fn older(&self, target: TargetId) -> f64 {
        if self.patience <= 1 || target == PAGE_CACHE {
            return 1.0;
        }
        (f64::from(self.patience) / self.age_counts(target).max(1e-3)).min(OLDER_MAX)
    }

    /// What is asked of the ages of `target`'s memory beyond what schemes say.
    pub(super) fn asked(&self, target: TargetId) -> Asked {
        Asked {
            at_least: self.least_age.get(&target).copied().unwrap_or_default(),
            older: self.older(target),
        }
    }

    /// What a goal's metric comes to. For `some_mem_psi_us`, which is a difference, the total.
    pub(super) fn value(&self, goal: &Goal, scheme: usize) -> Option<u64> {
        let node = |node: &u32| self.nodes.get(node).filter(|memory| memory.total > 0);
        let memcg = |node: &u32, path: &String| self.node_memcg_used.get(&(*node, path.clone()));
        match &goal.metric {
            GoalMetric::UserInput => Some(goal.current_value),
            GoalMetric::SomeMemPsiUs => self.some_mem_psi_total_us,
            GoalMetric::NodeMemUsedBp { node: id } => {
                node(id).map(|m| ten_thousandths(m.total.saturating_sub(m.free), m.total))
            }
            GoalMetric::NodeMemFreeBp { node: id } => {
                node(id).map(|m| ten_thousandths(m.free, m.total))
            }
            GoalMetric::NodeMemcgUsedBp {
                node: id,
                memcg_path,
            } => Some(ten_thousandths(*memcg(id, memcg_path)?, node(id)?.total)),
            GoalMetric::NodeMemcgFreeBp {
                node: id,
                memcg_path,
            } => {
                let total = node(id)?.total;
                let others = total.saturating_sub(*memcg(id, memcg_path)?);
                Some(ten_thousandths(others, total))
            }
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

/// `part / whole` in ten-thousandths, rounded down; `whole` is not zero.
pub(super) fn ten_thousandths(part: u64, whole: u64) -> u64 {
    let bp = u128::from(part) * 10_000 / u128::from(whole);
    u64::try_from(bp).unwrap_or(u64::MAX)
}
