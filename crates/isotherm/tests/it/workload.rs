//! `isotherm workload`, run as a user runs it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::common::{isotherm, text};

fn workload(args: &[&str]) -> Command {
    let mut command = isotherm();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/workloads");
    command.arg("workload").args(args).current_dir(folder);
    command
}

fn run(args: &[&str]) -> (Output, String, String) {
    let output = workload(args).output().expect("the binary runs");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    (output, stdout, stderr)
}

#[test]
fn phases_are_printed_as_they_end_and_the_truth_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let truth = folder.path().join("truth.jsonl");
    let path = truth.to_str().expect("a path that is text");
    let (output, stdout, stderr) = run(&["mini_zigzag.cfg", "--truth", path]);
    assert!(output.status.success(), "{stderr}");
    let words = stdout.lines().filter_map(|l| l.split_whitespace().next());
    let words: Vec<&str> = words.collect();
    assert_eq!(words, ["process", "low", "high", "low", "high"]);
    assert!(stdout.contains(" M accesses/s"), "{stdout}");
    let written = std::fs::read_to_string(&truth).expect("the truth is there");
    assert_eq!(written.lines().count(), 1 + 2 * 4);
}

#[test]
fn quiet_is_quiet() {
    let (output, stdout, stderr) = run(&["mini_zigzag.cfg", "--quiet", "--hugepages", "never"]);
    assert!(output.status.success(), "{stderr}");
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
}

#[test]
fn check_says_what_a_configuration_means_and_runs_nothing() {
    let (output, stdout, _) = run(&["small_hot_16g.cfg", "--check"]);
    assert!(output.status.success());
    let wanted = "1 regions, 16 GiB in all:\n  heap                 16 GiB\n\
                  1 phases, 30.0 s in all:\n  serve                30.0 s\n";
    assert_eq!(stdout, wanted);
}

#[test]
fn a_phase_without_probability_is_idle() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("idle.cfg");
    let text = "a, 4M\n\nbusy\n50\na, 1, 64, 1\n\nrest\n300\na, 1, 64, 0\n";
    std::fs::write(&path, text).expect("it can be written");
    let (output, stdout, stderr) = run(&[path.to_str().expect("a path that is text"), "--json"]);
    assert!(output.status.success(), "{stderr}");
    let phases = stdout.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let name = line["phase"].as_str()?.to_owned();
        Some((name, line["operations"].as_u64()?))
    });
    let phases: std::collections::BTreeMap<_, _> = phases.collect();
    assert!(phases["busy"] > 0 && phases["rest"] == 0, "{stdout}");
}

#[test]
fn errors_name_the_file_the_line_and_what_is_expected() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("bad.cfg");
    std::fs::write(&path, "a, 4K\n\np\n10\na, 2, 64, 1\n").expect("it can be written");
    let (output, stdout, stderr) = run(&[path.to_str().expect("a path that is text")]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout, "");
    let expected = "bad.cfg, line 5: found `2`, expected `0` (sequential) or `1` (random)\n";
    assert!(stderr.ends_with(expected), "{stderr}");
}

#[test]
fn a_signal_ends_an_endless_run_with_a_whole_last_line() {
    let mut endless = workload(&["mini_zigzag.cfg", "--repeat", "0", "--json"]);
    let child = endless.stdout(Stdio::piped()).spawn();
    let mut child = child.expect("the binary runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().transpose().expect("output is text");
    let mut is_at_work = || next().expect("it runs").contains("\"progress\"");
    while !is_at_work() {}
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.expect("kill runs").success());
    let mut last = String::new();
    while let Some(line) = next() {
        last = line;
    }
    assert!(last.contains("\"event\":\"phase\""), "{last}");
    assert_eq!(child.wait().expect("it ended").code(), Some(128 + 15));
}
