//! Validation of schemes.

use thiserror::Error;

use super::pattern::{Age, Frequency};
use super::{Scheme, Watermarks};

/// Error of an invalid scheme.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("scheme {scheme} ({action}): {fault}")]
pub struct SchemeError {
    /// Index of the scheme in the configuration, from 0.
    pub scheme: usize,
    /// Name of its action.
    pub action: &'static str,
    /// Fault of the scheme.
    pub fault: SchemeFault,
}

/// Fault of an invalid scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemeFault {
    /// No memory can have the pattern.
    #[error("its least {0} is above its most, so that no memory matches; exchange the two")]
    EmptyPattern(&'static str),
    /// A percentage is outside 0 to 100.
    #[error("its access frequency is not a share of 0 % to 100 %")]
    Share,
    /// A migration has no destination.
    #[error("it moves memory but does not say where to; name a node")]
    NoDestination,
    /// A destination's weight is zero, so that all memory would move to the others.
    #[error("the weight of node {0} is 0; leave the node out, or give it a weight")]
    NoWeight(u32),
    /// A target value is zero, but a score is a share of it.
    #[error("the target value of its goal {0} is 0; say what the metric should come to")]
    NoTargetValue(usize),
    /// The denominator of a fraction is zero.
    #[error("the denominator of its charge for failures is 0; leave both out for a full charge")]
    NoDenominator,
    /// Watermarks out of order: the scheme could never become inactive, or active again.
    #[error("its watermarks are not in order: low <= mid <= high is needed, not {0}, {1}, {2}")]
    Watermarks(u32, u32, u32),
}

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
    let fail_charge = scheme.quota.fail_charge;
    if fail_charge.is_some_and(|charge| charge.denominator == 0) {
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
    // Bounds in different units can only be compared with known intervals.
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
