//! Which suites there are, and which of them each command runs.
//!
//! All of Cargo's are built by the same selection of packages, the workspace's default members, since with another one
//! features differ and everything is compiled anew. So targets are selected, not packages.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::change::Change;

/// Tests that need this machine's kernel for themselves, and time to pass.
pub(super) const KERNEL: &str = "kernel";
/// Tests that boot virtual machines.
pub(super) const VM: &str = "vm";
/// The tests of [`VM`] that boot each kernel once.
const FIRST: &str = "first";
/// Tests of [`KERNEL`] that may wait for their turn: they say themselves how many run beside each other.
const KERNEL_THREADS: (&str, &str) = ("RUST_TEST_THREADS", "64");

/// What a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// What is run before a commit: all but the matrix of virtual machines.
    Commit,
    /// What CI runs: that, the matrix, and those long tests whose turn it is or that the change touches.
    Ci,
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
    /// Runs the tests that may be run again; their names come after it.
    pub(super) again: Vec<String>,
    /// Runs beside the suites after it, on processor time that these leave.
    pub(super) is_background: bool,
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
            is_background: false,
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
        let command = [CARGO_TEST, selection, SHOW, long, filter].concat();
        Self::new(name, Kind::Tests, minutes_max, &command)
    }

    /// Lets tests that failed be run again, each alone.
    fn with_a_second_try(mut self, selection: &[&str]) -> Self {
        self.again = owned(&[CARGO_TEST, selection, SHOW, &["--exact"]].concat());
        self
    }

    /// Lets the suite run beside others, on processor time that they leave.
    fn in_background(mut self) -> Self {
        let command = std::mem::take(&mut self.command);
        self.command = owned(&["chrt", "--idle", "0"]);
        self.command.extend(command);
        self.is_background = true;
        self
    }
}

/// `RUSTC_BOOTSTRAP` is for the tests alone: with it their harness takes [`REPORT_TIME`].
const CARGO_TEST: &[&str] = &[
    "cargo",
    "test",
    "--no-fail-fast",
    "--config",
    "target.'cfg(all())'.runner=['env','RUSTC_BOOTSTRAP=1']",
];

const SHOW: &[&str] = &["--", "--show-output"];
const REPORT_TIME: &[&str] = &["-Zunstable-options", "--report-time"];

/// Compiles all that later suites run, so that their time is that of their tests.
const BUILD: &[&str] = &["cargo", "test", "--quiet", "--no-run"];

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

/// The benchmarks' own tests: nothing else builds them but clippy.
const BENCH: &[&str] = &["cargo", "test", "-p", "isotherm-bench"];

/// In the order in which they run: what fails fastest comes first.
pub(super) fn suites(root: &Path, level: Level, change: &Change) -> anyhow::Result<Vec<Suite>> {
    let build = || Suite::new("build", Kind::Check, 30, BUILD);
    if level == Level::Vm {
        let others = &["--skip", FIRST];
        return Ok(vec![build(), vm(others, false)]);
    }
    let is_long = level == Level::Long;
    let xtask = std::env::current_exe().context("cannot find this program")?;
    let xtask = xtask.to_string_lossy();
    let mut all = vec![
        Suite::new("fmt", Kind::Check, 2, &["cargo", "fmt", "--all", "--check"]),
        Suite::new("tidy", Kind::Check, 2, &[&xtask, "tidy"]),
        build(),
    ];
    match level {
        Level::Ci => all.push(vm(&[], false).in_background()),
        Level::Long => all.push(vm(&[], true)),
        _ => all.push(Suite::of_cargo(
            "first",
            15,
            &["--test", VM],
            &[FIRST],
            false,
        )),
    }
    all.push(Suite::new("clippy", Kind::Check, 15, CLIPPY));
    let targets = test_targets(root)?;
    let selection = others(&targets);
    let minutes = if is_long { 60 } else { 20 };
    let cargo = Suite::of_cargo("cargo", minutes, &selection, REPORT_TIME, is_long);
    all.push(cargo.with_a_second_try(&selection));
    let mut kernel = Suite::of_cargo(KERNEL, minutes, &["--test", KERNEL], &[], is_long)
        .with_a_second_try(&["--test", KERNEL]);
    kernel.environment = Some(KERNEL_THREADS);
    all.push(kernel);
    let has_turn = |script: &Script| {
        is_long || (level == Level::Ci && script.part.is_some_and(|part| part == change.part))
    };
    all.extend(of_scripts(root, has_turn));
    match level {
        Level::Long => all.extend(long_suites(root).map(|(_, suite)| suite)),
        Level::Ci => {
            let is_due =
                |part, suite: &Suite| part == change.part || change.runs.contains(&suite.name);
            let due = long_suites(root).filter(|(part, suite)| is_due(*part, suite));
            all.extend(due.map(|(_, suite)| suite));
        }
        _ => {}
    }
    Ok(all)
}

