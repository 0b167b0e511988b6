//! Entry points of fuzz targets: unwind stacks in a file that no process maps.

use std::fs::File;

use super::events::Fault;
use super::unwind::{Chain, Unwinder};

/// A process id that no process has.
pub const NOBODY: u32 = u32::MAX;

/// Returns the calls that led to a fault of [`NOBODY`], which maps the code of `file` from `base` on, and the file's
/// build id.
pub fn unwind_in_file(file: &File, base: u64, fault: &Fault) -> (Chain, Option<String>) {
    let mut unwinder = Unwinder::of_file(file, base, fault);
    let chain = unwinder.unwind(fault);
    let id = super::modules::ModuleId(0);
    (chain, unwinder.modules().name(id).build_id.clone())
}
