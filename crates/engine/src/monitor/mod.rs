//! The two monitors, which measure how often memory is accessed, and their shared parts.
//!
//! Both take facts and return the next addresses to sample, by steps of the same names:
//!
//! | verb | region monitor | page-table monitor |
//! |---|---|---|
//! | `update_layout(s)` | fits regions to new mappings | the mappings, then blocks, of a target |
//! | `plan_samples` | pages to watch until the next tick | accessed bits to clear and watch |
//! | `take_answers` | counts touches for regions | reads a block's tables |
//! | `take_snapshots` | at the end of an aggregation interval | at the end of an interval |
//! | `reset_age` | memory was acted on | memory was acted on |
//!
//! In the region monitor [`tick`](region::Engine::tick) does all of them in order; a driver calls those
//! of [`TableMonitor`](page_table::TableMonitor), as it reads tables between them.
//!
//! `region` is DAMON's way: one sample represents a region. `page_table` reads all page tables and clears few bits.
//! Its budget, bitmaps of pages and snapshots by page have modules of their own; `frames` applies the page
//! tables' results to physical memory.

pub mod bits;
pub mod block_pages;
pub mod budget;
pub mod by_page;
pub mod frames;
pub mod idle_ends;
pub mod idle_pages;
pub mod page_cache;
pub mod page_scans;
mod page_since;
pub mod page_table;
pub mod region;

use serde::{Deserialize, Serialize};

use crate::address::Nanos;

/// The intervals in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intervals {
    /// Time between two checks.
    pub sample: Nanos,
    /// Time over which checks are counted.
    pub aggregation: Nanos,
    /// Time between two updates of the mappings.
    pub update: Nanos,
}
