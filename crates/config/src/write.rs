//! The model in damo's form, as JSON or YAML that damo reads.
//!
//! Every value is exact: in the largest unit that divides it, where damo rounds to three digits.

use isotherm_engine::scheme::{
    Age, Destination, Filter, FilterKind, Frequency, Goal, GoalMetric, OpsFilter, Quota, Scheme,
    Tuner, Watermarks,
};
use isotherm_engine::{AddressRange, IntervalsGoal, Nanos, Strategy};

use crate::model::{Configuration, ContextConfig, Intervals, Method, Own};
use crate::node::{Node, Value, list, map};

/// As damo's JSON.
pub fn to_json(configuration: &Configuration) -> String {
    // Writing a tree to memory cannot fail: its keys are texts.
    serde_json::to_string_pretty(&tree(configuration)).unwrap_or_default() + "\n"
}

/// As damo's YAML.
pub fn to_yaml(configuration: &Configuration) -> String {
    let mut yaml = String::new();
    write_yaml(&tree(configuration), 0, &mut yaml);
    yaml
}

fn tree(configuration: &Configuration) -> Node {
    let mut contexts = configuration.contexts.iter().peekable();
    let mut kdamonds = Vec::new();
    while let Some(context) = contexts.next() {
        let mut of_kdamond = vec![write_context(context)];
        while let Some(next) = contexts.next_if(|next| next.kdamond == context.kdamond) {
            of_kdamond.push(write_context(next));
        }
        kdamonds.push(map([("contexts", list(of_kdamond))]));
    }
    map([("kdamonds", list(kdamonds))])
}

fn write_context(context: &ContextConfig) -> Node {
    let targets = context.targets.iter().map(|target| {
        map([
            ("pid", target.pid.map(u64::from).into()),
            ("obsolete", target.obsolete.into()),
            ("regions", list(target.regions.iter().copied().map(range))),
        ])
    });
    let mut node = map([
        ("ops", context.operations.name().into()),
        ("targets", list(targets)),
    ]);
    if context.intervals.is_some() || context.intervals_goal.is_some() {
        push(&mut node, "intervals", intervals(context));
    }
    if let Some(nr_regions) = context.nr_regions {
        let bounds = [
            ("min", u64::from(nr_regions.min).into()),
            ("max", u64::from(nr_regions.max).into()),
        ];
        push(&mut node, "nr_regions", map(bounds));
    }
    push(&mut node, "pause", context.paused.into());
    push(
        &mut node,
        "schemes",
        list(context.schemes.iter().map(write_scheme)),
    );
    if context.own != Own::default() {
        push(&mut node, "isotherm", own(&context.own));
    }
    node
}

fn push(node: &mut Node, key: &str, value: Node) {
    if let (Value::Map(entries), Value::Map(one)) = (&mut node.value, map([(key, value)]).value) {
        entries.extend(one);
    }
}

fn range(range: AddressRange) -> Node {
    map([("start", range.start.into()), ("end", range.end.into())])
}

/// A goal stands among the intervals, so where only that is given, DAMON's intervals are written.
fn intervals(context: &ContextConfig) -> Node {
    let intervals = context.intervals.unwrap_or(Intervals {
        sample: Nanos::from_millis(5),
        aggregation: Nanos::from_millis(100),
        update: Nanos::from_millis(1000),
    });
    let mut node = map([
        ("sample_us", time_text(intervals.sample).into()),
        ("aggr_us", time_text(intervals.aggregation).into()),
        ("ops_update_us", time_text(intervals.update).into()),
    ]);
    if let Some(goal) = context.intervals_goal {
        push(&mut node, "intervals_goal", intervals_goal(&goal));
    }
    node
}

fn intervals_goal(goal: &IntervalsGoal) -> Node {
    map([
        ("access_bp", u64::from(goal.access_bp).into()),
        ("aggrs", u64::from(goal.aggregations).into()),
        ("min_sample_us", time_text(goal.min_sample_interval).into()),
        ("max_sample_us", time_text(goal.max_sample_interval).into()),
    ])
}

