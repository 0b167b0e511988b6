//! Integration tests of the engine.

mod engine;
mod properties;
mod workload;
