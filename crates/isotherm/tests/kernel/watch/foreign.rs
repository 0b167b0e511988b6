//! Programs of kinds that other tools report wrongly: each is compared with the value of the kernel or of the program
//! itself.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

use crate::common::{
    MIB, Running, isotherm, proc_bytes, python, record_file, record_pid, report, run, shared, skip,
    until_so, with_swap,
};

/// Records process `pid` for 9 s, and returns the summary.
fn summary(pid: u32, flags: &[&str]) -> Value {
    let (_folder, path) = record_file();
    let recorder = record_pid(pid, &path, &[&["--duration", "9s"], flags].concat());
    recorder.succeed();
    report("summary", &path)
}

/// Pages out for some seconds memory of process `pid` that is idle for 2 s, and returns the summary.
fn page_out(pid: u32, duration: &str, flags: &[&str]) -> Value {
    let (_folder, path) = record_file();
    let mut command = isotherm(["run", "--json", "--no-guard", "--duration", duration]);
    command.args(["--scheme", "4K max 0 0 2s max pageout"]);
    command.args(["--pid", &pid.to_string(), "-o"]).arg(path);
    let summary = run(command.args(flags)).success().json();
    let scheme = &summary["schemes"][0];
    let refused = scheme["refused"].as_object().into_iter().flatten();
    let refused: u64 = refused.filter_map(|(_, bytes)| bytes.as_u64()).sum();
    let applied = scheme["sz_applied"].as_u64().unwrap_or(0);
    // Every byte that was tried has one outcome.
    let tried = scheme["sz_tried"].as_u64();
    assert_eq!(tried, Some(applied + refused), "{summary}");
    summary
}

/// Asserts that the number of bytes at a pointer is within these MiB.
#[track_caller]
fn expect(report: &Value, pointer: &str, mib: RangeInclusive<u64>) {
    let bytes = report.pointer(pointer).and_then(Value::as_u64);
    let range = mib.start() * MIB..=mib.end().saturating_mul(MIB);
    let is_within = bytes.is_some_and(|bytes| range.contains(&bytes));
    assert!(is_within, "{pointer}: {bytes:?} in {mib:?} MiB: {report}");
}

/// Maps 32 MiB twice and never touches them again; the first mapping is locked.
const LOCKED: &str = r#"
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
maps = []
for part in range(2):
    m = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(m))
    for at in range(0, 32 << 20, 4096):
        m[at:at + 8] = os.urandom(8)
    if part == 0 and libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(32 << 20)):
        raise OSError(ctypes.get_errno(), "mlock")
    maps.append(m)
print("ready", flush=True)
time.sleep(600)
"#;

#[test]
fn locked_memory_is_not_promised_and_not_touched() {
    let Some(_turn) = with_swap() else { return };
    let target = Running::ready(&mut python(LOCKED));
    let pid = target.pid();
    assert_eq!(proc_bytes(pid, "status", "VmLck:"), 32 * MIB);

    let summary = summary(pid, &[]);
    expect(&summary, "/reclaim/unreclaimable_bytes", 31..=33);
    expect(&summary, "/reclaim/bytes", 30..=50);
    let huge = proc_bytes(pid, "smaps_rollup", "AnonHugePages:");
    for flags in [&["--dry-run"][..], &[]] {
        let summary = page_out(pid, "5s", flags);
        expect(&summary, "/schemes/0/sz_applied", 30..=50);
        expect(&summary, "/schemes/0/refused/locked", 31..=u64::MAX);
    }
    let huge_after = proc_bytes(pid, "smaps_rollup", "AnonHugePages:");
    assert!(huge_after <= huge + 2 * MIB, "{huge} {huge_after}");
    assert_eq!(proc_bytes(pid, "status", "VmLck:"), 32 * MIB);
}

/// Runs a thread that touches 16 of 64 MiB all the time; only the main thread ends.
const ENDED_MAIN: &str = r#"
import ctypes, mmap, os, threading, time
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 64 << 20, 4096):
    m[at:at + 8] = os.urandom(8)
def work():
    while True:
        for at in range(0, 16 << 20, 4096):
            m[at]
        time.sleep(0.01)
threading.Thread(target=work).start()
print("ready", flush=True)
time.sleep(0.2)
ctypes.CDLL(None).syscall(60, 0)
"#;

