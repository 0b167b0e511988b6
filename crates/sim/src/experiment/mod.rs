//! Stages of published experiments.

pub mod compaction;
pub mod redis;
pub mod tiering;
