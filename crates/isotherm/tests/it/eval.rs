//! `isotherm eval`, run as a user runs it, with workloads and configurations that need no privilege.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::{Ended, Killed, isotherm, run, text, until};

const EXPERIMENT: &str = "name = \"fake\"\nrepeats = 2\n\
    [[workload]]\nname = \"fake\"\nrun = \"sleep 1; echo rate: 1,000\"\nprogress = 'rate: ([0-9,]+)'\n\
    [[workload]]\nname = \"absent\"\nrequires = [\"no-such-program-here\"]\nrun = \"false\"\n\
    [[configuration]]\nname = \"orig\"\n";

fn command(folder: &Path, text: &str) -> Command {
    std::fs::write(folder.join("x.toml"), text).expect("a folder of ours");
    let mut command = isotherm();
    command.args(["eval", "x.toml", "-o", "out"]);
    command.current_dir(folder);
    command
}

fn eval(folder: &Path, text: &str, flags: &[&str]) -> Output {
    let output = command(folder, text).args(flags).output();
    output.expect("it runs")
}

fn said(output: &Output) -> String {
    text(&[&output.stdout[..], &output.stderr[..]].concat())
}

fn journal(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("out/results.jsonl")).unwrap_or_default();
    let entries = text.lines().flat_map(serde_json::from_str::<Value>);
    entries.filter(|entry| entry["entry"] == "run").collect()
}

#[test]
fn an_experiment_is_measured_reported_and_not_repeated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = said(&eval(folder.path(), EXPERIMENT, &[]).success());
    for part in [
        "SKIP absent: not installed: no-such-program-here",
        "2 runs measured, 0 failed, 1 skipped",
        "\nfake       1000.0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for name in "runs.csv summary.csv tables.txt report.md report.html".split(' ') {
        assert!(folder.path().join("out").join(name).exists(), "{name}");
    }
    let before = journal(folder.path());
    let measured = &before[0]["outcome"]["measured"];
    let seconds = |run: &Value| {
        let runtime_s = &run["outcome"]["measured"]["runtime_s"];
        runtime_s.as_f64().expect("a number")
    };
    // There are two runs, so their median is their mean.
    let runtime_s = f64::midpoint(seconds(&before[0]), seconds(&before[1]));
    let rows = text.lines().filter_map(|l| l.strip_prefix("fake    "));
    let printed: Vec<f64> = rows.filter_map(|cell| cell.trim().parse().ok()).collect();
    let is_it = |&cell: &f64| (cell - runtime_s).abs() < 0.002;
    // It takes about a second: it does as much work as the first run did.
    assert!(runtime_s > 0.9 && printed.iter().any(is_it), "{text}");
    assert!(measured["rss_kib"].as_f64().expect("a number") > 0.0);
    eval(folder.path(), EXPERIMENT, &[]).success();
    assert_eq!(journal(folder.path()), before);
}

#[test]
fn a_changed_experiment_is_refused_unless_forced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = EXPERIMENT.replace("repeats = 2", "repeats = 1");
    eval(folder.path(), &one, &[]).success();
    let changed = one.replace("sleep 1", "sleep 0.9");
    eval(folder.path(), &changed, &[]).refused("run anew what has changed with --force");
    eval(folder.path(), &changed, &["--force"]).success();
    assert_eq!(journal(folder.path()).len(), 2);
}

#[test]
fn it_goes_on_after_it_was_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut killed = command(folder.path(), EXPERIMENT);
    killed.stdout(Stdio::null()).stderr(Stdio::null());
    let killed = Killed(killed.spawn().expect("it runs"));
    until("run", || !journal(folder.path()).is_empty());
    drop(killed);
    let before = journal(folder.path());
    assert_eq!(before.len(), 1);
    // The journal ends as if the command had been killed while it wrote.
    let path = folder.path().join("out/results.jsonl");
    let whole = std::fs::read_to_string(&path).expect("a journal");
    std::fs::write(&path, whole + "{\"entry\":\"run\",\"worklo").expect("a folder of ours");
    eval(folder.path(), EXPERIMENT, &[]).success();
    let after = journal(folder.path());
    assert_eq!((after.len(), &after[0]), (2, &before[0]));
}

#[test]
fn a_workload_that_fails_or_hangs_is_told_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "name = \"bad\"\ntime_limit_s = 2\n\
        [[workload]]\nname = \"fails\"\nrun = \"sleep 0.7; echo no luck >&2; exit 3\"\n\
        [[workload]]\nname = \"hangs\"\nrun = \"sleep 1000\"\n\
        [[workload]]\nname = \"dies\"\nserve = \"sleep 0.2\"\nrun = \"sleep 1000\"\n\
        [[workload]]\nname = \"good\"\nrun = \"sleep 0.8\"\n\
        [[configuration]]\nname = \"orig\"\n";
    let output = eval(folder.path(), text, &[]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "FAILED fails orig 1: `run` ended with exit status: 3: no luck",
        "FAILED hangs orig 1: it took longer than the time limit of 2 s",
        "FAILED dies orig 1: `serve` ended",
        "1 runs measured, 3 failed",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let errors = folder.path().join("out/failed/fails.orig.1/run.err");
    assert!(errors.exists());
}

#[test]
fn a_mistake_is_told_with_its_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = EXPERIMENT.replace("repeats = 2", "repeats = 0");
    eval(folder.path(), &text, &[]).refused("x.toml: line 2: repeats are 1 to 1000");
}

#[test]
fn the_experiments_that_come_with_it_say_what_would_run_and_how_long() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let says = |name: &str, expected: &[&str]| {
        let path = folder.join(name).display().to_string();
        let output = run(Path::new("."), &["eval", "--dry-run", &path]).success();
        let text = said(&output);
        for words in expected {
            assert!(text.contains(words), "{name}: {words}: {text}");
        }
    };
    let shipped = [
        "shipped: 180 runs",
        "damon_reclaim",
        " recordings to tune by",
    ];
    says("shipped.toml", &[&shipped[..], &[" min for the "]].concat());
    says("parsec.toml", &["splash2x/ocean_ncp", " min for the "]);
}

#[test]
fn a_summary_is_markdown_to_paste_the_worst_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "name = \"two\"\nrepeats = 2\n\
        [[workload]]\nname = \"nap\"\nrun = \"sleep 0.8\"\nexpected_s = 1\n\
        [[configuration]]\nname = \"orig\"\n[[configuration]]\nname = \"again\"\n";
    let said = said(&eval(folder.path(), text, &[]).success());
    assert!(said.contains("[4/4, 0 min left] nap"), "{said}");
    let summary = eval(folder.path(), text, &["--summary"]);
    let begins = b"\n## Worst cases first\n";
    assert!(summary.stdout.starts_with(begins), "{summary:?}");
    summary.prints("| again | nap | ");
    summary.prints("within noise");
}