fn write_scheme(scheme: &Scheme) -> Node {
    let bounds = |min: String, max: String| map([("min", min.into()), ("max", max.into())]);
    let pattern = &scheme.pattern;
    let rate = pattern.nr_accesses;
    let mut node = map([("action", scheme.action.name().into())]);
    match scheme.destinations.as_slice() {
        // damo's and the kernel's older way, for one node.
        [
            Destination {
                node: nid,
                weight: 1,
            },
        ] => {
            push(&mut node, "target_nid", u64::from(*nid).into());
        }
        several => {
            let destinations = several.iter().map(|destination| {
                map([
                    ("id", u64::from(destination.node).into()),
                    ("weight", u64::from(destination.weight).into()),
                ])
            });
            push(&mut node, "dests", list(destinations));
        }
    }
    let pattern = map([
        (
            "sz_bytes",
            bounds(size_text(pattern.size.min), size_text(pattern.size.max)),
        ),
        (
            "nr_accesses",
            bounds(frequency_text(rate.min), frequency_text(rate.max)),
        ),
        (
            "age",
            bounds(age_text(pattern.age.min), age_text(pattern.age.max)),
        ),
    ]);
    push(&mut node, "access_pattern", pattern);
    push(
        &mut node,
        "apply_interval_us",
        time_text(scheme.apply_interval).into(),
    );
    push(&mut node, "quotas", quota(&scheme.quota));
    if let Some(watermarks) = &scheme.watermarks {
        push(&mut node, "watermarks", write_watermarks(watermarks));
    }
    push(
        &mut node,
        "filters",
        list(scheme.filters.iter().map(filter)),
    );
    if scheme.max_nr_snapshots > 0 {
        let stats = map([("max_nr_snapshots", scheme.max_nr_snapshots.into())]);
        push(&mut node, "stats", stats);
    }
    node
}

fn quota(quota: &Quota) -> Node {
    let weights = map([
        ("sz_permil", u64::from(quota.weights.size_permil).into()),
        (
            "nr_accesses_permil",
            u64::from(quota.weights.nr_accesses_permil).into(),
        ),
        ("age_permil", u64::from(quota.weights.age_permil).into()),
    ]);
    let charge = quota
        .fail_charge
        .map_or((0, 0), |c| (c.numerator, c.denominator));
    let tuner = match quota.tuner {
        Tuner::Consist => "consist",
        Tuner::Temporal => "temporal",
    };
    map([
        ("time_ms", time_text(quota.time).into()),
        ("sz_bytes", size_text(quota.bytes).into()),
        ("reset_interval_ms", time_text(quota.reset_interval).into()),
        ("fail_charge_num", u64::from(charge.0).into()),
        ("fail_charge_denom", u64::from(charge.1).into()),
        ("goals", list(quota.goals.iter().map(goal))),
        ("goal_tuner", tuner.into()),
        ("weights", weights),
    ])
}

fn goal(goal: &Goal) -> Node {
    let (metric, node, memcg_path) = match &goal.metric {
        GoalMetric::UserInput => ("user_input", None, None),
        GoalMetric::SomeMemPsiUs => ("some_mem_psi_us", None, None),
        GoalMetric::NodeMemUsedBp { node } => ("node_mem_used_bp", Some(*node), None),
        GoalMetric::NodeMemFreeBp { node } => ("node_mem_free_bp", Some(*node), None),
        GoalMetric::NodeMemcgUsedBp { node, memcg_path } => {
            ("node_memcg_used_bp", Some(*node), Some(memcg_path))
        }
        GoalMetric::NodeMemcgFreeBp { node, memcg_path } => {
            ("node_memcg_free_bp", Some(*node), Some(memcg_path))
        }
        GoalMetric::ActiveMemBp => ("active_mem_bp", None, None),
        GoalMetric::InactiveMemBp => ("inactive_mem_bp", None, None),
        GoalMetric::NodeEligibleMemBp { node } => ("node_eligible_mem_bp", Some(*node), None),
    };
    map([
        ("metric", metric.into()),
        ("nid", node.map(u64::from).into()),
        ("memcg_path", memcg_path.cloned().into()),
        ("target_value", goal.target_value.into()),
        ("current_value", goal.current_value.into()),
    ])
}

fn write_watermarks(watermarks: &Watermarks) -> Node {
    map([
        ("metric", "free_mem_rate".into()),
        ("interval_us", time_text(watermarks.interval).into()),
        ("high_permil", u64::from(watermarks.high_permil).into()),
        ("mid_permil", u64::from(watermarks.mid_permil).into()),
        ("low_permil", u64::from(watermarks.low_permil).into()),
    ])
}

fn filter(filter: &Filter) -> Node {
    let (name, detail) = match &filter.kind {
        FilterKind::Addr(addresses) => ("addr", Some(("address_range", range(*addresses)))),
        FilterKind::Target(target) => (
            "target",
            Some(("damon_target_idx", u64::from(target.0).into())),
        ),
        FilterKind::Ops(OpsFilter::Anon) => ("anon", None),
        FilterKind::Ops(OpsFilter::Active) => ("active", None),
        FilterKind::Ops(OpsFilter::Young) => ("young", None),
        FilterKind::Ops(OpsFilter::Unmapped) => ("unmapped", None),
        FilterKind::Ops(OpsFilter::Memcg { path }) => {
            ("memcg", Some(("memcg_path", path.as_str().into())))
        }
        FilterKind::Ops(OpsFilter::HugepageSize { min, max }) => {
            let sizes = [size_text(*min).into(), size_text(*max).into()];
            ("hugepage_size", Some(("hugepage_size", list(sizes))))
        }
    };
    let mut node = map([
        ("filter_type", name.into()),
        ("matching", filter.matching.into()),
        ("allow", filter.allow.into()),
    ]);
    if let Some((key, value)) = detail {
        push(&mut node, key, value);
    }
    node
}

