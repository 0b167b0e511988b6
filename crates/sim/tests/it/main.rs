//! Integration tests of the simulated machine.

mod accounts;
mod common;
mod faults;
mod kernel_damon;
mod machine;
