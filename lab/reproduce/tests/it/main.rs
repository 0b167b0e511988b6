//! Integration tests of the published experiments.

mod compaction;
