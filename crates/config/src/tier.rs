//! Plans for memory of several tiers: the destination of each node's cold memory, and the sources of hot memory.
//!
//! The plans follow HMSDK 4.0's `gen_migpol.py`, option by option: for each source node a kdamond with one scheme,
//! demotions first. The alternative is damo's tiering example (`scripts/mem_tier.sh`): its quotas follow the use of the
//! fast node instead of being fixed.
//!
//! Faults that both leave to the user are refused here: memory moved in a circle, a missing destination, and ranges
//! that are divided within a page.

use isotherm_engine::{AddressRange, Intervals, IntervalsGoal, Nanos, PAGE_SIZE};
use isotherm_policy::scheme::{
    Action, Bounds, Destination, Filter, FilterKind, Goal, GoalMetric, OpsFilter, Quota, Scheme,
    Tuner, Weights,
};
use thiserror::Error;

use crate::kdamonds::KDAMONDS_MAX;
use crate::model::{Configuration, ContextConfig, DamonTarget, Operations};
use crate::preset::{hmsdk_demote, hmsdk_promote, outside, pattern};
use crate::topology::Topology;

/// HMSDK's control group, below the root of cgroup2: it moves only the memory of processes in it.
pub const HMSDK_MEMCG: &str = "/hmsdk";

/// HMSDK's `--monitoring_intervals 100ms 2s 20s`.
const HMSDK_INTERVALS: Intervals = Intervals {
    sample: Nanos::from_millis(100),
    aggregation: Nanos::from_millis(2_000),
    update: Nanos::from_millis(20_000),
};
/// HMSDK's `--monitoring_nr_regions_range 100 10000`.
const HMSDK_NR_REGIONS: Bounds<u32> = Bounds::new(100, 10_000);
/// DAMON's intervals; damo's example begins with these and tunes them.
pub(crate) const DAMON_INTERVALS: Intervals = Intervals {
    sample: Nanos::from_millis(5),
    aggregation: Nanos::from_millis(100),
    update: Nanos::from_millis(1_000),
};
/// DAMON's number of regions.
const DAMON_NR_REGIONS: Bounds<u32> = Bounds::new(10, 1000);
/// damo's example: `--damos_apply_interval 1s` and `--damos_quota_interval 1s`.
const GOALS_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// damo's example: `--damos_quota_space 200MB`.
const GOALS_BYTES: u64 = 200 << 20;
/// damo's example: `--damos_quota_goal node_mem_free_bp 0.5%` of the fast node.
const GOALS_FREE_BP: u64 = 50;
/// damo's example: `--damos_quota_goal node_mem_used_bp 99.7%` of the fast node.
const GOALS_USED_BP: u64 = 9_970;
/// damo's default weights.
const DAMO_WEIGHTS: Weights = Weights {
    size_permil: 1,
    nr_accesses_permil: 1,
    age_permil: 1,
};

/// A move of memory from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub from: u32,
    pub to: u32,
}

/// Moves between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierPlan {
    /// Cold memory; HMSDK's `--demote SRC DEST`, and `--migrate FAST SLOW` from fast to slow.
    pub demotions: Vec<Move>,
    /// Hot memory; HMSDK's `--promote SRC DEST`, and `--migrate FAST SLOW` from slow to fast.
    pub promotions: Vec<Move>,
    /// Control group of the affected processes; `None` is HMSDK's `--global`.
    pub memcg: Option<String>,
    /// Size of the pieces that longer ranges are divided into, each with a kdamond of its own; HMSDK's
    /// `--region-max-size`.
    pub region_max: Option<u64>,
    /// Tuner that adapts quotas to the fast node's use, instead of HMSDK's fixed quotas.
    pub goals: Option<Tuner>,
}

