//! A context as writes to a kdamond's directory, in the order that the tree needs: files that create directories come
//! before their content.
//!
//! Names and meanings: `Documentation/admin-guide/mm/damon/usage.rst`. A file that a kernel lacks matters only if the
//! configuration asks for something other than the kernel's default ([`Write::is_default`]).

use isotherm_engine::Nanos;
use isotherm_engine::damon::{KernelFilter, KernelSettings, SampleControl};
use isotherm_policy::scheme::{
    Age, Bounds, Filter, FilterKind, Frequency, Goal, GoalMetric, OpsFilter, Quota, Scheme, Tuner,
    WatermarkMetric, Watermarks,
};

use crate::context::{DamonContext, DamonTarget, nr_samples};
use crate::tree::{Tree, TreePath};

/// A write to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub path: TreePath,
    pub value: String,
    /// Part of the configuration that asks for it, in the configuration's words.
    pub asked_by: String,
    /// Whether a kernel without the file does the same.
    pub is_default: bool,
}

/// Kernel-dependent properties of the tree that change the paths of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Whether filters have two directories, those of the core and those of the operations set (6.16).
    pub(crate) splits_filters: bool,
    /// Whether schemes can have several destinations, and `vaddr` can move memory (6.17).
    pub(crate) has_dests: bool,
}

impl Layout {
    /// Reads the layout from a kdamond that has a scheme.
    pub(crate) fn of(tree: &impl Tree, kdamond: &TreePath) -> Self {
        let scheme = kdamond.join("contexts/0/schemes/0");
        Self {
            splits_filters: tree.kind(&scheme.join("core_filters")).is_some(),
            has_dests: tree.kind(&scheme.join("dests")).is_some(),
        }
    }
}

/// Returns all writes for contexts, one kdamond for each, on a kernel that has everything: in order, and before
/// anything is turned on.
pub fn plan(contexts: &[DamonContext]) -> Vec<Write> {
    let mut writer = Writer::default();
    writer.about("kdamonds");
    writer.set(&TreePath::kdamonds(), "nr_kdamonds", contexts.len());
    let layout = Layout {
        splits_filters: true,
        has_dests: true,
    };
    let mut writes = writer.writes;
    for (at, context) in contexts.iter().enumerate() {
        let kdamond = TreePath::kdamond(at);
        writes.extend(skeleton(&kdamond, context));
        writes.extend(values(&kdamond, context, layout));
    }
    writes
}

/// Returns the writes that create a context's directories, including those of its schemes. The layout is visible only
/// afterwards.
pub(crate) fn skeleton(kdamond: &TreePath, context: &DamonContext) -> Vec<Write> {
    let mut writer = Writer::default();
    writer.about("a context");
    let contexts = kdamond.join("contexts");
    writer.set(&contexts, "nr_contexts", 1);
    let schemes = contexts.at(0).join("schemes");
    writer.set(&schemes, "nr_schemes", context.schemes.len());
    writer.writes
}

/// Returns the writes of a context's configuration; its directories of schemes exist already.
pub(crate) fn values(kdamond: &TreePath, context: &DamonContext, layout: Layout) -> Vec<Write> {
    let mut writer = Writer::default();
    let of_context = kdamond.join("contexts/0");
    writer.about(format!("operations `{}`", context.operations.name()));
    writer.set(&of_context, "operations", context.operations.name());
    writer.about("a unit of addresses of 1 byte");
    writer.set_if_there(&of_context, "addr_unit", 1, true);
    writer.about("a context that begins paused");
    writer.set_flag(&of_context, "pause", context.is_paused);
    attributes(&mut writer, &of_context.join("monitoring_attrs"), context);
    targets(&mut writer, &of_context.join("targets"), &context.targets);
    for (at, scheme) in context.schemes.iter().enumerate() {
        let path = of_context.join("schemes").at(at);
        writer.in_scheme = format!("scheme {at}: ");
        write_scheme(&mut writer, &path, scheme, context, layout);
    }
    writer.writes
}

#[derive(Default)]
struct Writer {
    writes: Vec<Write>,
    in_scheme: String,
    asked_by: String,
}

impl Writer {
    /// Sets the part of the configuration that asks for the next writes.
    fn about(&mut self, what: impl Into<String>) {
        self.asked_by = what.into();
    }

    fn set(&mut self, directory: &TreePath, file: &str, value: impl ToString) {
        self.set_if_there(directory, file, value, false);
    }

    /// Sets a number whose default is 0.
    fn set_number(&mut self, directory: &TreePath, file: &str, value: u64) {
        self.set_if_there(directory, file, value, value == 0);
    }

    /// Sets a flag whose default is off.
    fn set_flag(&mut self, directory: &TreePath, file: &str, value: bool) {
        self.set_if_there(directory, file, flag(value), !value);
    }

