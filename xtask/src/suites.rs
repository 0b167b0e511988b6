//! Runs every suite of tests, one after the other, and ends with one line of totals.
//!
//! A suite that fails does not stop the next. The output of a suite goes to the terminal immediately, and to
//! `target/test-logs/`. A suite has a time limit; a suite that exceeds it is stopped and has failed. The limits have a
//! margin for a busy machine. `times.csv` there has the wall time of every test.
//!
//! Suites run in lanes ([`plan::Lane`]). Tests on this machine's kernel run first and alone. Then those that wait run
//! and, beside them at idle priority, those that compute. Once no suite waits any more, two that compute run at a time.
//! The output of a suite that computes beside another is shown when it has ended.
//!
//! Tests that run real programs on a real kernel depend on the current speed of the machine, which may be shared. So a
//! few that are not in virtual machines (those have a second try of their own) may fail, and are run again, once,
//! alone. A test that passes then counts as passed. It is named on a line `AGAIN`, and the log has its first output.
//! Read that output if you change the code of such a test.

mod change;
pub(crate) mod executables;
mod plan;
mod queue;
mod shown;
mod times;
mod undo;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

use crate::tally::Tally;
use change::Change;
use plan::{Kind, Lane, Level, Suite, suites};
use queue::Queue;
use shown::Shown;
use times::Times;
use undo::Undo;

/// More failures than this are no accident.
const AGAIN_MAX: usize = 6;
/// Start of the caller, in seconds since 1970: `.ci/run` also installs packages and builds this program.
const STARTED: &str = "ISOTHERM_TESTS_STARTED";

/// Run suites of tests and end with one line of totals: without a flag, those that are run before a commit.
#[derive(clap::Parser)]
#[command(name = "xtask test")]
pub(crate) struct Args {
    #[command(flatten)]
    level: LevelArgs,
    /// Only these suites (--list names them).
    suites: Vec<String>,
    /// List the suites and end.
    #[arg(long)]
    list: bool,
}

#[derive(clap::Args)]
#[group(multiple = false)]
struct LevelArgs {
    /// Run the tests marked as long, too, and the fuzzers for a short while.
    #[arg(long)]
    long: bool,
    /// Run the matrix of virtual machines alone.
    #[arg(long)]
    vm: bool,
    /// Run what CI runs: all but the long tests, an eighth of these, and those that the change touches.
    #[arg(long)]
    ci: bool,
}

impl LevelArgs {
    fn level(&self) -> Level {
        match (self.vm, self.long, self.ci) {
            (true, _, _) => Level::Vm,
            (_, true, _) => Level::Long,
            (_, _, true) => Level::Ci,
            _ => Level::Commit,
        }
    }
}

struct Result {
    name: &'static str,
    tally: Tally,
    times: Times,
    elapsed: Duration,
    lane: Lane,
}

pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let before = before_us();
    let started = Instant::now();
    let level = args.level.level();
    let change = Change::of(root, level == Level::Ci);
    let mut suites = suites(root, level, &change);
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
    let wants_due = level == Level::Ci && args.suites.is_empty();
    if wants_due || level == Level::Commit {
        println!("{}", parts(&change));
    }

    let runner = Runner::new(root)?;
    let mut results = vec![before];
    let (first, mut rest) = split(suites, Lane::First);
    results.extend(runner.run_all(&first)?);
    if wants_due {
        match plan::due(root, &change) {
            Ok(due) => {
                let (alone, others) = split(due, Lane::First);
                results.extend(runner.run_all(&alone)?);
                rest.extend(others);
            }
            // These tests must not be left out silently.
            Err(error) => {
                println!("The long tests that are due cannot be listed: {error:#}");
                results.push(Result {
                    name: "due",
                    tally: Tally::single("due: long tests were left out", false),
                    times: Times::default(),
                    elapsed: Duration::ZERO,
                    lane: Lane::First,
                });
            }
        }
    }
    let (waiting, computing) = split(rest, Lane::Waiting);
    if waiting.is_empty() {
        results.extend(runner.run_all(&computing)?);
    } else {
        let names: Vec<&str> = computing.iter().map(|suite| suite.name).collect();
        println!("\n==> meanwhile, at idle priority: {}", names.join(", "));
        let queue = Queue::new(computing);
        let (of_thread, to_empty) = (runner.clone(), queue.clone());
        let beside = std::thread::spawn(move || of_thread.empty(&to_empty));
        results.extend(runner.run_all(&waiting)?);
        results.extend(runner.empty(&queue)?);
        results.extend(beside.join().expect("a failure is no panic")?);
    }
    fs::write(runner.logs.join("times.csv"), csv(&results)).context("cannot write times.csv")?;
    let elapsed = results[0].elapsed + started.elapsed();
    let (text, success) = summary(results, elapsed);
    print!("{text}");
    Ok(ExitCode::from(u8::from(!success)))
}

