//! The page cache: which pages of which files are in memory, and when they were accessed.
//!
//! [`memmap`] finds them, [`file`] opens their files, [`clear`] clears the kernel's marks of accesses, [`discard`]
//! drops them.

pub mod clear;
pub mod discard;
pub mod file;
pub mod memmap;
mod window;