    #[expect(clippy::needless_pass_by_value, reason = "they are numbers and words")]
    fn set_if_there(
        &mut self,
        directory: &TreePath,
        file: &str,
        value: impl ToString,
        is_default: bool,
    ) {
        self.writes.push(Write {
            path: directory.join(file),
            value: value.to_string(),
            asked_by: format!("{}{}", self.in_scheme, self.asked_by),
            is_default,
        });
    }
}

const fn flag(value: bool) -> &'static str {
    if value { "Y" } else { "N" }
}

fn microseconds(time: Nanos) -> u64 {
    time.0 / 1_000
}

fn attributes(writer: &mut Writer, path: &TreePath, context: &DamonContext) {
    let intervals = path.join("intervals");
    writer.about("intervals");
    // The kernel checks the intervals against each other only when the kdamond is turned on.
    for (file, time) in [
        ("sample_us", context.intervals.sample),
        ("aggr_us", context.intervals.aggregation),
        ("update_us", context.intervals.update),
    ] {
        writer.set(&intervals, file, microseconds(time));
    }
    let goal = context.intervals_goal;
    let values = goal.map_or([0; 4], |goal| {
        [
            goal.access_bp.into(),
            goal.aggregations.into(),
            microseconds(goal.min_sample_interval),
            microseconds(goal.max_sample_interval),
        ]
    });
    let files = ["access_bp", "aggrs", "min_sample_us", "max_sample_us"];
    let path_of_goal = intervals.join("intervals_goal");
    writer.about("an intervals goal");
    for (file, value) in files.into_iter().zip(values) {
        writer.set_if_there(&path_of_goal, file, value, goal.is_none());
    }
    let nr_regions = path.join("nr_regions");
    writer.about("numbers of regions");
    writer.set(&nr_regions, "min", context.nr_regions.min);
    writer.set(&nr_regions, "max", context.nr_regions.max);
    settings(writer, path, &context.settings);
}

/// Writes probes, and control of sampling. A kernel that lacks them does the same without any.
fn settings(writer: &mut Writer, path: &TreePath, settings: &KernelSettings) {
    let probes = path.join("probes");
    writer.about("`probes`");
    writer.set_number(&probes, "nr_probes", settings.probes.len() as u64);
    for (at, probe) in settings.probes.iter().enumerate() {
        let path = probes.at(at);
        writer.set_number(&path.join("preps"), "nr_preps", probe.preps.len() as u64);
        for (at, action) in probe.preps.iter().enumerate() {
            writer.set(&path.join("preps").at(at), "prep_action", action);
        }
        kernel_filters(writer, &path.join("filters"), &probe.filters);
        writer.set_number(&path, "weight", probe.weight.into());
    }
    let (samples, default) = (&settings.samples, SampleControl::default());
    let primitives = path.join("sample/primitives");
    writer.about("`sample_control`");
    for (file, value, default) in [
        ("page_table", samples.page_table, default.page_table),
        ("page_fault", samples.page_fault, default.page_fault),
    ] {
        writer.set_if_there(&primitives, file, flag(value), value == default);
    }
    kernel_filters(writer, &path.join("sample/filters"), &samples.filters);
}

fn kernel_filters(writer: &mut Writer, path: &TreePath, filters: &[KernelFilter]) {
    writer.set_number(path, "nr_filters", filters.len() as u64);
    for (at, filter) in filters.iter().enumerate() {
        let path = path.at(at);
        writer.set(&path, "type", &filter.kind);
        writer.set(&path, "matching", flag(filter.matching));
        writer.set(&path, "allow", flag(filter.allow));
        for (file, text) in &filter.details {
            writer.set(&path, file, text);
        }
    }
}

fn targets(writer: &mut Writer, path: &TreePath, targets: &[DamonTarget]) {
    writer.about("targets");
    writer.set(path, "nr_targets", targets.len());
    for (at, target) in targets.iter().enumerate() {
        let path = path.at(at);
        writer.about(format!("target {at}"));
        let pid = target.pid.unwrap_or(0);
        writer.set_if_there(&path, "pid_target", pid, target.pid.is_none());
        writer.about(format!("target {at}, which is obsolete"));
        writer.set_flag(&path, "obsolete_target", target.is_obsolete);
        let regions = path.join("regions");
        writer.about(format!("target {at}'s regions"));
        writer.set_number(&regions, "nr_regions", target.regions.len() as u64);
        for (at, region) in target.regions.iter().enumerate() {
            writer.set(&regions.at(at), "start", region.start);
            writer.set(&regions.at(at), "end", region.end);
        }
    }
}

