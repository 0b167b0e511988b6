//! Builds all test executables once, and runs those of a suite.
//!
//! Cargo builds them and lists them in `target/test-logs/executables.json`. They are run without Cargo, each in its
//! package's folder as Cargo does it. So a suite can select packages without a change of their features, and needs no
//! lock that another suite's Cargo holds.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The suite of tests that need this machine's kernel for themselves, and time to pass.
pub(super) const KERNEL: &str = "kernel";
pub(super) const VM: &str = "vm";

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Executable {
    package: String,
    target: String,
    path: PathBuf,
    folder: PathBuf,
}

/// A set of test executables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Set {
    /// Tests of the command on this kernel.
    Kernel,
    /// Tests in virtual machines.
    Vm,
    /// Tests on this kernel of the library with the system calls.
    Linux,
    /// All other tests.
    Others,
}

impl Set {
    fn of(executable: &Executable) -> Self {
        match (executable.package.as_str(), executable.target.as_str()) {
            (_, KERNEL) => Self::Kernel,
            ("isotherm-vm-tests", VM) => Self::Vm,
            ("isotherm-linux", _) => Self::Linux,
            _ => Self::Others,
        }
    }
}

/// Run the test executables of one suite.
#[derive(clap::Parser)]
#[command(name = "xtask run-tests")]
pub(crate) struct Args {
    /// Run this set
    set: Set,
    /// Arguments for each, after `--`
    #[arg(last = true)]
    arguments: Vec<String>,
}

fn list(target: &Path) -> PathBuf {
    target.join("test-logs/executables.json")
}

/// Builds the tests of the default members, and lists their executables.
pub(crate) fn build(root: &Path) -> anyhow::Result<ExitCode> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--quiet", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take().context("standard output is a pipe")?;
    let mut executables = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read what cargo prints")?;
        let message: Value = serde_json::from_str(&line)
            .with_context(|| format!("cargo printed no message: {line}"))?;
        executables.extend(executable(&message));
    }
    if !child.wait().context("cannot wait for cargo")?.success() {
        bail!("the tests do not compile");
    }
    let path = list(&super::target(root));
    let text = serde_json::to_string_pretty(&executables)?;
    fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} test executables", executables.len());
    Ok(ExitCode::SUCCESS)
}

fn executable(message: &Value) -> Option<Executable> {
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    // The id is `path+file:///…/crates/engine#isotherm-engine@0.1.0`, or `…/xtask#0.1.0` if folder and package share a
    // name.
    let id = message["package_id"].as_str()?.rsplit_once('#')?;
    let folder = manifest.parent()?;
    let package = match id.1.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name()?.to_string_lossy().into_owned(),
    };
    Some(Executable {
        package,
        target: message["target"]["name"].as_str()?.to_owned(),
        path: message["executable"].as_str()?.into(),
        folder: folder.to_owned(),
    })
}

pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for executable in of_set(root, args.set)? {
        println!(
            "     Running {} ({})",
            executable.target, executable.package
        );
        let mut command = command(&executable);
        if args.set == Set::Vm {
            // Without these, scenarios would build both by Cargo.
            let built = super::target(root).join("debug");
            command
                .env("ISOTHERM_BIN", built.join("isotherm"))
                .env("ISOTHERM_VM_GUEST", built.join("vm-guest"));
        }
        let status = command.args(&args.arguments).status();
        let status = status.with_context(|| format!("cannot run {}", executable.path.display()))?;
        if !status.success() {
            code = ExitCode::FAILURE;
            if status.code() != Some(101) {
                println!("{} ended by {status}", executable.target);
            }
        }
    }
    Ok(code)
}

fn of_set(root: &Path, set: Set) -> anyhow::Result<Vec<Executable>> {
    let path = list(&super::target(root));
    let file = File::open(&path).with_context(|| {
        format!(
            "there is no {}: run the suite `build` first",
            path.display()
        )
    })?;
    let mut all: Vec<Executable> =
        serde_json::from_reader(file).with_context(|| format!("cannot read {}", path.display()))?;
    all.retain(|executable| Set::of(executable) == set);
    Ok(all)
}

fn command(executable: &Executable) -> Command {
    let mut command = Command::new(&executable.path);
    // The harness accepts `--report-time` only with it.
    command
        .current_dir(&executable.folder)
        .env("RUSTC_BOOTSTRAP", "1");
    command
}

pub(super) fn long_tests(root: &Path, set: Set) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for executable in of_set(root, set)? {
        let mut command = command(&executable);
        command.args(["--list", "--ignored", "--format=terse"]);
        let output = command
            .output()
            .with_context(|| format!("cannot list the tests of {}", executable.target))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        names.extend(tests.map(str::to_owned));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(id: &str, target: &str) -> Value {
        json!({"reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/crates/linux/Cargo.toml",
            "target": {"name": target}, "profile": {"test": true}, "executable": "/w/target/debug/deps/it-1"})
    }

    #[test]
    fn each_executable_is_in_one_set() {
        let set = |id: &str, target| Set::of(&executable(&message(id, target)).expect("a test"));
        let linux = "path+file:///w/crates/linux#isotherm-linux@0.1.0";
        assert_eq!(set(linux, "it"), Set::Linux);
        assert_eq!(set("path+file:///w/isotherm#0.1.0", "kernel"), Set::Kernel);
        let vm = "path+file:///w/v#isotherm-vm-tests@0.1.0";
        assert_eq!(set(vm, "vm"), Set::Vm);
        let engine = "path+file:///w/e#isotherm-engine@0.1.0";
        assert_eq!(set(engine, "it"), Set::Others);
        let named_by_folder = executable(&message("path+file:///w/crates/linux#0.1.0", "linux"));
        assert_eq!(named_by_folder.expect("a test").package, "linux");
    }

    #[test]
    fn libraries_and_other_messages_are_no_tests() {
        let mut library = message("path+file:///w/crates/linux#isotherm-linux@0.1.0", "it");
        library["profile"]["test"] = json!(false);
        assert!(executable(&library).is_none());
        assert!(executable(&json!({"reason": "build-finished", "success": true})).is_none());
    }
}
