//! The suites, and the selection of each command.
//!
//! Tests on this machine's kernel come first and run alone: with a busy processor beside them the guard, rightly, stops
//! schemes that they expect to act. The others run in two lanes at the same time. Those that mostly wait run one after
//! the other. Those that only compute run beside them at idle priority, on the processor time that the others leave.

use std::path::Path;

use anyhow::Context;

use super::change::Change;
use super::executables::{KERNEL, Set, VM, long_tests};

const VM_LONG: &str = "vm-long";
/// Filter of tests that boot each kernel once, and the suite of them.
const FIRST: &str = "first::";
const FIRST_SUITE: &str = "first";
/// Threads for all tests of [`KERNEL`]: they take turns, in an order that depends on all waiting tests.
const KERNEL_THREADS: (&str, &str) = ("RUST_TEST_THREADS", "256");
/// Tests of [`KERNEL`] that `make test` runs: accuracy, acting and ends of sessions. CI runs all.
const SMOKE: &str = "accuracy:: command_line:: exit_paths:: goals:: targets::";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Before a commit: all that only computes, the first tests on this kernel and on those of machines, and the suites
    /// that the change touches.
    Commit,
    /// CI: all but the long tests, the part of these that is due, and those that the change touches.
    Ci,
    /// The matrix of virtual machines.
    Vm,
    /// Everything, with the tests marked as long and the fuzzers.
    Long,
}

/// The source of a suite's result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One check; its exit code is its result.
    Check,
    Tests,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// It runs before all others, alone.
    First,
    Waiting,
    /// It computes, at idle priority.
    Computing,
}

#[derive(Clone)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) lane: Lane,
    pub(super) command: Vec<String>,
    /// A variable for the programs that it runs.
    pub(super) environment: Option<(&'static str, &'static str)>,
    pub(super) minutes_max: u64,
    /// A command that runs the tests that may be run again; their names are appended.
    pub(super) again: Vec<String>,
}

impl Suite {
    pub(super) fn new(name: &'static str, kind: Kind, minutes_max: u64, command: &[&str]) -> Self {
        Self {
            name,
            kind,
            lane: Lane::Computing,
            command: owned(command),
            environment: None,
            minutes_max,
            again: Vec::new(),
        }
    }

    /// Returns the same suite, on processor time that others leave.
    pub(super) fn at_idle_priority(&self) -> Self {
        let mut suite = self.clone();
        suite.command = owned(&["chrt", "--idle", "0"]);
        suite.command.extend(self.command.iter().cloned());
        suite
    }

    pub(super) fn boots_machines(&self) -> bool {
        matches!(self.name, VM | VM_LONG | FIRST_SUITE)
    }

