//! The kernel's own counters of pages that it moved between nodes, whatever caused the move.
//!
//! The machine's counters are in `/proc/vmstat`, those of each node in its `vmstat` below `/sys/devices/system/node`.
//! The set depends on the kernel (older ones have `pgdemote_*` of the machine only). Missing counters are left out, and
//! not reported as zero. `pgpromote_success` counts at the destination node and `pgdemote_*` at the source node.
//! Neither counts pages moved by move_pages(2), and so none of Isotherm's moves. `pgmigrate_success` counts all of
//! these, and also the moves of compaction within a node.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use crate::text;

/// Prefixes of the kernel's counter names.
const PREFIXES: [&str; 4] = [
    "pgpromote_",
    "pgdemote_",
    "pgmigrate_",
    "numa_pages_migrated",
];
pub(crate) const NODES: &str = "/sys/devices/system/node";

/// Counters of pages since boot, by the kernel's names.
pub(crate) type MigrationCounters = BTreeMap<String, u64>;

/// Reads the counters of the machine, and of each node that has its own.
pub fn read() -> (MigrationCounters, BTreeMap<u32, MigrationCounters>) {
    let of = |path: &Path| counters(&fs::read_to_string(path).unwrap_or_default());
    let machine = of(Path::new("/proc/vmstat"));
    let mut nodes = BTreeMap::new();
    for node in node_numbers() {
        let counters = of(Path::new(&format!("{NODES}/node{node}/vmstat")));
        if !counters.is_empty() {
            nodes.insert(node, counters);
        }
    }
    (machine, nodes)
}

/// Returns the machine's nodes.
pub(crate) fn node_numbers() -> BTreeSet<u32> {
    let entries = fs::read_dir(NODES).into_iter().flatten().flatten();
    let number = |name: OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    entries
        .filter_map(|entry| number(entry.file_name()))
        .collect()
}

fn counters(text: &str) -> MigrationCounters {
    let moves =
        text::counters(text).filter(|(name, _)| PREFIXES.iter().any(|of| name.starts_with(of)));
    moves
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_about_migration_is_told() {
        let text = "nr_free_pages 12\npgpromote_success 3\npgpromote_candidate 4\npgdemote_kswapd 5\n\
                    numa_hit 9\nnuma_pages_migrated 6\npgmigrate_fail x\n";
        let wanted = [
            ("numa_pages_migrated", 6),
            ("pgdemote_kswapd", 5),
            ("pgpromote_candidate", 4),
            ("pgpromote_success", 3),
        ];
        let wanted = wanted.map(|(name, n)| (name.to_owned(), n));
        assert_eq!(counters(text), wanted.into());
    }
}
