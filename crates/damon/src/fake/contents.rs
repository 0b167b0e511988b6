//! Contents of the fake's directories, and the words that its files accept, by version.

use std::collections::BTreeMap;

use super::{FakeRegion, Level, Node};
use crate::tree::TreePath;

type Nodes = BTreeMap<TreePath, Node>;

/// Adds a writable file.
pub(super) fn file(nodes: &mut Nodes, path: &TreePath, text: &str) {
    let (text, is_writable) = (text.to_owned(), true);
    nodes.insert(path.clone(), Node::File { text, is_writable });
}

/// Adds a read-only file.
fn reported(nodes: &mut Nodes, path: &TreePath, text: &str) {
    let (text, is_writable) = (text.to_owned(), false);
    nodes.insert(path.clone(), Node::File { text, is_writable });
}

/// Adds a directory with writable files.
fn files(nodes: &mut Nodes, path: &TreePath, texts: &[(&str, &str)]) {
    nodes.insert(path.clone(), Node::Directory);
    for (name, text) in texts {
        file(nodes, &path.join(name), text);
    }
}

/// Adds the directory `path`, one of those that the file `number` counts.
pub(super) fn make(nodes: &mut Nodes, level: Level, path: &TreePath, number: &str) {
    match number {
        "nr_kdamonds" => kdamond(nodes, level, path),
        "nr_contexts" => context(nodes, level, path),
        "nr_targets" => target(nodes, level, path),
        "nr_regions" => files(nodes, path, &[("start", "0"), ("end", "0")]),
        "nr_schemes" => scheme(nodes, level, path),
        "nr_goals" => goal(nodes, level, path),
        "nr_filters" => filter(nodes, level, path),
        "nr_dests" => files(nodes, path, &[("id", "0"), ("weight", "0")]),
        _ => unreachable!("no file counts by the name {number}"),
    }
}

fn kdamond(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(nodes, path, &[("state", "off")]);
    reported(nodes, &path.join("pid"), "-1");
    if level >= Level(6, 17) {
        file(nodes, &path.join("refresh_ms"), "0");
    }
    files(nodes, &path.join("contexts"), &[("nr_contexts", "0")]);
}

fn context(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(nodes, path, &[("operations", "vaddr")]);
    if level >= Level(6, 0) {
        reported(
            nodes,
            &path.join("avail_operations"),
            "vaddr\nfvaddr\npaddr",
        );
    }
    if level >= Level(6, 18) {
        file(nodes, &path.join("addr_unit"), "1");
    }
    if level >= Level(7, 2) {
        file(nodes, &path.join("pause"), "N");
    }
    let attributes = path.join("monitoring_attrs");
    files(nodes, &attributes, &[]);
    let intervals = attributes.join("intervals");
    let times = [
        ("sample_us", "5000"),
        ("aggr_us", "100000"),
        ("update_us", "60000000"),
    ];
    files(nodes, &intervals, &times);
    if level >= Level(6, 15) {
        let goal = [
            ("access_bp", "0"),
            ("aggrs", "0"),
            ("min_sample_us", "0"),
            ("max_sample_us", "0"),
        ];
        files(nodes, &intervals.join("intervals_goal"), &goal);
    }
    files(
        nodes,
        &attributes.join("nr_regions"),
        &[("min", "10"), ("max", "1000")],
    );
    files(nodes, &path.join("targets"), &[("nr_targets", "0")]);
    files(nodes, &path.join("schemes"), &[("nr_schemes", "0")]);
}

fn target(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(nodes, path, &[("pid_target", "0")]);
    if level >= Level(6, 19) {
        file(nodes, &path.join("obsolete_target"), "N");
    }
    files(nodes, &path.join("regions"), &[("nr_regions", "0")]);
}

fn scheme(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(nodes, path, &[("action", "stat")]);
    if level >= Level(6, 7) {
        file(nodes, &path.join("apply_interval_us"), "0");
    }
    if level >= Level(6, 11) {
        file(nodes, &path.join("target_nid"), "-1");
    }
    let pattern = path.join("access_pattern");
    files(nodes, &pattern, &[]);
    for name in ["sz", "nr_accesses", "age"] {
        files(nodes, &pattern.join(name), &[("min", "0"), ("max", "0")]);
    }
    quotas(nodes, level, &path.join("quotas"));
    let marks = [
        ("metric", "none"),
        ("interval_us", "0"),
        ("high", "0"),
        ("mid", "0"),
        ("low", "0"),
    ];
    files(nodes, &path.join("watermarks"), &marks);
    if level >= Level(6, 3) {
        files(nodes, &path.join("filters"), &[("nr_filters", "0")]);
    }
    if level >= Level(6, 16) {
        files(nodes, &path.join("core_filters"), &[("nr_filters", "0")]);
        files(nodes, &path.join("ops_filters"), &[("nr_filters", "0")]);
    }
    if level >= Level(6, 17) {
        files(nodes, &path.join("dests"), &[("nr_dests", "0")]);
    }
    stats(nodes, level, &path.join("stats"));
    if level >= Level(6, 2) {
        files(nodes, &path.join("tried_regions"), &[]);
        reported(nodes, &path.join("tried_regions/total_bytes"), "0");
    }
}

