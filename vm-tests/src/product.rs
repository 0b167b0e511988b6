//! Finds the programs under test, and builds what is absent or older than its sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::error::VmError;

/// The product: `$ISOTHERM_BIN`, or `target/debug/isotherm` of this workspace, built if need be.
pub fn isotherm() -> Result<PathBuf, VmError> {
    static PATH: Mutex<Option<PathBuf>> = Mutex::new(None);
    if let Some(path) = std::env::var_os("ISOTHERM_BIN") {
        return Ok(path.into());
    }
    once(&PATH, || {
        built("isotherm", "top", &["crates", "Cargo.lock"])
    })
}

/// The program that does in the guest what busybox cannot (`vm-guest`).
pub fn guest_tool() -> Result<PathBuf, VmError> {
    static PATH: Mutex<Option<PathBuf>> = Mutex::new(None);
    let sources = [
        "vm-tests/src",
        "crates/engine/src",
        "crates/workload/src",
        "Cargo.lock",
    ];
    once(&PATH, || built("vm-guest", "vm", &sources))
}

/// The path that is known, or that `find` finds now.
fn once(
    known: &Mutex<Option<PathBuf>>,
    find: impl FnOnce() -> Result<PathBuf, VmError>,
) -> Result<PathBuf, VmError> {
    // A panic of another thread says nothing about the path.
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none() {
        *known = Some(find()?);
    }
    Ok(known.clone().unwrap_or_default())
}

/// The product, if its `subcommand` knows all of `options`; else unavailable, so that a scenario
/// for something that is not built yet is skipped until it is.
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

/// `target/debug/BIN`, built first where a file under `sources` is newer: with `test`, an integration test of the same
/// package, since `cargo build` selects other features and would compile all dependencies anew.
fn built(bin: &str, test: &str, sources: &[&str]) -> Result<PathBuf, VmError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or_else(|| VmError::Wrong("the crate lies in no workspace".to_owned()))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("debug").join(bin);
    let newest = sources
        .iter()
        .filter_map(|source| newest_change(&root.join(source)))
        .max();
    let built = fs::metadata(&path).and_then(|m| m.modified()).ok();
    if built.is_some() && built >= newest {
        return Ok(path);
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root)
        .args(["test", "--quiet", "--workspace", "--no-run", "--test", test]);
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

fn newest_change(path: &Path) -> Option<SystemTime> {
    let own = fs::metadata(path).and_then(|m| m.modified()).ok();
    let Ok(entries) = fs::read_dir(path) else {
        return own;
    };
    // A directory's own time is left out: editors' and cargo's passing files change it.
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| newest_change(&entry.path()))
        .max()
}
