//! damo's records, in and out.
//!
//! damo (the user-space tool of kernel DAMON) keeps a recording in one of three forms, all of which
//! its `report` reads: `json`, a list with an object for each target, each with all snapshots of that
//! target; `json_compressed`, the same through zlib, its default; and `perf_script`, a line of text
//! for each region of each snapshot. The forms are those of damo 3.4's `_damo_records.py`.
//!
//! What both can hold goes both ways without loss: times, targets, regions, access counts, ages.
//! damo cannot hold unknown regions, mappings, memory use, cost or who was recorded; we do not hold
//! its scheme filters and statistics. Whatever is left out is counted in
//! [`LeftOut`](crate::convert::LeftOut), so that the user is told.

mod ages;
mod export;
mod guard;
mod import;
mod json;
mod perf_script;
mod spool;
mod text;

#[cfg(test)]
mod tests;

pub use export::export_json;
pub use import::{AGES_SETTING, Source, import};
