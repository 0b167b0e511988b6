//! Which suites there are, and which of them each command runs.
//!
//! All of Cargo's are built by the same selection of packages (`--workspace`), since with another one features
//! differ and everything is compiled anew. So targets are selected, not packages.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

/// Tests that need this machine's kernel for themselves, and time to pass.
const KERNEL: &str = "kernel";
/// Tests that boot virtual machines.
const VM: &str = "vm";
/// The tests of [`VM`] that boot each kernel once.
const FIRST: &str = "first::";
/// Threads for all tests of [`KERNEL`]: they take turns, in an order that needs to know all that wait.
const KERNEL_THREADS: (&str, &str) = ("RUST_TEST_THREADS", "256");

/// What a command runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// What is run before a commit: all but the matrix of virtual machines.
    Commit,
    /// The matrix of virtual machines.
    Vm,
    /// Everything, with the tests marked as long and the fuzzers.
    Long,
}

/// How a suite's result is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One check; its exit code is its result.
    Check,
    /// It prints its counts.
    Tests,
}

pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) command: Vec<String>,
    /// For the programs that it runs.
    pub(super) environment: Option<(&'static str, &'static str)>,
    pub(super) minutes_max: u64,
    /// What runs the tests that may be run again; their names come after it.
    pub(super) again: Vec<String>,
}

impl Suite {
    pub(super) fn new(name: &'static str, kind: Kind, minutes_max: u64, command: &[&str]) -> Self {
        Self {
            name,
            kind,
            command: owned(command),
            environment: None,
            minutes_max,
            again: Vec::new(),
        }
    }

    /// Tests of the targets that `selection` selects; `filter` is for their harness.
    fn of_cargo(
        name: &'static str,
        minutes_max: u64,
        selection: &[&str],
        filter: &[&str],
        is_long: bool,
    ) -> Self {
        let long: &[&str] = if is_long { &["--include-ignored"] } else { &[] };
        let show: &[&str] = &["--", "--show-output"];
        let command = [CARGO_TEST, selection, show, long, filter].concat();
        Self::new(name, Kind::Tests, minutes_max, &command)
    }

    /// Lets tests that failed be run again, each alone.
    fn with_further_tries(mut self, selection: &[&str]) -> Self {
        self.again = owned(&[CARGO_TEST, selection, &["--", "--show-output", "--exact"]].concat());
        self
    }
}

const CARGO_TEST: &[&str] = &["cargo", "test", "--workspace", "--no-fail-fast"];

const CLIPPY: &[&str] = &[
    "cargo",
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];

/// What `make demo` builds.
const WITHOUT_FEATURES: &[&str] = &[
    "cargo",
    "clippy",
    "-p",
    "isotherm",
    "--no-default-features",
    "--",
    "-D",
    "warnings",
];

const TIDY: &[&str] = &["cargo", "run", "-q", "-p", "xtask", "--", "tidy"];

/// In the order in which they run: what fails fastest comes first.
pub(super) fn suites(root: &Path, level: Level) -> anyhow::Result<Vec<Suite>> {
    let is_long = level == Level::Long;
    let vm = |filter: &[&str]| {
        let minutes = if is_long { 60 } else { 45 };
        Suite::of_cargo("vm", minutes, &["--test", VM], filter, is_long)
    };
    if level == Level::Vm {
        let features = Suite::new("features", Kind::Check, 5, WITHOUT_FEATURES);
        return Ok(vec![features, vm(&["--skip", FIRST])]);
    }
    let targets = test_targets(root)?;
    let mut selection = vec!["--lib", "--bins"];
    for target in &targets {
        selection.extend(["--test", target]);
    }
    let minutes = if is_long { 60 } else { 20 };
    let mut kernel = Suite::of_cargo(KERNEL, minutes, &["--test", KERNEL], &[], is_long)
        .with_further_tries(&["--test", KERNEL]);
    kernel.environment = Some(KERNEL_THREADS);
    let mut all = vec![
        Suite::new("fmt", Kind::Check, 2, &["cargo", "fmt", "--all", "--check"]),
        Suite::new("clippy", Kind::Check, 15, CLIPPY),
        Suite::new("tidy", Kind::Check, 2, TIDY),
        Suite::of_cargo("cargo", minutes, &selection, &[], is_long).with_further_tries(&selection),
        Suite::of_cargo("doc", 10, &["--doc"], &[], is_long),
        kernel,
    ];
    all.push(if is_long {
        vm(&[])
    } else {
        Suite::of_cargo("first", 15, &["--test", VM], &[FIRST], false)
    });
    all.extend(of_scripts(root, is_long));
    // What is given away: the static command and its packages, which takes a build of its own.
    if is_long && root.join("tests/dist/run.sh").exists() {
        all.push(Suite::new("dist", Kind::Tests, 60, &["tests/dist/run.sh"]));
    }
    if is_long {
        // By mdBook, which has to be fetched.
        let book = &["scripts/book", "--test"];
        all.push(Suite::new("book", Kind::Tests, 15, book));
        all.push(Suite::new("fuzz", Kind::Tests, 30, &["scripts/fuzz"]));
    }
    Ok(all)
}