/// Reasons why a plan is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TierError {
    #[error("nothing is to be moved; name a fast and a slow node: --migrate 0 1")]
    Nothing,
    #[error(
        "node {node} is the only one with memory, so there is nowhere to move it; for another \
         machine, describe that by --topology FILE, or by --node 0=512GiB --node 2=96GiB"
    )]
    OneNode { node: u32 },
    #[error(
        "there is no NUMA node {node} with memory, only {present}; for another machine, describe \
         that by --topology FILE or --node {node}=SIZE"
    )]
    NoNode { node: u32, present: String },
    #[error("node {node} cannot be both source and destination; name two nodes")]
    SameNode { node: u32 },
    #[error(
        "node {node} is a source more than once; its memory can be demoted or promoted to one node \
         (--migrate FAST SLOW takes from both)"
    )]
    SourceTwice { node: u32 },
    #[error(
        "{what} memory of node {node} would come back to it by way of {way}; leave one step out"
    )]
    Circle {
        /// `cold` or `hot`.
        what: &'static str,
        node: u32,
        way: String,
    },
    #[error("ranges cannot be cut into {bytes} bytes; give a multiple of 4 KiB, such as 1G")]
    NoPages { bytes: u64 },
    #[error("pieces of {bytes} bytes make more than {KDAMONDS_MAX} kdamonds; give a larger size")]
    TooMany { bytes: u64 },
}

impl TierPlan {
    /// Adds the moves of HMSDK's `--migrate FAST SLOW`: cold memory down, hot memory up.
    pub fn migrate(&mut self, fast: u32, slow: u32) {
        let (from, to) = (fast, slow);
        self.demotions.push(Move { from, to });
        let (from, to) = (slow, fast);
        self.promotions.push(Move { from, to });
    }

    /// Returns the plan as a configuration for this machine.
    ///
    /// # Errors
    /// Fails if the plan contradicts itself or names a missing node.
    pub fn configuration(&self, topology: &Topology) -> Result<Configuration, TierError> {
        self.check(topology)?;
        let mut contexts = Vec::new();
        for (at, step) in self.demotions.iter().chain(&self.promotions).enumerate() {
            let is_cold = at < self.demotions.len();
            let regions = topology.regions(step.from).unwrap_or_default();
            for regions in self.pieces(regions)? {
                if contexts.len() == KDAMONDS_MAX {
                    let bytes = self.region_max.unwrap_or(u64::MAX);
                    return Err(TierError::TooMany { bytes });
                }
                contexts.push(self.context(contexts.len(), *step, is_cold, regions));
            }
        }
        Ok(Configuration {
            contexts,
            warnings: Vec::new(),
        })
    }

