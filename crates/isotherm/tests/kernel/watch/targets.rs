//! Targets that change while they are recorded.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::{AddressRange, Nanos, TargetId};
use isotherm_record::{Item, TargetStart};
use nix::sys::signal::Signal;

use crate::common::{
    Record, Running, Seen, Workload, at_once, isotherm, now, paced_workload, pause, python,
    python_path, range, record_file, record_pid, recorded, run, seen, shared, until,
};

/// Touches 32 MiB at one address for three seconds, then becomes a program that touches 32 MiB at another for four.
/// Both addresses are printed.
const BECOMES_ANOTHER: &str = r#"
import ctypes, mmap, os, sys, time
def hold(seconds):
    memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    print(f"range {start:x}-{start + len(memory):x}", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for i in range(0, len(memory), 4096):
            memory[i] = 1
        time.sleep(0.005)
if sys.argv[-1] == "second":
    hold(4)
else:
    hold(3)
    os.execv(sys.executable, [sys.executable, "-c", os.environ["PROGRAM"], "second"])
"#;

#[test]
fn a_target_that_becomes_another_program_is_followed() {
    let Some(_turn) = shared() else { return };
    at_once(&[&[][..], &["--faithful"], &["--pages"]], |flags| {
        let (_directory, path) = record_file();
        let mut target = Running::start(python(BECOMES_ANOTHER).env("PROGRAM", BECOMES_ANOTHER));
        let before = range(&target.line("range "));
        let recorder = record_pid(target.pid(), &path, flags);
        let done = target.succeed();
        let last = done.stdout.lines().last().expect("a line");
        let after = range(last.strip_prefix("range ").expect("a range"));
        recorder.succeed();
        let record = Record::whole(&path);
        let accessed = |what: AddressRange| -> Vec<Nanos> {
            let of = record.snapshots();
            let of = of.filter(|s| seen(s, &[what]).accessed > 16 << 20);
            of.map(|s| s.end).collect()
        };
        let (first, second) = (accessed(before), accessed(after));
        assert!(!first.is_empty() && !second.is_empty(), "{flags:?}");
        // The same addresses may be mapped again; if not, nothing may be seen there any more.
        if before.intersection(after).is_none() {
            let began = second[0] + Nanos::from_millis(2000);
            let is_late = first.iter().any(|end| *end > began);
            assert!(!is_late, "{flags:?}: memory of the first in the second");
        }
    });
}

/// Starts 100 children of two seconds each, which all live at the same time.
const PARENT: &str = r#"
import os, time
print("ready", flush=True)
time.sleep(1)
for _ in range(100):
    if os.fork() == 0:
        time.sleep(2.5)
        os._exit(0)
for _ in range(100):
    os.wait()
time.sleep(1.5)
"#;

fn record_children(flags: &[&str]) -> Record {
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--quiet", "-o"]);
    command.arg(&path).args(flags);
    let done = run(command.args(["--", &python_path(), "-c", PARENT]));
    assert_eq!((done.code(), &*done.complaints()), (0, ""), "{done:?}");
    Record::whole(&path)
}

#[test]
fn a_hundred_children_come_and_go() {
    let Some(_turn) = shared() else { return };
    // The period of searches for children depends on their cost, which is high if builds run beside the test.
    let ways = [
        &["--children", "--cpu-budget", "20%"][..],
        &["--children", "--pages"],
    ];
    at_once(&ways, |flags| {
        let record = record_children(flags);
        let (starts, exits) = (record.starts(), record.exits());
        let pids: BTreeSet<u32> = starts.iter().map(|start| start.pid).collect();
        let ended: BTreeSet<_> = exits.iter().map(|exit| exit.target).collect();
        // One parent and 100 children.
        let nr = (starts.len(), pids.len(), ended.len());
        assert_eq!(nr, (101, 101, 101), "{flags:?}: each began and ended once");
    });
}

/// Starts a process as a daemon does: its parent ends at once.
const LOSES_ITS_PARENT: &str = "(sleep 6 &); sleep 3";

#[test]
fn children_of_a_command_that_lose_their_parent_are_found() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--quiet", "--children", "-o"]);
    command.arg(&path).args(["--cpu-budget", "20%", "--"]);
    let done = run(command.args(["sh", "-c", LOSES_ITS_PARENT])).success();
    let record = Record::read(&path);
    // The shell, and both that sleep. One that was found before it became `sleep` starts again by that name.
    let lived_long = |start: &&TargetStart| {
        let exits = record.exits();
        let exit = exits.iter().find(|exit| exit.target == start.target);
        exit.is_some_and(|exit| exit.time.since(start.time) > Nanos::from_millis(1_500))
    };
    let starts = record.starts().into_iter();
    let last: BTreeMap<TargetId, &TargetStart> =
        starts.map(|start| (start.target, start)).collect();
    let lasting = last.values().copied().filter(lived_long);
    let mut names: Vec<&str> = lasting.map(|start| start.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["sh", "sleep", "sleep"], "{done:?}");
    assert_eq!(record.exits().len(), last.len());
}

