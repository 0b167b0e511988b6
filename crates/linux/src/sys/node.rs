//! Physical memory: the addresses and NUMA nodes of RAM, and the nodes of the pages of a process or of ranges of
//! frames.
//!
//! The node of each page is asked for separately, which costs a quarter of a microsecond or more. So a [`Tally`]
//! samples pages, spread evenly: one in every stride of all its ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use isotherm_engine::{AddressRange, PAGE_SIZE};
use thiserror::Error;

use crate::arch;
use crate::frames::Frames;
use crate::process::{Process, ProcessError};

/// Maximum number of pages that a tally samples: a share is then off by at most 0.4 points (one standard deviation),
/// for some milliseconds of work.
const TALLY_PAGES: u64 = 1 << 14;
/// Pages in one call: it takes and returns a word for each.
const CHUNK_PAGES: usize = 4096;

/// Reason why physical memory cannot be described.
#[derive(Debug, Error)]
pub enum MemoryMapError {
    #[error("cannot read {path}: {source}")]
    Unreadable {
        path: &'static str,
        source: io::Error,
    },
    #[error("/proc/iomem shows no addresses; run as root")]
    Hidden,
    #[error("there is no NUMA node {node} with memory; this machine has {present}")]
    NoNode { node: u32, present: String },
}

/// Numbers of sampled pages on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Distance between two sampled pages, in pages.
    stride: u64,
    pages: BTreeMap<u32, u64>,
}

impl Tally {
    /// Returns a tally for ranges of `bytes` in all.
    pub fn of(bytes: u64) -> Self {
        Self {
            stride: (bytes / PAGE_SIZE).div_ceil(TALLY_PAGES).max(1),
            pages: BTreeMap::new(),
        }
    }

