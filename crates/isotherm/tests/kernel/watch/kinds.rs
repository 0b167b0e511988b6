//! Programs whose memory is easily reported wrongly, all in one recording, each compared with its own figures.
//!
//! The figures of an interpreter that does nothing are subtracted.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{MIB, Running, isotherm, report, run, scratch, skip, until, with_swap};

/// Bytes that a figure may differ by.
const TOLERANCE: u64 = 2 * MIB;
/// Idle bytes that the report may miss, besides unknown ones.
const LATE: u64 = MIB;
/// Most bytes of a program that may be unknown: those of libraries, which many programs map.
const UNKNOWN_MAX: u64 = 8 * MIB;
const PROGRAMS: &str = include_str!("kinds.py");
/// Figures of a program, in its own order; the last is idle memory that cannot be paged out.
const FIGURES: [&str; 4] = ["resident", "used", "idle", "kept"];

/// Kinds whose idle memory only turns out to be unreclaimable when a scheme acts on it.
const KEPT_UNSEEN: &[&str] = &["forked", "ring_buffers"];

/// Programs in other languages. Their runtimes use memory as well.
const RUNTIMES: &[(&str, &str, &str)] = &[
    ("java", "Kinds.java", include_str!("runtimes/Kinds.java")),
    ("node", "kinds.js", include_str!("runtimes/kinds.js")),
];
/// Bytes that a runtime may use itself.
const RUNTIME_USES: u64 = 12 * MIB;

/// Returns the names of the kinds, which are the functions without arguments of the programs' file.
fn kinds() -> Vec<&'static str> {
    let lines = PROGRAMS.lines();
    let names = lines.filter_map(|line| line.strip_prefix("def ")?.strip_suffix("():"));
    names.collect()
}

/// Starts a program in another language; returns `None` if its runtime is not installed.
fn start_runtime(runtime: &str, path: &Path, text: &str) -> Option<Running> {
    let mut version = Command::new(runtime);
    version.arg("--version").stdout(Stdio::null());
    version.status().ok()?;
    std::fs::write(path, text).expect("written");
    Some(Running::start(Command::new(runtime).arg(path)))
}

/// A program's own figures: process, and bytes that are resident, used, idle, and idle but unreclaimable.
struct Truth {
    pid: u32,
    bytes: [Option<u64>; 4],
}

/// Waits until the program is ready; returns `None` if this kernel does not permit it.
fn truth(program: &Running) -> Option<Truth> {
    let line = until("the program to be ready or to fail", || {
        let (out, failed) = (program.stdout(), program.stderr());
        let line = out.lines().find_map(|line| line.strip_prefix("ready "));
        let line = line.map(|line| Some(line.to_owned()));
        line.or_else(|| failed.contains("Error").then_some(None))
    })?;
    let numbers: Vec<Option<u64>> = { line.split_whitespace() }
        .map(|word| word.parse().ok())
        .collect();
    let [Some(pid), bytes @ ..] = &numbers[..] else {
        panic!("no process: {line}");
    };
    let mib = |at: usize| bytes[at].map(|mib| mib * MIB);
    Some(Truth {
        pid: *pid as u32,
        bytes: std::array::from_fn(mib),
    })
}

/// Returns the summary's figures, and unknown bytes.
fn figures(summary: &Value, pid: u32) -> [u64; 5] {
    let targets = summary["targets"].as_array().expect("targets");
    let target = targets.iter().find(|target| target["pid"] == pid);
    let target = target.unwrap_or_else(|| panic!("no target {pid}: {summary}"));
    let mut idle = target["idle"].as_array().expect("idle times").iter();
    let idle = idle.find(|idle| idle["at_least_ns"] == 5_000_000_000_u64);
    let figures = [
        &target["resident_bytes"],
        &target["working_set_bytes"],
        &idle.expect("5 s")["bytes"],
        &target["unreclaimable_bytes"],
        &target["unknown_bytes"],
    ];
    figures.map(|figure| figure.as_u64().expect("it is known"))
}

