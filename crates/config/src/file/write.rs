//! Writes the model as damo does: the same keys in the same order, the same units, to the byte if damo itself is exact.
//! A number that damo would round to three digits is written exactly in a smaller unit (`form.rs`).
//!
//! Keys without a value in the model (DAMON's intervals, the number of regions) are omitted. They have no value when
//! the text is read again.
//!
//! Source: `to_kvpairs` in damo 3.4.3's `_damon.py`; its YAML is PyYAML's `dump`.

use isotherm_engine::{AddressRange, IntervalsGoal, Nanos};
use isotherm_policy::scheme::{
    Bounds, Destination, Filter, FilterKind, Goal, OpsFilter, Quota, Scheme, Watermarks,
};
use serde::Serialize;

use crate::form::{age_text, count_text, damo_size_text, frequency_text, share_text, time_text};
use crate::kernel;
use crate::model::{Configuration, ContextConfig, Method, Own};
use crate::node::{Node, Value, list, map, map_of};
use crate::spec::TargetSpec;
use crate::tier::DAMON_INTERVALS;

/// Writes a configuration as damo's JSON.
pub fn to_json(configuration: &Configuration) -> String {
    let mut json = Vec::new();
    let form = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut writer = serde_json::Serializer::with_formatter(&mut json, form);
    tree(configuration)
        .serialize(&mut writer)
        .expect("writing a tree of texts to memory cannot fail");
    json.push(b'\n');
    String::from_utf8(json).expect("JSON is UTF-8")
}

/// Writes a configuration as damo's YAML.
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
        kdamonds.push(map([
            ("refresh_ms", 0.into()),
            ("contexts", list(of_kdamond)),
        ]));
    }
    map([("kdamonds", list(kdamonds))])
}

fn write_context(context: &ContextConfig) -> Node {
    let targets = context.targets.iter().map(|target| {
        map([
            ("pid", target.pid.map(u64::from).into()),
            ("obsolete", target.is_obsolete.into()),
            ("regions", list(target.regions.iter().copied().map(range))),
        ])
    });
    let has_intervals = context.intervals.is_some() || context.intervals_goal.is_some();
    let regions = |b: Bounds<u32>| bounds(count(b.min.into()), count(b.max.into()));
    let schemes = context.schemes.iter().map(write_scheme);
    let has_own = context.own != Own::default() || context.own_targets.is_some();
    given([
        ("ops", Some(context.operations.name().into())),
        ("addr_unit", Some(damo_size_text(1).into())),
        ("targets", Some(list(targets))),
        ("intervals", has_intervals.then(|| intervals(context))),
        ("nr_regions", context.nr_regions.map(regions)),
        ("probes", Some(kernel::write_probes(&context.kernel.probes))),
        (
            "sample_control",
            Some(kernel::write_samples(&context.kernel.samples)),
        ),
        ("pause", Some(context.paused.into())),
        ("schemes", Some(list(schemes))),
        ("isotherm", has_own.then(|| own(context))),
    ])
}

/// Makes a map of the entries that have a value.
fn given<const N: usize>(entries: [(&str, Option<Node>); N]) -> Node {
    let entries = entries.into_iter();
    map_of(entries.filter_map(|(key, value)| Some((key, value?))))
}

fn bounds(min: impl Into<Node>, max: impl Into<Node>) -> Node {
    map([("min", min.into()), ("max", max.into())])
}

fn count(number: u64) -> Node {
    count_text(number).into()
}

fn permil(number: u32) -> Node {
    share_text(number, 1000).into()
}

fn range(range: AddressRange) -> Node {
    map([("start", count(range.start)), ("end", count(range.end))])
}

/// damo's form of a missing goal.
const NO_GOAL: IntervalsGoal = IntervalsGoal {
    access_bp: 0,
    aggregations: 0,
    min_sample_interval: Nanos(0),
    max_sample_interval: Nanos(0),
};

/// Writes the intervals. A goal is one of their keys, so DAMON's intervals are written if only a goal is set.
fn intervals(context: &ContextConfig) -> Node {
    let intervals = context.intervals.unwrap_or(DAMON_INTERVALS);
    let goal = context.intervals_goal.unwrap_or(NO_GOAL);
    map([
        ("sample_us", time_text(intervals.sample).into()),
        ("aggr_us", time_text(intervals.aggregation).into()),
        ("ops_update_us", time_text(intervals.update).into()),
        ("intervals_goal", intervals_goal(&goal)),
    ])
}

