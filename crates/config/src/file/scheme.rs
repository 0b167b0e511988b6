//! Reads the tree of one scheme into the engine's [`Scheme`].

use isotherm_engine::snapshot::TargetId;
use isotherm_engine::units::{Decimal, MICROSECOND};
use isotherm_policy::scheme::{
    AccessPattern, Action, Destination, Filter, FilterKind, OpsFilter, Scheme, WatermarkMetric,
    Watermarks,
};

use crate::cursor::{Cursor, Fields};
use crate::problem::{Problem, nearest, one_of, quoted};
use crate::unit;
use crate::{quota, validate};

/// Names of filters, by DAMOS.
const FILTERS: [&str; 9] = [
    "anon",
    "active",
    "memcg",
    "young",
    "hugepage_size",
    "unmapped",
    "addr",
    "probe_hits_wsum",
    "target",
];

/// Reads a scheme. Missing keys have damo's defaults: all memory, `stat`, no quota, no watermarks.
pub(crate) fn read(cursor: &Cursor) -> Option<Scheme> {
    let nr_problems = cursor.nr_problems();
    let fields = cursor.map()?;
    let action = fields.get("action");
    let action = action.map_or(Some(Action::Stat), |c| read_action(&c));
    let pattern = fields.get("access_pattern");
    let pattern = pattern.map_or(Some(AccessPattern::ANY), |c| read_pattern(&c));
    let destinations = read_destinations(&fields);
    let apply_interval = fields.optional("apply_interval_us", |c| c.time(MICROSECOND));
    let quota = fields.optional("quotas", quota::read);
    let watermarks = fields.optional("watermarks", read_watermarks);
    // damo's newer keys name the layer of the kernel that applies the filters; the core's come first.
    let lists = ["core_filters", "ops_filters", "filters"].map(|key| fields.get(key));
    let lists = lists.into_iter().flatten();
    let filters = lists.flat_map(|list| list.items(read_filter)).collect();
    let max_nr_snapshots = fields.optional("stats", read_stats);
    fields.skip(&["tried_regions", "tried_bytes"]);
    fields.finish();
    let scheme = Scheme {
        destinations,
        apply_interval: apply_interval.unwrap_or_default(),
        quota: quota.unwrap_or_default(),
        watermarks,
        filters,
        max_nr_snapshots: max_nr_snapshots.unwrap_or(0),
        ..Scheme::new(pattern?, action?)
    };
    // Unreadable items of lists are not counted, so the indexes of the others are uncertain.
    let all_read = cursor.nr_problems() == nr_problems;
    for (path, problem) in validate::faults(&scheme) {
        if !all_read && path.contains('[') {
            continue;
        }
        cursor.report_below(&path, problem);
    }
    Some(scheme)
}

fn read_action(cursor: &Cursor) -> Option<Action> {
    let names = action_names();
    let word = cursor.text(&one_of(&names))?;
    let action = word.parse().ok();
    if action.is_none() {
        cursor.report(unknown_action(word));
    }
    action
}

fn action_names() -> Vec<&'static str> {
    Action::ALL.iter().map(|action| action.name()).collect()
}

/// Reports an unknown action, with the known ones.
pub(crate) fn unknown_action(word: &str) -> Problem {
    let names = action_names();
    let former = Action::FORMER_NAMES.map(|(name, _)| name);
    Problem {
        suggestion: nearest(word, &[&names[..], &former].concat()),
        ..Problem::error(quoted(word), one_of(&names))
    }
}

fn read_pattern(cursor: &Cursor) -> Option<AccessPattern> {
    let fields = cursor.map()?;
    let size = fields.required("sz_bytes", |c| c.bounds(Cursor::size));
    let nr_accesses = fields.required("nr_accesses", |c| c.bounds(|c| c.read(unit::frequency)));
    let age = fields.required("age", |c| c.bounds(|c| c.read(unit::age)));
    refuse_bare(
        &fields,
        "nr_accesses",
        "nr_accesses_unit",
        ["percent", "samples"],
    );
    refuse_bare(&fields, "age", "age_unit", ["usec", "aggr_intervals"]);
    fields.finish();
    Some(AccessPattern {
        size: size?,
        nr_accesses: nr_accesses?,
        age: age?,
    })
}

