//! Integration tests of the command that need no privilege. Those that need one are in `tests/kernel`.

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