fn own(own: &Own) -> Node {
    let mut node = map([]);
    let mut put = |key: &str, value: Option<Node>| {
        if let Some(value) = value {
            push(&mut node, key, value);
        }
    };
    let share = |share: f64| format!("{} %", share * 100.0).into();
    put("cpu_budget", own.cpu_budget.map(share));
    put("method", own.method.map(method));
    put(
        "max_nr_regions",
        own.max_nr_regions.map(|max| u64::from(max).into()),
    );
    let mut guard = map([]);
    let refaults = own
        .guard
        .max_refaults_per_s
        .map(|rate| rate.to_string().into());
    for (key, value) in [
        ("max_slowdown", own.guard.max_slowdown.map(share)),
        ("max_refaults_per_s", refaults),
        ("max_psi", own.guard.max_psi.map(share)),
    ] {
        if let Some(value) = value {
            push(&mut guard, key, value);
        }
    }
    if own.guard != crate::model::Guard::default() {
        put("guard", Some(guard));
    }
    node
}

fn method(method: Method) -> Node {
    let strategy = match method {
        Method::Tables => return "tables".into(),
        Method::Pages => return "pages".into(),
        Method::Regions(strategy) => strategy,
    };
    let faithful = Strategy::faithful();
    let improvements = [
        ("clusters", strategy.cluster_pages != faithful.cluster_pages),
        ("populated", strategy.populated_only),
        ("weighted", strategy.weighted_samples),
        ("aligned", strategy.aligned_splits),
    ];
    let chosen = improvements.into_iter().filter(|(_, is_on)| *is_on);
    list(chosen.map(|(name, _)| name.into()))
}

/// A size in the largest unit that divides it.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes == u64::MAX {
        return "max".to_owned();
    }
    let power = if bytes == 0 {
        0
    } else {
        bytes.trailing_zeros() / 10
    };
    format!("{} {}", bytes >> (10 * power), UNITS[power as usize])
}

/// A time in the largest unit that divides it.
pub(crate) fn time_text(time: Nanos) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1000, "us"),
        (1_000_000, "ms"),
        (1_000_000_000, "s"),
        (1, "ns"),
    ];
    if time.0 == u64::MAX {
        return "max".to_owned();
    }
    let fits = |(nanos, _): &&(u64, &str)| time.0 != 0 && time.0.is_multiple_of(*nanos);
    let (nanos, unit) = UNITS.iter().filter(fits).max().unwrap_or(&(1, "ns"));
    format!("{} {unit}", time.0 / nanos)
}

/// An access frequency with its unit.
pub(crate) fn frequency_text(frequency: Frequency) -> String {
    match frequency {
        Frequency::Samples(samples) => format!("{samples} samples"),
        Frequency::Percent(percent) => format!("{percent} %"),
    }
}

/// An age with its unit.
pub(crate) fn age_text(age: Age) -> String {
    match age {
        Age::Intervals(intervals) => format!("{intervals} aggr_intervals"),
        Age::Time(time) => time_text(time),
    }
}

fn write_yaml(node: &Node, depth: usize, yaml: &mut String) {
    let indent = "  ".repeat(depth);
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for entry in entries {
                yaml.extend([&indent, entry.key.as_str(), ":"]);
                write_below(&entry.value, depth, yaml);
            }
        }
        Value::List(items) if !items.is_empty() => {
            for item in items {
                yaml.extend([&indent, "-"]);
                match &item.value {
                    // The first key stands behind the dash.
                    Value::Map(entries) if !entries.is_empty() => {
                        let mut below = String::new();
                        write_yaml(item, depth + 1, &mut below);
                        yaml.push(' ');
                        yaml.push_str(below.trim_start());
                    }
                    _ => write_below(item, depth, yaml),
                }
            }
        }
        _ => yaml.extend([&flow(node), "\n"]),
    }
}

fn write_below(node: &Node, depth: usize, yaml: &mut String) {
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            yaml.push('\n');
            write_yaml(node, depth + 1, yaml);
        }
        Value::List(items) if !items.is_empty() => {
            yaml.push('\n');
            // As damo has it, a list stands under its key, not further in.
            write_yaml(node, depth, yaml);
        }
        _ => yaml.extend([" ", &flow(node), "\n"]),
    }
}

/// A value on one line. JSON's quoting is YAML's.
fn flow(node: &Node) -> String {
    match &node.value {
        Value::Text(text) if is_plain(text) => text.clone(),
        _ => serde_json::to_string(node).unwrap_or_default(),
    }
}

/// Whether YAML takes an unquoted text for this very text.
fn is_plain(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '-');
    let means_more = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    begins && text.chars().all(is_harmless) && !means_more.contains(&text.to_lowercase().as_str())
}