#[test]
fn threads_that_outlive_the_main_thread_are_watched() {
    let Some(_turn) = with_swap() else { return };
    let target = Running::ready(&mut python(ENDED_MAIN));
    let pid = target.pid();
    until_so("the main thread to end", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") Z ")
    });
    let summary = page_out(pid, "5s", &[]);
    // The kernel accepts no advice about it, and the summary reports that.
    expect(&summary, "/schemes/0/sz_applied", 0..=0);
    expect(&summary, "/schemes/0/refused/unsupported", 46..=u64::MAX);
}

#[test]
fn what_was_paged_out_is_read_back_at_a_pace() {
    let Some(_turn) = with_swap() else { return };
    let target = Running::ready(&mut python(LOCKED));
    let (pid, text) = (target.pid(), target.pid().to_string());
    page_out(pid, "6s", &[]);
    let out = proc_bytes(pid, "status", "VmSwap:");
    assert!(out >= 28 * MIB, "{out}");
    let mut restore = isotherm(["restore", "--json", "--rate", "16M", "--pid", &text]);
    let report = run(&mut restore).success().json();
    assert_eq!(proc_bytes(pid, "status", "VmSwap:"), 0, "{report}");
    assert_eq!(report["end"], "complete");
    assert_eq!(report["processes"][0]["swapped_before_bytes"], out);
    let least_s = out as f64 / (16 * MIB) as f64 * 0.9;
    assert!(report["seconds"].as_f64() >= Some(least_s), "{report}");
}

/// Starts three children that share 48 MiB with their parent, as PostgreSQL does with its buffers. Each child reads the
/// first 8 MiB of them all the time, and has 8 MiB of its own that it does not touch again.
const GROUP: &str = r#"
import mmap, os, time
shared = mmap.mmap(-1, 48 << 20)
for at in range(0, 48 << 20, 4096):
    shared[at:at + 8] = os.urandom(8)
ready = []
for child in range(3):
    end, own_end = os.pipe()
    ready.append(end)
    if os.fork() == 0:
        own = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, 8 << 20, 4096):
            own[at:at + 8] = os.urandom(8)
        for at in range(0, 48 << 20, 4096):
            shared[at]
        os.write(own_end, b"x")
        parent = os.getppid()
        while os.getppid() == parent:
            for at in range(0, 8 << 20, 4096):
                shared[at]
            time.sleep(0.02)
        os._exit(0)
for end in ready:
    os.read(end, 1)
print("ready", flush=True)
time.sleep(600)
"#;

fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("the kernel lists children");
    let pids = children.split_whitespace();
    pids.map(|pid| pid.parse().expect("a number")).collect()
}

#[test]
fn memory_that_a_group_shares_counts_once() {
    let Some(_turn) = with_swap() else { return };
    let target = Running::ready(&mut python(GROUP));
    let pid = target.pid();
    let frames: u64 = { children_of(pid).into_iter().chain([pid]) }
        .map(|pid| proc_bytes(pid, "smaps_rollup", "Pss:"))
        .sum();
    let frames = frames / MIB;
    let summary = summary(pid, &["--children"]);
    // Pss contains a part of libraries that others map as well.
    expect(&summary, "/total/resident_bytes", frames - 1..=frames + 20);
    expect(&summary, "/total/working_set_bytes", 6..=12);
    // The saved memory is the children's own, and the part of the interpreters that is idle.
    expect(&summary, "/reclaim/bytes", 22..=46);
    expect(&summary, "/reclaim/unreclaimable_bytes", 36..=u64::MAX);
}

#[test]
fn memory_that_a_group_shares_counts_once_in_each_context() {
    let Some(_turn) = shared() else { return };
    let target = Running::ready(&mut python(GROUP));
    let pids = [&children_of(target.pid())[..], &[target.pid()]].concat();
    let kdamond = |pids: &[u32]| {
        let target = |pid: &u32| json!({"pid": pid, "regions": []});
        let targets: Vec<Value> = pids.iter().map(target).collect();
        let scheme = json!({"action": "stat"});
        json!({"contexts": [{"ops": "vaddr", "targets": targets, "schemes": [scheme]}]})
    };
    let kdamonds = json!({"kdamonds": [kdamond(&pids[..2]), kdamond(&pids[2..])]});
    let (folder, path) = record_file();
    let file = folder.path().join("kdamonds.json");
    std::fs::write(&file, kdamonds.to_string()).expect("written");
    let mut command = isotherm(["run", "--duration", "9s", "-o"]);
    run(command.arg(&path).arg("-c").arg(&file)).success();
    let summary = report("summary", &path);
    let targets = summary["targets"].as_array().expect("targets").iter();
    let resident = targets.filter_map(|target| target["resident_bytes"].as_u64());
    // Each context has two of the four processes, so 48 MiB count twice instead of four times.
    let once = resident.sum::<u64>() / MIB - 96;
    expect(&summary, "/total/resident_bytes", once - 40..=once + 2);
}

