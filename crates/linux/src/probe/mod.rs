//! Reads accessed bits on this machine, and clears them.

mod aliases;
mod clear_refs;
pub mod entry;
pub mod huge;
mod induced;
pub(crate) mod object;
pub mod page_table;
pub mod physical;
pub mod scan;
mod secondary;
pub mod tables;
mod unreclaimable;
pub mod walker;
pub mod zeros;

pub use aliases::without_aliases;
pub use clear_refs::ClearMethod;
pub use entry::{Leaf, TableCopy};
pub use page_table::{PageTableProbe, ProbeError};
pub use physical::{MapFacts, PhysicalProbe};
pub use secondary::SecondaryTables;
pub use walker::{AddressSpace, SpaceFacts, TableLookup, Walker, WalkerError};
pub use zeros::BlockContents;
