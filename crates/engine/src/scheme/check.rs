//! What makes a scheme one that cannot be worked with.

use thiserror::Error;

use super::pattern::{Age, Frequency};
use super::{Scheme, Watermarks};

/// A scheme was refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("scheme {scheme} ({action}): {fault}")]
pub struct SchemeError {
    /// Its place in the configuration, from 0.
    pub scheme: usize,
    /// What it was to do, by name.
    pub action: &'static str,
    /// What is wrong.
    pub fault: SchemeFault,
}

/// What is wrong with a scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemeFault {
    /// No memory can have the pattern.
    #[error("its least {0} is above its most, so that no memory matches; exchange the two")]
    EmptyPattern(&'static str),
    /// A share that is none.
    #[error("its access frequency is not a share of 0 % to 100 %")]
    Share,
    /// Nothing says where to.
    #[error("it moves memory but does not say where to; name a node")]
    NoDestination,
    /// All memory would go elsewhere.
    #[error("the weight of node {0} is 0; leave the node out, or give it a weight")]
    NoWeight(u32),
    /// A goal is a share of its target.
    #[error("the target value of its goal {0} is 0; say what the metric should come to")]
    NoTargetValue(usize),
    /// A fraction of nothing.
    #[error("the denominator of its charge for failures is 0; leave both out for a full charge")]
    NoDenominator,
    /// A scheme could not rest, or never wake.
    #[error("its watermarks are not in order: low <= mid <= high is needed, not {0}, {1}, {2}")]
    Watermarks(u32, u32, u32),
}

/// Checks every scheme.
pub(super) fn check(schemes: &[Scheme]) -> Result<(), SchemeError> {
    for (index, scheme) in schemes.iter().enumerate() {
        check_one(scheme).map_err(|fault| SchemeError {
            scheme: index,
            action: scheme.action.name(),
            fault,
        })?;
    }
    Ok(())
}

fn check_one(scheme: &Scheme) -> Result<(), SchemeFault> {
    check_pattern(scheme)?;
    if scheme.action.migrates() {
        if scheme.destinations.is_empty() {
            return Err(SchemeFault::NoDestination);
        }
        if let Some(idle) = scheme.destinations.iter().find(|to| to.weight == 0) {
            return Err(SchemeFault::NoWeight(idle.node));
        }
    }
    let goals = &scheme.quota.goals;
    if let Some(goal) = goals.iter().position(|goal| goal.target_value == 0) {
        return Err(SchemeFault::NoTargetValue(goal));
    }
    if scheme
        .quota
        .fail_charge
        .is_some_and(|charge| charge.denominator == 0)
    {
        return Err(SchemeFault::NoDenominator);
    }
    match scheme.watermarks {
        Some(Watermarks {
            high_permil: high,
            mid_permil: mid,
            low_permil: low,
            ..
        }) if low > mid || mid > high => Err(SchemeFault::Watermarks(low, mid, high)),
        _ => Ok(()),
    }
}

fn check_pattern(scheme: &Scheme) -> Result<(), SchemeFault> {
    let pattern = &scheme.pattern;
    if pattern.size.min > pattern.size.max {
        return Err(SchemeFault::EmptyPattern("size"));
    }
    for bound in [pattern.nr_accesses.min, pattern.nr_accesses.max] {
        if let Frequency::Percent(percent) = bound
            && !(0.0..=100.0).contains(&percent)
        {
            return Err(SchemeFault::Share);
        }
    }
    // Bounds in different units can only be compared once the intervals are known.
    let is_empty = match (pattern.nr_accesses.min, pattern.nr_accesses.max) {
        (Frequency::Samples(min), Frequency::Samples(max)) => min > max,
        (Frequency::Percent(min), Frequency::Percent(max)) => min > max,
        _ => false,
    };
    if is_empty {
        return Err(SchemeFault::EmptyPattern("access frequency"));
    }
    let is_empty = match (pattern.age.min, pattern.age.max) {
        (Age::Intervals(min), Age::Intervals(max)) => min > max,
        (Age::Time(min), Age::Time(max)) => min > max,
        _ => false,
    };
    if is_empty {
        return Err(SchemeFault::EmptyPattern("age"));
    }
    Ok(())
}
