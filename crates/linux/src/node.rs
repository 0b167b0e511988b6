//! Physical memory: which addresses are RAM, and of which NUMA node.

use std::fs;
use std::io;

use isotherm_engine::{AddressRange, PAGE_SIZE};
use thiserror::Error;

/// Why physical memory cannot be described.
#[derive(Debug, Error)]
pub enum MemoryMapError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// Which.
        path: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The addresses are hidden.
    #[error("/proc/iomem shows no addresses; run as root")]
    Hidden,
    /// No such node.
    #[error("there is no NUMA node {node} with memory; this machine has {present}")]
    NoNode {
        /// The one that was asked for.
        node: u32,
        /// Those there are.
        present: String,
    },
}

/// How many nodes have memory; 1 where that cannot be read.
pub fn count() -> usize {
    let zones = fs::read_to_string("/proc/zoneinfo").map(|text| zones(&text));
    let mut nodes: Vec<u32> = zones
        .unwrap_or_default()
        .into_iter()
        .map(|(node, _)| node)
        .collect();
    nodes.dedup();
    nodes.len().max(1)
}

/// Ranges of physical RAM in address order, from `/proc/iomem`; of one node only, if given.
pub fn ram(node: Option<u32>) -> Result<Vec<AddressRange>, MemoryMapError> {
    let read = |path: &'static str| {
        fs::read_to_string(path).map_err(|source| MemoryMapError::Unreadable { path, source })
    };
    let all = system_ram(&read("/proc/iomem")?);
    if all.is_empty() {
        return Err(MemoryMapError::Hidden);
    }
    let Some(node) = node else { return Ok(all) };
    let zones = zones(&read("/proc/zoneinfo")?);
    let of_node: Vec<AddressRange> = zones
        .iter()
        .filter(|(of, _)| *of == node)
        .map(|(_, range)| *range)
        .collect();
    if of_node.is_empty() {
        let mut present: Vec<u32> = zones.iter().map(|(of, _)| *of).collect();
        present.dedup();
        let present = present
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        return Err(MemoryMapError::NoNode { node, present });
    }
    let mut ranges: Vec<AddressRange> = of_node
        .iter()
        .flat_map(|zone| all.iter().filter_map(|ram| ram.intersection(*zone)))
        .collect();
    ranges.sort_unstable();
    Ok(ranges)
}

/// Top-level "System RAM" lines of `/proc/iomem`, whole pages only.
fn system_ram(iomem: &str) -> Vec<AddressRange> {
    iomem
        .lines()
        .filter(|line| !line.starts_with(' ') && line.ends_with(": System RAM"))
        .filter_map(|line| {
            let (start, end) = line.split_once(" : ")?.0.split_once('-')?;
            let start = u64::from_str_radix(start, 16)
                .ok()?
                .next_multiple_of(PAGE_SIZE);
            let end = (u64::from_str_radix(end, 16).ok()?.checked_add(1)?) & !(PAGE_SIZE - 1);
            AddressRange::checked(start, end)
        })
        .collect()
}

/// Node and spanned addresses of each populated zone in `/proc/zoneinfo`.
fn zones(zoneinfo: &str) -> Vec<(u32, AddressRange)> {
    let mut found = Vec::new();
    let (mut node, mut spanned, mut present) = (0, 0, 0);
    for line in zoneinfo.lines() {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Node ") {
            node = rest
                .split(',')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
        } else if let Some(pages) = line.strip_prefix("spanned ") {
            spanned = pages.trim().parse::<u64>().unwrap_or(0);
        } else if let Some(pages) = line.strip_prefix("present ") {
            present = pages.trim().parse::<u64>().unwrap_or(0);
        } else if let Some(frame) = line.strip_prefix("start_pfn:")
            && let Ok(first) = frame.trim().parse::<u64>()
            && present > 0
        {
            let range = AddressRange::checked(first * PAGE_SIZE, (first + spanned) * PAGE_SIZE);
            found.extend(range.map(|range| (node, range)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_read_from_iomem_and_nodes_from_zoneinfo() {
        let iomem = "00000000-00000fff : Reserved\n00001000-0009fbff : System RAM\n  00002000-00003000 : Kernel code\n\
                     100000000-1ffffffff : System RAM\n";
        let expected = [
            AddressRange::new(0x1000, 0x9f000),
            AddressRange::new(0x1_0000_0000, 0x2_0000_0000),
        ];
        assert_eq!(system_ram(iomem), expected);
        let zoneinfo = "Node 0, zone      DMA\n  pages free 3\n        spanned  4095\n        present  3998\n  start_pfn:           1\n\
                        Node 1, zone   Normal\n        spanned  262144\n        present  262144\n  start_pfn:           1048576\n\
                        Node 1, zone  Movable\n        spanned  0\n        present  0\n  start_pfn: 0\n";
        let expected = [
            (0, AddressRange::new(0x1000, 0x100_0000)),
            (1, AddressRange::new(0x1_0000_0000, 0x1_4000_0000)),
        ];
        assert_eq!(zones(zoneinfo), expected);
    }
}