fn write_scheme(
    writer: &mut Writer,
    path: &TreePath,
    scheme: &Scheme,
    context: &DamonContext,
    layout: Layout,
) {
    writer.about(format!("action `{}`", scheme.action.name()));
    writer.set(path, "action", scheme.action.name());
    write_destinations(writer, path, scheme, layout);
    write_pattern(writer, &path.join("access_pattern"), scheme, context);
    let apply_us = microseconds(scheme.apply_interval);
    writer.about("an apply interval");
    writer.set_number(path, "apply_interval_us", apply_us);
    writer.about("a largest number of snapshots");
    let max = scheme.max_nr_snapshots;
    writer.set_number(&path.join("stats"), "max_nr_snapshots", max);
    write_quota(writer, &path.join("quotas"), &scheme.quota);
    write_watermarks(writer, &path.join("watermarks"), scheme.watermarks.as_ref());
    if layout.splits_filters {
        let is_ops = |filter: &&Filter| matches!(filter.kind, FilterKind::Ops(_));
        let (ops, core): (Vec<&Filter>, Vec<&Filter>) = scheme.filters.iter().partition(is_ops);
        write_filters(writer, &path.join("core_filters"), &core);
        write_filters(writer, &path.join("ops_filters"), &ops);
    } else {
        let filters: Vec<&Filter> = scheme.filters.iter().collect();
        write_filters(writer, &path.join("filters"), &filters);
    }
}

fn write_destinations(writer: &mut Writer, path: &TreePath, scheme: &Scheme, layout: Layout) {
    if let [only] = &scheme.destinations[..] {
        writer.about("a node to move to");
        writer.set(path, "target_nid", only.node);
    }
    let several = match &scheme.destinations[..] {
        [] | [_] => &[],
        several => several,
    };
    if several.is_empty() && !layout.has_dests {
        return;
    }
    let dests = path.join("dests");
    writer.about("several nodes to move to");
    writer.set(&dests, "nr_dests", several.len());
    for (at, destination) in several.iter().enumerate() {
        writer.set(&dests.at(at), "id", destination.node);
        writer.set(&dests.at(at), "weight", destination.weight);
    }
}

fn write_pattern(writer: &mut Writer, path: &TreePath, scheme: &Scheme, context: &DamonContext) {
    let pattern = &scheme.pattern;
    writer.about("an access pattern");
    writer.set(&path.join("sz"), "min", pattern.size.min);
    writer.set(&path.join("sz"), "max", pattern.size.max);
    let nr_accesses = nr_accesses(pattern.nr_accesses, nr_samples(context.intervals));
    writer.set(&path.join("nr_accesses"), "min", nr_accesses.min);
    writer.set(&path.join("nr_accesses"), "max", nr_accesses.max);
    let age = ages(pattern.age, context.intervals.aggregation);
    writer.set(&path.join("age"), "min", age.min);
    writer.set(&path.join("age"), "max", age.max);
}

/// Converts to whole accesses, as DAMON counts them. A share becomes the counts within it; an empty interval becomes
/// the next higher count.
pub(crate) fn nr_accesses(pattern: Bounds<Frequency>, nr_samples: u32) -> Bounds<u32> {
    let max = match pattern.max {
        Frequency::Samples(samples) => samples,
        Frequency::Percent(_) => pattern.max.samples(nr_samples).floor() as u32,
    };
    let min = pattern.min.samples(nr_samples).ceil() as u32;
    Bounds::new(min, max.max(min))
}

/// Converts to aggregation intervals, as DAMON counts them.
pub(crate) fn ages(pattern: Bounds<Age>, aggregation: Nanos) -> Bounds<u32> {
    let intervals = |nanos: u64| u32::try_from(nanos).unwrap_or(u32::MAX);
    let aggregation = aggregation.0.max(1);
    let min = match pattern.min {
        Age::Intervals(count) => count,
        Age::Time(time) => intervals(time.0.div_ceil(aggregation)),
    };
    let max = match pattern.max {
        Age::Intervals(count) => count,
        Age::Time(time) => intervals(time.0 / aggregation),
    };
    Bounds::new(min, max.max(min))
}

fn write_quota(writer: &mut Writer, path: &TreePath, quota: &Quota) {
    writer.about("a quota");
    writer.set(path, "ms", quota.time.0 / 1_000_000);
    writer.set(path, "bytes", quota.bytes);
    let reset_ms = quota.reset_interval.0 / 1_000_000;
    writer.set(path, "reset_interval_ms", reset_ms);
    let (path_of_weights, weights) = (path.join("weights"), &quota.weights);
    for (file, permil) in [
        ("sz_permil", weights.size_permil),
        ("nr_accesses_permil", weights.nr_accesses_permil),
        ("age_permil", weights.age_permil),
    ] {
        writer.set(&path_of_weights, file, permil);
    }
    let (tuner, is_default) = (quota.tuner.name(), quota.tuner == Tuner::default());
    writer.about(format!("quota tuner `{tuner}`"));
    writer.set_if_there(path, "goal_tuner", tuner, is_default);
    let charge = quota.fail_charge.as_ref();
    let is_default = charge.is_none();
    let (numerator, denominator) = charge.map_or((0, 0), |c| (c.numerator, c.denominator));
    writer.about("a charge for what fails");
    writer.set_if_there(path, "fail_charge_num", numerator, is_default);
    writer.set_if_there(path, "fail_charge_denom", denominator, is_default);
    let goals = path.join("goals");
    writer.about("quota goals");
    writer.set_number(&goals, "nr_goals", quota.goals.len() as u64);
    write_goals(writer, &goals, &quota.goals);
}

