//! Quotas: limits on a scheme's work in a period of time.

use serde::{Deserialize, Serialize};

use isotherm_engine::address::Nanos;

/// A limit on a scheme's work in each reset interval. Zeros and no goal: no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quota {
    /// Time that the action may take; zero for no such limit.
    pub time: Nanos,
    /// Bytes that it may be tried on; zero for no such limit.
    pub bytes: u64,
    /// Time that a limit is for.
    pub reset_interval: Nanos,
    /// Weights of the priority if not all memory fits.
    pub weights: Weights,
    /// Goals that the limit is tuned towards.
    pub goals: Vec<Goal>,
    /// Tuner of the limit.
    pub tuner: Tuner,
    /// Charge for bytes that the action failed on; `None`: as for any other.
    pub fail_charge: Option<FailCharge>,
}

impl Quota {
    /// Returns whether it limits anything.
    pub fn is_limited(&self) -> bool {
        self.time > Nanos(0) || self.bytes > 0 || !self.goals.is_empty()
    }
}

/// Weights of a region's priority, in thousandths. The size is accepted but, as in the kernel, does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Weights {
    pub size_permil: u32,
    /// Access frequency.
    pub nr_accesses_permil: u32,
    pub age_permil: u32,
}

/// Charge for failures: `numerator / denominator` of the bytes that an action failed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailCharge {
    /// Numerator of the fraction.
    pub numerator: u32,
    /// Denominator of the fraction; not zero.
    pub denominator: u32,
}

/// Rule by which quotas follow their goals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tuner {
    /// Changes the quota in proportion to the deviation; for goals that need lasting work.
    #[default]
    Consist,
    /// Uses the full quota until the goal is reached, then none; for goals that stay reached.
    Temporal,
}

impl Tuner {
    /// Returns DAMOS's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consist => "consist",
            Self::Temporal => "temporal",
        }
    }
}

/// A goal that a quota is tuned towards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Goal {
    /// Measured metric.
    pub metric: GoalMetric,
    /// Desired value, in the metric's own unit.
    pub target_value: u64,
    /// Current value, if the user provides it (`user_input`).
    pub current_value: u64,
    /// Whether the value is what the metric, a share, lacks of the whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complement: bool,
}

/// Metric of a goal. `bp` is a ten-thousandth.
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
    /// A control group's memory on a node, as a share of the node's memory.
    NodeMemcgUsedBp {
        /// Node number.
        node: u32,
        /// Path of the group below the cgroup file system.
        memcg_path: String,
    },
    /// All but a control group's memory on a node.
    NodeMemcgFreeBp {
        /// Node number.
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
    /// Returns DAMOS's name.
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

    /// Whether its values are shares, in ten-thousandths.
    pub fn is_share(&self) -> bool {
        self.name().ends_with("_bp")
    }

    /// Returns the node that it is about, if it is about one.
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

    /// Returns the path of the control group that it is about, if it is about one.
    pub fn memcg_path(&self) -> Option<&str> {
        match self {
            Self::NodeMemcgUsedBp { memcg_path, .. } | Self::NodeMemcgFreeBp { memcg_path, .. } => {
                Some(memcg_path)
            }
            _ => None,
        }
    }
}
