//! The file: Arrow batches, written and read one by one.

pub(crate) mod columns;
pub(crate) mod frame;
pub mod index;
pub mod input;
pub mod reader;
pub(crate) mod rows;
pub(crate) mod schema;
pub mod writer;
