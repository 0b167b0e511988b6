//! A mapping of a process: its use, its accesses, and its pages by node.

use std::ops::Range;

use isotherm_engine::{AddressRange, Nanos};
use isotherm_policy::Unreclaimable;
use serde::Deserialize;

use super::node_pages::NodePages;
use super::pattern::{Pattern, Span};
use crate::memory::Page;

/// Use of a mapping's memory; a scenario can name the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// Anonymous memory.
    #[default]
    Anon,
    /// Pages of files.
    File,
    /// Memory, anonymous or not, that other processes map as well: no process can page it out alone.
    #[serde(skip)]
    Shared,
    /// Memory, anonymous or not, of which the kernel reclaims no page.
    #[serde(skip)]
    Unreclaimable(Unreclaimable),
}

/// A mapping to create.
#[derive(Clone, Debug)]
pub struct AreaSpec {
    /// Name of the mapping.
    pub name: String,
    /// Address range; whole pages.
    pub range: AddressRange,
    /// Use: anonymous memory, or a file's.
    pub purpose: Use,
    /// The program's advice about huge pages: `Some(true)` is MADV_HUGEPAGE.
    pub huge: Option<bool>,
    /// Accesses to its pages.
    pub pattern: Pattern,
    /// Moment of the work at which filling begins, and its duration, from the mapping's start to its end. If it is
    /// `None`, a trace's pages are filled where the trace first has them in memory. Other pages are filled at the start
    /// of the first phase that accesses them.
    pub fill: Option<(Nanos, Nanos)>,
    /// Pages that are filled of each block, from its start on; all if not given.
    pub filled_of_block: Option<u32>,
    /// Moment of the work at which the program gives back pages at random, and their share. This fragments free memory.
    pub released: Option<(Nanos, f64)>,
}

impl AreaSpec {
    /// Returns anonymous memory that is filled where it is first accessed, without advice about huge pages.
    pub fn new(name: &str, range: AddressRange, pattern: Pattern) -> Self {
        Self {
            name: name.to_owned(),
            range,
            purpose: Use::Anon,
            huge: None,
            pattern,
            fill: None,
            filled_of_block: None,
            released: None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) spec: AreaSpec,
    pub(super) process: usize,
    pub(super) pages: Range<Page>,
    /// Ticks of the process's work at which each page's bit was last known to be clear, or the mark of a set bit
    /// ([`super::accessed`]). It is empty if no page is ever accessed.
    pub(super) clear_since: Vec<u32>,
    /// The span of work of the last query about its accesses.
    pub(super) span: Option<Span>,
    pub(super) holdings: NodePages,
}
