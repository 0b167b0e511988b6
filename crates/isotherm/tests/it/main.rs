//! Integration tests of the command, which need no privilege. Those that do are in `tests/kernel`.

mod common;
mod convert;
mod eval;
mod examples;
mod interop;
mod printing;
mod records;
mod report;
mod simulate;
mod tier;
mod top;
mod tune;
mod web;
mod workload;
