//! Stages of published experiments.

pub mod compaction;
