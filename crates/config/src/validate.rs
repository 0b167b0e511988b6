//! Checks of a scheme's parts together, and of several schemes.
//!
//! The checks use the engine's types, so that files, lines and presets are checked alike. Each fault names its key
//! below the scheme.

use isotherm_engine::PAGE_SIZE;
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, FilterKind, Frequency, GoalMetric, OpsFilter, Quota,
    Scheme, Watermarks,
};

use crate::form::{age_text, frequency_text, size_text};
use crate::model::ContextConfig;
use crate::problem::Problem;

type Faults = Vec<(String, Problem)>;

/// Returns the errors and warnings of a scheme.
pub(crate) fn faults(scheme: &Scheme) -> Faults {
    let mut faults = Vec::new();
    check_pattern(&scheme.pattern, &mut faults);
    check_destinations(scheme, &mut faults);
    check_quota(&scheme.quota, &mut faults);
    if let Some(watermarks) = &scheme.watermarks {
        check_watermarks(watermarks, &mut faults);
    }
    for (index, filter) in scheme.filters.iter().enumerate() {
        if let FilterKind::Ops(OpsFilter::HugepageSize { min, max }) = filter.kind
            && min > max
        {
            let found = format!("{} to {}", size_text(min), size_text(max));
            let path = format!("filters[{index}].hugepage_size");
            faults.push((path, Problem::error(found, "the smaller size first")));
        }
    }
    faults
}

fn check_pattern(pattern: &AccessPattern, faults: &mut Faults) {
    const ORDER: &str = "a least that is not above the most";
    let mut wrong = |key: &str, found: String, expected: &str| {
        let path = format!("access_pattern.{key}");
        faults.push((path, Problem::error(found, expected)));
    };
    let size = pattern.size;
    if size.min > size.max {
        let found = format!("{} to {}", size_text(size.min), size_text(size.max));
        wrong("sz_bytes", found, ORDER);
    } else if size.max < PAGE_SIZE {
        let found = format!("at most {}", size_text(size.max));
        wrong(
            "sz_bytes.max",
            found,
            "at least 4 KiB: no region is smaller than a page",
        );
    }
    let rate = pattern.nr_accesses;
    let backwards = match (rate.min, rate.max) {
        (Frequency::Samples(min), Frequency::Samples(max)) => min > max,
        (Frequency::Percent(min), Frequency::Percent(max)) => min > max,
        _ => false,
    };
    if backwards {
        let found = format!(
            "{} to {}",
            frequency_text(rate.min),
            frequency_text(rate.max)
        );
        wrong("nr_accesses", found, ORDER);
    }
    let age = pattern.age;
    if !may_be_in_order(age.min, age.max) {
        let found = format!("{} to {}", age_text(age.min), age_text(age.max));
        wrong("age", found, ORDER);
    }
}

fn check_destinations(scheme: &Scheme, faults: &mut Faults) {
    let action = scheme.action;
    if !action.migrates() {
        if !scheme.destinations.is_empty() {
            let found = format!("a node to move to, for `{action}`");
            let expected = "none: only `migrate_hot` and `migrate_cold` move memory";
            let key = if scheme.destinations.len() == 1 {
                "target_nid"
            } else {
                "dests"
            };
            faults.push((key.to_owned(), Problem::error(found, expected)));
        }
        return;
    }
    if scheme.destinations.is_empty() {
        let found = format!("`{action}` without a node to move to");
        let problem = Problem::error(found, "`target_nid`, or `dests`");
        faults.push(("target_nid".to_owned(), problem));
    }
    let weights = scheme.destinations.iter().map(|d| u64::from(d.weight));
    for (index, _) in weights
        .clone()
        .enumerate()
        .filter(|(_, weight)| *weight == 0)
    {
        let problem = Problem::error("a weight of 0", "1 or more, or no such destination");
        faults.push((format!("dests[{index}].weight"), problem));
    }
    if weights.sum::<u64>() > u64::from(u32::MAX) {
        let problem = Problem::error("weights that sum to over 4,294,967,295", "a smaller sum");
        faults.push(("dests".to_owned(), problem));
    }
}

fn check_quota(quota: &Quota, faults: &mut Faults) {
    let mut add = |path: &str, problem| faults.push((format!("quotas.{path}"), problem));
    let is_reset = quota.reset_interval.0 != 0 && quota.reset_interval.0 != u64::MAX;
    if is_reset && !quota.is_limited() {
        let expected = "a limit of time or bytes, or a goal; without one nothing is limited";
        add(
            "reset_interval_ms",
            Problem::warning("a reset interval without a limit", expected),
        );
    }
    if quota.is_limited() && quota.reset_interval.0 == 0 {
        let problem = Problem::error(
            "a limit for no time",
            "how long the limit is for, such as 1 s",
        );
        add("reset_interval_ms", problem);
    }
    let weights = quota.weights;
    let sum = [
        weights.size_permil,
        weights.nr_accesses_permil,
        weights.age_permil,
    ];
    if sum.into_iter().map(u64::from).sum::<u64>() > u64::from(u32::MAX) {
        add(
            "weights",
            Problem::error("weights that sum to over 4,294,967,295", "a smaller sum"),
        );
    }
    if weights.size_permil > 0 && weights.nr_accesses_permil == 0 && weights.age_permil == 0 {
        let expected = "one of access rate or age: size does not count, here as in the kernel";
        add(
            "weights.sz_permil",
            Problem::warning("a weight of size alone", expected),
        );
    }
    if quota
        .fail_charge
        .is_some_and(|charge| charge.denominator == 0)
    {
        let problem = Problem::error("a ratio with a denominator of 0", "1 or more");
        add("fail_charge_denom", problem);
    }
    for (index, goal) in quota.goals.iter().enumerate() {
        let path = format!("goals[{index}].target_value");
        let is_share = !matches!(
            goal.metric,
            GoalMetric::UserInput | GoalMetric::SomeMemPsiUs
        );
        if goal.target_value == 0 {
            add(&path, Problem::error("a goal of 0", "more than 0"));
        } else if is_share && goal.target_value > 10_000 {
            let found = format!("{} ten-thousandths", goal.target_value);
            add(
                &path,
                Problem::error(found, "at most 10,000, which is all of it"),
            );
        }
    }
}

