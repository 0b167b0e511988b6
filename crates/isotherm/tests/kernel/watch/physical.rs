//! The machine's physical memory, reported by frame, whatever process maps it.

use std::collections::BTreeSet;
use std::fs;

use isotherm_engine::frames::{AgeBytes, MappedClass};
use isotherm_engine::{AddressRange, Snapshot, TargetId};
use isotherm_record::{Item, MachineSample};

use crate::common::{
    MIB, Record, Running, Workload, isotherm, meminfo, paced_workload, python, range, record_file,
    record_until, run, scratch, shared, stop_once, watching,
};

/// The target of all physical memory in a record.
const MEMORY: TargetId = TargetId(0);

/// Maps 128 MiB that two processes share and touch all the time, and 128 MiB that only one of them has and touched
/// once.
const TWO_THAT_SHARE: &str = "\
import mmap, os, time
shared = mmap.mmap(-1, 128 << 20)
own = bytearray(128 << 20)
for at in range(0, 128 << 20, 4096): shared[at] = own[at] = 1
parent = os.getpid()
if os.fork() == 0: own = None
else: print('ready', flush=True)
while parent in (os.getpid(), os.getppid()):
    for at in range(0, 128 << 20, 4096): shared[at] = 2
    time.sleep(0.02)";

fn of_memory(record: &Record) -> Vec<&Snapshot> {
    let all: Vec<&Snapshot> = record.snapshots().collect();
    assert!(all.iter().all(|s| s.target == MEMORY), "reported once");
    all
}

/// Returns the idle bytes that only `target` maps.
fn idle_of(sample: &MachineSample, target: TargetId) -> u64 {
    let own = sample.mapped.iter().filter(|m| m.target == Some(target));
    own.flat_map(|m| m.bytes.idle).sum()
}

/// Returns the memory that several processes map for reading and writing.
fn shared_by_several(sample: &MachineSample) -> AgeBytes {
    let of_several = sample.mapped.iter().filter(|m| m.target.is_none());
    let of_several = of_several.filter(|m| m.class == MappedClass::Shared);
    let mut shared = AgeBytes::default();
    of_several.for_each(|m| shared.add(&m.bytes));
    shared
}

/// Returns whether the last sample holds the idle and the used memory of `TWO_THAT_SHARE`.
fn tells_of_two(record: &Record, pid: u32) -> bool {
    let last = record.machine().last().copied();
    let Some((sample, target)) = last.zip(record.target(pid)) else {
        return false;
    };
    let mapped: u64 = sample.mapped.iter().map(|m| m.bytes.total()).sum();
    let unknown: u64 = sample.mapped.iter().map(|m| m.bytes.unknown).sum();
    let shared = shared_by_several(sample);
    // Shared memory needs the clearing of whole address spaces, whose frequency depends on the budget.
    idle_of(sample, target) > 115 * MIB
        && shared.touched + shared.unknown > 115 * MIB
        && shared.idle.iter().sum::<u64>() < 13 * MIB
        && unknown < mapped / 5
}

#[test]
fn physical_memory_is_told_by_frame_and_what_two_share_once() {
    let Some(_turn) = watching() else { return };
    let others = meminfo("Shmem:");
    let process = Running::ready(&mut python(TWO_THAT_SHARE));
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--physical", "--cpu-budget", "10%"]);
    let what = "the memory of two processes in the record";
    // The sample at the end is of an interval that was cut short.
    let (mut nr_looks, mut most) = (0, 0);
    let (_, record) = record_until(what, &mut command, &path, |record| {
        nr_looks = record.machine().len();
        most = most.max(meminfo("Shmem:"));
        tells_of_two(record, process.pid())
    });
    // Tests beside this one share memory as well, and may have started and ended.
    let others = others.max(most.saturating_sub(128 * MIB));
    assert_eq!(record.header.operations, "paddr");
    let (snapshots, samples) = (of_memory(&record), record.machine());
    assert_eq!(snapshots.len(), samples.len());
    let (last, sample) = (snapshots[nr_looks - 1], samples[nr_looks - 1]);
    // Both are of the same sample.
    let totals = last.totals();
    let sum = |of: fn(&AgeBytes) -> u64| sample.mapped.iter().map(|m| of(&m.bytes)).sum::<u64>();
    let mapped = sum(AgeBytes::total);
    is_with_page_cache(totals.resident, mapped);
    is_with_page_cache(totals.touched, sum(|bytes| bytes.touched));
    is_with_page_cache(totals.unknown, sum(|bytes| bytes.unknown));
    let of_zones: u64 = sample.zones.iter().map(|zone| zone.mapped.total()).sum();
    assert_eq!(of_zones, mapped);
    let shared = shared_by_several(sample);
    assert!(shared.total() < others + 200 * MIB, "once: {shared:?}");
    for report in ["summary", "access", "wss", "idle", "heatmap", "machine"] {
        run(isotherm(["report", report]).arg(&path)).success();
    }
}

