//! Small records, as `record` writes them.

mod machine;
mod page;
mod seconds;
mod stacks;

pub(crate) use machine::machine_record;
pub(crate) use page::page_record;
pub(crate) use seconds::{STARTED, snapshot_of_second};
pub(crate) use stacks::stacks_record;
