//! Monitoring options from flags and a file, and the resulting specification.

use isotherm_engine::table::TableAttributes;
use isotherm_engine::{Attributes, IntervalsGoal, Nanos};
use isotherm_policy::scheme::Bounds;

use crate::error::RequestError;
use crate::model::{ContextConfig, Method};
use crate::spec::{ClearBy, MonitorSpec, PageAttributes, TargetSpec, World};

/// DAMON's ratio of the intervals, used if only one is given.
const SAMPLES_PER_AGGREGATION: u64 = 20;

/// Monitoring options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Monitoring {
    pub method: Option<Method>,
    /// Share of one CPU for watching, including the time that it takes from the targets.
    pub cpu_budget: Option<f64>,
    /// Time between two checks.
    pub sample_interval: Option<Nanos>,
    /// Time over which checks are counted; with pages, the time between two scans.
    pub aggregation_interval: Option<Nanos>,
    /// Time between two updates of mappings and processes.
    pub update_interval: Option<Nanos>,
    pub intervals_goal: Option<IntervalsGoal>,
    pub nr_regions: Option<Bounds<u32>>,
    /// With pages: longest time that one scan may stall the target.
    pub max_stall: Option<Nanos>,
    /// With pages: method of clearing accessed bits.
    pub clear_by: Option<ClearBy>,
    /// With pages: whether memory that several targets map counts once.
    pub counts_once: bool,
}

impl Monitoring {
    /// Whether it sets the method or the intervals, so that a file does not.
    fn says_how(&self) -> bool {
        self.method.is_some() || self.cpu_budget.is_some() || self.has_own_intervals()
    }

    /// Whether the intervals are given, or tuned to a goal: then no budget sets them.
    fn has_own_intervals(&self) -> bool {
        self.sample_interval.is_some()
            || self.aggregation_interval.is_some()
            || self.intervals_goal.is_some()
    }

    /// Whether a CPU budget sets the rate of sampling.
    pub(crate) fn has_budget(&self) -> bool {
        !matches!(self.method, Some(Method::Pages | Method::Faithful)) && !self.has_own_intervals()
    }

    /// Returns the options of a file's context.
    fn of(context: &ContextConfig) -> Self {
        let own = &context.own;
        let mut monitoring = Self {
            method: own.method,
            cpu_budget: own.cpu_budget,
            ..Self::default()
        };
        // A file of damo's sets the method unless one of Isotherm's keys does.
        if own.cpu_budget.is_some() || !matches!(own.method, None | Some(Method::Faithful)) {
            return monitoring;
        }
        monitoring.intervals_goal = context.intervals_goal;
        if let Some(intervals) = context.intervals {
            monitoring.method = Some(Method::Faithful);
            monitoring.sample_interval = Some(intervals.sample);
            monitoring.aggregation_interval = Some(intervals.aggregation);
            monitoring.update_interval = Some(intervals.update);
        }
        monitoring
    }

    /// Takes missing options from a file's context.
    pub(crate) fn or_as_in(self, context: &ContextConfig) -> Self {
        let of_file = Self::of(context);
        let max_nr_regions = context.own.max_nr_regions;
        let nr_regions = context.nr_regions.or(max_nr_regions.map(|max| Bounds {
            min: max.min(Attributes::default().min_nr_regions),
            max,
        }));
        let how = if self.says_how() {
            self
        } else {
            Self {
                update_interval: self.update_interval.or(of_file.update_interval),
                max_stall: self.max_stall,
                clear_by: self.clear_by,
                ..of_file
            }
        };
        Self {
            nr_regions: self.nr_regions.or(nr_regions),
            ..how
        }
    }

    /// Returns the specification if the kernel's DAMON watches.
    fn of_kernel(&self, seed: u64, targets: &TargetSpec) -> Result<MonitorSpec, RequestError> {
        if self.cpu_budget.is_some() {
            return Err(RequestError::KernelHasNoBudget);
        }
        if !matches!(self.method, None | Some(Method::Faithful)) {
            return Err(RequestError::KernelSamplesRegions);
        }
        match targets {
            TargetSpec::All { .. } => Err(RequestError::KernelWatchesAllByFrame),
            TargetSpec::Physical { exclude, .. } if !exclude.is_empty() => {
                Err(RequestError::KernelExcludesNobody)
            }
            TargetSpec::Simulated => Err(RequestError::KernelIsReal),
            _ => self.by_region(seed).map(MonitorSpec::Regions),
        }
    }

    pub(crate) fn spec(
        &self,
        seed: u64,
        targets: &TargetSpec,
        world: World,
    ) -> Result<MonitorSpec, RequestError> {
        if world != World::Linux {
            return self.of_kernel(seed, targets);
        }
        let is_real = !matches!(targets, TargetSpec::Simulated);
        match self.method {
            Some(Method::Pages) if !is_real => Err(RequestError::PagesAreReal),
            Some(Method::Pages) => self.by_page().map(MonitorSpec::Pages),
            _ if is_real && self.has_budget() => Ok(MonitorSpec::Tables(self.by_table())),
            _ if self.cpu_budget.is_some() => Err(RequestError::BudgetOrIntervals),
            _ => self.by_region(seed).map(MonitorSpec::Regions),
        }
    }

    fn by_page(&self) -> Result<PageAttributes, RequestError> {
        if self.cpu_budget.is_some() {
            return Err(RequestError::PagesHaveNoBudget);
        }
        let default = PageAttributes::default();
        Ok(PageAttributes {
            interval: self.aggregation_interval.unwrap_or(default.interval),
            max_stall: self.max_stall.unwrap_or(default.max_stall),
            clear_by: self.clear_by.unwrap_or_default(),
            counts_once: self.counts_once,
        })
    }

    fn by_table(&self) -> TableAttributes {
        let default = TableAttributes::default();
        TableAttributes {
            cpu_budget: self.cpu_budget.unwrap_or(default.cpu_budget),
            max_nr_regions: self
                .nr_regions
                .map_or(default.max_nr_regions, |bounds| bounds.max),
            ..default
        }
    }

    fn by_region(&self, seed: u64) -> Result<Attributes, RequestError> {
        let mut attributes = Attributes::default();
        if let Some(sample) = self.sample_interval {
            attributes.sample_interval = sample;
            let aggregation = sample.0.saturating_mul(SAMPLES_PER_AGGREGATION);
            attributes.aggregation_interval = Nanos(aggregation);
        }
        if let Some(aggregation) = self.aggregation_interval {
            attributes.aggregation_interval = aggregation;
            if self.sample_interval.is_none() {
                let sample = aggregation.0 / SAMPLES_PER_AGGREGATION;
                attributes.sample_interval = Nanos(sample.max(1));
            }
        }
        let update = attributes
            .update_interval
            .max(attributes.aggregation_interval);
        attributes.update_interval = self.update_interval.unwrap_or(update);
        if let Some(bounds) = self.nr_regions {
            (attributes.min_nr_regions, attributes.max_nr_regions) = (bounds.min, bounds.max);
        }
        attributes.intervals_goal = self.intervals_goal;
        attributes.seed = seed;
        attributes.validate()?;
        Ok(attributes)
    }
}
