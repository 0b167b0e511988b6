//! Access to the kernel's DAMON through sysfs: a tree of files that is claimed, written, read and restored.
//!
//! ```text
//! let tree = DirectoryTree::of_kernel()?;             // no DAMON: there is none
//! let mut claim = Claim::take(tree, notes, boot, modules)?;   // in use: refused, by name
//! claim.start(&contexts)?;                            // lacking: reported, before anything runs
//! loop { claim.stats(0)?; .. }
//! claim.release()?;                                   // the tree is as it was
//! ```
//!
//! The kernel's abilities are read from its tree, never from its version: a missing file, or a word that a file does
//! not accept, is a missing feature. [`fake`] is a tree in memory with the kernel's traps, by the version that it
//! simulates.
//!
//! The crate `damon` (damon-rs 0.1.1) has typed access to the same files, by capability as well. It was considered and
//! rejected. It stops at the first feature that a kernel lacks, where all should be reported at once. It does not
//! restore after a SIGKILL what it restores at a session's end. It is bound to paths of a file system, so that no fake
//! can simulate the kernel's traps. And it is young (0.1, one author). It is good to compare with.

mod claim;
mod context;
mod error;
mod modules;
mod note;
mod observe;
mod read;
mod recover;
mod tree;
mod writes;

#[cfg(any(test, feature = "fake"))]
pub mod fake;

#[cfg(test)]
mod tests;

pub use claim::Claim;
pub use context::{DamonContext, DamonTarget, Operations, nr_samples};
pub use error::{DamonError, Lack};
pub use modules::{MODULES_ROOT, Module};
pub use observe::{KernelRegion, KernelStats};
pub use read::{KdamondState, read_kdamonds};
pub use tree::{DirectoryTree, EntryKind, SYSFS_ROOT, Tree, TreeEntry, TreePath};
pub use writes::{Write, plan};
