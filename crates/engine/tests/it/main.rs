//! Integration tests of the engine.

mod another_world;
mod compaction;
mod drive;
mod engine;
mod examples;
mod properties;
mod schemes;
mod workload;
mod world;
