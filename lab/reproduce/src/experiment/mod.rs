//! Stages of published experiments.

pub mod compaction;
pub mod reclaim;
pub mod redis;
pub mod tiering;
