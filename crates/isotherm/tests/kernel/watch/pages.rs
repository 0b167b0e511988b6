//! Page scans: their limit on stalls, and memory whose bits cannot be cleared.

use std::os::unix::process::CommandExt as _;

use isotherm_engine::AddressRange;
use serde_json::Value;

use crate::common::{
    Record, Running, Seen, Workload, isotherm, measuring, paced_workload, python, range,
    record_file, record_pid, run, seen, shared, stop_once,
};

#[test]
fn a_scan_that_would_stall_the_target_is_refused() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let mut workload = Workload::start(&paced_workload(128, 32), &[]);
    for clear_by in ["auto", "madvise", "clear-refs"] {
        let flags = ["--pages", "--max-stall", "1ns", "--clear-by", clear_by];
        let done = record_pid(workload.pid(), &path, &flags).finish();
        for word in ["would hold process", "--max-stall", "without --pages"] {
            done.refused(word);
        }
        assert!(!path.exists(), "{clear_by}: a file is left");
    }
    assert!(workload.process.is_running());
}

/// Maps 64 MiB in two processes, which both touch all of it all the time.
const SHARERS: &str = r#"
import ctypes, mmap, os, time
memory = mmap.mmap(-1, 64 << 20)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for i in range(0, len(memory), 4096):
    memory[i] = 1
parent = os.getpid()
child = os.fork()
if child:
    print(f"range {start:x}-{start + len(memory):x}", flush=True)
while os.getppid() == parent or child:
    for i in range(0, len(memory), 4096):
        memory[i] = 2
    time.sleep(0.005)
"#;

/// Maps 64 MiB, of which its child has half: it writes to every other page, all the time.
const WRITER: &str = r#"
import ctypes, mmap, os, time
memory = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for i in range(0, len(memory), 4096):
    memory[i] = 1
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(0)
for i in range(4096, len(memory), 8192):
    memory[i] = 2
print(f"range {start:x}-{start + len(memory):x}", flush=True)
while True:
    for i in range(4096, len(memory), 8192):
        memory[i] = 2
    time.sleep(0.005)
"#;

/// The note of scans that clear by other means.
const SWITCHED: &str = "clear_refs from now on";

/// After this many snapshots, memory whose accesses were missed would be reported as idle.
const ENOUGH: usize = 4;

/// Records the shared memory until its last snapshot `is_reported`; returns that snapshot, the record and the address
/// of the memory.
fn record_shared(
    script: &str,
    flags: &[&str],
    is_reported: impl Fn(&Record, Seen, u64) -> bool,
) -> (Seen, Record, AddressRange) {
    let (_directory, path) = record_file();
    // The processes are another user's, which needs the capabilities that the recorder keeps.
    let mut sharers = Running::start(python(script).uid(65534));
    let memory = range(&sharers.line("range "));
    let last = |record: &Record| seen(record.snapshots().last().expect("some"), &[memory]);
    let recorder = record_pid(sharers.pid(), &path, flags);
    stop_once("a report of the shared memory", recorder, &path, |record| {
        record.snapshots().count() >= ENOUGH && is_reported(record, last(record), memory.len())
    });
    let record = Record::whole(&path);
    (last(&record), record, memory)
}

#[test]
fn shared_memory_is_seen_and_never_cold_while_it_is_used() {
    let Some(_turn) = measuring() else { return };
    let is_in_use = |_: &Record, last: Seen, bytes: u64| last.accessed > bytes / 10 * 9;
    let (last, record, memory) = record_shared(SHARERS, &[], is_in_use);
    let bytes = memory.len();
    assert!(last.accessed > bytes / 10 * 9, "{last:?} of {bytes} in use");
    let idle = record.snapshots().map(|s| seen(s, &[memory]).idle).max();
    assert!(idle < Some(bytes / 10), "{idle:?} of {bytes}");
}