fn split(suites: Vec<Suite>, lane: Lane) -> (Vec<Suite>, Vec<Suite>) {
    suites.into_iter().partition(|suite| suite.lane == lane)
}

/// Formats which of the long tests run, and why.
fn parts(change: &Change) -> String {
    let mut text = format!(
        "Long tests: part {} of {} (commit {:.8}); {} files changed since {:.8}",
        change.part + 1,
        change::PARTS,
        change.head,
        change.nr_files,
        change.base
    );
    if !change.runs.is_empty() {
        let _ = write!(text, ", which adds: {}", change.runs.join(", "));
    }
    text
}

/// Returns the time before this program's start, if its caller passes its own start.
fn before_us() -> Result {
    let started = std::env::var(STARTED).ok().and_then(|s| s.parse().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    Result {
        name: "setup",
        tally: Tally::default(),
        times: Times::default(),
        elapsed: now.saturating_sub(started.map_or(now, Duration::from_secs)),
        lane: Lane::First,
    }
}

#[derive(Clone)]
struct Runner {
    root: PathBuf,
    logs: PathBuf,
    undo: Arc<Undo>,
}

impl Runner {
    fn new(root: &Path) -> anyhow::Result<Self> {
        let target = target(root);
        let logs = target.join("test-logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let undo = Undo::new(target.join("debug/isotherm"), &logs);
        Ok(Self {
            root: root.to_owned(),
            logs,
            undo: undo.into(),
        })
    }

    /// Runs suites one after the other, and shows their output immediately.
    fn run_all(&self, suites: &[Suite]) -> anyhow::Result<Vec<Result>> {
        let run = |suite| self.run(suite, &mut std::io::stdout());
        suites.iter().map(run).collect()
    }

    fn run(&self, suite: &Suite, terminal: &mut impl Write) -> anyhow::Result<Result> {
        let (name, command) = (suite.name, suite.command.join(" "));
        let _ = writeln!(terminal, "\n==> {name}: {command}");
        let started = Instant::now();
        let log = self.logs.join(format!("{}.log", suite.name));
        let (mut tally, output) = run_suite(&self.root, suite, &log, terminal)?;
        let is_of_this_kernel = suite.lane != Lane::Computing;
        if is_of_this_kernel {
            self.undo.all();
        }
        run_again(&self.root, suite, &mut tally, &self.logs, terminal)?;
        if is_of_this_kernel {
            self.undo.all();
        }
        Ok(Result {
            name: suite.name,
            tally,
            times: Times::read(&output),
            elapsed: started.elapsed(),
            lane: suite.lane,
        })
    }

    /// Runs the suites of a queue, beside another worker. Each is shown when it has ended.
    fn empty(&self, queue: &Queue) -> anyhow::Result<Vec<Result>> {
        let mut results = Vec::new();
        while let Some(suite) = queue.take() {
            let mut output = Vec::new();
            let result = self.run(&suite.at_idle_priority(), &mut output);
            queue.done(&suite);
            let _ = std::io::stdout().write_all(&output);
            results.push(result?);
        }
        Ok(results)
    }
}

pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}

/// Runs one suite, shows its output on `terminal`, counts its tests, and returns the output.
fn run_suite(
    root: &Path,
    suite: &Suite,
    log: &Path,
    terminal: &mut impl Write,
) -> anyhow::Result<(Tally, String)> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let mut command = Command::new("timeout");
    if std::io::stdout().is_terminal() {
        // With this flag, Ctrl-C reaches the suite.
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
    // The command holds the pipe's other end. It must be closed for the reader to see the end of output.
    drop(command);
    let output = copy_lines(BufReader::new(reader), log, terminal)?;
    let status = child.wait().context("cannot wait for the suite")?;

    let mut tally = match suite.kind {
        Kind::Check => Tally::single(suite.name, status.success()),
        Kind::Tests => Tally::read(&output),
    };
    let (name, minutes) = (suite.name, suite.minutes_max);
    // timeout(1) exits with 124, or with 137 after a kill.
    if matches!(status.code(), Some(124 | 137)) {
        tally.fail(&format!("{name}: stopped after {minutes} minutes"));
    } else if !status.success() && tally.failed == 0 {
        tally.fail(&format!("{name}: {status} (did it compile? see above)"));
    } else if status.success() && tally.is_empty() {
        tally.fail(&format!("{name}: it ran no test"));
    }
    Ok((tally, output))
}

/// Runs the failed tests of `suite` again, each alone, if the suite permits it.
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
        let _ = writeln!(terminal, "\n==> again, alone: {name}");
        let log = logs.join(format!("{}-again-{i}.log", suite.name));
        let (tally_alone, _) = run_suite(root, &alone, &log, terminal)?;
        // Two crates may have a test of that name.
        if tally_alone.passed > 0 && tally_alone.failed == 0 {
            tally.passed_again(&name);
        }
    }
    Ok(())
}

