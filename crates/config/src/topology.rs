//! NUMA nodes and their physical addresses, of this machine or of a described one.
//!
//! A described machine is a list of nodes in YAML or JSON, each with its size or its ranges:
//!
//! ```yaml
//! nodes:
//! - id: 0
//!   size: 512 GiB
//! - id: 2
//!   regions:
//!   - start: 549,755,813,888
//!     end: 652,835,028,992
//! ```
//!
//! A node with a size follows the previous nodes without holes, from address 0 on, as the simulated machine numbers its
//! frames.
//!
//! Limits: nodes may not share addresses, and all borders are page borders.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, PAGE_SIZE};
use thiserror::Error;

use crate::cursor::{Cursor, Log};
use crate::problem::Problems;
use crate::unit;
use crate::{ConfigFormat, parse};

/// Limit of the ranges of a machine. Linux has at most 1024 nodes.
const EXTENTS_MAX: usize = 1 << 14;
/// Physical addresses of x86-64 have 52 bits.
const END_MAX: u64 = 1 << 52;

/// A part of a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Size in bytes; the part follows the previous ones.
    Size(u64),
    Range(AddressRange),
}

/// The memory of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: BTreeMap<u32, Vec<AddressRange>>,
}

/// Reasons why a machine is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    #[error("node {node}: {extent} is not one or more whole pages of 4 KiB")]
    NoPages { node: u32, extent: String },
    #[error("node {node} would end above 4 PiB, where no physical address is")]
    TooLarge { node: u32 },
    #[error("node {node}: {range:?} overlaps {other:?} of node {other_node}")]
    Overlap {
        node: u32,
        range: AddressRange,
        other: AddressRange,
        other_node: u32,
    },
}

impl Topology {
    /// Makes a machine of these nodes; a node may occur more than once.
    ///
    /// # Errors
    /// Fails at the first impossible part.
    pub fn new(extents: impl IntoIterator<Item = (u32, Extent)>) -> Result<Self, TopologyError> {
        let mut topology = Self::default();
        for (node, extent) in extents {
            topology.add(node, extent)?;
        }
        Ok(topology)
    }

    /// Reads a described machine.
    ///
    /// # Errors
    /// Fails with all errors of the text.
    pub fn read(text: &str) -> Result<Self, Problems> {
        let log = Log::new(text);
        let root = parse(text, ConfigFormat::Detect, &log);
        let topology = root.and_then(|root| read_nodes(&Cursor::root(&root, &log)));
        let problems = log.into_problems();
        match topology {
            Some(topology) if !problems.has_errors() => Ok(topology),
            _ => Err(problems),
        }
    }

    /// Nodes with memory, in order.
    pub fn nodes(&self) -> Vec<u32> {
        self.nodes.keys().copied().collect()
    }

    /// Memory of a node by address; neighbouring ranges are joined.
    pub fn regions(&self, node: u32) -> Option<&[AddressRange]> {
        self.nodes.get(&node).map(Vec::as_slice)
    }

    fn add(&mut self, node: u32, extent: Extent) -> Result<(), TopologyError> {
        let no_pages = || {
            let extent = match extent {
                Extent::Size(size) => format!("a size of {size} bytes"),
                Extent::Range(range) => format!("{range:?}"),
            };
            TopologyError::NoPages { node, extent }
        };
        let range = match extent {
            Extent::Range(range) => range,
            Extent::Size(size) => {
                let start = self.all().map(|(_, range)| range.end).max().unwrap_or(0);
                let end = start.checked_add(size);
                let end = end.ok_or(TopologyError::TooLarge { node })?;
                AddressRange::checked(start, end).ok_or_else(no_pages)?
            }
        };
        if !(range.start | range.end).is_multiple_of(PAGE_SIZE) {
            return Err(no_pages());
        }
        if range.end > END_MAX {
            return Err(TopologyError::TooLarge { node });
        }
        let overlapping = self
            .all()
            .find(|(_, other)| other.intersection(range).is_some());
        if let Some((other_node, other)) = overlapping {
            return Err(TopologyError::Overlap {
                node,
                range,
                other,
                other_node,
            });
        }
        insert(self.nodes.entry(node).or_default(), range);
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = (u32, AddressRange)> + '_ {
        let nodes = self.nodes.iter();
        nodes.flat_map(|(node, ranges)| ranges.iter().map(move |range| (*node, *range)))
    }
}

/// Adds a range to sorted ones that it does not overlap, and joins it with its neighbours.
fn insert(ranges: &mut Vec<AddressRange>, range: AddressRange) {
    let at = ranges.partition_point(|other| other.start < range.start);
    ranges.insert(at, range);
    ranges.dedup_by(|after, before| {
        let touch = before.end == after.start;
        if touch {
            before.end = after.end;
        }
        touch
    });
}

