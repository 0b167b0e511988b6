//! Compaction of this machine's memory: measures fragmentation, and makes the kernel compact a node.
//!
//! Problem: the engine's controller ([`isotherm_policy::compaction`]) needs free blocks per zone, kswapd's activity,
//! and compaction that can be stopped when enough is done. The kernel exports the first in `/proc` and the second
//! nowhere. It has no direct interface for the third: a write to `/sys/devices/system/node/nodeN/compact` compacts the
//! whole node, to the end.
//!
//! Approach: three ways to have memory compacted were compared:
//!
//! - *Write to `nodeN/compact` and wait.* This works for any order, on any kernel since 2.6.35. It always continues
//!   until the scanners have met: many times the work that a round down to the low threshold needs.
//! - *Write `/proc/sys/vm/compaction_proactiveness`*, which since 5.15 starts a round of the kernel's own proactive
//!   compaction (Documentation/admin-guide/sysctl/vm.rst). It backs off automatically and ends at its threshold. But it
//!   knows one order (that of huge pages) and acts on all nodes at once. It is also a setting of the whole machine,
//!   which must be restored even after a crash.
//! - *Write to `nodeN/compact` from a process of our own, and kill that* when the controller requests it. The scanner
//!   checks for a fatal signal every few pages (`isolate_migratepages_block` in mm/compaction.c), puts back the pages
//!   it holds, and exits.
//!
//! The third is used ([`Trigger`]): it stops at the low threshold and for kswapd, for any order. It changes no setting,
//! so there is none to restore. The process also dies with us, however we die. Pages that were moved by then stay in
//! place; that is its only effect.
//!
//! Limits: the kernel chooses the zones, in their order, and scans each from its beginning at every round. It works in
//! its `MIGRATE_SYNC` mode, which waits for pages under writeback; its own proactive compaction does not. Lock
//! contention cannot be seen from here: zones are never `contended`. Free pages on per-CPU lists are not counted.
//! Compaction may end at once if exactly every fourth page is in use, always the first of four. The kernel's free
//! scanner then finds no destination: it checks only every 32nd page until it finds one (`stride` in
//! `isolate_freepages`; seen on 6.12).

mod kswapd;
mod parse;
mod trigger;

use std::fs;
use std::io;
use std::path::PathBuf;

use isotherm_engine::PAGE_SIZE;
use isotherm_policy::compaction::{NodeFacts, ZoneFacts};
use serde::Serialize;
use thiserror::Error;

use crate::node::{self, MemoryMapError, Zone};
use crate::text;

pub use kswapd::Kswapd;
pub use parse::{ParseError, parse_buddyinfo};
pub use trigger::{Compacted, Compacting, Trigger};

const BUDDYINFO: &str = "/proc/buddyinfo";
const PROACTIVENESS: &str = "/proc/sys/vm/compaction_proactiveness";

/// Reason why fragmentation cannot be measured, or memory cannot be compacted.
#[derive(Debug, Error)]
pub enum CompactionError {
    #[error("{0}; is /proc mounted?")]
    Unreadable(#[from] MemoryMapError),
    #[error("{BUDDYINFO} is not as expected: {0}")]
    Malformed(#[from] ParseError),
    #[error("/proc/zoneinfo is not as expected: it lists no zone with memory")]
    NoZones,
    #[error("there is no NUMA node {node} with memory; this machine has {present}")]
    NoNode { node: u32, present: String },
    #[error(
        "this kernel cannot compact memory on request: neither {per_node} nor {whole} is there; it needs a kernel with CONFIG_COMPACTION=y"
    )]
    Unsupported {
        per_node: String,
        whole: &'static str,
    },
    #[error(
        "cannot open {} to make the kernel compact: {source}; run as root, and not in a container where it is read-only", path.display()
    )]
    Denied { path: PathBuf, source: io::Error },
    #[error("cannot start a process to compact in: {0}")]
    NoProcess(io::Error),
    #[error("the kernel refused to compact by {}: {source}", path.display())]
    Refused { path: PathBuf, source: io::Error },
}

/// Reads nodes, zones and their free memory. Keep it: zones do not change meanwhile, and their sizes take longer to
/// read than free blocks.
#[derive(Clone, Debug)]
pub struct FragmentationReader {
    zones: Vec<Zone>,
}

impl FragmentationReader {
    /// Reads the sizes of zones.
    pub fn open() -> Result<Self, CompactionError> {
        let zones = node::zones()?;
        if zones.is_empty() {
            return Err(CompactionError::NoZones);
        }
        Ok(Self { zones })
    }

    /// Returns the current state of all nodes with memory, in order. kswapd is not checked, and so shown as inactive.
    pub fn nodes(&self) -> Result<Vec<NodeFacts>, CompactionError> {
        let buddies = parse_buddyinfo(&node::read(BUDDYINFO)?)?;
        Ok(join(buddies, &self.zones))
    }