#[test]
fn a_record_ends_with_what_is_known_by_then() {
    let Some(_turn) = watching() else { return };
    let directory = scratch();
    // Both record side by side. One interval ends within 4 s at the least; samples are less frequent.
    let recorders = ["--all", "--physical"].map(|target| {
        let path = directory.path().join(target);
        let mut command = isotherm(["record", target, "--duration", "4s", "-o"]);
        (target, Running::start(command.arg(&path)), path)
    });
    for (target, recorder, path) in recorders {
        recorder.succeed();
        let record = Record::whole(&path);
        let end = record.items.iter().filter_map(|item| match item {
            Item::Usage(usage) => Some(usage.time),
            _ => None,
        });
        let (end, samples) = (end.max().expect("metered"), record.machine());
        let last = samples.last().expect("one at the end");
        let before = end.since(last.time).as_secs_f64();
        assert!(before < 1.0, "{target}: {before} s before the end");
        let mut mapped = last.mapped.iter();
        assert!(mapped.any(|m| m.bytes.total() > 0), "{last:?}");
    }
}

/// Checks that memory by address is the memory that processes map, and the page cache.
fn is_with_page_cache(all: u64, mapped: u64) {
    let cached = meminfo("Cached:") + meminfo("Buffers:");
    // Memory that was freed since the last round is reported until the next.
    let most = cached + 256 * MIB;
    let unmapped = all.checked_sub(mapped).expect("all that is mapped");
    assert!(unmapped <= most, "{all}, {mapped} mapped, {cached} cached");
}

#[test]
fn frames_are_sampled_as_damon_does_where_that_is_asked_for() {
    let Some(_turn) = watching() else { return };
    let (_directory, path) = record_file();
    let _workload = Workload::start(&paced_workload(256, 128), &[]);
    let mut command = isotherm(["record", "--physical", "--faithful"]);
    let what = "a snapshot, and frames that are unknown";
    let (_, record) = record_until(what, &mut command, &path, |record| {
        // No process maps most frames.
        record.snapshots().next().is_some() && record.peak_rss_and_unknown().1 > 0
    });
    assert_eq!(record.header.operations, "paddr");
    let notes = record.notes();
    let is_told = notes.contains("frames") && notes.contains("unknown");
    assert!(is_told, "{notes}");
}

/// Returns RAM above 4 GiB, or any other, from `/proc/iomem`.
pub(super) fn some_ram() -> Option<AddressRange> {
    let map = fs::read_to_string("/proc/iomem").ok()?;
    let ram = map.lines().filter_map(|l| l.strip_suffix(" : System RAM"));
    let ram = ram.map(|text| range(text.trim()));
    ram.max_by_key(|ram| ram.len())
}

#[test]
fn a_physical_range_is_recorded_alone() {
    let Some(_turn) = shared() else { return };
    let (directory, path) = record_file();
    let none = directory.path().join("none");
    let done = run(isotherm(["record", "--node", "1023", "-o"]).arg(&none));
    done.refused("no NUMA node 1023");
    done.refused("has 0");
    assert!(!none.exists());
    let ram = some_ram().expect("RAM, and its addresses for root");
    let start = ram.start.next_multiple_of(2 * MIB) + (64 << 20);
    let limit = AddressRange::new(start, start + (1 << 30).min(ram.len() / 2));
    let text = format!("{:#x}-{:#x}", limit.start, limit.end);
    let mut command = isotherm(["record", "--physical", "--cpu-budget", "50%"]);
    command.args(["--range", &text]);
    // Each sample of the whole machine makes a snapshot and a machine sample.
    let (_, record) = record_until("two looks", &mut command, &path, |record| {
        record.snapshots().count() >= 2
    });
    for region in of_memory(&record).iter().flat_map(|of| &of.regions) {
        assert_eq!(region.range.intersection(limit), Some(region.range));
    }
    // Of a part nothing is reported as of a node.
    assert!(record.machine().is_empty());
    let nowhere = "0x7f0000000000-0x7f0000200000";
    let flags = ["record", "--physical", "--range", nowhere, "-o"];
    run(isotherm(flags).arg(&none)).refused("no RAM within");
}