#[test]
fn page_scans_of_shared_memory_say_so_or_clear_by_other_means() {
    let Some(_turn) = shared() else { return };
    // Clearing 64 MiB takes far less than a second: the scan may switch.
    let flags = ["--pages", "--max-stall", "1s"];
    let (last, _, memory) = record_shared(SHARERS, &flags, |record, last, bytes| {
        record.notes().contains(SWITCHED) && last.accessed > bytes / 10 * 8
    });
    let least = memory.len() / 10 * 8;
    assert!(last.accessed > least, "{last:?} with clear_refs");
    let flags = ["--pages", "--clear-by", "madvise"];
    let is_unknown = |_: &Record, last: Seen, bytes: u64| last.unknown > bytes / 10 * 9;
    let (last, ..) = record_shared(SHARERS, &flags, is_unknown);
    let (idle, unknown) = (last.idle, last.unknown);
    assert!(idle < memory.len() / 100, "{last:?} with madvise");
    assert!(unknown > memory.len() / 10 * 9, "{last:?} with madvise");
}

/// One clearable page of 2 MiB used to decide for all: what the child shares was said to be in use.
#[test]
fn pages_written_after_a_fork_are_told_from_the_shared_ones_around_them() {
    let Some(_turn) = shared() else { return };
    let flags = ["--pages", "--clear-by", "madvise"];
    let is_seen = |_: &Record, last: Seen, bytes: u64| last.accessed > bytes / 20 * 9;
    let (last, _, memory) = record_shared(WRITER, &flags, is_seen);
    let half = memory.len() / 2;
    let differ = |found: u64| found.abs_diff(half) > half / 10;
    assert!(!differ(last.accessed), "{last:?} of {half} in use");
    // Idle, if something else has cleared their bits: the kernel's reclaim, or its DAMON.
    let shared = last.unknown + last.idle;
    assert!(!differ(shared), "{last:?} of {half} shared");
}

#[test]
fn a_reclaim_curve_says_what_idles_and_what_comes_back() {
    let Some(_turn) = shared() else { return };
    let (directory, path) = record_file();
    let workload = Workload::start(&paced_workload(256, 16), &[]);
    let flags = ["--pages", "--duration", "8s"];
    record_pid(workload.pid(), &path, &flags).succeed();
    let hot: u64 = workload.hot().iter().map(|range| range.len()).sum();
    let curve = |flags: &[&str]| {
        let file = path.to_str().expect("a path of ours");
        run(isotherm(["reclaim-curve", file, "--max-slowdown", "1%"]).args(flags))
    };
    let json = curve(&["--format", "json"]).success().json();
    let number = |key: &str| json[key].as_f64().expect("a number");
    let cold = number("resident_mean_bytes") - hot as f64;
    let points = json["points"].as_array().expect("points");
    // After a second of idleness all but the hot part is gone; that part is never idle for a second.
    let is_long = |point: &&Value| point["threshold_ns"].as_f64() >= Some(1e9);
    let second = points.iter().find(is_long).expect("idle for a second");
    let of_second = |key: &str| second[key].as_f64().expect("a number");
    let seconds = number("duration_ns") / 1e9;
    let expected = cold * (seconds - of_second("threshold_ns") / 1e9) / seconds;
    let saved = of_second("saved_mean_bytes");
    // A scan finds idleness one second after it began. On a busy machine the first such threshold may be near the
    // record's end.
    let most = 0.1 * expected + cold * 1.2 / seconds;
    let differ = (saved - expected).abs();
    assert!(differ < most, "{saved} of {expected}: {json}");
    assert!(json["chosen"]["slowdown"].as_f64() <= Some(0.01), "{json}");
    curve(&[]).success().prints(" % slower: reclaim after");

    let regions = directory.path().join("regions");
    let flags = ["--duration", "2s"];
    record_pid(workload.pid(), &regions, &flags).succeed();
    run(isotherm(["reclaim-curve"]).arg(regions)).refused("isotherm record --pages");
}
