//! Integration tests of the engine.

mod another_world;
mod compaction;
mod drive;
mod examples;
mod schemes;
