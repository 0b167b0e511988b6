//! Model of a configuration in the engine's types. Values that it does not set are `None`.

use isotherm_engine::{Intervals, IntervalsGoal, KernelSettings};
use isotherm_policy::guard::GuardLimits;
use isotherm_policy::scheme::{Bounds, Scheme};

use crate::problem::Problem;
use crate::spec::TargetSpec;

pub use isotherm_engine::{DamonTarget, Operations};

/// A whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// Contexts in order; each names its kdamond.
    pub contexts: Vec<ContextConfig>,
    /// Warnings about the configuration.
    pub warnings: Vec<Problem>,
}

/// One monitoring context: targets, method and schemes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextConfig {
    /// Index of the kdamond that it belongs to.
    pub kdamond: usize,
    /// Kind of address space.
    pub operations: Operations,
    /// Watched targets. Empty if the command line names them, as for one-line schemes.
    pub targets: Vec<DamonTarget>,
    /// DAMON's three intervals.
    pub intervals: Option<Intervals>,
    /// Goal of tuning the intervals.
    pub intervals_goal: Option<IntervalsGoal>,
    pub nr_regions: Option<Bounds<u32>>,
    /// Settings that only the kernel's DAMON has.
    pub kernel: KernelSettings,
    pub schemes: Vec<Scheme>,
    /// Set if the context starts paused.
    pub paused: bool,
    /// Settings of Isotherm's own.
    pub own: Own,
    /// Targets that damo's keys cannot name: a control group, or all processes.
    pub own_targets: Option<TargetSpec>,
}

/// Isotherm's own keys: a map `isotherm` at the top level for all contexts, or in a context, where each key overrides
/// the top level's. damo does not read it.
///
/// ```yaml
/// isotherm:
///   cpu_budget: 1 %          # share of one CPU for monitoring; not with an intervals goal
///   act_budget: 5 %          # share of one CPU for acting, where no CPU is idle
///   max_waste: 10 %          # share of the targets' memory that huge pages of schemes may waste
///   method: tables           # tables, pages, or faithful (DAMON's regions; without a cpu_budget)
///   max_nr_regions: 1000     # where nr_regions is not given
///   guard:
///     max_slowdown: 1 %      # most time that targets may lose
///     slowdown_over: 10 min  # in any period of this length
///     max_refaults_per_s: 100
///     max_psi: 5 %           # most memory pressure: share of time that some task waited
///     max_refault_wait: 50 ms  # most time that a target may wait for memory within a second
///   cgroup: /sys/fs/cgroup/app   # the targets: a control group,
///   all: true                    # or every process
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Own {
    /// Share of one CPU that monitoring may take: above 0, at most 1.
    pub cpu_budget: Option<f64>,
    /// Share of one CPU that acting may take from busy CPUs: above 0, at most 1.
    pub act_budget: Option<f64>,
    /// Share of the targets' memory that huge pages of schemes may waste, 0 to 1.
    pub max_waste: Option<f64>,
    pub method: Option<Method>,
    pub max_nr_regions: Option<u32>,
    /// Limits at which the guard stops acting.
    pub guard: GuardLimits,
}

/// Method of watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Page tables in bulk.
    Tables,
    /// Every page in every scan.
    Pages,
    /// DAMON's regions, by its own rules.
    Faithful,
}

impl Own {
    /// Takes missing values from `general`; not its budget for a method that has none.
    #[must_use]
    pub fn or(self, general: Self) -> Self {
        let has_budget = matches!(self.method, None | Some(Method::Tables));
        let general_budget = general.cpu_budget.filter(|_| has_budget);
        Self {
            cpu_budget: self.cpu_budget.or(general_budget),
            act_budget: self.act_budget.or(general.act_budget),
            max_waste: self.max_waste.or(general.max_waste),
            method: self.method.or(general.method),
            max_nr_regions: self.max_nr_regions.or(general.max_nr_regions),
            guard: self.guard.or(general.guard),
        }
    }
}
