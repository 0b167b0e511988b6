//! damo's records, in and out.
//!
//! damo (the user-space tool of kernel DAMON) keeps a recording in one of three forms, all of which its `report` reads.
//! `json` is a list with an object for each target, each with all snapshots of that target. `json_compressed` is the
//! same through zlib, its default. `perf_script` has a line of text for each region of each snapshot. The forms are
//! those of damo 3.4's `_damo_records.py`.
//!
//! Content that both can hold goes both ways without loss: times, targets, regions, access counts, ages. damo cannot
//! hold unknown regions, mappings, memory use, cost or the recorded processes; we do not hold its scheme filters and
//! statistics. Omissions are counted in [`LeftOut`](crate::convert::LeftOut), so that the program can report them to
//! the user.

mod ages;
mod collected;
mod export;
mod import;
mod json;
mod perf_script;
mod setting;
mod spool;
mod text;

#[cfg(test)]
mod tests;

pub use export::export_json;
pub use import::{Source, import};
pub use setting::AGES_SETTING;