fn check_watermarks(watermarks: &Watermarks, faults: &mut Faults) {
    let mut wrong = |key: &str, found: String, expected: &str| {
        faults.push((format!("watermarks.{key}"), Problem::error(found, expected)));
    };
    let (high, mid, low) = (
        watermarks.high_permil,
        watermarks.mid_permil,
        watermarks.low_permil,
    );
    if high > 1000 {
        wrong(
            "high_permil",
            format!("{high} thousandths"),
            "at most 1000, which is all memory",
        );
    }
    if high < mid {
        let found = format!("{high} thousandths, below the middle mark of {mid}");
        wrong("high_permil", found, "high >= mid >= low");
    }
    if mid < low {
        let found = format!("{mid} thousandths, below the low mark of {low}");
        wrong("mid_permil", found, "high >= mid >= low");
    }
    if watermarks.interval.0 == 0 {
        wrong(
            "interval_us",
            "no time".to_owned(),
            "how often to look, such as 5 s",
        );
    }
}

/// Two schemes of a context that undo each other's work.
pub(crate) struct Conflict {
    pub(crate) first: usize,
    pub(crate) second: usize,
    actions: (Action, Action),
}

impl Conflict {
    /// Makes the problem to report at the second scheme; `first` is the index of the other.
    pub(crate) fn problem(&self, first: usize) -> Problem {
        let (one, other) = self.actions;
        Problem::warning(
            format!("`{other}` for memory that schemes[{first}] is to `{one}`"),
            "patterns that share no memory, or one action for it",
        )
    }
}

/// Returns pairs of schemes with overlapping patterns and contrary actions. Schemes with filters are left out: the
/// effect of the filters is known only at run time.
pub(crate) fn conflicts(context: &ContextConfig) -> Vec<Conflict> {
    let nr_samples = context.intervals.map_or(20, |intervals| {
        let nr_samples = intervals.aggregation.0 / intervals.sample.0.max(1);
        u32::try_from(nr_samples).unwrap_or(u32::MAX).max(1)
    });
    let pairs = contrary_schemes(&context.schemes, &context.schemes, nr_samples).into_iter();
    let each_once = pairs.filter(|(first, second)| first < second);
    let mut conflicts: Vec<Conflict> = each_once
        .map(|(first, second)| Conflict {
            first,
            second,
            actions: (
                context.schemes[first].action,
                context.schemes[second].action,
            ),
        })
        .collect();
    conflicts.sort_by_key(|conflict| (conflict.second, conflict.first));
    conflicts
}

/// Returns pairs of schemes, one of `a` and one of `b`, that undo each other's work if both contexts watch the same
/// memory. Their patterns overlap, with `nr_samples` checks to an aggregation, and their actions are contrary. Schemes
/// with filters are left out.
pub fn contrary_schemes(a: &[Scheme], b: &[Scheme], nr_samples: u32) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (first, one) in plain(a) {
        for (second, other) in plain(b) {
            if contrary(one.action, other.action)
                && overlap(&one.pattern, &other.pattern, nr_samples)
            {
                pairs.push((first, second));
            }
        }
    }
    pairs
}

/// Returns the schemes that can be checked, with their indexes.
fn plain(schemes: &[Scheme]) -> impl Iterator<Item = (usize, &Scheme)> {
    let schemes = schemes.iter().enumerate();
    schemes.filter(|(_, s)| s.filters.is_empty() && s.action.effect().is_some())
}

fn contrary(a: Action, b: Action) -> bool {
    (a.effect().zip(b.effect())).is_some_and(|(one, other)| one.is_contrary(other))
}

fn overlap(a: &AccessPattern, b: &AccessPattern, nr_samples: u32) -> bool {
    let rates = |p: &AccessPattern| Bounds {
        min: p.nr_accesses.min.samples(nr_samples),
        max: p.nr_accesses.max.samples(nr_samples),
    };
    meet(&a.size, &b.size)
        && meet(&rates(a), &rates(b))
        && may_be_in_order(a.age.min, b.age.max)
        && may_be_in_order(b.age.min, a.age.max)
}

/// Ages in different units may be in order: intervals may be tuned.
fn may_be_in_order(younger: Age, older: Age) -> bool {
    match (younger, older) {
        (Age::Intervals(least), Age::Intervals(most)) => least <= most,
        (Age::Time(least), Age::Time(most)) => least <= most,
        _ => true,
    }
}

fn meet<T: PartialOrd>(a: &Bounds<T>, b: &Bounds<T>) -> bool {
    a.min <= b.max && b.min <= a.max
}