    /// Returns the current state of one node.
    pub fn node(&self, node: u32) -> Result<NodeFacts, CompactionError> {
        let nodes = self.nodes()?;
        let present: Vec<String> = nodes.iter().map(|facts| facts.node.to_string()).collect();
        nodes
            .into_iter()
            .find(|facts| facts.node == node)
            .ok_or(CompactionError::NoNode {
                node,
                present: present.join(", "),
            })
    }
}

/// Joins free blocks with sizes. A zone that was added since the sizes were read has size 0.
fn join(buddies: Vec<(u32, ZoneFacts)>, sizes: &[Zone]) -> Vec<NodeFacts> {
    let mut nodes: Vec<NodeFacts> = Vec::new();
    for (node, mut zone) in buddies {
        let is_it = |size: &&Zone| size.node == node && size.name == zone.name;
        let size = sizes.iter().find(is_it);
        zone.present_pages = size.map_or(0, |size| size.present / PAGE_SIZE);
        match nodes.iter_mut().find(|facts| facts.node == node) {
            Some(facts) => facts.zones.push(zone),
            None => nodes.push(NodeFacts {
                node,
                zones: vec![zone],
                kswapd_active: false,
            }),
        }
    }
    nodes.sort_by_key(|facts| facts.node);
    nodes
}

/// Returns the kernel's own setting, 0 to 100; `None` before 5.9, and if it cannot be read.
pub fn kernel_proactiveness() -> Option<u32> {
    text::number(PROACTIVENESS)
}

/// Work of compaction since boot, whatever caused it: `/proc/vmstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompactionCounters {
    /// Pages that the migrate scanner scanned.
    pub migrate_scanned: u64,
    /// Pages that the free scanner scanned.
    pub free_scanned: u64,
    /// Pages isolated to be moved, and as destinations.
    pub isolated: u64,
    /// Allocations that had to compact directly.
    pub stalls: u64,
    /// Pages that the migrate scanner scanned for kcompactd.
    pub daemon_migrate_scanned: u64,
}

impl CompactionCounters {
    /// Reads the current counters; zeros if they cannot be read.
    pub fn read() -> Self {
        Self::of(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    fn of(vmstat: &str) -> Self {
        let counter = |name| text::counter(vmstat, name).unwrap_or(0);
        Self {
            migrate_scanned: counter("compact_migrate_scanned"),
            free_scanned: counter("compact_free_scanned"),
            isolated: counter("compact_isolated"),
            stalls: counter("compact_stall"),
            daemon_migrate_scanned: counter("compact_daemon_migrate_scanned"),
        }
    }

    /// Returns the increase since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            migrate_scanned: less(self.migrate_scanned, earlier.migrate_scanned),
            free_scanned: less(self.free_scanned, earlier.free_scanned),
            isolated: less(self.isolated, earlier.isolated),
            stalls: less(self.stalls, earlier.stalls),
            daemon_migrate_scanned: less(
                self.daemon_migrate_scanned,
                earlier.daemon_migrate_scanned,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_joined_by_node_and_name() {
        let buddies = parse_buddyinfo(
            "Node 1, zone   Normal      1      0      2\nNode 0, zone      DMA      0      0      1\nNode 0, zone   Normal      5      0      0\n",
        );
        let sizes = [(0, "DMA", 3998), (0, "Normal", 500), (1, "Normal", 700)];
        let sizes = sizes.map(|(node, name, pages)| {
            format!("Node {node}, zone {name}\nspanned {pages}\npresent {pages}\nstart_pfn: 1\n")
        });
        let zones = node::parse_zones(&sizes.concat());
        let nodes = join(buddies.expect("parses"), &zones);
        let seen: Vec<(u32, &str, u64, u64)> = nodes
            .iter()
            .flat_map(|node| node.zones.iter().map(move |zone| (node.node, zone)))
            .map(|(node, zone)| (node, &*zone.name, zone.present_pages, zone.free_pages()))
            .collect();
        let wanted = [
            (0, "DMA", 3998, 4),
            (0, "Normal", 500, 5),
            (1, "Normal", 700, 9),
        ];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn counters_are_told_apart() {
        let before =
            CompactionCounters::of("compact_migrate_scanned 5\ncompact_stall 1\nnr_free_pages 9\n");
        let after = CompactionCounters::of(
            "compact_migrate_scanned 9\ncompact_stall 1\ncompact_isolated 2",
        );
        let delta = after.since(before);
        assert_eq!((delta.migrate_scanned, delta.stalls), (4, 0));
        assert_eq!(delta.isolated, 2);
    }

    #[test]
    fn this_machine_can_be_read() {
        let nodes = FragmentationReader::open().and_then(|here| here.nodes());
        let nodes = nodes.expect("every Linux has buddyinfo and zoneinfo");
        assert!(!nodes.is_empty());
        let mut zones = nodes.iter().flat_map(|node| &node.zones);
        assert!(zones.all(|zone| zone.free_pages() <= zone.present_pages));
        assert!(matches!(
            FragmentationReader::open().and_then(|here| here.node(4_000_000)),
            Err(CompactionError::NoNode {
                node: 4_000_000,
                ..
            })
        ));
    }
}