fn intervals_goal(goal: &IntervalsGoal) -> Node {
    map([
        ("access_bp", share_text(goal.access_bp, 10_000).into()),
        ("aggrs", count(goal.aggregations.into())),
        ("min_sample_us", time_text(goal.min_sample_interval).into()),
        ("max_sample_us", time_text(goal.max_sample_interval).into()),
    ])
}

fn write_scheme(scheme: &Scheme) -> Node {
    let pattern = &scheme.pattern;
    let (size, rate, age) = (pattern.size, pattern.nr_accesses, pattern.age);
    // The older form, damo's and the kernel's, has one node.
    let (target, several) = match scheme.destinations.as_slice() {
        [Destination { node, weight: 1 }] => (Some(u64::from(*node)), [].as_slice()),
        several => (None, several),
    };
    let destinations = several.iter().map(|destination| {
        map([
            ("id", u64::from(destination.node).into()),
            ("weight", u64::from(destination.weight).into()),
        ])
    });
    let has_node = scheme.action.migrates() || target.is_some();
    let size = bounds(damo_size_text(size.min), damo_size_text(size.max));
    let rate = bounds(frequency_text(rate.min), frequency_text(rate.max));
    let age = bounds(age_text(age.min), age_text(age.max));
    let pattern = map([("sz_bytes", size), ("nr_accesses", rate), ("age", age)]);
    let apply_interval = time_text(scheme.apply_interval);
    let watermarks = write_watermarks(scheme.watermarks.as_ref());
    let filters = scheme.filters.iter().map(filter);
    let max = Some(scheme.max_nr_snapshots).filter(|max| *max > 0);
    let stats = max.map(|max| map([("max_nr_snapshots", max.into())]));
    given([
        ("action", Some(scheme.action.name().into())),
        ("dests", Some(list(destinations))),
        ("target_nid", has_node.then(|| target.into())),
        ("access_pattern", Some(pattern)),
        ("apply_interval_us", Some(apply_interval.into())),
        ("quotas", Some(quota(&scheme.quota))),
        ("watermarks", Some(watermarks)),
        ("filters", Some(list(filters))),
        ("stats", stats),
    ])
}

fn quota(quota: &Quota) -> Node {
    let weights = map([
        ("sz_permil", permil(quota.weights.size_permil)),
        (
            "nr_accesses_permil",
            permil(quota.weights.nr_accesses_permil),
        ),
        ("age_permil", permil(quota.weights.age_permil)),
    ]);
    let charge = quota
        .fail_charge
        .map_or((0, 0), |c| (c.numerator, c.denominator));
    map([
        ("time_ms", time_text(quota.time).into()),
        ("sz_bytes", damo_size_text(quota.bytes).into()),
        ("reset_interval_ms", time_text(quota.reset_interval).into()),
        ("fail_charge_num", count(charge.0.into())),
        ("fail_charge_denom", count(charge.1.into())),
        ("goals", list(quota.goals.iter().map(goal))),
        ("goal_tuner", quota.tuner.name().into()),
        // It is a result, not a setting.
        ("effective_sz_bytes", damo_size_text(0).into()),
        ("weights", weights),
    ])
}

fn goal(goal: &Goal) -> Node {
    let metric = &goal.metric;
    map([
        ("metric", metric.name().into()),
        ("complement", goal.complement.into()),
        (
            "nid",
            metric.node().map(|node| count_text(node.into())).into(),
        ),
        ("memcg_path", metric.memcg_path().map(str::to_owned).into()),
        ("target_value", count(goal.target_value)),
        ("current_value", count(goal.current_value)),
    ])
}

fn write_watermarks(watermarks: Option<&Watermarks>) -> Node {
    let marks = watermarks.map_or((0, 0, 0), |w| (w.high_permil, w.mid_permil, w.low_permil));
    let metric = watermarks.map_or("none", |_| "free_mem_rate");
    let interval = watermarks.map_or(Nanos(0), |w| w.interval);
    map([
        ("metric", metric.into()),
        ("interval_us", time_text(interval).into()),
        ("high_permil", permil(marks.0)),
        ("mid_permil", permil(marks.1)),
        ("low_permil", permil(marks.2)),
    ])
}

