//! Counts tests in the output of test programs.
//!
//! Problem: a test that lacks a requirement must be reported as skipped, but Rust's test harness knows only passed,
//! failed and ignored. Such a test prints `SKIP <test>: <reason>` and returns, and the harness counts it as passed.
//!
//! Approach: the harness runs with `--show-output`, which prints a test's output under `---- <test> stdout ----`. A
//! test with a SKIP line there moves from passed to skipped, however many such lines it printed. Totals of the form `N
//! passed, N failed, N skipped` (a script's, or pytest's, whose words have another order) are used as they are.
//!
//! Limits: a SKIP line printed outside of a test's own thread counts for a test of that name.

use std::collections::{BTreeMap, VecDeque};

/// Lines of a failed test's output in the summary: the end of a long log is read first.
const REASON_LINES: usize = 4;
const REASON_CHARS: usize = 300;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that did not run, each with its reason.
    pub(crate) skipped: Vec<String>,
    /// The names of those that failed, as far as they are known.
    pub(crate) failures: Vec<String>,
    /// The last lines that a failed test printed, or the first of its panic, by its name.
    pub(crate) reasons: BTreeMap<String, String>,
    /// Tests that failed and passed when they were run again, each with its report.
    pub(crate) again: Vec<String>,
}

impl Tally {
    pub(crate) fn read(output: &str) -> Self {
        let mut reader = Reader::default();
        for line in output.lines() {
            reader.line(line);
        }
        reader.finish()
    }

    /// Counts a single check, which the program's exit code alone decides.
    pub(crate) fn single(name: &str, success: bool) -> Self {
        let mut tally = Self::default();
        if success {
            tally.passed = 1;
        } else {
            tally.fail(name);
        }
        tally
    }

    pub(crate) fn fail(&mut self, name: &str) {
        self.failed += 1;
        self.failures.push(name.to_owned());
    }

    pub(crate) fn passed_again(&mut self, name: &str) {
        if let Some(place) = self.failures.iter().position(|failure| failure == name) {
            let name = self.failures.remove(place);
            self.again
                .push(format!("{name}: failed, then passed alone"));
            self.failed -= 1;
            self.passed += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.passed == 0 && self.failed == 0 && self.skipped.is_empty()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        self.reasons.extend(other.reasons);
        self.again.extend(other.again);
    }
}

#[derive(Default)]
struct Reader {
    tally: Tally,
    /// The test whose output is being shown.
    section: Option<String>,
    /// The last lines of the test whose output is being shown, or of the script.
    last: VecDeque<String>,
    is_panic: bool,
    /// These are the sections of tests that failed: their SKIP lines do not count.
    in_failures: bool,
    /// SKIP lines of the current test binary: by test, or by the name in the line.
    skips: BTreeMap<String, String>,
    /// The last line of totals that was not cargo's.
    script: Option<(u64, u64, u64)>,
    is_cargo: bool,
}

/// Returns the name in `test NAME ... FAILED`, which the time may follow.
fn failed_test(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... FAILED")?;
    (rest.is_empty() || rest.starts_with(" <")).then_some(name)
}

impl Reader {
    /// Keeps the last lines, or the first from a panic on: a backtrace may follow.
    fn keep(&mut self, line: &str) {
        if line.contains("panicked at ") {
            self.last.clear();
            self.is_panic = true;
        }
        if line.trim().is_empty() || self.is_panic && self.last.len() == REASON_LINES {
            return;
        }
        self.last.truncate(REASON_LINES - 1);
        self.last
            .push_front(line.chars().take(REASON_CHARS).collect());
    }

    /// Keeps the last lines as the reason for which `name` failed.
    fn reason(&mut self, name: &str) {
        let lines: Vec<String> = std::mem::take(&mut self.last).into_iter().rev().collect();
        self.tally.reasons.insert(name.to_owned(), lines.join("\n"));
        self.is_panic = false;
    }

    fn line(&mut self, line: &str) {
        // A script or pytest prints this, outside of any test.
        let failed_check = line.strip_prefix("FAILED ");
        let failed_check = failed_check.filter(|_| self.section.is_none());
        if let Some(name) = section(line) {
            self.end_of_section();
            self.section = Some(name.to_owned());
        } else if matches!(line.trim(), "successes:" | "failures:") {
            self.end_of_section();
            self.in_failures = line.trim() == "failures:";
        } else if let Some(skip) = line.trim_start().strip_prefix("SKIP ") {
            if self.in_failures {
                return;
            }
            let name = skip.split_once(':').map_or(skip, |(name, _)| name);
            let test = self.section.clone().unwrap_or_else(|| name.to_owned());
            self.skips.entry(test).or_insert_with(|| skip.to_owned());
        } else if let Some(again) = line.trim_start().strip_prefix("AGAIN ") {
            self.again(again);
        } else if let Some(ignored) = ignored(line) {
            self.tally.skipped.push(ignored);
        } else if let Some(name) = failed_test(line) {
            self.tally.failures.push(name.to_owned());
        } else if let Some(name) = failed_check {
            self.tally.failures.push(name.to_owned());
            self.reason(name);
        } else if let Some(totals) = line.strip_prefix("test result: ") {
            self.end_of_binary(totals);
        } else if let Some(passed) = number_before(line, "passed") {
            let count = |word| number_before(line, word).unwrap_or(0);
            self.script = Some((passed, count("failed") + count("error"), count("skipped")));
        } else {
            self.keep(line);
        }
    }

    fn end_of_section(&mut self) {
        match self.section.take() {
            Some(name) if self.in_failures => self.reason(&name),
            _ => self.last.clear(),
        }
        self.is_panic = false;
    }

