//! Finds the programs under test, and builds them where the test runner has not done so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::error::VmError;

/// Returns the path of the product: `$ISOTHERM_BIN`, or `target/debug/isotherm` of this workspace, built if it is
/// missing.
pub fn isotherm() -> Result<PathBuf, VmError> {
    static PATH: Mutex<Option<PathBuf>> = Mutex::new(None);
    once(&PATH, || program("ISOTHERM_BIN", "isotherm", "kernel"))
}

/// Returns the path of the program that does in the guest what busybox cannot: `$ISOTHERM_VM_GUEST`, or
/// `target/debug/vm-guest`.
pub fn guest_tool() -> Result<PathBuf, VmError> {
    static PATH: Mutex<Option<PathBuf>> = Mutex::new(None);
    once(&PATH, || program("ISOTHERM_VM_GUEST", "vm-guest", "vm"))
}

/// Returns the known path, or calls `find` and keeps its result.
fn once(
    known: &Mutex<Option<PathBuf>>,
    find: impl FnOnce() -> Result<PathBuf, VmError>,
) -> Result<PathBuf, VmError> {
    // A panic of another thread leaves the path valid.
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none() {
        *known = Some(find()?);
    }
    Ok(known.clone().unwrap_or_default())
}

/// Returns the product if its `subcommand` knows all of `options`. Fails with [`VmError::Unavailable`] otherwise, so
/// that a scenario for an unfinished feature is skipped.
pub(crate) fn isotherm_with(subcommand: &str, options: &[&str]) -> Result<PathBuf, VmError> {
    let path = isotherm()?;
    let output = Command::new(&path)
        .args([subcommand, "--help"])
        .output()
        .map_err(VmError::io("run", &path))?;
    let help = String::from_utf8_lossy(&output.stdout);
    let missing: Vec<&str> = options
        .iter()
        .copied()
        .filter(|option| !help.contains(option))
        .collect();
    if output.status.success() && missing.is_empty() {
        return Ok(path);
    }
    Err(VmError::Unavailable {
        what: format!("`isotherm {subcommand} {}`", options.join(" ")),
        why: format!("its --help does not list {missing:?} ({})", output.status),
        fix: "it comes with a later change".to_owned(),
    })
}

/// Returns the path in `variable`, which the test runner sets to the binary that it has built. Without `variable`,
/// returns `target/debug/BIN`, built with `test`, an integration test of the same package: `cargo build` selects other
/// features and would compile all dependencies anew.
fn program(variable: &str, bin: &str, test: &str) -> Result<PathBuf, VmError> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or_else(|| VmError::Wrong("the crate lies in no workspace".to_owned()))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("debug").join(bin);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root)
        .args(["test", "--quiet", "--no-run", "--test", test]);
    let output = cargo
        .output()
        .map_err(VmError::io("run cargo for", &path))?;
    if output.status.success() && path.exists() {
        Ok(path)
    } else {
        Err(VmError::Command {
            command: format!("{cargo:?}"),
            why: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