fn filter(filter: &Filter) -> Node {
    const DETAILS: [&str; 5] = [
        "memcg_path",
        "address_range",
        "damon_target_idx",
        "hugepage_size",
        "probe_hits_wsum_range",
    ];
    let detail = match &filter.kind {
        FilterKind::Addr(addresses) => Some(("address_range", range(*addresses))),
        FilterKind::Target(target) => Some(("damon_target_idx", u64::from(target.0).into())),
        FilterKind::ProbeHits { min, max } => {
            Some(("probe_hits_wsum_range", list([count(*min), count(*max)])))
        }
        FilterKind::Ops(OpsFilter::Memcg { path }) => Some(("memcg_path", path.as_str().into())),
        FilterKind::Ops(OpsFilter::HugepageSize { min, max }) => {
            let sizes = [damo_size_text(*min).into(), damo_size_text(*max).into()];
            Some(("hugepage_size", list(sizes)))
        }
        FilterKind::Ops(
            OpsFilter::Anon | OpsFilter::Active | OpsFilter::Young | OpsFilter::Unmapped,
        ) => None,
    };
    let detail_of = |key| detail.iter().find(|(of, _)| *of == key);
    let value_of = |key| Node::from(detail_of(key).map(|(_, value)| value.clone()));
    let entries: [(&str, Node); 3] = [
        ("filter_type", filter.kind.name().into()),
        ("matching", filter.matching.into()),
        ("allow", filter.allow.into()),
    ];
    let details = DETAILS.map(|key| (key, value_of(key)));
    map_of(entries.into_iter().chain(details))
}

fn own(context: &ContextConfig) -> Node {
    let own = &context.own;
    let share = |share: f64| Node::from(format!("{} %", share * 100.0));
    let number = |number: f64| Node::from(number.to_string());
    let time = |time| Node::from(time_text(time));
    let limits = &own.guard;
    let guard = limits.is_limited().then(|| {
        given([
            ("max_slowdown", limits.max_slowdown.map(share)),
            ("slowdown_over", limits.slowdown_over.map(time)),
            ("max_refaults_per_s", limits.max_refaults_per_s.map(number)),
            ("max_psi", limits.max_psi.map(share)),
            ("max_refault_wait", limits.max_refault_wait.map(time)),
        ])
    });
    let max_nr_regions = own.max_nr_regions.map(u64::from);
    let (cgroup, all) = match &context.own_targets {
        Some(TargetSpec::Cgroup(path)) => (Some(path.to_string_lossy().into_owned()), None),
        targets => (None, targets.as_ref().map(|_| true)),
    };
    given([
        ("cpu_budget", own.cpu_budget.map(share)),
        ("act_budget", own.act_budget.map(share)),
        ("max_waste", own.max_waste.map(share)),
        ("method", own.method.map(method)),
        ("max_nr_regions", max_nr_regions.map(Node::from)),
        ("guard", guard),
        ("cgroup", cgroup.map(Node::from)),
        ("all", all.map(Node::from)),
    ])
}

fn method(method: Method) -> Node {
    match method {
        Method::Tables => "tables",
        Method::Pages => "pages",
        Method::Faithful => "faithful",
    }
    .into()
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
                    // The first key follows the dash.
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
            // As in damo's form, a list under a key is not indented.
            write_yaml(node, depth, yaml);
        }
        _ => yaml.extend([" ", &flow(node), "\n"]),
    }
}

/// Writes a value on one line. JSON's quoting is valid in YAML; texts that are whole numbers are quoted as PyYAML does.
fn flow(node: &Node) -> String {
    match &node.value {
        Value::Text(text) if is_plain(text) || is_quantity(text) => text.clone(),
        Value::Text(text) if text.chars().all(|c| c.is_ascii_digit()) && !text.is_empty() => {
            format!("'{text}'")
        }
        _ => serde_json::to_string(node).unwrap_or_default(),
    }
}

/// Whether only Isotherm and damo take the text for a number: with commas, or with a unit.
fn is_quantity(text: &str) -> bool {
    let is_harmless =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | ',' | '.' | '%' | '_');
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.contains([' ', ','])
        && !text.ends_with([' ', ','])
        && text.chars().all(is_harmless)
}

/// Whether YAML reads the unquoted text as this text.
fn is_plain(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '-');
    let means_more = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    begins && text.chars().all(is_harmless) && !means_more.contains(&text.to_lowercase().as_str())
}
