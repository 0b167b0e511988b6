//! Small records, as `record` writes them.

mod machine;
mod page;
mod stacks;

pub(crate) use machine::machine_record;
pub(crate) use page::page_record;
pub(crate) use stacks::stacks_record;
