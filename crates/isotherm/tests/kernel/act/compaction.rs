//! `isotherm compact`: its output on any machine, and its effect on this machine's free memory.
//!
//! Compaction moves pages that are in use, but frees none and changes no setting. Rounds here are as short as the state
//! of this machine's memory allows, and their length is bounded.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use isotherm_record::{Item, Reader};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{
    Finished, Running, alone, isotherm, meminfo, pause, run, scratch, skip, until,
};

const PROACTIVENESS: &str = "/proc/sys/vm/compaction_proactiveness";
const FRAGMENTER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../experiments/workloads/frag.py"
);
/// Memory that must stay available.
const ROOM: u64 = 3 << 30;
/// Memory that is fragmented: enough for a score above the lowest high threshold, 10, whatever per-CPU lists hide of
/// it.
const FRAGMENTED: u64 = 9 << 30;
/// A score that is high enough to leave some fragmentation for the compaction: the kernel is still joining small blocks
/// of an ended process to larger ones.
const FRAGMENTED_BY_ITSELF: f64 = 30.0;
/// Time limit of a round on a busy machine.
const ROUND_MAX_NS: u64 = 60_000_000_000;

fn json(args: &[&str]) -> Value {
    let mut all = vec!["compact", "--json"];
    all.extend(args);
    run(&mut isotherm(all)).success().json()
}

fn check_refused(args: &[&str], reason: &str) {
    let mut all = vec!["compact"];
    all.extend(args);
    run(&mut isotherm(all)).refused(reason);
}

