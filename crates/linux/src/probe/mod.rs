//! Reads accessed bits on this machine, and clears them.

pub mod page_table;
pub mod physical;
pub mod scan;
pub mod tables;
pub mod walker;

pub use page_table::{PageTableProbe, ProbeError};
pub use physical::{MapFacts, PhysicalProbe};
pub use walker::{AddressSpace, Leaf, Table, TableCopy, Walker, WalkerError};