    fn in_lane(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// Returns a suite of test executables; `arguments` are for their harness.
    fn of_set(name: &'static str, minutes_max: u64, set: Set, arguments: &[&str]) -> Self {
        let runner = runner();
        let value = clap::ValueEnum::to_possible_value(&set).expect("every set has a name");
        let words = [
            &runner,
            "run-tests",
            value.get_name(),
            "--",
            "--show-output",
        ];
        // Tests that wait for their turn measure themselves; the harness measures the others.
        let time: &[&str] = match set {
            Set::Kernel | Set::Vm => &[],
            Set::Linux | Set::Others => &["-Zunstable-options", "--report-time"],
        };
        let mut suite = Self::new(
            name,
            Kind::Tests,
            minutes_max,
            &[&words, time, arguments].concat(),
        );
        if set == Set::Kernel {
            suite.environment = Some(KERNEL_THREADS);
        }
        if set != Set::Vm {
            suite.again = owned(&[words.as_slice(), &["--exact"]].concat());
        }
        if matches!(set, Set::Kernel | Set::Linux) {
            suite.lane = Lane::First;
        }
        suite
    }
}

/// Returns this program's path: suites run parts of it as processes of their own.
fn runner() -> String {
    let path = std::env::current_exe().expect("this program has a path");
    path.to_string_lossy().into_owned()
}

const CLIPPY: &str = "cargo clippy --workspace --all-targets -- -D warnings";
/// The build of `make demo`.
const WITHOUT_FEATURES: &str = "cargo clippy -p isotherm --no-default-features -- -D warnings";
/// The benchmarks' own tests: only clippy builds them otherwise.
const BENCH: &str = "cargo test -p isotherm-bench";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Returns the suites in the order in which they run, lane by lane: the fastest to fail come first.
pub(super) fn suites(root: &Path, level: Level, change: &Change) -> Vec<Suite> {
    let runner = runner();
    let first = |name, minutes, command: &[&str]| {
        Suite::new(name, Kind::Check, minutes, command).in_lane(Lane::First)
    };
    let build = first("build", 30, &[&runner, "build-tests"]);
    if level == Level::Vm {
        let vm = Suite::of_set(VM, 60, Set::Vm, &["--skip", FIRST]);
        return vec![build, vm];
    }
    let is_long = level == Level::Long;
    let long: &[&str] = if is_long { &["--include-ignored"] } else { &[] };
    let minutes = if is_long { 90 } else { 60 };
    let smoke = [words(SMOKE), change.touched(KERNEL)].concat();
    let of_kernel = if level == Level::Commit {
        smoke
    } else {
        long.to_vec()
    };
    let mut all = vec![
        first("fmt", 2, &["cargo", "fmt", "--all", "--check"]),
        first("tidy", 2, &[&runner, "tidy"]),
        build,
        Suite::of_set("linux", 10, Set::Linux, long),
        Suite::of_set(KERNEL, minutes, Set::Kernel, &of_kernel),
        Suite::new("clippy", Kind::Check, 40, &words(CLIPPY)),
        Suite::of_set("cargo", minutes, Set::Others, long),
    ];
    all.push(match level {
        Level::Commit => Suite::of_set(FIRST_SUITE, 20, Set::Vm, &[FIRST]),
        _ => Suite::of_set(VM, minutes, Set::Vm, long),
    });
    let is_due = |part: Option<u8>| is_long || level == Level::Ci && part == Some(change.part);
    let is_touched = |name| change.runs.contains(&name);
    all.extend(of_scripts(
        root,
        |name| level != Level::Commit || is_touched(name),
        is_due,
    ));
    let due = long_suites(root, is_long).filter(|(part, suite)| {
        is_due(Some(*part)) || level == Level::Ci && is_touched(suite.name)
    });
    all.extend(due.map(|(_, suite)| suite));
    all
}

/// Returns the suites of `make test-long` only, each with its part of them in CI (CONTRIBUTING.md lists the parts).
/// Parts take about the same time; tests that are marked as long are distributed by their names. In CI their builds are
/// optimised less or not at all, and fuzzing is shorter.
fn long_suites(root: &Path, is_long: bool) -> impl Iterator<Item = (u8, Suite)> {
    let check = |name, minutes, command: &[&str]| Suite::new(name, Kind::Check, minutes, command);
    let tests = |name, minutes, command: &[&str]| Suite::new(name, Kind::Tests, minutes, command);
    let fuzzing = ["scripts/fuzz", if is_long { "60" } else { "8" }];
    let mut fuzz = tests("fuzz", 60, &fuzzing);
    let mut dist = tests("dist", 60, &["tests/dist/run.sh"]).in_lane(Lane::Waiting);
    if !is_long {
        fuzz.environment = Some(("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"));
        dist.environment = Some(("CARGO_PROFILE_DIST_OPT_LEVEL", "0"));
    }
    let all = [
        (0, check("features", 15, &words(WITHOUT_FEATURES))),
        (2, tests("bench", 15, &words(BENCH))),
        // It needs mdBook, which must be fetched.
        (3, tests("book", 30, &["scripts/book", "--test"])),
        // The static command and its packages need a build of their own.
        (4, dist),
        (5, fuzz),
    ];
    let has_script = root.join("tests/dist/run.sh").exists();
    all.into_iter()
        .filter(move |(_, suite)| has_script || suite.name != "dist")
}

const MINUTES_MAX: u64 = 20;

/// Part of a script that runs with `--long` only in `make test-long`.
const NEVER_DUE: u8 = u8::MAX;

/// Suites that are scripts, `tests/NAME/run.sh`: the name, the lane, the part of the long tests in which CI runs the
/// script with `--long` (if it has that option), and its minutes then.
const SCRIPTS: [(&str, Lane, Option<u8>, u64); 6] = [
    // It tests against other projects' programs: pandas, polars, DuckDB, damo.
    ("interop", Lane::Computing, None, 20),
    // The Python package, in the same environment; it includes live sessions.
    ("python", Lane::Waiting, Some(6), 60),
    // The files for Prometheus and Grafana, with a real Prometheus.
    ("observe", Lane::Waiting, None, 5),
    // A Kubernetes of one node. The first run builds it.
    ("cluster", Lane::Waiting, Some(NEVER_DUE), 90),
    // First-touch profiling in six languages.
    ("blame", Lane::Waiting, Some(7), 30),
    // The page, in a browser.
    ("page", Lane::Waiting, Some(1), 20),
];

fn of_scripts(
    root: &Path,
    is_wanted: impl Fn(&'static str) -> bool,
    is_long: impl Fn(Option<u8>) -> bool,
) -> impl Iterator<Item = Suite> {
    let scripts = SCRIPTS.into_iter();
    scripts.filter_map(move |(name, lane, part, minutes_long)| {
        let path = format!("tests/{name}/run.sh");
        if !is_wanted(name) || !root.join(&path).exists() {
            return None;
        }
        let (flags, minutes): (&[&str], u64) = if part.is_some() && is_long(part) {
            (&["--long"], minutes_long)
        } else {
            (&[], MINUTES_MAX)
        };
        let command = [&[path.as_str()], flags].concat();
        let suite = Suite::new(name, Kind::Tests, minutes, &command);
        Some(suite.in_lane(lane))
    })
}

/// Only `make test-long` runs these: the first takes an hour, the others fail in virtual time.
const NEVER_IN_CI: &[&str] = &["kernel_damon_truth", "tiering::on_", "stacks::on_6_1"];

/// Returns the suites of the long tests that CI runs: those of the part that is due, and those that the change touches.
/// Needs the build.
pub(super) fn due(root: &Path, change: &Change) -> anyhow::Result<Vec<Suite>> {
    let sets = [
        ("linux-long", "linux", Set::Linux),
        ("kernel-long", KERNEL, Set::Kernel),
        ("cargo-long", "cargo", Set::Others),
        (VM_LONG, VM, Set::Vm),
    ];
    let mut suites = Vec::new();
    for (name, of, set) in sets {
        let touched = change.touched(of);
        let is_due = |test: &&String| {
            let is_one_of = |names: &[&str]| names.iter().any(|name| test.contains(name));
            (change.is_due(test) || is_one_of(&touched)) && !is_one_of(NEVER_IN_CI)
        };
        let tests = long_tests(root, set).with_context(|| format!("no long tests of {of}"))?;
        let names: Vec<&str> = tests.iter().filter(is_due).map(String::as_str).collect();
        if !names.is_empty() {
            let arguments = [&["--ignored", "--exact"], names.as_slice()].concat();
            suites.push(Suite::of_set(name, 45, set, &arguments));
        }
    }
    Ok(suites)
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

    fn all(level: Level) -> Vec<Suite> {
        let change = Change {
            part: 3,
            head: String::new(),
            base: String::new(),
            runs: vec!["features", "page", "kernel stacks::"],
            nr_files: 0,
        };
        suites(&root(), level, &change)
    }

    fn names(level: Level) -> Vec<&'static str> {
        all(level).iter().map(|suite| suite.name).collect()
    }

    #[test]
    fn a_commit_is_tested_by_the_first_tests_and_by_what_it_touches() {
        let commit = names(Level::Commit);
        assert!(commit.contains(&"first") && !commit.contains(&"vm"));
        assert!(commit.contains(&"page") && !commit.contains(&"python"));
        assert!(!commit.contains(&"features"));
        let kernel = all(Level::Commit).into_iter().find(|s| s.name == "kernel");
        let command = kernel.expect("a suite").command;
        assert!(command.contains(&"accuracy::".to_owned()));
        assert!(command.contains(&"stacks::".to_owned()));
        assert_eq!(names(Level::Vm), ["build", "vm"]);
    }

    #[test]
    fn ci_tests_all_but_what_is_long_and_of_that_what_is_due() {
        let ci = names(Level::Ci);
        for name in [
            "clippy", "cargo", "linux", "kernel", "vm", "interop", "python", "observe", "cluster",
            "blame", "page",
        ] {
            assert!(ci.contains(&name), "{name}");
        }
        // One is due, and the change touches the other.
        assert!(ci.contains(&"book") && ci.contains(&"features"));
        assert!(!ci.contains(&"fuzz"));
        let kernel = all(Level::Ci).into_iter().find(|s| s.name == "kernel");
        let command = kernel.expect("a suite").command;
        assert_eq!(command.last().map(String::as_str), Some("--show-output"));
    }

    #[test]
    fn everything_is_in_the_long_run_and_in_a_part() {
        let long = names(Level::Long);
        let shorter = names(Level::Ci);
        assert!(shorter.iter().all(|name| long.contains(name)));
        let scripts = SCRIPTS.iter().filter_map(|(_, _, part, _)| *part);
        let scripts = scripts.filter(|part| *part != NEVER_DUE);
        let root = root();
        let suites = long_suites(&root, true).map(|(part, _)| part);
        let parts: std::collections::BTreeSet<u8> = scripts.chain(suites).collect();
        assert_eq!(parts, (0..super::super::change::PARTS).collect());
    }

    #[test]
    fn rules_name_suites_that_there_are() {
        let long = names(Level::Long);
        for (runs, _) in super::super::change::rules() {
            let suite = runs.split(' ').next().unwrap_or_default();
            assert!(long.contains(&suite), "{suite}");
        }
    }
}