    fn check(&self, topology: &Topology) -> Result<(), TierError> {
        let steps = || self.demotions.iter().chain(&self.promotions);
        if steps().next().is_none() {
            return Err(TierError::Nothing);
        }
        if let Some(step) = steps().find(|step| step.from == step.to) {
            return Err(TierError::SameNode { node: step.from });
        }
        let mut sources: Vec<u32> = steps().map(|step| step.from).collect();
        sources.sort_unstable();
        if let Some(twice) = sources.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(TierError::SourceTwice { node: twice[0] });
        }
        no_circle("cold", &self.demotions)?;
        no_circle("hot", &self.promotions)?;
        let present = topology.nodes();
        if let [node] = present.as_slice() {
            return Err(TierError::OneNode { node: *node });
        }
        let mut named = steps().flat_map(|step| [step.from, step.to]);
        if let Some(node) = named.find(|node| !present.contains(node)) {
            let present: Vec<String> = present.iter().map(ToString::to_string).collect();
            let present = present.join(", ");
            return Err(TierError::NoNode { node, present });
        }
        Ok(())
    }

    /// Returns the regions of each kdamond of a node. As in HMSDK, each piece of a long range has its own, and all
    /// undivided ranges share the last one.
    fn pieces(&self, regions: &[AddressRange]) -> Result<Vec<Vec<AddressRange>>, TierError> {
        let Some(bytes) = self.region_max else {
            return Ok(vec![regions.to_vec()]);
        };
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(TierError::NoPages { bytes });
        }
        let is_long = |region: &AddressRange| region.len() > bytes;
        let (long, short): (Vec<_>, Vec<_>) = regions.iter().copied().partition(is_long);
        let nr_pieces: u64 = long.iter().map(|region| region.len().div_ceil(bytes)).sum();
        if nr_pieces > KDAMONDS_MAX as u64 {
            return Err(TierError::TooMany { bytes });
        }
        let cut = |region: AddressRange| {
            let starts = (0..region.len().div_ceil(bytes)).map(move |n| region.start + n * bytes);
            starts.map(move |start| vec![AddressRange::new(start, region.end.min(start + bytes))])
        };
        let mut pieces: Vec<_> = long.into_iter().flat_map(cut).collect();
        if !short.is_empty() {
            pieces.push(short);
        }
        Ok(pieces)
    }

    fn context(
        &self,
        kdamond: usize,
        step: Move,
        is_cold: bool,
        regions: Vec<AddressRange>,
    ) -> ContextConfig {
        let memcg = self.memcg.as_deref();
        let scheme = match self.goals {
            Some(tuner) => by_goal(step, is_cold, memcg, tuner),
            None if is_cold => hmsdk_demote(step.to, memcg),
            None => hmsdk_promote(step.to, memcg),
        };
        let (intervals, nr_regions) = if self.goals.is_some() {
            (DAMON_INTERVALS, DAMON_NR_REGIONS)
        } else {
            (HMSDK_INTERVALS, HMSDK_NR_REGIONS)
        };
        ContextConfig {
            kdamond,
            operations: Operations::Paddr,
            targets: vec![DamonTarget {
                regions,
                ..DamonTarget::default()
            }],
            intervals: Some(intervals),
            intervals_goal: self.goals.map(|_| IntervalsGoal::default()),
            nr_regions: Some(nr_regions),
            schemes: vec![scheme],
            ..ContextConfig::default()
        }
    }
}

/// Fails if the steps lead from a node back to it. No node is the source of two steps.
fn no_circle(what: &'static str, steps: &[Move]) -> Result<(), TierError> {
    for first in steps {
        let node = first.from;
        let mut way = vec![first.to];
        while let Some(next) = steps.iter().find(|step| Some(&step.from) == way.last()) {
            if next.to == node {
                let way: Vec<String> = way.iter().map(ToString::to_string).collect();
                let way = way.join(", ");
                return Err(TierError::Circle { what, node, way });
            }
            if way.contains(&next.to) {
                // This step only leads into another circle; the nodes of that circle report it.
                break;
            }
            way.push(next.to);
        }
    }
    Ok(())
}

/// Makes a scheme of damo's tiering example. Both goals are the fast node's. Cold memory leaves while less than 0.5 %
/// of it is free; hot memory comes while less than 99.7 % of it is used.
fn by_goal(step: Move, is_cold: bool, memcg: Option<&str>, tuner: Tuner) -> Scheme {
    let (action, rate, metric, target_value) = if is_cold {
        let metric = GoalMetric::NodeMemFreeBp { node: step.from };
        (Action::MigrateCold, (0.0, 0.0), metric, GOALS_FREE_BP)
    } else {
        let metric = GoalMetric::NodeMemUsedBp { node: step.to };
        (Action::MigrateHot, (5.0, 100.0), metric, GOALS_USED_BP)
    };
    // Young memory is not demoted, and other memory is not promoted.
    let young = Filter {
        kind: FilterKind::Ops(OpsFilter::Young),
        matching: true,
        allow: !is_cold,
    };
    let node = step.to;
    Scheme {
        destinations: vec![Destination { node, weight: 1 }],
        apply_interval: GOALS_INTERVAL,
        quota: Quota {
            bytes: GOALS_BYTES,
            reset_interval: GOALS_INTERVAL,
            weights: DAMO_WEIGHTS,
            goals: vec![Goal {
                metric,
                target_value,
                current_value: 0,
                complement: false,
            }],
            tuner,
            ..Quota::default()
        },
        filters: outside(memcg).chain([young]).collect(),
        ..Scheme::new(pattern(0, rate, Nanos(0)), action)
    }
}
