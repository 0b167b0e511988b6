//! Stages of published experiments.

pub mod compaction;
pub mod reclaim;
pub mod tiering;
