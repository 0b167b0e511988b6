//! Integration tests of probes and actuators, on the kernel of this machine.

mod act;
mod common;
mod huge;
mod page_cache;
mod page_table;
