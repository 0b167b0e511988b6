//! Finds the programs under test, and builds them where the test runner has not done so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Result, VmError, output};
use crate::kernel::Kernel;

/// Returns the path of the product for a kernel's machine: `$ISOTHERM_BIN`, or `target/debug/isotherm` of this
/// workspace, built if it is missing.
pub(crate) fn isotherm(kernel: Kernel) -> Result<PathBuf> {
    if kernel.is_arm64() {
        return arm64("isotherm");
    }
    program("ISOTHERM_BIN", "isotherm", "kernel")
}

/// Returns the path of the program that does in the guest what busybox cannot: `$ISOTHERM_VM_GUEST`, or
/// `target/debug/vm-guest`.
pub(crate) fn guest_tool(kernel: Kernel) -> Result<PathBuf> {
    if kernel.is_arm64() {
        return arm64("vm-guest");
    }
    program("ISOTHERM_VM_GUEST", "vm-guest", "vm")
}

/// Returns the path of a program for arm64, built once by `scripts/cross`.
fn arm64(bin: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let mut command = Command::new("scripts/cross");
        let packages = ["-p", "isotherm", "-p", "isotherm-vm-tests", "--bins"];
        command.args(["build", "--quiet", "--profile", "demo"]);
        command.args(packages).arg("--no-default-features");
        // Stacks need the names of functions. The test harness has asked for unstable features for itself.
        command.env("CARGO_PROFILE_DEMO_STRIP", "debuginfo");
        command.env_remove("RUSTC_BOOTSTRAP");
        output(command.current_dir(root())).map_err(|error| error.to_string())?;
        Ok(target().join("aarch64-unknown-linux-musl/demo"))
    };
    match BUILT.get_or_init(build) {
        Ok(folder) => Ok(folder.join(bin)),
        Err(why) => Err(VmError::Unavailable {
            what: "the command for arm64".to_owned(),
            why: why.clone(),
            fix: "run `scripts/cross build -p isotherm` to see more".to_owned(),
        }),
    }
}

fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("the crate lies in a workspace")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
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
    let path = target().join("debug").join(bin);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    output(
        cargo
            .current_dir(root())
            .args(["test", "--quiet", "--no-run", "--test", test]),
    )?;
    built.insert(bin, path.clone());
    Ok(path)
}