    /// Samples a process's resident pages in `ranges`.
    pub fn add_process(
        &mut self,
        process: &Process,
        ranges: &[AddressRange],
    ) -> Result<(), ProcessError> {
        let pages: Vec<u64> = spread(ranges, self.stride).collect();
        for chunk in pages.chunks(CHUNK_PAGES) {
            for node in process.nodes_of(chunk)? {
                // A negative number: the page is not in memory.
                if let Ok(node) = u32::try_from(node) {
                    *self.pages.entry(node).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Samples the frames in `ranges` of physical addresses that hold pages on a reclaim list, like the kernel's
    /// `damon_get_folio`: free memory has no user.
    pub fn add_frames(&mut self, ranges: &[AddressRange]) -> Result<(), MemoryMapError> {
        let zones = zones()?;
        let cannot = |source| MemoryMapError::Unreadable {
            path: "/proc/kpageflags",
            source,
        };
        let frames = Frames::open().map_err(cannot)?;
        for address in spread(ranges, self.stride) {
            let frame = address / PAGE_SIZE;
            if let Some(node) = node_of(&zones, frame)
                && frames.is_on_lru(frame).map_err(cannot)?
            {
                *self.pages.entry(node).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Returns the ten-thousandths of all pages that are on `node`; `None` if there are no pages.
    pub fn share_bp(&self, node: u32) -> Option<u64> {
        let all: u64 = self.pages.values().sum();
        let here = self.pages.get(&node).copied().unwrap_or(0);
        (here * 10_000).checked_div(all)
    }
}

/// Returns the addresses of pages at a distance of `stride` in `ranges`, as if these were one range. The first page is
/// in the middle of its stride.
fn spread(ranges: &[AddressRange], stride: u64) -> impl Iterator<Item = u64> + '_ {
    let mut until_next = stride / 2;
    ranges.iter().flat_map(move |range| {
        let nr_pages = range.len() / PAGE_SIZE;
        let (first, start) = (until_next, range.start);
        let nr = nr_pages.saturating_sub(first).div_ceil(stride);
        until_next = first + nr * stride - nr_pages;
        (0..nr).map(move |i| start + (first + i * stride) * PAGE_SIZE)
    })
}

/// Returns the node of a frame, if known.
pub(crate) fn node_of(zones: &[Zone], frame: u64) -> Option<u32> {
    let address = frame.checked_mul(PAGE_SIZE)?;
    let zone = zones.iter().find(|zone| zone.range.contains(address));
    zone.map(|zone| zone.node)
}

/// Returns the reason why there is no memory on `node`, if there is none. Returns `None` if that is unknown.
pub fn lacks(node: u32) -> Option<String> {
    let zones = zones().ok()?;
    let is_there = nodes_of(&zones).contains(&node);
    (!is_there).then(|| no_node(node, &zones).to_string())
}

pub(crate) fn read(path: &'static str) -> Result<String, MemoryMapError> {
    fs::read_to_string(path).map_err(|source| MemoryMapError::Unreadable { path, source })
}

fn no_node(node: u32, zones: &[Zone]) -> MemoryMapError {
    let present: Vec<String> = nodes_of(zones).iter().map(ToString::to_string).collect();
    MemoryMapError::NoNode {
        node,
        present: present.join(", "),
    }
}

/// Returns the number of nodes with memory; 1 if that cannot be read.
pub fn count() -> usize {
    nodes_of(&zones().unwrap_or_default()).len().max(1)
}

fn nodes_of(zones: &[Zone]) -> BTreeSet<u32> {
    zones.iter().map(|zone| zone.node).collect()
}

/// Returns the ranges of physical RAM in address order, from `/proc/iomem`; those of one node only, if given.
pub fn ram(node: Option<u32>) -> Result<Vec<AddressRange>, MemoryMapError> {
    let all = system_ram(&read("/proc/iomem")?);
    if all.is_empty() {
        return Err(MemoryMapError::Hidden);
    }
    let Some(node) = node else { return Ok(all) };
    let zones = zones()?;
    let of_node = zones.iter().filter(|zone| zone.node == node);
    let of_node: Vec<AddressRange> = of_node.map(|zone| zone.range).collect();
    if of_node.is_empty() {
        return Err(no_node(node, &zones));
    }
    let mut ranges = AddressRange::within(all, &of_node);
    ranges.sort_unstable();
    Ok(ranges)
}

/// Returns every node's ranges of physical RAM, in order of nodes and addresses.
pub fn all() -> Result<Vec<(u32, AddressRange)>, MemoryMapError> {
    let mut found = Vec::new();
    for node in nodes_of(&zones()?) {
        found.extend(ram(Some(node))?.into_iter().map(|range| (node, range)));
    }
    Ok(found)
}

/// Parses the top-level "System RAM" lines of `/proc/iomem`, whole pages only.
fn system_ram(iomem: &str) -> Vec<AddressRange> {
    iomem
        .lines()
        .filter(|line| !line.starts_with(' ') && line.ends_with(": System RAM"))
        .filter_map(|line| {
            let (start, end) = line.split_once(" : ")?.0.split_once('-')?;
            let start = u64::from_str_radix(start, 16)
                .ok()?
                .next_multiple_of(arch::page_bytes());
            let end = u64::from_str_radix(end, 16).ok()?.checked_add(1)?;
            let end = end & !(arch::page_bytes() - 1);
            AddressRange::checked(start, end)
        })
        .collect()
}

/// A zone that has memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub node: u32,
    /// Name of the zone: `DMA`, `DMA32`, `Normal`, `Movable`, ...
    pub name: String,
    /// Addresses that the zone spans, including holes.
    pub range: AddressRange,
    /// Bytes that are present.
    pub present: u64,
    /// Present bytes that the kernel did not reserve at boot.
    pub managed: u64,
    /// Managed bytes that the kernel counts as free.
    pub free: u64,
    /// Free bytes on per-CPU lists, which the kernel counts as neither free nor used. Since Linux 6.7 they hold up to
    /// an eighth of the zone (`percpu_pagelist_high_fraction` in Documentation/admin-guide/sysctl/vm.rst).
    pub free_on_lists: u64,
    /// Bytes that compressed swap (zram, zswap) takes; 0 if the kernel does not report them.
    pub compressed_swap: u64,
}

/// Reads all zones that have memory from `/proc/zoneinfo`.
pub fn zones() -> Result<Vec<Zone>, MemoryMapError> {
    Ok(parse_zones(&read("/proc/zoneinfo")?))
}

/// Returns the free bytes of all zones that the kernel does not count as free ([`Zone::free_on_lists`]); 0 if it does
/// not report them.
pub fn free_on_lists() -> u64 {
    let zones = zones().unwrap_or_default();
    zones.iter().map(|zone| zone.free_on_lists).sum()
}

/// Parses the zones of `/proc/zoneinfo` that have memory.
pub(crate) fn parse_zones(zoneinfo: &str) -> Vec<Zone> {
    let mut found = Vec::new();
    // The address comes last in a zone's text.
    let nothing = Zone {
        node: 0,
        name: String::new(),
        range: AddressRange::new(0, PAGE_SIZE),
        present: 0,
        managed: 0,
        free: 0,
        free_on_lists: 0,
        compressed_swap: 0,
    };
    let (mut zone, mut spanned) = (nothing.clone(), 0);
    let bytes = |pages: &str| {
        let pages = pages.trim().parse::<u64>().unwrap_or(0);
        pages.saturating_mul(arch::page_bytes())
    };
    for line in zoneinfo.lines() {
        let line = line.trim();
        if let Some((number, name)) = { line.strip_prefix("Node ") }.and_then(|l| l.split_once(','))
        {
            let name = name.trim().trim_start_matches("zone").trim();
            zone = Zone {
                node: number.parse().unwrap_or(0),
                name: name.to_owned(),
                ..nothing.clone()
            };
            spanned = 0;
        } else if let Some(pages) = line.strip_prefix("pages free ") {
            zone.free = bytes(pages);
        } else if let Some(pages) = line.strip_prefix("count:") {
            zone.free_on_lists = zone.free_on_lists.saturating_add(bytes(pages));
        } else if let Some(pages) = line.strip_prefix("nr_zspages ") {
            zone.compressed_swap = bytes(pages);
        } else if let Some(pages) = line.strip_prefix("spanned ") {
            spanned = bytes(pages);
        } else if let Some(pages) = line.strip_prefix("present ") {
            zone.present = bytes(pages);
        } else if let Some(pages) = line.strip_prefix("managed ") {
            zone.managed = bytes(pages);
        } else if let Some(frame) = line.strip_prefix("start_pfn:")
            && let start = bytes(frame)
            && let Some(range) = AddressRange::checked(start, start.saturating_add(spanned))
            && zone.present > 0
        {
            zone.range = range;
            found.push(zone.clone());
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
        let zoneinfo = "Node 0, zone      DMA\n  pages free 3\n        spanned  4095\n        present  3998\n        managed  3840\n  pagesets\n    cpu: 0\n\
                        \x20     nr_zspages   9\n              count:    5\n              high:     86330\n    cpu: 1\n              count: 2\n  start_pfn:           1\n\
                        Node 1, zone   Normal\n        spanned  262144\n        present  262144\n  start_pfn:           1048576\n\
                        Node 1, zone  Movable\n        spanned  0\n        present  0\n  start_pfn: 0\n";
        let expected = [
            (0, AddressRange::new(0x1000, 0x100_0000)),
            (1, AddressRange::new(0x1_0000_0000, 0x1_4000_0000)),
        ];
        let zones = parse_zones(zoneinfo);
        let found: Vec<_> = zones.iter().map(|zone| (zone.node, zone.range)).collect();
        assert_eq!(found, expected);
        let dma = &zones[0];
        assert_eq!((dma.node, dma.name.as_str()), (0, "DMA"));
        assert_eq!((dma.free, dma.present), (3 * PAGE_SIZE, 3998 * PAGE_SIZE));
        assert_eq!(dma.managed, 3840 * PAGE_SIZE);
        assert_eq!(dma.free_on_lists, 7 * PAGE_SIZE);
        assert_eq!(dma.compressed_swap, 9 * PAGE_SIZE);
        let huge = u64::MAX.to_string();
        let forged = zoneinfo.replace("3998", &huge).replace("4095", &huge);
        let forged = forged.replace("count:    5", &format!("count: {huge}"));
        let dma = &parse_zones(&forged)[0];
        assert_eq!((dma.present, dma.free_on_lists), (u64::MAX, u64::MAX));
    }

    #[test]
    fn some_pages_are_looked_at_evenly_across_ranges() {
        let page = |n: u64| n * PAGE_SIZE;
        let range = |a, b| AddressRange::new(page(a), page(b));
        let pages = |ranges: &[AddressRange], stride| {
            let pages = spread(ranges, stride).map(|address| address / PAGE_SIZE);
            pages.collect::<Vec<_>>()
        };
        assert_eq!(pages(&[range(1, 4), range(9, 10)], 1), [1, 2, 3, 9]);
        assert_eq!(pages(&[range(0, 10), range(20, 30)], 4), [2, 6, 20, 24, 28]);
        let small: Vec<AddressRange> = (0..12).map(|i| range(2 * i, 2 * i + 1)).collect();
        // Pages 2, 6 and 10 of them all.
        assert_eq!(pages(&small, 4), [4, 12, 20]);
    }

    #[test]
    fn every_node_has_its_share_of_ram() {
        let Ok(ram) = ram(None) else {
            eprintln!("SKIP every_node_has_its_share_of_ram: not root");
            return;
        };
        let all = all().expect("as readable");
        let mut nodes: Vec<u32> = all.iter().map(|(node, _)| *node).collect();
        nodes.dedup();
        assert_eq!(nodes.len(), count());
        let is_ram = |range: AddressRange| ram.iter().any(|r| r.intersection(range) == Some(range));
        assert!(all.iter().all(|(_, range)| is_ram(*range)), "{all:?}");
    }

    #[test]
    fn our_own_memory_is_on_nodes_that_there_are() {
        let memory = vec![1u8; 64 * PAGE_SIZE as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_SIZE);
        let range = AddressRange::new(start, start + 63 * PAGE_SIZE);
        let process = Process::open(std::process::id()).expect("ourselves");
        let mut tally = Tally::of(range.len());
        assert_eq!(tally.share_bp(0), None);
        tally.add_process(&process, &[range]).expect("ours to ask");
        assert_eq!(tally.pages.values().sum::<u64>(), 63);
        assert!(tally.pages.keys().all(|node| lacks(*node).is_none()));
        assert!(lacks(4_000).is_some_and(|why| why.contains("4000")));
        drop(memory);
    }

    #[test]
    fn frames_in_use_are_on_nodes_that_there_are() {
        let ram = ram(None).unwrap_or_default();
        if ram.is_empty() || Frames::open().is_err() {
            eprintln!("SKIP frames_in_use_are_on_nodes_that_there_are: not root");
            return;
        }
        let mut tally = Tally::of(ram.iter().map(|r| r.len()).sum());
        tally.add_frames(&ram).expect("readable");
        let nr: u64 = tally.pages.values().sum();
        assert!((1..=TALLY_PAGES).contains(&nr), "{tally:?}");
        assert!(tally.pages.keys().all(|node| lacks(*node).is_none()));
    }
}
