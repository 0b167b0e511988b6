//! Pages of one mapping by node, and pages of files by node.

use std::ops::Range;

use crate::bits::Bits;
use crate::memory::Page;

#[derive(Clone, Debug)]
pub(in crate::machine) struct NodePages {
    pub(in crate::machine) pages: Vec<u64>,
    /// A phase, and the cache lines a second of the pages on each node in it; `None` before the first query.
    pub(in crate::machine) lines: Option<(usize, Vec<f64>)>,
    /// The number of its first page among all pages of files.
    pub(in crate::machine) first_of_file: Option<u64>,
}

/// The pages of files that are in memory, by node; they correspond to the kernel's lists of file pages.
#[derive(Clone, Debug)]
pub(in crate::machine) struct FilePages {
    /// First number and first page of each mapping of a file.
    mappings: Vec<(u64, Page)>,
    length: u64,
    pub(in crate::machine) nodes: Vec<NodeFiles>,
}

#[derive(Clone, Debug)]
pub(in crate::machine) struct NodeFiles {
    /// Numbers of its pages among all pages of files.
    pub(in crate::machine) pages: Bits,
    pub(in crate::machine) nr: u64,
    hand: u64,
}

impl FilePages {
    pub(in crate::machine) fn new(nodes: usize) -> Self {
        let node = NodeFiles {
            pages: Bits::new(0),
            nr: 0,
            hand: 0,
        };
        Self {
            mappings: Vec::new(),
            length: 0,
            nodes: vec![node; nodes],
        }
    }

    /// Adds the pages of a file's mapping. Returns the number of the first.
    fn add(&mut self, pages: &Range<Page>) -> u64 {
        let first = self.length;
        self.mappings.push((first, pages.start));
        self.length += u64::from(pages.end - pages.start);
        for node in &mut self.nodes {
            node.pages.grow(self.length);
        }
        first
    }

    pub(in crate::machine) fn on(&self, node: usize) -> u64 {
        self.nodes[node].nr
    }

    /// Returns the next page of a file on a node, and starts again after the last; `None` if there is none.
    pub(in crate::machine) fn next(&mut self, node: usize) -> Option<Page> {
        let NodeFiles { pages, hand, .. } = &mut self.nodes[node];
        let number = pages.first_from(*hand).or_else(|| pages.first_from(0))?;
        *hand = number + 1;
        let at = self.mappings.partition_point(|(first, _)| *first <= number);
        let (first, page) = self.mappings[at - 1];
        Some(page + (number - first) as Page)
    }
}

impl NodePages {
    /// Returns the holdings of a new mapping, which has no pages in memory.
    pub(in crate::machine) fn new(
        nodes: usize,
        is_file: bool,
        pages: &Range<Page>,
        files: &mut FilePages,
    ) -> Self {
        Self {
            pages: vec![0; nodes],
            lines: None,
            first_of_file: is_file.then(|| files.add(pages)),
        }
    }
}