    fn again(&mut self, text: &str) {
        let name = |line: &str| line.split(": ").next().map(str::to_owned);
        let is_new = self.tally.again.iter().all(|line| name(line) != name(text));
        if !self.in_failures && is_new {
            self.tally.again.push(text.to_owned());
        }
    }

    /// Reads a binary's `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn end_of_binary(&mut self, totals: &str) {
        self.is_cargo = true;
        self.section = None;
        self.in_failures = false;
        let skips = std::mem::take(&mut self.skips);
        let passed = number_before(totals, "passed").unwrap_or(0);
        self.tally.passed += passed.saturating_sub(skips.len() as u64);
        self.tally.failed += number_before(totals, "failed").unwrap_or(0);
        self.tally.skipped.extend(skips.into_values());
    }

    fn finish(mut self) -> Tally {
        if let (Some((passed, failed, skipped)), false) = (self.script, self.is_cargo) {
            self.tally.passed = passed;
            self.tally.failed = failed;
            self.tally.skipped = self.skips.into_values().collect();
            // A script may count a skip without a SKIP line; the count must not shrink.
            while (self.tally.skipped.len() as u64) < skipped {
                self.tally.skipped.push("no reason given".to_owned());
            }
        }
        self.tally
    }
}

/// Parses `---- name stdout ----`.
fn section(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?
        .strip_suffix(" ----")?
        .strip_suffix(" stdout")
}

/// Parses `test name ... ignored, reason`.
fn ignored(line: &str) -> Option<String> {
    let (name, reason) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = reason.trim_start_matches(", ");
    Some(if reason.is_empty() {
        format!("{name}: ignored")
    } else {
        format!("{name}: {reason}")
    })
}

/// Returns the number in `12 passed` or `12 passed;`.
fn number_before(line: &str, word: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).find_map(|pair| {
        let name = pair[1].trim_end_matches([',', ';', '.']);
        // pytest prints `1 error` and `2 errors`.
        (name.trim_end_matches('s') == word)
            .then(|| pair[0].parse().ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(output: &str, passed: u64, failed: u64, skipped: &[&str]) {
        let tally = Tally::read(output);
        assert_eq!((tally.passed, tally.failed), (passed, failed));
        assert_eq!(tally.skipped, skipped);
    }

    const OK: &str = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

    #[test]
    fn results_of_all_binaries_add_up() {
        check(&format!("{OK}\nwarning: 4 passed by\n{OK}\n"), 6, 0, &[]);
    }

    #[test]
    fn a_test_that_says_skip_is_not_passed_however_often_it_says_so() {
        let output = format!(
            "running 3 tests\n\nsuccesses:\n\n---- a::b stdout ----\nSKIP b: no BPF\nSKIP b: no swap\n\
             \n\nsuccesses:\n    a::b\n    c\n\n{OK}\n"
        );
        check(&output, 2, 0, &["b: no BPF"]);
    }

    #[test]
    fn a_skip_from_another_thread_counts_once() {
        let output = format!("SKIP vm on 6.1: no QEMU\n{OK}\n");
        check(&output, 2, 0, &["vm on 6.1: no QEMU"]);
    }

    #[test]
    fn a_test_that_tried_itself_again_is_told_once() {
        let output = format!(
            "successes:\n\n---- vm::a stdout ----\nAGAIN vm::a: failed, try 1 of 3: no\n\
             AGAIN vm::a: failed, try 2 of 3: no\nAGAIN vm::b: failed, try 1 of 3: no\nfailures:\n---- b stdout ----\nAGAIN b: no\n{OK}\n"
        );
        let tally = Tally::read(&output);
        let first_tries = ["a", "b"].map(|name| format!("vm::{name}: failed, try 1 of 3: no"));
        assert_eq!(tally.again, first_tries);
    }

    #[test]
    fn ignored_tests_are_skipped_with_their_reason() {
        let output = "test slow ... ignored, takes an hour\ntest other ... ignored\n\
                      test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured";
        check(output, 1, 0, &["slow: takes an hour", "other: ignored"]);
    }

    #[test]
    fn failures_are_counted_and_named() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nSKIP b: half\n\n\
                      test result: FAILED. 1 passed; 1 failed; 0 ignored";
        let tally = Tally::read(output);
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, ["b"]);
        let timed = "test a ... ok <0.1s>\ntest c ... FAILED <0.002s>\n\nsuccesses:\n\n---- a stdout ----\nFAILED no\n\n\
                     test result: FAILED. 1 passed; 1 failed; 0 ignored";
        assert_eq!(Tally::read(timed).failures, ["c"]);
        let script = "wrote it\nno such file\nFAILED readers\n3 passed, 1 failed, 0 skipped\n";
        let tally = Tally::read(script);
        assert_eq!(tally.failures, ["readers"]);
        assert_eq!(tally.reasons["readers"], "wrote it\nno such file");
        let panicked = "test b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nfine\n\nfailures:\n\n---- b stdout ----\n\n\
                        thread 'b' panicked at b.rs:1:2:\nleft is right\n\n\n\
                        failures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored";
        let reason = "thread 'b' panicked at b.rs:1:2:\nleft is right";
        assert_eq!(Tally::read(panicked).reasons["b"], reason);
    }

    #[test]
    fn scripts_and_pytest_are_believed() {
        let script = "SKIP damo: no PyPI\n4 passed, 1 failed, 1 skipped\n";
        check(script, 4, 1, &["damo: no PyPI"]);
        let pytest = "=== 1 failed, 4 passed, 1 skipped, 2 errors in 0.1s ===\n";
        check(pytest, 4, 3, &["no reason given"]);
    }

    #[test]
    fn silence_counts_nothing() {
        assert!(Tally::read("error: could not compile\n").is_empty());
    }
}
