//! Runs every suite of tests, one after the other, and ends with one line of totals.
//!
//! A suite that fails does not stop the next. What a suite prints goes to the terminal as it comes
//! and to `target/test-logs/`. A suite has a time limit, past which it is stopped and has failed.
//! The limits leave room for a busy machine.
//!
//! Tests that run real programs on a real kernel depend on how fast the machine is at the moment, and it
//! may be shared. So a few that are not in virtual machines (those have tries of their own) may fail, and
//! are run again, alone, up to twice: one that passes then is counted as passed and named on a line
//! `AGAIN`, with what it said before in the log. Whoever changes what such a line names should read that.

mod plan;
mod shown;
mod undo;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::tally::Tally;
use plan::{Kind, Level, Suite, suites};
use shown::Shown;
use undo::Undo;

/// More failures than this are no chance.
const AGAIN_MAX: usize = 6;
/// How often each is run again.
const TRIES: usize = 2;

/// Run suites of tests and end with one line of totals: without a flag, those that are run before a commit.
#[derive(clap::Parser)]
#[command(name = "xtask test")]
pub(crate) struct Args {
    /// Run the tests marked as long, too, and the fuzzers for a short while.
    #[arg(long)]
    long: bool,
    /// Run the matrix of virtual machines alone.
    #[arg(long, conflicts_with = "long")]
    vm: bool,
    /// Only these suites (--list names them).
    suites: Vec<String>,
    /// List the suites and end.
    #[arg(long)]
    list: bool,
}

/// How a suite went, and for how long.
struct Result {
    name: &'static str,
    tally: Tally,
    elapsed: Duration,
}

pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let level = match (args.vm, args.long) {
        (true, _) => Level::Vm,
        (_, true) => Level::Long,
        _ => Level::Commit,
    };
    let mut suites = suites(root, level)?;
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

    let target = target(root);
    let logs = target.join("test-logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let undo = Undo::new(target.join("debug/isotherm"), &logs);
    let mut results = Vec::new();
    for suite in &suites {
        println!("\n==> {}: {}", suite.name, suite.command.join(" "));
        let started = Instant::now();
        let log = logs.join(format!("{}.log", suite.name));
        let mut tally = run_suite(root, suite, &log, &mut std::io::stdout())?;
        undo.all();
        run_again(root, suite, &mut tally, &logs, &mut std::io::stdout())?;
        undo.all();
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

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
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
        .envs(suite.environment)
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

/// Gives the tests of `suite` that failed, and may, further tries, each alone.
fn run_again(
    root: &Path,
    suite: &Suite,
    tally: &mut Tally,
    logs: &Path,
    terminal: &mut impl Write,
) -> anyhow::Result<()> {
    if suite.again.is_empty() || tally.failures.len() > AGAIN_MAX {
        return Ok(());
    }
    for (i, name) in tally.failures.clone().into_iter().enumerate() {
        let mut command = suite.again.clone();
        command.push(name.clone());
        let mut alone = Suite::new(suite.name, Kind::Tests, 8, &[]);
        alone.command = command;
        for attempt in 1..=TRIES {
            let _ = writeln!(terminal, "\n==> again, alone: {name}");
            let log = logs.join(format!("{}-again-{i}-{attempt}.log", suite.name));
            let tally_alone = run_suite(root, &alone, &log, terminal)?;
            // Two crates may have a test of that name.
            if tally_alone.passed > 0 && tally_alone.failed == 0 {
                tally.passed_again(&name);
                break;
            }
        }
    }
    Ok(())
}

/// Copies lines to `log`, most of them to the terminal, too, and returns them.
fn copy_lines(
    mut reader: impl BufRead,
    log: &Path,
    terminal: &mut impl Write,
) -> anyhow::Result<String> {
    let mut file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut output = String::new();
    let mut line = Vec::new();
    let mut shown = Shown::default();
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
        let text = String::from_utf8_lossy(&line);
        if shown.is(&text) {
            let _ = terminal.write_all(&line);
        }
        output.push_str(&text);
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
    for name in &total.again {
        let _ = writeln!(text, "AGAIN {name}");
    }
    if !total.again.is_empty() {
        let _ = writeln!(
            text,
            "{} flaky: passed only when tried again, and counted as passed",
            total.again.len()
        );
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
        let suite = Suite::new("suite", kind, 1, &["sh", "-c", script]);
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

    const FIRST_ONLY: &[&str] = &["sh", "-c", "test $0 = a && echo 1 passed || echo 1 failed"];

    #[test]
    fn what_fails_by_chance_is_run_again_and_told() {
        let again = |failures: &[&str], script: &[&str]| {
            let dir = std::env::temp_dir();
            let mut suite = Suite::new("suite", Kind::Tests, 1, &[]);
            suite.again = plan::owned(script);
            let mut tally = Tally::default();
            for failure in failures {
                tally.fail(failure);
            }
            run_again(&dir, &suite, &mut tally, &dir, &mut std::io::sink()).unwrap();
            tally
        };
        let tally = again(&["a", "b"], FIRST_ONLY);
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(
            (tally.again, tally.failures),
            (
                vec!["a: failed, then passed alone".into()],
                vec!["b".into()]
            )
        );
        // No such test there, too many to be chance, or no suite that has second tries.
        assert_eq!(again(&["a"], &["echo", "0 passed"]).failed, 1);
        assert_eq!(again(&["a"; 7], FIRST_ONLY).failed, 7);
        assert_eq!(again(&["a"], &[]).failed, 1);
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
                tally: Tally::read(
                    "SKIP b: no\nAGAIN c on 6.1: try 1\n2 passed, 0 failed, 1 skipped",
                ),
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
            [
                "SKIP b: no",
                "AGAIN c on 6.1: try 1",
                "1 flaky: passed only when tried again, and counted as passed",
                "FAIL a",
                "2 passed, 1 failed, 1 skipped"
            ]
        );
    }
}