#[test]
fn every_page_of_all_processes_is_told_by_frame() {
    let Some(_turn) = watching() else { return };
    let _process = Running::ready(&mut python(TWO_THAT_SHARE));
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--pages", "--physical"]);
    // The scan at the end is of an interval that was cut short.
    let mut nr_scans = 0;
    let what = "idle and used pages";
    let (_, record) = record_until(what, &mut command, &path, |record| {
        nr_scans = record.snapshots().count();
        let last = record.snapshots().next_back().map(Snapshot::totals);
        last.is_some_and(|t| t.touched + t.unknown > 115 * MIB && t.untouched > 115 * MIB)
    });
    let totals = of_memory(&record)[nr_scans - 1].totals();
    assert!(totals.resident > 250 * MIB, "{totals:?}");
    for report in ["idle", "wss"] {
        run(isotherm(["report", report]).arg(&path)).success();
    }
}

/// Some processes end before they can be sampled, and some during it.
#[test]
fn processes_that_come_and_go_by_the_hundred_do_no_harm() {
    let Some(_turn) = watching() else { return };
    let script = "import os, time\nopen('/proc/self/comm', 'w').write('come-and-go')\n\
        print('ready', flush=True)\nwhile True:\n    pids = []\n\
        \x20   for i in range(40):\n        pid = os.fork()\n\
        \x20       if pid == 0:\n            m = bytearray(1 << 20); time.sleep(i / 40); os._exit(0)\n\
        \x20       pids.append(pid)\n    for pid in pids: os.waitpid(pid, 0)";
    let mut forks = Running::ready(&mut python(script));
    let directory = scratch();
    let children = |record: &Record| {
        let starts = record.starts();
        let theirs = starts.iter().filter(|start| start.name == "come-and-go");
        let pids: BTreeSet<u32> = theirs.map(|start| start.pid).collect();
        pids.iter().filter(|pid| **pid != forks.pid()).count()
    };
    // The sampling period depends on the cost of sampling on this machine.
    let ways = [&["--physical"][..], &["--physical", "--pages"]];
    let recorders = ways.map(|flags| {
        let path = directory.path().join(flags.len().to_string());
        let mut command = isotherm(["record", "-o"]);
        (Running::start(command.arg(&path).args(flags)), path)
    });
    for (recorder, path) in recorders {
        stop_once("children, and a snapshot", recorder, &path, |record| {
            children(record) > 5 && record.snapshots().next().is_some()
        });
        assert!(children(&Record::whole(&path)) > 5);
    }
    assert!(forks.is_running());
}

/// Returns the bytes of a process that schemes acted on; `None` if it was not found.
fn applied(record: &Record, pid: u32) -> Option<u64> {
    let target = record.target(pid)?;
    let of = record.actions().flat_map(|sample| &sample.targets);
    let of = of.filter(|of| of.target == target);
    Some(of.map(|of| of.sz_applied).sum())
}

/// A dry run of pprcl names the owners of the memory, and excludes the process that started it.
#[test]
fn pprcl_is_about_all_of_the_machine() {
    let Some(_turn) = watching() else { return };
    let process = Running::ready(&mut python(TWO_THAT_SHARE));
    let (_directory, path) = record_file();
    let mut command = isotherm(["run", "--preset", "pprcl", "--dry-run", "--no-guard"]);
    command.args(["--cpu-budget", "10%"]);
    let what = "116 MiB of the process to be predicted";
    let (done, record) = record_until(what, &mut command, &path, |record| {
        applied(record, process.pid()) > Some(115 * MIB)
    });
    done.warns("would be acted on");
    of_memory(&record);
    let us = std::process::id();
    let of_us = applied(&record, us);
    assert_eq!(of_us, Some(0), "the caller of isotherm is protected");
    let notes = record.notes();
    let is_told = notes.contains("who started it") && notes.contains(&us.to_string());
    assert!(is_told, "{notes}");
    let report = run(isotherm(["report", "actions"]).arg(&path)).success();
    report.prints("python");
}

/// Memory is plentiful by these watermarks, so nothing is watched.
#[test]
fn nothing_is_watched_while_schemes_rest() {
    let Some(_turn) = watching() else { return };
    let (_directory, path) = record_file();
    let scheme = "4K max 0 0 5s max stat 0 0 1s 0 0 0 free_mem_rate 5s 2 1 0";
    let mut command = isotherm(["run", "--all", "--duration", "5s", "--scheme", scheme]);
    run(command.arg("-o").arg(&path)).success();
    let record = Record::read(&path);
    let notes = record.notes();
    assert!(notes.contains("nothing is watched"), "{notes}");
    // There is no more than a first look.
    assert!(record.snapshots().count() <= record.starts().len());
}
