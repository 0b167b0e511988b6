//! Contents of the fake's directories, and the words that its files accept, by version.

use std::collections::BTreeMap;

use super::{FakeRegion, Level, Node};
use crate::tree::TreePath;

type Nodes = BTreeMap<TreePath, Node>;

/// Files of a numbered directory, by the name of the file that counts such directories. A line has the first version
/// with the files, their directory if they are not at the top, and `name=text` of each; `!` marks
/// read-only files, and `,` in a text is a line end.
const FILES: [(&str, &str); 9] = [
    (
        "nr_kdamonds",
        "5.18 state=off !pid=-1
        5.18 contexts/ nr_contexts=0
        6.17 refresh_ms=0",
    ),
    (
        "nr_contexts",
        "5.18 operations=vaddr
        5.18 monitoring_attrs/intervals/ sample_us=5000 aggr_us=100000 update_us=60000000
        5.18 monitoring_attrs/nr_regions/ min=10 max=1000
        5.18 targets/ nr_targets=0
        5.18 schemes/ nr_schemes=0
        6.0 !avail_operations=vaddr,fvaddr,paddr
        6.15 monitoring_attrs/intervals/intervals_goal/ access_bp=0 aggrs=0 min_sample_us=0 max_sample_us=0
        6.18 addr_unit=1
        7.2 pause=N
        7.2 monitoring_attrs/probes/ nr_probes=0
        8.0 monitoring_attrs/sample/primitives/ page_table=Y page_fault=N
        8.0 monitoring_attrs/sample/filters/ nr_filters=0",
    ),
    (
        "nr_probes",
        "7.2 filters/ nr_filters=0
        8.0 weight=0
        8.0 preps/ nr_preps=0",
    ),
    (
        "nr_targets",
        "5.18 pid_target=0
        5.18 regions/ nr_regions=0
        6.19 obsolete_target=N",
    ),
    ("nr_regions", "5.18 start=0 end=0"),
    (
        "nr_schemes",
        "5.18 action=stat
        5.18 access_pattern/sz/ min=0 max=0
        5.18 access_pattern/nr_accesses/ min=0 max=0
        5.18 access_pattern/age/ min=0 max=0
        5.18 quotas/ ms=0 bytes=0 reset_interval_ms=0
        5.18 quotas/weights/ sz_permil=0 nr_accesses_permil=0 age_permil=0
        5.18 watermarks/ metric=none interval_us=0 high=0 mid=0 low=0
        5.18 stats/ !nr_tried=0 !sz_tried=0 !nr_applied=0 !sz_applied=0 !qt_exceeds=0
        6.2 tried_regions/ !total_bytes=0
        6.3 filters/ nr_filters=0
        6.7 apply_interval_us=0
        6.8 quotas/goals/ nr_goals=0
        6.9 quotas/ !effective_bytes=0
        6.11 target_nid=-1
        6.14 stats/ !sz_ops_filter_passed=0
        6.16 core_filters/ nr_filters=0
        6.16 ops_filters/ nr_filters=0
        6.17 dests/ nr_dests=0
        7.0 stats/ !nr_snapshots=0 max_nr_snapshots=0
        7.1 quotas/ goal_tuner=consist
        7.2 quotas/ fail_charge_num=0 fail_charge_denom=0",
    ),
    (
        "nr_goals",
        "5.18 target_value=0 current_value=0
        6.9 target_metric=user_input
        6.16 nid=0
        6.19 path=
        8.0 complement=N",
    ),
    (
        "nr_filters",
        "5.18 type=anon matching=N memcg_path=
        6.6 addr_start=0 addr_end=0 damon_target_idx=0
        6.14 allow=N
        6.15 min=0 max=0
        7.2 path=",
    ),
    ("nr_dests", "5.18 id=0 weight=0"),
];

/// Words of the file `action`, by their first version.
const ACTIONS: &str = "5.18 willneed cold pageout hugepage nohugepage stat
    6.0 lru_prio lru_deprio
    6.11 migrate_hot migrate_cold
    7.2 collapse";
/// Words of the file `target_metric`, by their first version.
const METRICS: &str = "5.18 user_input some_mem_psi_us
    6.16 node_mem_used_bp node_mem_free_bp
    6.19 node_memcg_used_bp node_memcg_free_bp
    7.0 active_mem_bp inactive_mem_bp
    7.1 node_eligible_mem_bp";

/// Iterates over the lines of a table that apply to a version, without their first word, which is a version.
fn lines_at(table: &str, level: Level) -> impl Iterator<Item = &str> {
    table.lines().filter_map(move |line| {
        let (version, rest) = line.trim().split_once(' ').expect("a version first");
        let (major, minor) = version.split_once('.').expect("two numbers");
        let [major, minor] = [major, minor].map(|number| number.parse().expect("a number"));
        (level >= Level(major, minor)).then_some(rest)
    })
}

/// Adds a file, and the directories above it that are missing.
pub(super) fn file(nodes: &mut Nodes, path: &TreePath, text: &str, is_writable: bool) {
    let mut directory = path.parent();
    while nodes.insert(directory.clone(), Node::Directory).is_none() {
        directory = directory.parent();
    }
    let text = text.to_owned();
    nodes.insert(path.clone(), Node::File { text, is_writable });
}

/// Adds the directory `path`, one of those that the file `number` counts.
pub(super) fn make(nodes: &mut Nodes, level: Level, path: &TreePath, number: &str) {
    let files = FILES.iter().find(|(counted_by, _)| *counted_by == number);
    let (_, files) = files.expect("a file that counts directories");
    for line in lines_at(files, level) {
        let mut directory = path.clone();
        for word in line.split(' ') {
            let Some((name, text)) = word.split_once('=') else {
                directory = path.join(word.trim_end_matches('/'));
                continue;
            };
            let is_writable = !name.starts_with('!');
            let path = directory.join(name.trim_start_matches('!'));
            file(nodes, &path, &text.replace(',', "\n"), is_writable);
        }
    }
}

/// Adds a region that a scheme was tried on.
pub(super) fn region(nodes: &mut Nodes, level: Level, path: &TreePath, region: FakeRegion) {
    let (start, end, nr_accesses, age) = region;
    let numbers = [
        ("start", start),
        ("end", end),
        ("nr_accesses", nr_accesses.into()),
        ("age", age.into()),
    ];
    for (name, number) in numbers {
        file(nodes, &path.join(name), &number.to_string(), false);
    }
    if level >= Level(6, 14) {
        file(nodes, &path.join("sz_filter_passed"), "0", false);
    }
}

/// Returns whether a file accepts a value.
pub(super) fn takes(level: Level, path: &TreePath, value: &str) -> bool {
    let is_word_of = |table: &str| {
        let mut words = lines_at(table, level).flat_map(|line| line.split(' '));
        words.any(|word| word == value)
    };
    match path.name() {
        "operations" => is_word_of("5.18 vaddr paddr\n5.19 fvaddr"),
        "action" => is_word_of(ACTIONS),
        "metric" => ["none", "free_mem_rate"].contains(&value),
        "target_metric" => is_word_of(METRICS),
        "type" => takes_filter(level, &path.parent().parent(), value),
        "goal_tuner" => ["consist", "temporal"].contains(&value),
        "matching" | "allow" | "pause" | "obsolete_target" | "complement" | "page_table"
        | "page_fault" => ["Y", "N"].contains(&value),
        "memcg_path" | "path" => true,
        "target_nid" => value.parse::<i32>().is_ok(),
        _ => value.parse::<u64>().is_ok(),
    }
}

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