/// Copies lines to `log`, and most of them to the terminal, and returns them.
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

fn csv(results: &[Result]) -> String {
    let lines = results.iter().map(|result| result.times.csv(result.name));
    std::iter::once("suite,test,seconds\n".to_owned())
        .chain(lines)
        .collect()
}

/// Returns the end of the output: a table of the suites, the slowest tests, skips, failures, the totals.
fn summary(results: Vec<Result>, elapsed: Duration) -> (String, bool) {
    let mut text = String::from("\n");
    let mut total = Tally::default();
    let slowest = times::slowest(results.iter().map(|result| (result.name, &result.times)));
    for result in results {
        let tally = result.tally;
        let is_beside = result.lane == Lane::Computing;
        let _ = writeln!(
            text,
            "{:<11} {:>5} passed {:>4} failed {:>4} skipped {:>7}{}",
            result.name,
            tally.passed,
            tally.failed,
            tally.skipped.len(),
            format!("{} s", result.elapsed.as_secs()),
            if is_beside { " beside others" } else { "" }
        );
        total.add(tally);
    }
    let (seconds, minutes) = (elapsed.as_secs(), elapsed.as_secs_f64() / 60.0);
    let _ = writeln!(text, "All of it took {seconds} s ({minutes:.1} min).");
    if !slowest.is_empty() {
        text += "The slowest tests (target/test-logs/times.csv has all):\n";
    }
    for line in slowest {
        let _ = writeln!(text, "{line}");
    }
    for skip in &total.skipped {
        let _ = writeln!(text, "SKIP {skip}");
    }
    for name in &total.again {
        let _ = writeln!(text, "AGAIN {name}");
    }
    let flaky = total.again.len();
    if flaky > 0 {
        let passed = "passed only when tried again, and counted as passed";
        let _ = writeln!(text, "{flaky} flaky: {passed}");
    }
    for failure in &total.failures {
        let _ = writeln!(text, "FAIL {failure}");
        for line in total
            .reasons
            .get(failure)
            .into_iter()
            .flat_map(|r| r.lines())
        {
            let _ = writeln!(text, "     {line}");
        }
    }
    let (passed, failed, skipped) = (total.passed, total.failed, total.skipped.len());
    let _ = writeln!(text, "{passed} passed, {failed} failed, {skipped} skipped");
    (text, failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: Kind, script: &'static str) -> Tally {
        let dir = std::env::temp_dir().join(format!("isotherm-suites-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let suite = Suite::new("suite", kind, 1, &["sh", "-c", script]);
        // The output is discarded: its lines would be counted as this test's own.
        let log = dir.join(format!("{}.log", script.len()));
        let ran = run_suite(&dir, &suite, &log, &mut std::io::sink());
        ran.unwrap().0
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
        let script = "echo SKIP all: why not; echo 0 passed, 0 failed, 1 skipped";
        assert_eq!(run(Kind::Tests, script).failed, 0);
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
        assert_eq!(tally.again, ["a: failed, then passed alone"]);
        assert_eq!(tally.failures, ["b"]);
        // No such test, too many failures for an accident, and a suite without second tries.
        assert_eq!(again(&["a"], &["echo", "0 passed"]).failed, 1);
        assert_eq!(again(&["a"; 7], FIRST_ONLY).failed, 7);
        assert_eq!(again(&["a"], &[]).failed, 1);
    }

    #[test]
    fn the_totals_stand_alone_on_the_last_line() {
        let result = |name, tally, seconds, lane| Result {
            name,
            tally,
            times: Times::read(&format!("TOOK {name}::test: {seconds} s")),
            elapsed: Duration::from_secs(seconds),
            lane,
        };
        let output = "SKIP b: no\nAGAIN c on 6.1: try 1\n2 passed, 0 failed, 1 skipped";
        let results = vec![
            result("a", Tally::single("a", false), 2, Lane::Waiting),
            result("b", Tally::read(output), 90, Lane::Computing),
        ];
        let rows = "suite,test,seconds\na,\"a::test\",2.000\nb,\"b::test\",90.000\n";
        assert_eq!(csv(&results), rows);
        let (text, success) = summary(results, Duration::from_secs(93));
        assert!(!success);
        let lines: Vec<&str> = text.lines().collect();
        let wanted = [
            "a               0 passed    1 failed    0 skipped     2 s",
            "b               2 passed    0 failed    1 skipped    90 s beside others",
            "All of it took 93 s (1.6 min).",
            "The slowest tests (target/test-logs/times.csv has all):",
            "   90.0 s  b: b::test",
            "    2.0 s  a: a::test",
            "SKIP b: no",
            "AGAIN c on 6.1: try 1",
            "1 flaky: passed only when tried again, and counted as passed",
            "FAIL a",
            "2 passed, 1 failed, 1 skipped",
        ];
        assert_eq!(lines[1..], wanted);
    }
}
