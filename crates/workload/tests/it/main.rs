//! Integration tests of synthetic workloads.

mod config;
mod run;
