//! Stages of published experiments.

pub mod compaction;
pub mod tiering;