/// Starts a program of each kind whose runtime is installed.
fn start_all(folder: &Path) -> Vec<(&'static str, Running)> {
    let script = folder.join("kinds.py");
    std::fs::write(&script, PROGRAMS).expect("written");
    let start = |kind| {
        let mut command = Command::new("python3");
        Running::start(command.arg("-u").arg(&script).arg(kind))
    };
    let kinds = kinds().into_iter();
    let mut programs: Vec<(&'static str, Running)> =
        kinds.map(|kind| (kind, start(kind))).collect();
    for (runtime, file, text) in RUNTIMES {
        match start_runtime(runtime, &folder.join(file), text) {
            Some(program) => programs.push((runtime, program)),
            None => skip(&format!("{runtime}: it is not installed")),
        }
    }
    programs
}

#[test]
fn kinds_of_programs_are_told_as_they_are() {
    let Some(_turn) = with_swap() else { return };
    let folder = scratch();
    let programs = start_all(folder.path());
    let mut truths = Vec::new();
    for (kind, program) in &programs {
        match truth(program) {
            Some(truth) => truths.push((*kind, truth)),
            None => skip(&format!("{kind}: {}", program.stderr().trim())),
        }
    }
    let path = folder.path().join("record");
    let mut command = isotherm(["record", "--duration", "14s", "--cpu-budget", "5%", "-o"]);
    command.arg(&path);
    for (_, truth) in &truths {
        command.args(["--pid", &truth.pid.to_string()]);
    }
    run(&mut command).success();
    let summary = report("summary", &path);
    let base = truths.iter().find(|(kind, _)| *kind == "nothing");
    let base = figures(&summary, base.expect("it needs nothing").1.pid);
    let mut wrong = Vec::new();
    // docs/results/programs.md has this table.
    println!("| kind | resident | used | idle | of it unreclaimable |\n|---|---|---|---|---|");
    for (kind, truth) in &truths {
        let reported = figures(&summary, truth.pid);
        let mut cells = vec![(*kind).to_owned()];
        for at in 0..FIGURES.len() {
            let wanted = truth.bytes[at].map(|own| own + base[at]);
            cells.push(wanted.map_or_else(|| "-".to_owned(), |wanted| pair(reported[at], wanted)));
            if let Some(wanted) = wanted.filter(|wanted| !is_right(kind, at, &reported, *wanted)) {
                let (figure, pair) = (FIGURES[at], pair(reported[at], wanted));
                let unknown = reported[4];
                wrong.push(format!("{kind}: {figure} {pair} MiB, {unknown} B unknown"));
            }
        }
        println!("| {} |", cells.join(" | "));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(truths.len() >= 25, "{} kinds could be tried", truths.len());
}

/// Formats a reported figure and the program's own, in MiB.
fn pair(reported: u64, wanted: u64) -> String {
    let [reported, wanted] = [reported, wanted].map(|bytes| bytes as f64 / MIB as f64);
    format!("{reported:.1} ({wanted:.1})")
}

/// Returns whether the figure at index `at` is near the program's own.
fn is_right(kind: &str, at: usize, reported: &[u64; 5], wanted: u64) -> bool {
    let (name, figure, unknown) = (FIGURES[at], reported[at], reported[4]);
    if name == "kept" && KEPT_UNSEEN.contains(&kind) {
        return true;
    }
    let late = if name == "idle" { unknown + LATE } else { 0 };
    let is_runtime = RUNTIMES.iter().any(|(runtime, ..)| *runtime == kind);
    let most = match name {
        "idle" if is_runtime => u64::MAX,
        _ if is_runtime => wanted + RUNTIME_USES,
        _ => wanted + TOLERANCE,
    };
    let is_within = figure <= most && figure + TOLERANCE >= wanted.saturating_sub(late);
    is_within && (unknown <= UNKNOWN_MAX || is_runtime)
}