/// Reads a node from the command line: `0=512GiB` or `2=0x8000000000-0x9800000000`.
///
/// # Errors
/// Fails if the text has no such form; the error names the expected one.
pub fn node_extent(text: &str) -> Result<(u32, Extent), String> {
    let expected =
        "expected ID=SIZE or ID=START-END, such as 0=512GiB or 1=0x100000000-0x200000000";
    let (id, extent) = text.split_once('=').ok_or(expected)?;
    let id: u32 = id.trim().parse().map_err(|_| expected)?;
    let Some((start, end)) = extent.split_once('-') else {
        let size = unit::size(extent).map_err(|_| expected)?;
        return Ok((id, Extent::Size(size)));
    };
    let address = |text: &str| match text.trim().strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| expected),
        None => unit::size(text).map_err(|_| expected),
    };
    let (start, end) = (address(start)?, address(end)?);
    let range = AddressRange::checked(start, end).ok_or("the end is not after the start")?;
    Ok((id, Extent::Range(range)))
}

fn read_nodes(root: &Cursor) -> Option<Topology> {
    let fields = root.map()?;
    let list = fields.need("nodes");
    fields.finish();
    let list = list?;
    let mut topology = Topology::default();
    let mut nr_extents = 0;
    for item in list.list() {
        let Some((node, extents)) = read_node(&item) else {
            continue;
        };
        nr_extents += extents.len();
        if nr_extents > EXTENTS_MAX {
            list.wrong("more ranges", format!("at most {EXTENTS_MAX}"));
            return None;
        }
        for extent in extents {
            if let Err(error) = topology.add(node, extent) {
                item.wrong(format!("what cannot be ({error})"), "memory of its own");
            }
        }
    }
    if topology.nodes.is_empty() {
        list.wrong("no node", "at least one with memory");
    }
    Some(topology)
}

fn read_node(item: &Cursor) -> Option<(u32, Vec<Extent>)> {
    let fields = item.map()?;
    let id = fields.required("id", Cursor::count_u32);
    let size = fields.get("size").map(|c| c.size());
    let regions = fields.get("regions").map(|c| c.list());
    fields.finish();
    let extents = match (size, regions) {
        (Some(size), None) => vec![Extent::Size(size?)],
        (None, Some(regions)) => {
            let ranges = regions.iter().filter_map(Cursor::range);
            ranges.map(Extent::Range).collect()
        }
        (given, _) => {
            let found = given.map_or(
                "neither `size` nor `regions`",
                |_| "both `size` and `regions`",
            );
            item.wrong(found, "one of them");
            return None;
        }
    };
    Some((id?, extents))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_follow_each_other_and_ranges_stand_where_they_are() {
        let text = "nodes:\n- id: 0\n  size: 512 GiB\n- {id: 2, size: 96G}\n\
                    - id: 5\n  regions:\n  - {start: '1,099,511,627,776', end: '1,099,511,631,872'}\n\
                    - {id: 0, size: 1G}\n";
        let topology = Topology::read(text).expect("a machine");
        assert_eq!(topology.nodes(), [0, 2, 5]);
        let range = |start, end| AddressRange::new(start, end);
        let behind = (1 << 40) + 4096;
        let of_0 = [range(0, 512 * GIB), range(behind, behind + GIB)];
        assert_eq!(topology.regions(0), Some(of_0.as_slice()));
        let of_2 = [range(512 * GIB, 608 * GIB)];
        assert_eq!(topology.regions(2), Some(of_2.as_slice()));
        assert_eq!(topology.regions(1), None);
    }

    #[test]
    fn neighbouring_ranges_become_one() {
        let pages = [(4, 6), (0, 2), (2, 4), (8, 9)];
        let extents = pages.map(|(start, end)| {
            let range = AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
            (1, Extent::Range(range))
        });
        let topology = Topology::new(extents).expect("a machine");
        let range = |start, end| AddressRange::new(start * PAGE_SIZE, end * PAGE_SIZE);
        let expected = [range(0, 6), range(8, 9)];
        assert_eq!(topology.regions(1), Some(expected.as_slice()));
    }

    #[test]
    fn what_cannot_be_is_refused_where_it_stands() {
        for (text, expected) in [
            ("nodes: [{id: 0, size: 1G}, {id: 1, size: 100}]", "nodes[1]"),
            ("nodes: [{id: 0, size: 0}]", "whole pages"),
            ("nodes: [{id: 0, size: 8P}]", "4 PiB"),
            ("nodes: [{id: 0}]", "neither"),
            ("nodes: [{id: 0, size: 1G, regions: []}]", "both"),
            (
                "nodes: [{id: 0, regions: [{start: 0, end: 8192}, {start: 4096, end: 16384}]}]",
                "overlaps",
            ),
            ("nodes: []", "no node"),
            ("nods: []", "nodes"),
            ("kdamonds: [", "expected"),
        ] {
            let problems = Topology::read(text).expect_err(text).to_string();
            assert!(problems.contains(expected), "{text}: {problems}");
        }
    }

    #[test]
    fn nodes_are_read_from_the_command_line() {
        assert_eq!(node_extent("0=512GiB"), Ok((0, Extent::Size(512 * GIB))));
        let range = AddressRange::new(GIB, 2 * GIB);
        for text in ["3=0x40000000-0x80000000", "3=1G-2G"] {
            assert_eq!(node_extent(text), Ok((3, Extent::Range(range))));
        }
        for text in ["0", "x=1G", "0=", "0=1-", "0=2G-1G", "0=1Q"] {
            assert!(node_extent(text).is_err(), "{text}");
        }
    }
}
