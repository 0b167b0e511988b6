//! Reads accessed bits on this machine, and clears them.

pub mod entry;
pub mod page_table;
pub mod physical;
pub mod scan;
pub mod tables;
pub mod walker;

pub use entry::{Leaf, TableCopy};
pub use page_table::{PageTableProbe, ProbeError};
pub use physical::{MapFacts, PhysicalProbe};
pub use walker::{AddressSpace, Table, Walker, WalkerError};
