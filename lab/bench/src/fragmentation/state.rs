//! The kernel's counters of free memory and of compaction.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use isotherm_engine::PAGE_SIZE;
use serde::Serialize;
use serde_json::Value;

use super::super::BenchContext;
use super::super::child::thread_cpu;

/// Order of a huge page of 2 MiB.
const HUGE_ORDER: usize = 9;
const COUNTERS: [&str; 6] = [
    "compact_stall",
    "compact_success",
    "compact_fail",
    "compact_daemon_wake",
    "thp_fault_alloc",
    "thp_fault_fallback",
];

/// Free memory at a moment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Free {
    /// The highest score of a node, as in `isotherm compact`.
    pub(super) score: f64,
    /// Bytes that are free, by `/proc/buddyinfo`.
    pub(super) bytes: u64,
    /// Bytes of these in blocks of at least 2 MiB.
    pub(super) in_huge_blocks: u64,
}

impl Free {
    pub(super) fn look(context: &BenchContext) -> anyhow::Result<Self> {
        let output = Command::new(&context.isotherm)
            .args(["compact", "--dry-run", "--json"])
            .output()
            .context("cannot run isotherm")?;
        let report: Value = serde_json::from_slice(&output.stdout)
            .context("`isotherm compact --dry-run --json` printed no JSON")?;
        let nodes = report["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let scores = nodes
            .iter()
            .filter_map(|node| node["before"]["score"].as_f64());
        let Some(score) = scores.reduce(f64::max) else {
            bail!("`isotherm compact --dry-run --json` printed no score");
        };
        let buddyinfo =
            fs::read_to_string("/proc/buddyinfo").context("cannot read /proc/buddyinfo")?;
        let (bytes, in_huge_blocks) = free_bytes(&buddyinfo);
        Ok(Self {
            score,
            bytes,
            in_huge_blocks,
        })
    }
}

/// Returns the free bytes, and those in blocks of at least 2 MiB.
fn free_bytes(buddyinfo: &str) -> (u64, u64) {
    let (mut all, mut huge) = (0, 0);
    for line in buddyinfo.lines() {
        // `Node 0, zone   Normal` precedes the counts.
        for (order, blocks) in line.split_whitespace().skip(4).enumerate() {
            let bytes = blocks.parse::<u64>().unwrap_or(0) * (PAGE_SIZE << order);
            all += bytes;
            huge += if order >= HUGE_ORDER { bytes } else { 0 };
        }
    }
    (all, huge)
}

/// Counters at a moment, or their increase since another.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Counters {
    #[serde(flatten)]
    pub(super) vmstat: BTreeMap<&'static str, u64>,
    /// CPU time of all nodes' kcompactd.
    pub(super) kcompactd_seconds: f64,
}

impl Counters {
    pub(super) fn read() -> anyhow::Result<Self> {
        let vmstat = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
        let cpu: Duration = kcompactds()?
            .into_iter()
            .map(thread_cpu)
            .sum::<anyhow::Result<_>>()?;
        Ok(Self {
            vmstat: counters(&vmstat),
            kcompactd_seconds: cpu.as_secs_f64(),
        })
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        let added = |(name, value): (&&'static str, &u64)| {
            let before = earlier.vmstat.get(name).copied().unwrap_or(0);
            (*name, value.saturating_sub(before))
        };
        Self {
            vmstat: self.vmstat.iter().map(added).collect(),
            kcompactd_seconds: self.kcompactd_seconds - earlier.kcompactd_seconds,
        }
    }
}

fn counters(vmstat: &str) -> BTreeMap<&'static str, u64> {
    let lines = vmstat.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter_map(|(name, value)| {
            let name = COUNTERS.into_iter().find(|counter| *counter == name)?;
            Some((name, value.trim().parse().ok()?))
        })
        .collect()
}

/// Returns the process ids of `kcompactd0` and its like.
fn kcompactds() -> anyhow::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(pids
        .filter(|pid| name(pid).starts_with("kcompactd"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_added_up_by_their_sizes() {
        let text = "Node 0, zone   Normal 3 1 0 0 0 0 0 0 0 2 1\nNode 1, zone Movable 1\n";
        assert_eq!(
            free_bytes(text),
            ((3 + 2 + 1024 + 1024 + 1) * 4096, 2048 * 4096)
        );
    }

    #[test]
    fn counters_are_those_asked_for() {
        let found = counters("compact_stall 7\ncompact_stall_x 9\nnr_free_pages 1\n");
        assert_eq!(found, [("compact_stall", 7)].into());
    }
}
