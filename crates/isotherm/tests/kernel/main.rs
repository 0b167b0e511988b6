//! The real binary on real processes and the real kernel: are its results true, and does it do no harm, whatever
//! happens to it or to its targets?
//!
//! Each test starts its own targets and records them with the `isotherm` that was just built. Without BPF or root, a
//! test prints `SKIP <test>: <reason>` to stderr and returns; tests without a need of privilege run everywhere. Tests
//! take turns ([`turns`]): those of accuracy and cost run alone, since there are few CPUs. Limits are as wide as a busy
//! machine needs.

mod accuracy;
mod acting;
mod all_processes;
mod blame;
mod calibrate;
mod command_line;
mod common;
mod compaction;
mod compare;
mod contexts;
mod daemon;
mod docs_walkthroughs;
mod evaluation;
mod exit_paths;
mod foreign;
mod goals;
mod groups;
mod guard;
mod huge;
mod kernel_damon;
mod kinds;
mod no_side_effects;
mod page_cache;
mod pages;
mod physical;
mod pod_policy;
mod process_count;
mod safety;
mod scale;
mod simulated;
mod stacks;
mod swap;
mod targets;
mod tune;
mod turns;
mod unit;
