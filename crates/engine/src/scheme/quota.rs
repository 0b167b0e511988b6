//! Quotas: how much a scheme may do in a while.

use serde::{Deserialize, Serialize};

use crate::address::Nanos;

/// A limit on what a scheme does in each reset interval. Zeros and no goal: no limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quota {
    /// Time that the action may take; zero for no such limit.
    pub time: Nanos,
    /// Bytes that it may be tried on; zero for no such limit.
    pub bytes: u64,
    /// How long a limit is for.
    pub reset_interval: Nanos,
    /// What counts, where not all fits.
    pub weights: Weights,
    /// What the limit is tuned towards.
    pub goals: Vec<Goal>,
    /// How it is tuned.
    pub tuner: Tuner,
    /// How much a byte counts that was tried in vain; `None`: as much as any other.
    pub fail_charge: Option<FailCharge>,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            time: Nanos(0),
            bytes: 0,
            reset_interval: Nanos(0),
            weights: Weights::default(),
            goals: Vec::new(),
            tuner: Tuner::Consist,
            fail_charge: None,
        }
    }
}

impl Quota {
    /// Whether it limits anything.
    pub fn is_limited(&self) -> bool {
        self.time > Nanos(0) || self.bytes > 0 || !self.goals.is_empty()
    }
}

/// What makes a region come before others, in thousandths. Size is accepted and, as in the kernel,
/// does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Weights {
    pub size_permil: u32,
    /// Access frequency.
    pub nr_accesses_permil: u32,
    pub age_permil: u32,
}

/// `numerator / denominator` of the bytes that an action failed on are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailCharge {
    /// Above the line.
    pub numerator: u32,
    /// Below it; not zero.
    pub denominator: u32,
}

/// How quotas follow their goals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tuner {
    /// In proportion to what is missing; for goals that need lasting work.
    #[default]
    Consist,
    /// All or nothing, until it is reached; for goals that stay reached.
    Temporal,
}

impl Tuner {
    /// DAMOS's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consist => "consist",
            Self::Temporal => "temporal",
        }
    }
}

/// What a quota is tuned towards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Goal {
    /// What is measured.
    pub metric: GoalMetric,
    /// What it should come to, in the metric's own unit.
    pub target_value: u64,
    /// What it came to, where the user says so (`user_input`).
    pub current_value: u64,
}

/// What a goal measures. `bp` is a ten-thousandth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GoalMetric {
    /// A number that the user feeds in.
    UserInput,
    /// Microseconds in which some task waited for memory, per reset interval.
    SomeMemPsiUs,
    /// Used memory of a node.
    NodeMemUsedBp { node: u32 },
    /// Free memory of a node.
    NodeMemFreeBp { node: u32 },
    /// A control group's memory on a node, as a share of the node's.
    NodeMemcgUsedBp {
        /// Which node.
        node: u32,
        /// Path of the group below the cgroup file system.
        memcg_path: String,
    },
    /// All but a control group's memory on a node.
    NodeMemcgFreeBp {
        /// Which node.
        node: u32,
        /// Path of the group below the cgroup file system.
        memcg_path: String,
    },
    /// Memory on active lists, as a share of that on any.
    ActiveMemBp,
    /// Memory on inactive lists, as a share of that on any.
    InactiveMemBp,
    /// Memory on a node that this scheme could act on, as a share of such memory anywhere.
    NodeEligibleMemBp { node: u32 },
}

impl GoalMetric {
    /// DAMOS's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UserInput => "user_input",
            Self::SomeMemPsiUs => "some_mem_psi_us",
            Self::NodeMemUsedBp { .. } => "node_mem_used_bp",
            Self::NodeMemFreeBp { .. } => "node_mem_free_bp",
            Self::NodeMemcgUsedBp { .. } => "node_memcg_used_bp",
            Self::NodeMemcgFreeBp { .. } => "node_memcg_free_bp",
            Self::ActiveMemBp => "active_mem_bp",
            Self::InactiveMemBp => "inactive_mem_bp",
            Self::NodeEligibleMemBp { .. } => "node_eligible_mem_bp",
        }
    }

    /// The node that it is about, if it is about one.
    pub const fn node(&self) -> Option<u32> {
        match self {
            Self::NodeMemUsedBp { node }
            | Self::NodeMemFreeBp { node }
            | Self::NodeMemcgUsedBp { node, .. }
            | Self::NodeMemcgFreeBp { node, .. }
            | Self::NodeEligibleMemBp { node } => Some(*node),
            Self::UserInput | Self::SomeMemPsiUs | Self::ActiveMemBp | Self::InactiveMemBp => None,
        }
    }

    /// The path of the control group that it is about, if it is about one.
    pub fn memcg_path(&self) -> Option<&str> {
        match self {
            Self::NodeMemcgUsedBp { memcg_path, .. } | Self::NodeMemcgFreeBp { memcg_path, .. } => {
                Some(memcg_path)
            }
            _ => None,
        }
    }
}
