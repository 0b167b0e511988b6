//! Finds the programs under test, and builds them where the test runner has not done so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::error::{Result, VmError, output};

/// Returns the path of the product: `$ISOTHERM_BIN`, or `target/debug/isotherm` of this workspace, built if it is
/// missing.
pub fn isotherm() -> Result<PathBuf> {
    program("ISOTHERM_BIN", "isotherm", "kernel")
}

/// Returns the path of the program that does in the guest what busybox cannot: `$ISOTHERM_VM_GUEST`, or
/// `target/debug/vm-guest`.
pub fn guest_tool() -> Result<PathBuf> {
    program("ISOTHERM_VM_GUEST", "vm-guest", "vm")
}

/// Returns the path in `variable`, which the test runner sets to the binary that it has built. Without `variable`,
/// returns `target/debug/BIN`, built once with `test`, an integration test of the same package: `cargo build` selects
/// other features and would compile all dependencies anew.
fn program(variable: &str, bin: &'static str, test: &str) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    // A panic of another thread leaves the map valid.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(bin) {
        return Ok(path.clone());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or_else(|| VmError::Wrong("the crate lies in no workspace".to_owned()))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("debug").join(bin);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    output(
        cargo
            .current_dir(root)
            .args(["test", "--quiet", "--no-run", "--test", test]),
    )?;
    built.insert(bin, path.clone());
    Ok(path)
}