fn vm(filter: &[&str], is_long: bool) -> Suite {
    let minutes = if is_long { 90 } else { 60 };
    Suite::of_cargo(VM, minutes, &["--test", VM], filter, is_long)
}

/// All of Cargo's targets but those that have suites of their own.
fn others(targets: &[String]) -> Vec<&str> {
    let tests = targets.iter().flat_map(|target| ["--test", target]);
    ["--lib", "--bins"].into_iter().chain(tests).collect()
}

/// The suites of `make test-long` alone, each with the part of them in whose turn CI runs it (CONTRIBUTING.md lists
/// them). Parts take about as long as each other; tests that are marked as long are distributed by their names.
fn long_suites(root: &Path) -> impl Iterator<Item = (u8, Suite)> {
    let check = |name, minutes, command| Suite::new(name, Kind::Check, minutes, command);
    let tests = |name, minutes, command| Suite::new(name, Kind::Tests, minutes, command);
    let all = [
        (0, check("features", 10, WITHOUT_FEATURES)),
        (1, tests("bench", 10, BENCH)),
        (2, Suite::of_cargo("doc", 10, &["--doc"], &[], false)),
        // By mdBook, which has to be fetched.
        (3, tests("book", 15, &["scripts/book", "--test"])),
        // The static command and its packages, which takes a build of its own.
        (4, tests("dist", 60, &["tests/dist/run.sh"])),
        (5, tests("fuzz", 30, &["scripts/fuzz"])),
    ];
    let has_script = root.join("tests/dist/run.sh").exists();
    all.into_iter()
        .filter(move |(_, suite)| has_script || suite.name != "dist")
}

/// A suite that is a script, `tests/NAME/run.sh`.
struct Script {
    name: &'static str,
    minutes_max: u64,
    /// The part of the long tests in whose turn CI gives the script `--long`, if it knows that.
    part: Option<u8>,
    minutes_max_long: u64,
}

const fn script(name: &'static str, minutes_max: u64, part: Option<u8>, long: u64) -> Script {
    Script {
        name,
        minutes_max,
        part,
        minutes_max_long: long,
    }
}

const SCRIPTS: [Script; 5] = [
    // Against programs that are not ours: pandas, polars, DuckDB, damo.
    script("interop", 10, None, 10),
    // The Python package, in the same environment.
    script("python", 10, Some(6), 40),
    // What Prometheus and Grafana are given, by a real Prometheus.
    script("observe", 5, None, 5),
    // First-touch profiling in six languages.
    script("blame", 10, Some(7), 20),
    // The page, in a browser.
    script("page", 10, Some(1), 10),
];

fn of_scripts(root: &Path, is_long: impl Fn(&Script) -> bool) -> impl Iterator<Item = Suite> {
    SCRIPTS.iter().filter_map(move |script| {
        let path = format!("tests/{}/run.sh", script.name);
        if !root.join(&path).exists() {
            return None;
        }
        let long = is_long(script) && script.part.is_some();
        let (flags, minutes): (&[&str], u64) = if long {
            (&["--long"], script.minutes_max_long)
        } else {
            (&[], script.minutes_max)
        };
        let command = [&[path.as_str()], flags].concat();
        Some(Suite::new(script.name, Kind::Tests, minutes, &command))
    })
}

