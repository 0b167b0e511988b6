//! Nodes of the machine, and the placing of pages on them.

pub(crate) mod node_pages;
pub(crate) mod nodes;
pub(crate) mod place;
