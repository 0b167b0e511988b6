//! `isotherm compact`: its output on any machine, and its effect on this machine's free memory.
//!
//! Compaction moves pages that are in use, but frees none and changes no setting. Rounds here are as short as the state
//! of this machine's memory allows. Virtual machines test the daemon's rounds (vm-tests: `compact`).

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use isotherm_record::{Item, Reader};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{
    Running, alone, isotherm, meminfo, pause, run, scratch, skip, until, until_so,
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

/// Returns the report of a dry run.
fn dry(args: &[&str]) -> Value {
    let mut command = isotherm(["compact", "--json", "--dry-run"]);
    run(command.args(args)).success().json()
}

#[test]
fn a_dry_run_tells_the_scores_and_needs_no_privilege() {
    let report = dry(&[]);
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
        text.prints(part);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (args, reason) in [
        ("--order 11", "1..=10"),
        ("--proactiveness 101", "0..=100"),
        ("--once --daemon", "cannot be used with"),
        ("--duration 1s", "--daemon"),
        ("--daemon --check-interval 1us", "too short"),
        ("--dry-run --node 4000", "there is no NUMA node 4000"),
    ] {
        run(isotherm(["compact"]).args(args.split(' '))).refused(reason);
    }
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
    let last = done.stdout.lines().last().expect("an end");
    let end: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(end["event"], "end");
    assert_eq!(end["rounds"]["count"], 0);
    let file = fs::File::open(&path).expect("a record");
    let items = Reader::open(std::io::BufReader::new(file)).expect("a header");
    let is_sample = |item: &Item| matches!(item, Item::Fragmentation(_));
    let samples = items.filter(|item| is_sample(item.as_ref().expect("a whole item")));
    let nr_samples = samples.count();
    assert!((2..=60).contains(&nr_samples), "{nr_samples} in 2.5 s");
    check_reports(&path);
    // damo has no such data.
    let converted = directory.path().join("damo.json");
    let done = run(isotherm(["convert"]).arg(&path).arg(&converted));
    let said = done.stderr + &done.stdout;
    assert!(said.contains("fragmentation"), "{said}");
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
        run(command.arg(record)).success().prints(part);
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
    let report = dry(&[]);
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
    until_so("our view of fragmentation to be the kernel's", || {
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
        ours.iter().all(near)
    });
}

/// Returns node 0's score.
fn score() -> f64 {
    let report = dry(&["--node", "0"]);
    let score = report["nodes"][0]["before"]["score"].as_f64();
    score.expect("a score")
}

/// Returns the proactiveness for which node 0 is compacted at this score: the high threshold is 5 points below it, as
/// the score changes spontaneously. `None` if it is hardly fragmented.
fn proactiveness_at(score: f64) -> Option<String> {
    let wanted = (110.0 - score + 5.0).ceil();
    (wanted <= 100.0).then(|| format!("{:.0}", wanted.max(0.0)))
}

/// Free memory that is fragmented enough to be compacted, already or by a process that is kept; and the proactiveness
/// that compacts it.
struct Fragmented(Option<Running>, String);

/// Returns fragmented memory; prints a skip and returns `None` if there is not enough memory to fragment.
fn fragmented() -> Option<Fragmented> {
    let is_by_itself = score() > FRAGMENTED_BY_ITSELF;
    if !is_by_itself && meminfo("MemFree:") < FRAGMENTED + ROOM {
        drop_caches();
    }
    if !is_by_itself && meminfo("MemFree:") < FRAGMENTED + ROOM {
        skip("free memory is neither fragmented nor enough to fragment");
        return None;
    }
    let mut memory = Fragmented((!is_by_itself).then(fragment), String::new());
    memory.1 = until("the score to rise", || proactiveness_at(score()));
    Some(memory)
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
        if let Some(fragmenter) = self.0.take() {
            fragmenter.signal(Signal::SIGTERM);
            fragmenter.finish();
        }
    }
}

#[test]
fn the_score_is_the_kernels() {
    let Some(_turn) = alone() else { return };
    let debugfs = match Debugfs::new() {
        Ok(debugfs) => debugfs,
        Err(error) => return skip(&format!("cannot mount debugfs: {error}")),
    };
    check_extfrag(&debugfs);
    let Some(_memory) = fragmented() else { return };
    check_extfrag(&debugfs);
}

#[test]
fn a_round_moves_pages_and_changes_no_setting() {
    let Some(_turn) = alone() else { return };
    let Some(memory) = fragmented() else { return };
    let proactiveness = &memory.1;
    let setting = fs::read_to_string(PROACTIVENESS).ok();
    let directory = scratch();
    let path = directory.path().join("once.isotherm");
    let flags = ["--node", "0", "--proactiveness", proactiveness, "-o"];
    let mut command = isotherm(["compact", "--json"]);
    let report = run(command.args(flags).arg(&path)).success().json();
    let node = &report["nodes"][0];
    eprintln!("{}", node["round"]);
    if !node["decision"]["back_off"].is_null() {
        return skip("kswapd is reclaiming");
    }
    let round = &node["round"];
    let number = |name: &str| round[name].as_f64().expect("a number");
    assert!(number("score_after") <= number("score_before") + 1.0);
    let scanned = round["counters"]["migrate_scanned"].as_u64();
    assert!(scanned > Some(0), "{round}");
    assert_eq!(fs::read_to_string(PROACTIVENESS).ok(), setting);
    check_reports(&path);
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
        until_so("the kernel to stop compacting", || {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            // An orphan may have to wait until it is reaped.
            let state = stat.rsplit_once(") ").map_or("Z", |(_, rest)| rest);
            state.starts_with(['Z', 'X'])
        });
        let took = started.elapsed();
        eprintln!("{signal} stopped it within {took:?}");
        assert!(took.as_secs() < 10, "{took:?}");
    }
    if seen == 0 {
        skip("rounds were over before they could be stopped");
    }
}
