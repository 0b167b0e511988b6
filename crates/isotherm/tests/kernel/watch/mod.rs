//! Watching: are records true, and what do they cost?

mod accuracy;
mod all_processes;
mod contexts;
mod foreign;
pub(crate) mod groups;
mod hugetlb;
mod kinds;
mod page_cache;
mod pages;
mod physical;
mod process_count;
mod scale;
mod size;
mod targets;