#[test]
fn a_dry_run_tells_the_scores_and_needs_no_privilege() {
    let report = json(&["--dry-run"]);
    assert_eq!(report["dry_run"], true);
    let nodes = report["nodes"].as_array().expect("nodes");
    assert!(!nodes.is_empty());
    for node in nodes {
        let score = node["before"]["score"].as_f64().expect("a score");
        let zones = node["before"]["zones"].as_array().expect("zones");
        let sum: f64 = zones.iter().filter_map(|zone| zone["score"].as_f64()).sum();
        assert!((0.0..=100.0).contains(&score) && (sum - score).abs() < 1e-6);
        assert!(node["round"].is_null() && node["after"].is_null());
    }
    let text = run(&mut isotherm(["compact", "--dry-run", "--node", "0"])).success();
    for part in ["Node 0 for order 9 (blocks of 2 MiB)", "EXTFRAG", "2M"] {
        assert!(text.stdout.contains(part), "{}", text.stdout);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    check_refused(&["--order", "11"], "1..=10");
    check_refused(&["--proactiveness", "101"], "0..=100");
    check_refused(&["--once", "--daemon"], "cannot be used with");
    check_refused(&["--duration", "1s"], "--daemon");
    check_refused(&["--daemon", "--check-interval", "1us"], "too short");
    check_refused(
        &["--dry-run", "--node", "4000"],
        "there is no NUMA node 4000",
    );
}

#[test]
fn without_privilege_it_says_what_to_do_and_keeps_an_older_record() {
    let user = 65_534;
    let mut dry = isotherm(["compact", "--dry-run"]);
    match dry.uid(user).gid(user).output() {
        Err(error) => return skip(&format!("cannot become another user: {error}")),
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
    let older = scratch();
    let path = older.path().join("older");
    fs::write(&path, "kept").expect("written");
    let mut command = isotherm(["compact", "--once", "-o"]);
    run(command.arg(&path).uid(user).gid(user)).refused("run as root");
    assert_eq!(fs::read_to_string(&path).expect("still there"), "kept");
}

#[test]
fn a_daemon_records_until_it_is_told_to_stop() {
    let directory = scratch();
    let path = directory.path().join("compact.isotherm");
    let mut command = isotherm(["compact", "--daemon", "--dry-run", "--json"]);
    command.args(["--check-interval", "50ms", "-o"]).arg(&path);
    let mut daemon = Running::start(&mut command);
    daemon.line("{\"version\":1,\"event\":\"start\"");
    pause(2.5);
    daemon.signal(Signal::SIGTERM);
    let done = daemon.succeed();
    let end = last_line(&done);
    assert_eq!(
        (&end["event"], &end["rounds"]["count"]),
        (&"end".into(), &0.into())
    );
    let samples = items(&path)
        .iter()
        .filter(|item| matches!(item, Item::Fragmentation(_)))
        .count();
    assert!((2..=60).contains(&samples), "{samples} samples in 2.5 s");
    check_reports(&path);
    // damo has no such data.
    let converted = directory.path().join("damo.json");
    let convert = isotherm(["convert"]).arg(&path).arg(&converted).output();
    let output = convert.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("fragmentation"), "{said}");
}

fn last_line(done: &Finished) -> Value {
    let last = done.stdout.lines().last().expect("an end");
    serde_json::from_str(last).expect("JSON")
}

fn items(path: &Path) -> Vec<Item> {
    let file = fs::File::open(path).expect("a record");
    let reader = Reader::open(std::io::BufReader::new(file)).expect("a header");
    reader.collect::<Result<_, _>>().expect("whole items")
}

fn check_reports(record: &Path) {
    for (format, part) in [
        ("text", "Fragmentation of node 0"),
        ("json", "\"score_last\""),
        ("csv", "node,metric,time_ns,min,mean,max"),
        ("svg", "</svg>"),
        ("html", "</html>"),
    ] {
        let mut command = isotherm(["report", "fragmentation", "--format", format]);
        let done = run(command.arg(record)).success();
        assert!(done.stdout.contains(part), "{format}: {}", done.stdout);
    }
}

/// debugfs, mounted for a test unless it is already mounted.
struct Debugfs {
    mounted: Option<tempfile::TempDir>,
}

impl Debugfs {
    fn new() -> Result<Self, nix::Error> {
        if Path::new("/sys/kernel/debug/extfrag").exists() {
            return Ok(Self { mounted: None });
        }
        let directory = scratch();
        let none: Option<&str> = None;
        let (path, flags) = (directory.path(), MsFlags::empty());
        mount(none, path, Some("debugfs"), flags, none)?;
        Ok(Self {
            mounted: Some(directory),
        })
    }

    /// Returns the kernel's own view, in percent, by node and zone: `unusable_free_index` of mm/vmstat.c.
    fn unusable(&self, order: usize) -> Vec<((u64, String), f64)> {
        let root = self.mounted.as_ref().map(tempfile::TempDir::path);
        let path = root.unwrap_or(Path::new("/sys/kernel/debug"));
        let text = fs::read_to_string(path.join("extfrag/unusable_index")).expect("readable");
        let line = |line: &str| {
            // A line is `Node 0, zone   Normal 0.000 0.001 ...`.
            let words: Vec<&str> = line.split_whitespace().collect();
            let node = words[1].trim_end_matches(',').parse().expect("a node");
            let index: f64 = words[4 + order].parse().expect("an index");
            ((node, words[3].to_owned()), 100.0 * index)
        };
        text.lines().map(line).collect()
    }
}

impl Drop for Debugfs {
    fn drop(&mut self) {
        if let Some(directory) = &self.mounted {
            umount(directory.path()).expect("unmounted");
        }
    }
}

/// Returns Isotherm's view of each zone: the share of its free memory that is in blocks smaller than 2 MiB, in percent.
fn extfrag() -> Vec<((u64, String), f64)> {
    let report = json(&["--dry-run"]);
    let nodes = report["nodes"].as_array().expect("nodes");
    let of_node = |node: &Value| {
        let number = node["node"].as_u64().expect("a node");
        let zones = node["before"]["zones"].as_array().expect("zones").clone();
        zones.into_iter().map(move |zone| {
            let name = zone["name"].as_str().expect("a name").to_owned();
            ((number, name), zone["extfrag"].as_f64().expect("a share"))
        })
    };
    nodes.iter().flat_map(of_node).collect()
}

/// Compares Isotherm's view with the kernel's; both change all the time, so the kernel is asked before and after.
fn check_extfrag(debugfs: &Debugfs) {
    let agreed = || {
        let before = debugfs.unusable(9);
        let ours = extfrag();
        let after = debugfs.unusable(9);
        let of = |all: &[((u64, String), f64)], zone: &(u64, String)| {
            let found = all.iter().find(|(of, _)| of == zone);
            found.map(|(_, index)| *index).expect("the kernel knows it")
        };
        assert!(!ours.is_empty());
        let near = |(zone, share): &((u64, String), f64)| {
            let (a, b) = (of(&before, zone), of(&after, zone));
            // The kernel rounds down to 0.1 %.
            (a.min(b) - 0.2..=a.max(b) + 0.2).contains(share)
        };
        ours.iter().all(near).then_some(())
    };
    until("our view of fragmentation to be the kernel's", agreed);
}

/// Returns node 0's score.
fn score() -> f64 {
    let report = json(&["--dry-run", "--node", "0"]);
    let score = report["nodes"][0]["before"]["score"].as_f64();
    score.expect("a score")
}

/// Returns the proactiveness for which node 0 is compacted at this score: the high threshold is 5 points below it, as
/// the score changes spontaneously. `None` if it is hardly fragmented.
fn proactiveness_at(score: f64) -> Option<String> {
    let wanted = (110.0 - score + 5.0).ceil();
    (wanted <= 100.0).then(|| format!("{:.0}", wanted.max(0.0)))
}

/// Free memory that is fragmented enough to be compacted: already, or by a process that is kept.
struct Fragmented {
    fragmenter: Option<Running>,
    /// The proactiveness that compacts it.
    proactiveness: String,
}

/// Returns fragmented memory; prints a skip and returns `None` if there is not enough memory to fragment.
fn fragmented() -> Option<Fragmented> {
    let is_by_itself = score() > FRAGMENTED_BY_ITSELF;
    if !is_by_itself && meminfo("MemFree:") < FRAGMENTED + ROOM {
        drop_caches();
    }
    if !is_by_itself && meminfo("MemFree:") < FRAGMENTED + ROOM {
        let reason = "free memory is neither fragmented nor enough to fragment";
        skip(reason);
        return None;
    }
    let fragmenter = (!is_by_itself).then(fragment);
    let proactiveness = until("the score to rise", || proactiveness_at(score()));
    Some(Fragmented {
        fragmenter,
        proactiveness,
    })
}

/// Drops the page cache: builds before the tests fill memory with files, and dropping them frees it.
pub(crate) fn drop_caches() {
    Command::new("sync").status().ok();
    // Without the privilege, the tests that need the memory skip.
    fs::write("/proc/sys/vm/drop_caches", "1").ok();
}

fn fragment() -> Running {
    let size = FRAGMENTED.to_string();
    let mut python = Command::new("python3");
    let mut fragmenter = Running::start(python.args([FRAGMENTER, "--size", &size]));
    for _ in 0..300 {
        if fragmenter.stdout().contains("ready ") {
            break;
        }
        pause(0.2);
    }
    fragmenter.line("ready ");
    fragmenter
}

impl Drop for Fragmented {
    fn drop(&mut self) {
        if let Some(fragmenter) = self.fragmenter.take() {
            fragmenter.signal(Signal::SIGTERM);
            fragmenter.finish();
        }
    }
}

#[test]
fn a_round_lowers_the_score_that_is_the_kernels_and_changes_no_setting() {
    let Some(_turn) = alone() else { return };
    let debugfs = Debugfs::new();
    if let Err(error) = &debugfs {
        println!("without the kernel's own score: cannot mount debugfs: {error}");
    }
    debugfs.iter().for_each(check_extfrag);
    let Some(memory) = fragmented() else { return };
    debugfs.iter().for_each(check_extfrag);
    let proactiveness = &memory.proactiveness;
    let setting = fs::read_to_string(PROACTIVENESS).ok();
    let directory = scratch();
    let path = directory.path().join("once.isotherm");
    let path_text = path.to_str().expect("UTF-8");
    let node = ["--node", "0", "--proactiveness", proactiveness];
    let report = json(&[&node[..], &["-o", path_text]].concat());
    let node = &report["nodes"][0];
    eprintln!("{}", node["round"]);
    if !node["decision"]["back_off"].is_null() {
        return skip("kswapd is reclaiming");
    }
    let round = &node["round"];
    let number = |name: &str| round[name].as_f64().expect("a number");
    assert!(number("took_ns") < ROUND_MAX_NS as f64);
    assert!(
        number("score_after") <= number("score_before") + 1.0,
        "{round}"
    );
    if round["ended"] == "at_low" {
        // Other processes allocate between the last check and the one after.
        assert!(number("score_after") <= report["low"].as_f64().expect("low") + 3.0);
    }
    assert!(
        round["counters"]["migrate_scanned"].as_u64() > Some(0),
        "{round}"
    );
    assert_eq!(fs::read_to_string(PROACTIVENESS).ok(), setting);
    let rounds = items(&path);
    let rounds = rounds
        .iter()
        .filter(|item| matches!(item, Item::Compaction(_)));
    assert_eq!(rounds.count(), 1);
    check_reports(&path);
}

#[test]
fn a_daemon_sleeps_after_a_round() {
    let Some(_turn) = alone() else { return };
    let Some(memory) = fragmented() else { return };
    let proactiveness = &memory.proactiveness;
    let args = ["--daemon", "--duration", "2s", "--json"];
    let mut command = isotherm(["compact", "--node", "0", "--proactiveness", proactiveness]);
    let done = run(command.args(args)).success();
    let end = last_line(&done);
    eprintln!("{end}");
    if end["rounds"]["count"] == 0 {
        return skip("there was no round");
    }
    assert!(end["own_cpu_ns"].as_u64() < Some(500_000_000), "{end}");
}

#[test]
fn compacting_ends_with_us_however_we_end() {
    let Some(_turn) = alone() else { return };
    let Some(_memory) = fragmented() else { return };
    let mut seen = 0;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        // The first round may have left little to do.
        let proactiveness = proactiveness_at(score()).unwrap_or_else(|| "100".to_owned());
        let args = ["compact", "--node", "0", "--proactiveness", &proactiveness];
        let mut compact = Running::start(&mut isotherm(args));
        let children = format!("/proc/{0}/task/{0}/children", compact.pid());
        let child = loop {
            let text = fs::read_to_string(&children).unwrap_or_default();
            if let Some(child) = text.split_whitespace().next() {
                break Some(child.to_owned());
            }
            if !compact.is_running() {
                break None;
            }
        };
        let Some(child) = child else { continue };
        seen += 1;
        compact.signal(signal);
        let started = std::time::Instant::now();
        compact.finish();
        until("the kernel to stop compacting", || {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            // An orphan may have to wait until it is reaped.
            let state = stat.rsplit_once(") ").map_or("Z", |(_, rest)| rest);
            state.starts_with(['Z', 'X']).then_some(())
        });
        let took = started.elapsed();
        eprintln!("{signal} stopped it within {took:?}");
        assert!(took.as_secs() < 10, "{took:?}");
    }
    if seen == 0 {
        skip("rounds were over before they could be stopped");
    }
}