/// Refuses bare numbers under `key` if their unit, `unit_key`, is the second of `units`. damo 3.4.3 takes the unit
/// after a number, ignores `unit_key`, and reads a bare number in the first of `units`.
fn refuse_bare(
    fields: &Fields,
    key: &'static str,
    unit_key: &'static str,
    units: [&'static str; 2],
) {
    if fields.optional(unit_key, |c| c.word(&units)) != Some(1) {
        return;
    }
    let Some(bounds) = fields.optional(key, Cursor::map) else {
        return;
    };
    for bound in ["min", "max"].into_iter().filter_map(|end| bounds.get(end)) {
        let Some(text) = bound.text("a number") else {
            continue;
        };
        let is_bare = |number: Decimal| !number.is_max() && number.to_f64() > 0.0;
        if Decimal::parse(text.trim()).is_some_and(is_bare) {
            bound.report(Problem {
                suggestion: Some(format!("{} {}", text.trim(), units[1])),
                ..Problem::error(
                    format!("{} without its unit", quoted(text)),
                    format!("the unit behind the number, as damo ignores `{unit_key}`"),
                )
            });
        }
    }
}

/// Reads several destinations with weights, or one node. The former take precedence, as in the kernel.
fn read_destinations(fields: &Fields) -> Vec<Destination> {
    let node = fields.optional("target_nid", read_node);
    let destinations = fields.get("dests").map(|list| list.items(read_destination));
    let alone = |node| Destination { node, weight: 1 };
    destinations
        .filter(|several| !several.is_empty())
        .unwrap_or_else(|| node.map(alone).into_iter().collect())
}

fn read_destination(cursor: &Cursor) -> Option<Destination> {
    let fields = cursor.map()?;
    let node = fields.required("id", Cursor::count_u32);
    let weight = fields.required("weight", Cursor::count_u32);
    fields.finish();
    Some(Destination {
        node: node?,
        weight: weight?,
    })
}

/// Reads a node; the kernel's -1 is none.
fn read_node(cursor: &Cursor) -> Option<u32> {
    if cursor.text("the number of a node")? == "-1" {
        return None;
    }
    cursor.count_u32()
}

fn read_watermarks(cursor: &Cursor) -> Option<Watermarks> {
    let fields = cursor.map()?;
    let metric = fields.required("metric", |c| c.word(&["none", "free_mem_rate"]));
    let interval = fields.required("interval_us", |c| c.time(MICROSECOND));
    let permil = |key| fields.required(key, |c| c.parts(1000));
    let (high, mid, low) = (
        permil("high_permil"),
        permil("mid_permil"),
        permil("low_permil"),
    );
    fields.finish();
    if metric? == 0 {
        return None;
    }
    Some(Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: interval?,
        high_permil: high?,
        mid_permil: mid?,
        low_permil: low?,
    })
}

fn read_filter(cursor: &Cursor) -> Option<Filter> {
    let fields = cursor.map()?;
    let name = fields.required("filter_type", |c| c.word(&FILTERS));
    let matching = fields.required("matching", Cursor::flag);
    // `filter_pass` is damo's old name.
    let allow = fields.get("allow").or(fields.get("filter_pass"));
    let allow = allow.map_or(Some(false), |c| c.flag());
    let kind = name.and_then(|index| read_kind(FILTERS[index], &fields));
    fields.skip(&[
        "memcg_path",
        "address_range",
        "damon_target_idx",
        "hugepage_size",
        "probe_hits_wsum_range",
    ]);
    fields.finish();
    Some(Filter {
        kind: kind?,
        matching: matching?,
        allow: allow?,
    })
}

fn read_kind(name: &str, fields: &Fields) -> Option<FilterKind> {
    Some(FilterKind::Ops(match name {
        "anon" => OpsFilter::Anon,
        "active" => OpsFilter::Active,
        "young" => OpsFilter::Young,
        "unmapped" => OpsFilter::Unmapped,
        "memcg" => OpsFilter::Memcg {
            path: fields.need("memcg_path")?.text("a path")?.to_owned(),
        },
        "hugepage_size" => {
            let (min, max) = read_two(&fields.need("hugepage_size")?, Cursor::size)?;
            OpsFilter::HugepageSize { min, max }
        }
        "probe_hits_wsum" => {
            let range = fields.need("probe_hits_wsum_range")?;
            let (min, max) = read_two(&range, |c| c.count(u64::MAX))?;
            return Some(FilterKind::ProbeHits { min, max });
        }
        "addr" => {
            let range = fields.need("address_range")?;
            return range.range().map(FilterKind::Addr);
        }
        _ => {
            let index = fields.need("damon_target_idx")?.count_u32()?;
            return Some(FilterKind::Target(TargetId(index)));
        }
    }))
}

/// Reads a list of two, the least and the largest.
fn read_two<'a>(
    cursor: &Cursor<'a>,
    read: impl Fn(&Cursor<'a>) -> Option<u64>,
) -> Option<(u64, u64)> {
    let items = cursor.list();
    let [min, max] = items.as_slice() else {
        cursor.wrong(
            format!("{} values", items.len()),
            "two, the least and the largest",
        );
        return None;
    };
    let (min, max) = (read(min), read(max));
    Some((min?, max?))
}

/// Reads the only setting among a scheme's statistics, the limit of snapshots. (damo itself does not read it back.)
fn read_stats(cursor: &Cursor) -> Option<u64> {
    let fields = cursor.map()?;
    let max = fields.optional("max_nr_snapshots", |c| c.count(u64::MAX));
    fields.skip(&[
        "nr_tried",
        "sz_tried",
        "nr_applied",
        "sz_applied",
        "sz_ops_filter_passed",
        "qt_exceeds",
        "nr_snapshots",
    ]);
    fields.finish();
    max
}
