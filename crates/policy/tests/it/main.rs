//! Integration tests of policies.

mod another_world;
mod compaction;
mod drive;
mod schemes;
