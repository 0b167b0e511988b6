//! The kernel's own counters of pages that it moved between nodes, whoever asked for it.
//!
//! Of the machine they are in `/proc/vmstat`, of each node in its `vmstat` below
//! `/sys/devices/system/node`; which there are depends on the kernel (older ones have `pgdemote_*` of the
//! machine only). Those that are lacking are left out, and not told as zero. `pgpromote_success` counts
//! at the node that pages came to and `pgdemote_*` at the one that they left; neither counts what
//! move_pages(2) moves, and so none of what Isotherm does. `pgmigrate_success` counts all of it, and what
//! compaction moves within a node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The kernel's names, by their beginnings.
const PREFIXES: [&str; 4] = [
    "pgpromote_",
    "pgdemote_",
    "pgmigrate_",
    "numa_pages_migrated",
];
/// Where nodes are.
const NODES: &str = "/sys/devices/system/node";

/// Pages since boot, by the kernel's names.
pub type Counters = BTreeMap<String, u64>;

/// Of the machine, and of each node with a counter of its own.
pub fn read() -> (Counters, BTreeMap<u32, Counters>) {
    let of = |path: &Path| counters(&fs::read_to_string(path).unwrap_or_default());
    let machine = of(Path::new("/proc/vmstat"));
    let mut nodes = BTreeMap::new();
    for entry in fs::read_dir(NODES).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        if let Some(node) = number.and_then(|number| number.parse().ok()) {
            let counters = of(&entry.path().join("vmstat"));
            if !counters.is_empty() {
                nodes.insert(node, counters);
            }
        }
    }
    (machine, nodes)
}

fn counters(text: &str) -> Counters {
    let lines = text
        .lines()
        .filter(|line| PREFIXES.iter().any(|of| line.starts_with(of)));
    let pairs = lines.filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_about_migration_is_told() {
        let text = "nr_free_pages 12\npgpromote_success 3\npgpromote_candidate 4\npgdemote_kswapd 5\n\
                    numa_hit 9\nnuma_pages_migrated 6\npgmigrate_fail x\n";
        let counters = counters(text);
        let told: Vec<_> = counters
            .iter()
            .map(|(name, n)| (name.as_str(), *n))
            .collect();
        assert_eq!(
            told,
            [
                ("numa_pages_migrated", 6),
                ("pgdemote_kswapd", 5),
                ("pgpromote_candidate", 4),
                ("pgpromote_success", 3),
            ]
        );
    }
}
