//! Runs every suite of tests, one after the other, and ends with one line of totals.
//!
//! A suite that fails does not stop the next. What a suite prints goes to the terminal as it comes
//! and to `target/test-logs/`. A suite has a time limit, past which it is stopped and has failed:
//! all of them together stay within an hour on two cores.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::tally::Tally;

/// Run every suite of tests and end with one line of totals.
#[derive(clap::Parser)]
#[command(name = "xtask test")]
pub(crate) struct Args {
    /// Run the tests marked as long, too, and the fuzzers for a short while.
    #[arg(long)]
    long: bool,
    /// Only these suites (--list names them).
    suites: Vec<String>,
    /// List the suites and end.
    #[arg(long)]
    list: bool,
}

/// How a suite's result is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One check; its exit code is its result.
    Check,
    /// It prints its counts.
    Tests,
}

struct Suite {
    name: &'static str,
    kind: Kind,
    command: Vec<&'static str>,
    minutes_max: u64,
}

/// In the order in which they run: what fails fastest comes first.
fn suites(root: &Path, long: bool) -> Vec<Suite> {
    let check = |name, minutes_max, command: &[&'static str]| Suite {
        name,
        kind: Kind::Check,
        command: command.to_vec(),
        minutes_max,
    };
    let tests = |name, minutes_max, command: &[&'static str]| Suite {
        name,
        kind: Kind::Tests,
        command: command.to_vec(),
        minutes_max,
    };
    let cargo_tests = |name, minutes_max, command: &[&'static str]| {
        let mut command = command.to_vec();
        command.extend(["--", "--show-output"]);
        if long {
            command.push("--include-ignored");
        }
        tests(name, minutes_max, &command)
    };
    let mut all = vec![
        check("fmt", 2, &["cargo", "fmt", "--all", "--check"]),
        check("clippy", 15, CLIPPY),
        check(
            "tidy",
            2,
            &["cargo", "run", "-q", "-p", "xtask", "--", "tidy"],
        ),
        cargo_tests("cargo", if long { 60 } else { 20 }, CARGO_TEST),
        cargo_tests(
            "vm",
            if long { 60 } else { 35 },
            &["cargo", "test", "-p", "isotherm-vm-tests", "--no-fail-fast"],
        ),
    ];
    // Against programs that are not ours: pandas, polars, DuckDB, damo.
    if root.join("tests/interop/run.sh").exists() {
        all.push(tests("interop", 10, &["tests/interop/run.sh"]));
    }
    if long {
        all.push(tests("fuzz", 30, &["scripts/fuzz"]));
    }
    all
}

const CLIPPY: &[&str] = &[
    "cargo",
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];

const CARGO_TEST: &[&str] = &[
    "cargo",
    "test",
    "--workspace",
    "--exclude",
    "isotherm-vm-tests",
    "--no-fail-fast",
];

/// How a suite went, and for how long.
struct Result {
    name: &'static str,
    tally: Tally,
    elapsed: Duration,
}

pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let mut suites = suites(root, args.long);
    if args.list {
        for suite in &suites {
            println!("{:<9} {}", suite.name, suite.command.join(" "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = args
        .suites
        .iter()
        .find(|wanted| suites.iter().all(|suite| suite.name != **wanted))
    {
        anyhow::bail!("no suite is called `{unknown}`; --list names them");
    }
    suites.retain(|suite| args.suites.is_empty() || args.suites.iter().any(|s| s == suite.name));

    let logs = logs(root)?;
    let mut results = Vec::new();
    for suite in &suites {
        println!("\n==> {}: {}", suite.name, suite.command.join(" "));
        let started = Instant::now();
        let tally = run_suite(
            root,
            suite,
            &logs.join(format!("{}.log", suite.name)),
            &mut std::io::stdout(),
        )?;
        results.push(Result {
            name: suite.name,
            tally,
            elapsed: started.elapsed(),
        });
    }
    let (text, success) = summary(results);
    print!("{text}");
    Ok(if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn logs(root: &Path) -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |path| root.join(path));
    let logs = target.join("test-logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    Ok(logs)
}

/// Runs one suite, shows what it prints on `terminal`, and counts its tests.
fn run_suite(
    root: &Path,
    suite: &Suite,
    log: &Path,
    terminal: &mut impl Write,
) -> anyhow::Result<Tally> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let mut command = Command::new("timeout");
    if std::io::stdout().is_terminal() {
        // So that Ctrl-C reaches the suite.
        command.arg("--foreground");
    }
    command
        .args(["--kill-after=30s", &format!("{}m", suite.minutes_max)])
        .args(&suite.command)
        .current_dir(root)
        .env("CI", "true")
        .env("CARGO_TERM_PROGRESS_WHEN", "never")
        // Debug output would be read as test results.
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("cannot copy a pipe")?)
        .stderr(writer);
    let mut child = command.spawn().context("cannot run timeout(1)")?;
    // It holds the pipe's other end, which must be closed for ours to see the end of output.
    drop(command);
    let output = copy_lines(BufReader::new(reader), log, terminal)?;
    let status = child.wait().context("cannot wait for the suite")?;

    let mut tally = match suite.kind {
        Kind::Check => Tally::single(suite.name, status.success()),
        Kind::Tests => Tally::read(&output),
    };
    // timeout(1) exits with 124, or with 137 where it had to kill.
    if matches!(status.code(), Some(124 | 137)) {
        tally.fail(&format!(
            "{}: stopped after {} minutes",
            suite.name, suite.minutes_max
        ));
    } else if !status.success() && tally.failed == 0 {
        tally.fail(&format!(
            "{}: {status} (did it compile? see above)",
            suite.name
        ));
    } else if status.success() && tally.is_empty() {
        tally.fail(&format!("{}: it ran no test", suite.name));
    }
    Ok(tally)
}

/// Copies lines to the terminal and to `log`, and returns them.
fn copy_lines(
    mut reader: impl BufRead,
    log: &Path,
    terminal: &mut impl Write,
) -> anyhow::Result<String> {
    let mut file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut output = String::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = reader
            .read_until(b'\n', &mut line)
            .context("cannot read the suite's output")?;
        if length == 0 {
            return Ok(output);
        }
        // Not fatal: a log that cannot be written must not hide the result.
        let _ = file.write_all(&line);
        let _ = terminal.write_all(&line);
        output.push_str(&String::from_utf8_lossy(&line));
    }
}

/// What stands at the end: a table of the suites, what was skipped, what failed, the totals.
fn summary(results: Vec<Result>) -> (String, bool) {
    let mut text = String::from("\n");
    let mut total = Tally::default();
    for Result {
        name,
        tally,
        elapsed,
    } in results
    {
        let _ = writeln!(
            text,
            "{name:<9} {:>5} passed {:>4} failed {:>4} skipped {:>7}",
            tally.passed,
            tally.failed,
            tally.skipped.len(),
            format!("{} s", elapsed.as_secs()),
        );
        total.add(tally);
    }
    for skip in &total.skipped {
        let _ = writeln!(text, "SKIP {skip}");
    }
    for failure in &total.failures {
        let _ = writeln!(text, "FAIL {failure}");
    }
    let _ = writeln!(
        text,
        "{} passed, {} failed, {} skipped",
        total.passed,
        total.failed,
        total.skipped.len()
    );
    (text, total.failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: Kind, script: &'static str) -> Tally {
        let dir = std::env::temp_dir().join(format!("isotherm-suites-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let suite = Suite {
            name: "suite",
            kind,
            command: vec!["sh", "-c", script],
            minutes_max: 1,
        };
        // Not to this test's output, where the lines would be counted as this test's own.
        let log = dir.join(format!("{}.log", script.len()));
        run_suite(&dir, &suite, &log, &mut std::io::sink()).unwrap()
    }

    #[test]
    fn a_suite_that_fails_without_a_failed_test_has_failed_all_the_same() {
        let tally = run(Kind::Tests, "echo 3 passed, 0 failed, 0 skipped; exit 3");
        assert_eq!((tally.passed, tally.failed), (3, 1));
        assert_eq!(run(Kind::Tests, "exit 101").failed, 1);
        assert_eq!(run(Kind::Check, "exit 1").failed, 1);
    }

    #[test]
    fn a_suite_that_runs_nothing_has_failed() {
        assert_eq!(run(Kind::Tests, "echo hello").failed, 1);
        assert_eq!(
            run(
                Kind::Tests,
                "echo SKIP all: why not; echo 0 passed, 0 failed, 1 skipped"
            )
            .failed,
            0
        );
    }

    #[test]
    fn a_suite_has_no_standard_input_and_is_told_that_it_is_ci() {
        let script = "test \"$CI\" = true && ! read line && echo 1 passed";
        assert_eq!(run(Kind::Tests, script).passed, 1);
    }

    #[test]
    fn the_totals_stand_alone_on_the_last_line() {
        let results = vec![
            Result {
                name: "a",
                tally: Tally::single("a", false),
                elapsed: Duration::from_secs(2),
            },
            Result {
                name: "b",
                tally: Tally::read("SKIP b: no\n2 passed, 0 failed, 1 skipped"),
                elapsed: Duration::from_secs(90),
            },
        ];
        let (text, success) = summary(results);
        assert!(!success);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "a             0 passed    1 failed    0 skipped     2 s"
        );
        assert_eq!(
            lines[3..],
            ["SKIP b: no", "FAIL a", "2 passed, 1 failed, 1 skipped"]
        );
    }
}