/// Maps, touches and unmaps memory of changing size for five seconds.
const UNMAPPER: &str = r#"
import mmap, time
print("ready", flush=True)
end = time.monotonic() + 5
rounds = 0
while time.monotonic() < end:
    size = (1 + rounds % 16) << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(0, size, 4096):
        memory[i] = 1
    if rounds % 3 == 0:
        time.sleep(0.03)
    memory.close()
    rounds += 1
print("rounds", rounds)
"#;

#[test]
fn memory_may_vanish_while_it_is_sampled() {
    let Some(_turn) = shared() else { return };
    // This test does not check the time that a scan delays the target.
    let ways = "|--faithful|--pages --aggregation-interval 50ms --max-stall 1s";
    let ways: Vec<&str> = ways.split('|').collect();
    at_once(&ways, |way| {
        let flags: Vec<&str> = way.split_whitespace().collect();
        let target = Running::ready(&mut python(UNMAPPER));
        let record = recorded(target.pid(), &flags);
        target.succeed();
        let is_change = |item: &&Item| matches!(item, Item::Mappings(_));
        let nr = record.items.iter().filter(is_change).count();
        assert!(nr >= 2, "{way}: the mappings changed all the time");
        for snapshot in record.snapshots() {
            let mut pairs = snapshot.regions.windows(2);
            let are_ordered = pairs.all(|w| w[0].range.end <= w[1].range.start);
            assert!(are_ordered, "{way}: regions overlap");
        }
    });
}

#[test]
fn a_stopped_targets_memory_is_idle_until_it_goes_on() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let workload = Workload::start(&paced_workload(128, 8), &[]);
    let recorder = record_pid(workload.pid(), &path, &[]);
    let hot = workload.hot();
    let bytes: u64 = hot.iter().map(|range| range.len()).sum();
    // Returns the last snapshot of a time, and its sums over the hot memory.
    let last = |from: Nanos, to: Nanos| {
        let record = Record::try_read(&path)?;
        let snapshot = record.snapshots().rfind(|s| s.start >= from && s.end <= to);
        snapshot.map(|snapshot| seen(snapshot, &hot))
    };
    let until_seen = |from: Nanos, is_so: &dyn Fn(&Seen) -> bool| {
        until("a snapshot that says so", || {
            last(from, now()).filter(is_so)
        });
    };
    let is_in_use = |seen: &Seen| seen.accessed > bytes * 8 / 10;
    let is_idle = |seen: &Seen| seen.accessed < bytes / 10 && seen.idle > bytes * 8 / 10;
    until_seen(Nanos(0), &is_in_use);
    workload.process.signal(Signal::SIGSTOP);
    let stopped = now();
    until_seen(stopped, &is_idle);
    // It stays so.
    pause(3.0);
    let continued = now();
    workload.process.signal(Signal::SIGCONT);
    until_seen(continued, &is_in_use);
    recorder.interrupt();
    let in_time = |from, to| last(from, to).expect("a snapshot in that time");
    let during = in_time(stopped, continued);
    let after = in_time(continued, Nanos(u64::MAX));
    assert!(is_idle(&during), "stopped: {during:?}");
    assert!(is_in_use(&after), "running again: {after:?}");
}