/// Maps 32 MiB of identical pages, which KSM may merge.
const MERGEABLE: &str = r#"
import mmap, time
m = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(12)
for at in range(0, 32 << 20, 4096):
    m[at:at + 4096] = b"x" * 4096
print("ready", flush=True)
time.sleep(600)
"#;

/// Lets KSM merge pages fast, and restores its settings.
struct Ksm([(&'static str, String); 2]);

impl Ksm {
    fn run() -> std::io::Result<Self> {
        let before = [("pages_to_scan", "20000"), ("run", "1")].map(|(name, value)| {
            let path = format!("/sys/kernel/mm/ksm/{name}");
            let before = std::fs::read_to_string(&path)?;
            std::fs::write(path, value)?;
            std::io::Result::Ok((name, before))
        });
        let [first, second] = before;
        Ok(Self([second?, first?]))
    }
}

impl Drop for Ksm {
    fn drop(&mut self) {
        for (name, before) in &self.0 {
            std::fs::write(format!("/sys/kernel/mm/ksm/{name}"), before.trim()).ok();
        }
    }
}

#[test]
fn pages_that_ksm_has_merged_count_once() {
    let Some(_turn) = with_swap() else { return };
    let Ok(_ksm) = Ksm::run() else {
        return skip("this kernel has no KSM");
    };
    let target = Running::ready(&mut python(MERGEABLE));
    let pid = target.pid();
    until_so("KSM to merge the pages", || {
        let merged = std::fs::read_to_string(format!("/proc/{pid}/ksm_merging_pages"));
        let merged = merged.ok().and_then(|nr| nr.trim().parse::<u64>().ok());
        merged > Some(8000)
    });
    let frames = proc_bytes(pid, "smaps_rollup", "Pss:") / MIB;
    let summary = summary(pid, &[]);
    expect(&summary, "/total/resident_bytes", frames - 1..=frames + 16);
    let saved = summary["reclaim"]["bytes"].as_u64();
    assert!(saved <= Some(20 * MIB), "{summary}");
}

/// Touches 8 MiB and executes the same program again, five times a second.
const EXECS: &str = r#"
import os, sys, time
memory = bytearray(os.urandom(1 << 20) * 8)
if len(sys.argv) == 1:
    print("ready", flush=True)
time.sleep(0.15)
os.execv(sys.executable, [sys.executable, "-c", os.environ["PROGRAM"], "again"])
"#;

#[test]
fn what_lives_for_no_whole_interval_is_unknown() {
    let Some(_turn) = shared() else { return };
    let target = Running::ready(python(EXECS).env("PROGRAM", EXECS));
    let summary = summary(target.pid(), &[]);
    let total = &summary["total"];
    let bytes = |of: &str| total[of].as_u64();
    assert!(bytes("resident_bytes") >= Some(MIB), "{summary}");
    assert!(bytes("unknown_bytes") >= Some(MIB), "{summary}");
    // On a busy machine one of them may have lived for an interval.
    let working_set = bytes("working_set_bytes");
    assert!(working_set <= bytes("resident_bytes"), "{summary}");
    let reclaimed = summary["reclaim"]["bytes"].as_u64();
    assert_eq!(reclaimed.unwrap_or(0), 0, "{summary}");
}

#[test]
fn a_command_that_becomes_another_is_named_after_that() {
    let Some(_turn) = shared() else { return };
    let (_folder, path) = record_file();
    let mut command = isotherm(["record", "--quiet", "-o"]);
    command.arg(&path);
    run(command.args(["--", "sh", "-c", "sleep 0.2; exec sleep 3"])).success();
    let summary = report("summary", &path);
    let targets = summary["targets"].as_array().expect("a list");
    assert_eq!(targets.len(), 1, "{summary}");
    assert_eq!(targets[0]["name"], "sleep", "{summary}");
    assert!(summary["total"]["working_set_bytes"].is_u64(), "{summary}");
}