/// The tests that are marked as long and whose turn it is, or that the change touches. Call it once all is built.
pub(super) fn due(root: &Path, change: &Change) -> anyhow::Result<Vec<Suite>> {
    let targets = test_targets(root)?;
    let selections = [
        ("cargo-long", others(&targets)),
        ("kernel-long", vec!["--test", KERNEL]),
        ("vm-long", vec!["--test", VM]),
    ];
    let mut suites = Vec::new();
    for (name, selection) in selections {
        let of = name.trim_end_matches("-long");
        let is_due = |test: &&String| {
            let mut filters = change.runs.iter().filter_map(|runs| runs.split_once(' '));
            change.has_turn(test)
                || filters.any(|(suite, filter)| suite == of && test.contains(filter))
        };
        let ignored = ignored_tests(root, &selection)?;
        let names: Vec<&str> = ignored.iter().filter(is_due).map(String::as_str).collect();
        if names.is_empty() {
            continue;
        }
        let filter = [&["--ignored", "--exact"], names.as_slice()].concat();
        let mut suite = Suite::of_cargo(name, 45, &selection, &filter, false);
        if of == KERNEL {
            suite.environment = Some(KERNEL_THREADS);
        }
        suites.push(if of == VM {
            suite.in_background()
        } else {
            suite
        });
    }
    Ok(suites)
}

/// The names of the tests that are marked as long.
fn ignored_tests(root: &Path, selection: &[&str]) -> anyhow::Result<Vec<String>> {
    let command = [
        CARGO_TEST,
        selection,
        &["--quiet", "--", "--list", "--ignored"],
    ]
    .concat();
    let output = Command::new(command[0])
        .args(&command[1..])
        .current_dir(root)
        .output()
        .context("cannot list the long tests")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
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

    fn change(part: u8) -> Change {
        Change {
            part,
            head: String::new(),
            base: String::new(),
            runs: vec!["features"],
            nr_files: 0,
        }
    }

    fn all(level: Level) -> Vec<Suite> {
        suites(&root(), level, &change(3)).expect("cargo metadata works")
    }

    fn names(level: Level) -> Vec<&'static str> {
        all(level).iter().map(|suite| suite.name).collect()
    }

    #[test]
    fn a_commit_is_tested_by_all_but_the_matrix_of_machines() {
        let commit = names(Level::Commit);
        assert!(commit.contains(&"kernel") && commit.contains(&"first"));
        assert!(!commit.contains(&"vm") && !commit.contains(&"dist"));
        assert_eq!(names(Level::Vm), ["build", "vm"]);
        let long = names(Level::Long);
        let shorter = commit.iter().filter(|name| **name != "first");
        let longer = ["vm", "features", "bench", "doc", "book", "dist", "fuzz"];
        assert!(shorter.chain(&longer).all(|s| long.contains(s)));
    }

    #[test]
    fn ci_tests_a_commit_and_the_machines_and_what_is_due() {
        let (commit, ci) = (names(Level::Commit), names(Level::Ci));
        let shorter = commit.iter().filter(|name| **name != "first");
        assert!(shorter.chain(&["vm"]).all(|name| ci.contains(name)));
        // The turn of one, and touched by the change.
        assert!(ci.contains(&"book") && ci.contains(&"features"));
        assert!(!ci.contains(&"fuzz"));
        let build = ci.iter().position(|name| *name == "build");
        let machines = all(Level::Ci).iter().position(|suite| suite.is_background);
        assert!(build < machines, "{ci:?}");
    }

    #[test]
    fn each_long_suite_has_its_turn() {
        let scripts = SCRIPTS.iter().filter_map(|script| script.part);
        let root = root();
        let suites = long_suites(&root).map(|(part, _)| part);
        for part in scripts.chain(suites) {
            assert!(part < super::super::change::PARTS);
        }
    }

    #[test]
    fn each_test_target_is_in_one_suite() {
        let suites = all(Level::Commit);
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
        let metadata = serde_json::json!({"packages": [{"targets": [
            {"kind": ["test"], "name": "a"}, {"kind": ["lib"], "name": "b"}, {"kind": ["test"], "name": "vm"}]},
            {"targets": [{"kind": ["test"], "name": "a"}]}]});
        assert_eq!(names_of_tests(&metadata), ["a"]);
    }
}
