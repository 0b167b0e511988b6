//! The two monitors, which tell how often memory is accessed, and what they share.
//!
//! Both are handed facts and yield what to look at next, with the same verbs:
//!
//! | verb | [`region::Engine`] | [`page_table::TableMonitor`] |
//! |---|---|---|
//! | `update_layout` | mappings of a target | mappings of a target |
//! | `remove` | a target that ended | the same |
//!
//! `region` is DAMON's way: one sample speaks for a region. `page_table` reads all page tables and
//! clears few bits. Layouts, budgets, bitmaps of pages and snapshots by page are beside them.

pub mod bits;
pub mod budget;
pub mod by_page;
mod intervals;
pub mod layout;
pub mod page_table;
pub mod region;

pub use intervals::Intervals;