fn write_goals(writer: &mut Writer, path: &TreePath, goals: &[Goal]) {
    for (at, goal) in goals.iter().enumerate() {
        let path = path.at(at);
        let metric = &goal.metric;
        let name = metric.name();
        writer.about(format!("quota goal `{name}`"));
        // Before metrics existed, each goal was one with a user's values.
        let is_default = *metric == GoalMetric::UserInput;
        writer.set_if_there(&path, "target_metric", name, is_default);
        if let Some(node) = metric.node() {
            writer.set(&path, "nid", node);
        }
        if let Some(memcg) = metric.memcg_path() {
            writer.set(&path, "path", memcg);
        }
        writer.set(&path, "target_value", goal.target_value);
        writer.set(&path, "current_value", goal.current_value);
        writer.about(format!("the complement of the quota goal `{name}`"));
        writer.set_flag(&path, "complement", goal.complement);
    }
}

fn write_watermarks(writer: &mut Writer, path: &TreePath, watermarks: Option<&Watermarks>) {
    writer.about("watermarks");
    let metric = match watermarks.map(|marks| marks.metric) {
        None => "none",
        Some(WatermarkMetric::FreeMemRate) => "free_mem_rate",
    };
    writer.set(path, "metric", metric);
    let Some(marks) = watermarks else { return };
    writer.set(path, "interval_us", microseconds(marks.interval));
    writer.set(path, "high", marks.high_permil);
    writer.set(path, "mid", marks.mid_permil);
    writer.set(path, "low", marks.low_permil);
}

fn write_filters(writer: &mut Writer, path: &TreePath, filters: &[&Filter]) {
    writer.about("filters");
    writer.set_number(path, "nr_filters", filters.len() as u64);
    for (at, filter) in filters.iter().enumerate() {
        let path = path.at(at);
        let name = filter.kind.name();
        writer.about(format!("filter `{name}`"));
        writer.set(&path, "type", name);
        writer.set(&path, "matching", flag(filter.matching));
        writer.about(format!("filter `{name}` that allows"));
        // Before filters could allow, each rejected.
        writer.set_flag(&path, "allow", filter.allow);
        writer.about(format!("filter `{name}`"));
        match &filter.kind {
            FilterKind::Addr(range) => {
                writer.set(&path, "addr_start", range.start);
                writer.set(&path, "addr_end", range.end);
            }
            FilterKind::Target(target) => writer.set(&path, "damon_target_idx", target.0),
            FilterKind::Ops(OpsFilter::Memcg { path: group }) => {
                writer.set(&path, "memcg_path", group);
            }
            FilterKind::Ops(OpsFilter::HugepageSize { min, max })
            | FilterKind::ProbeHits { min, max } => {
                writer.set(&path, "min", min);
                writer.set(&path, "max", max);
            }
            FilterKind::Ops(
                OpsFilter::Anon | OpsFilter::Active | OpsFilter::Young | OpsFilter::Unmapped,
            ) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times_become_counts_that_lie_within() {
        let share = |min, max| Bounds::new(Frequency::Percent(min), Frequency::Percent(max));
        let bounds = |min, max| Bounds { min, max };
        assert_eq!(nr_accesses(share(0.0, 0.0), 20), bounds(0, 0));
        assert_eq!(nr_accesses(share(5.0, 100.0), 20), bounds(1, 20));
        assert_eq!(nr_accesses(share(6.0, 99.0), 20), bounds(2, 19));
        // A share between two counts becomes the next higher one.
        assert_eq!(nr_accesses(share(1.0, 2.0), 20), bounds(1, 1));
        let any = Bounds::new(Frequency::Samples(0), Frequency::Samples(u32::MAX));
        assert_eq!(nr_accesses(any, 20), bounds(0, u32::MAX));
        let aged = |min, max| Bounds::new(Age::Time(Nanos::from_millis(min)), max);
        let interval = Nanos::from_millis(100);
        let no_end = Age::Intervals(u32::MAX);
        assert_eq!(ages(aged(5_000, no_end), interval), bounds(50, u32::MAX));
        let until = Age::Time(Nanos::from_millis(5_099));
        assert_eq!(ages(aged(150, until), interval), bounds(2, 50));
    }
}