/// Suites that are scripts, `tests/NAME/run.sh`: their names, how many minutes they may take, and where they have
/// longer tests, how many these may.
const SCRIPTS: [(&str, u64, Option<u64>); 5] = [
    // Against programs that are not ours: pandas, polars, DuckDB, damo.
    ("interop", 10, None),
    // The Python package, in the same environment.
    ("python", 10, Some(40)),
    // What Prometheus and Grafana are given, by a real Prometheus.
    ("observe", 5, None),
    // Whose code made idle memory, in six languages.
    ("blame", 10, Some(20)),
    // The page, in a browser.
    ("page", 10, Some(10)),
];

fn of_scripts(root: &Path, is_long: bool) -> impl Iterator<Item = Suite> {
    SCRIPTS.iter().filter_map(move |(name, minutes, long)| {
        let script = format!("tests/{name}/run.sh");
        if !root.join(&script).exists() {
            return None;
        }
        let suite = match long.filter(|_| is_long) {
            Some(minutes) => Suite::new(name, Kind::Tests, minutes, &[&script, "--long"]),
            None => Suite::new(name, Kind::Tests, *minutes, &[&script]),
        };
        Some(suite)
    })
}

/// The names of the workspace's integration tests, but for the two that have suites of their own.
fn test_targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new("cargo")
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
        .context("cargo metadata failed")?;
    Ok(names_of_tests(&metadata))
}

fn names_of_tests(metadata: &serde_json::Value) -> Vec<String> {
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let targets = list(&metadata["packages"])
        .into_iter()
        .flat_map(|package| list(&package["targets"]));
    let mut names: Vec<String> = targets
        .filter(|target| target["kind"][0] == "test")
        .filter_map(|target| Some(target["name"].as_str()?.to_owned()))
        .filter(|name| name != KERNEL && name != VM)
        .collect();
    names.sort();
    names.dedup();
    names
}

pub(super) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn names(level: Level) -> Vec<&'static str> {
        let suites = suites(&root(), level).expect("cargo metadata works");
        suites.iter().map(|suite| suite.name).collect()
    }

    #[test]
    fn a_commit_is_tested_by_all_but_the_matrix_of_machines() {
        let commit = names(Level::Commit);
        assert!(commit.contains(&"kernel") && commit.contains(&"first"));
        assert!(!commit.contains(&"vm"));
        assert_eq!(names(Level::Vm), ["features", "vm"]);
        // What the others run, and more.
        let long = names(Level::Long);
        let shorter = commit.iter().filter(|name| **name != "first");
        let longer = ["vm", "dist", "book", "fuzz"];
        assert!(shorter.chain(&longer).all(|s| long.contains(s)));
        assert!(!commit.contains(&"dist"));
    }

    #[test]
    fn each_test_target_is_in_one_suite() {
        let suites = suites(&root(), Level::Commit).expect("cargo metadata works");
        let selecting = |target: &str| {
            let selects = |suite: &&Suite| {
                let pairs = suite.command.windows(2);
                pairs.into_iter().any(|pair| pair == ["--test", target])
            };
            let of = suites.iter().filter(selects).map(|suite| suite.name);
            of.collect::<Vec<_>>()
        };
        assert_eq!(selecting("kernel"), ["kernel"]);
        assert_eq!(selecting("vm"), ["first"]);
        assert_eq!(selecting("properties"), ["cargo"]);
        let metadata = serde_json::json!({"packages": [{"targets": [
            {"kind": ["test"], "name": "a"}, {"kind": ["lib"], "name": "b"}, {"kind": ["test"], "name": "vm"}]},
            {"targets": [{"kind": ["test"], "name": "a"}]}]});
        assert_eq!(names_of_tests(&metadata), ["a"]);
    }
}
