//! Reads accessed bits on this machine, and clears them.

mod aliases;
mod clear_refs;
mod entry;
pub mod huge;
mod induced;
pub(crate) mod object;
pub mod page_table;
pub mod physical;
pub mod scan;
mod secondary;
pub mod tables;
mod unreclaimable;
mod walker;
pub mod zeros;

pub use aliases::without_aliases;
pub use clear_refs::ClearMethod;
pub(crate) use entry::Leaf;
pub(crate) use induced::access_flags;
pub(crate) use page_table::Result;
pub use page_table::{PageTableProbe, ProbeError};
pub use physical::{MapFacts, PhysicalProbe};
pub use secondary::SecondaryTables;
pub(crate) use walker::Walker;
pub use walker::{SpaceFacts, WalkerError};
pub use zeros::BlockContents;
