//! Integration tests of probes and actuators, on the kernel of this machine.

mod act;
mod huge;
mod page_cache;
mod page_table;