fn quotas(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(
        nodes,
        path,
        &[("ms", "0"), ("bytes", "0"), ("reset_interval_ms", "0")],
    );
    let weights = [
        ("sz_permil", "0"),
        ("nr_accesses_permil", "0"),
        ("age_permil", "0"),
    ];
    files(nodes, &path.join("weights"), &weights);
    if level >= Level(6, 8) {
        files(nodes, &path.join("goals"), &[("nr_goals", "0")]);
    }
    if level >= Level(6, 9) {
        reported(nodes, &path.join("effective_bytes"), "0");
    }
    if level >= Level(7, 1) {
        file(nodes, &path.join("goal_tuner"), "consist");
    }
    if level >= Level(7, 2) {
        file(nodes, &path.join("fail_charge_num"), "0");
        file(nodes, &path.join("fail_charge_denom"), "0");
    }
}

fn stats(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(nodes, path, &[]);
    for name in [
        "nr_tried",
        "sz_tried",
        "nr_applied",
        "sz_applied",
        "qt_exceeds",
    ] {
        reported(nodes, &path.join(name), "0");
    }
    if level >= Level(6, 14) {
        reported(nodes, &path.join("sz_ops_filter_passed"), "0");
    }
    if level >= Level(7, 0) {
        reported(nodes, &path.join("nr_snapshots"), "0");
        file(nodes, &path.join("max_nr_snapshots"), "0");
    }
}

fn goal(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(
        nodes,
        path,
        &[("target_value", "0"), ("current_value", "0")],
    );
    if level >= Level(6, 9) {
        file(nodes, &path.join("target_metric"), "user_input");
    }
    if level >= Level(6, 16) {
        file(nodes, &path.join("nid"), "0");
    }
    if level >= Level(6, 19) {
        file(nodes, &path.join("path"), "");
    }
}

fn filter(nodes: &mut Nodes, level: Level, path: &TreePath) {
    files(
        nodes,
        path,
        &[("type", "anon"), ("matching", "N"), ("memcg_path", "")],
    );
    if level >= Level(6, 6) {
        for name in ["addr_start", "addr_end", "damon_target_idx"] {
            file(nodes, &path.join(name), "0");
        }
    }
    if level >= Level(6, 14) {
        file(nodes, &path.join("allow"), "N");
    }
    if level >= Level(6, 15) {
        file(nodes, &path.join("min"), "0");
        file(nodes, &path.join("max"), "0");
    }
}

/// Adds a region that a scheme was tried on.
pub(super) fn region(nodes: &mut Nodes, level: Level, path: &TreePath, region: FakeRegion) {
    nodes.insert(path.clone(), Node::Directory);
    let (start, end, nr_accesses, age) = region;
    reported(nodes, &path.join("start"), &start.to_string());
    reported(nodes, &path.join("end"), &end.to_string());
    reported(nodes, &path.join("nr_accesses"), &nr_accesses.to_string());
    reported(nodes, &path.join("age"), &age.to_string());
    if level >= Level(6, 14) {
        reported(nodes, &path.join("sz_filter_passed"), "0");
    }
}

/// Returns whether a file accepts a value.
pub(super) fn takes(level: Level, path: &TreePath, value: &str) -> bool {
    let since = |words: &[(&str, Level)]| {
        words
            .iter()
            .any(|(word, from)| *word == value && level >= *from)
    };
    let first = Level(5, 18);
    match path.name() {
        "operations" => since(&[("vaddr", first), ("fvaddr", Level(5, 19)), ("paddr", first)]),
        "action" => since(&[
            ("willneed", first),
            ("cold", first),
            ("pageout", first),
            ("hugepage", first),
            ("nohugepage", first),
            ("lru_prio", Level(6, 0)),
            ("lru_deprio", Level(6, 0)),
            ("migrate_hot", Level(6, 11)),
            ("migrate_cold", Level(6, 11)),
            ("collapse", Level(7, 2)),
            ("stat", first),
        ]),
        "metric" => ["none", "free_mem_rate"].contains(&value),
        "target_metric" => since(&[
            ("user_input", first),
            ("some_mem_psi_us", first),
            ("node_mem_used_bp", Level(6, 16)),
            ("node_mem_free_bp", Level(6, 16)),
            ("node_memcg_used_bp", Level(6, 19)),
            ("node_memcg_free_bp", Level(6, 19)),
            ("active_mem_bp", Level(7, 0)),
            ("inactive_mem_bp", Level(7, 0)),
            ("node_eligible_mem_bp", Level(7, 1)),
        ]),
        "type" => takes_filter(level, &path.parent().parent(), value),
        "goal_tuner" => ["consist", "temporal"].contains(&value),
        "matching" | "allow" | "pause" | "obsolete_target" => ["Y", "N"].contains(&value),
        "memcg_path" | "path" => true,
        "target_nid" => value.parse::<i32>().is_ok(),
        _ => value.parse::<u64>().is_ok(),
    }
}

/// Returns whether the directory `filters` accepts filters of a type.
fn takes_filter(level: Level, filters: &TreePath, value: &str) -> bool {
    let (from, is_core) = match value {
        "anon" | "memcg" => (Level(6, 3), false),
        "addr" | "target" => (Level(6, 6), true),
        "young" => (Level(6, 10), false),
        "active" | "hugepage_size" | "unmapped" => (Level(6, 15), false),
        _ => return false,
    };
    let has_place = match filters.name() {
        "core_filters" => is_core,
        "ops_filters" => !is_core,
        _ => true,
    };
    level >= from && has_place
}
