//! The real binary on real processes and the real kernel: are its results true, and does it do no harm, whatever
//! happens to it or to its targets?
//!
//! Each test starts its own targets and records them with the `isotherm` that was just built. Without BPF or root, a
//! test prints `SKIP <test>: <reason>` to stderr and returns; tests without a need of privilege run everywhere. Tests
//! take turns ([`turns`]): those of accuracy and cost run alone, since there are few CPUs. Limits are as wide as a busy
//! machine needs.

mod act;
mod cli;
mod common;
mod predict;
mod swap;
mod turns;
mod watch;
