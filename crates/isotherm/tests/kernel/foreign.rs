//! Programs of kinds that other tools tell wrongly: each with the value that the kernel or the program itself tells.

use serde_json::Value;

use crate::common::{
    Running, isotherm, proc_bytes, python, record_pid, run, scratch, until, with_swap,
};

const MIB: u64 = 1 << 20;

/// Records process `pid` for 9 s, and yields the report of this name.
fn report(pid: u32, name: &str) -> Value {
    let folder = scratch();
    let path = folder.path().join("record");
    let recorder = record_pid(pid, &path, &["--duration", "9s"]);
    recorder.finish().success();
    let done = run(isotherm(["report", name, "--json"]).arg(&path)).success();
    serde_json::from_str(&done.stdout).expect("a report in JSON")
}

/// Pages out for some seconds what process `pid` has not touched for 2 s, and yields the summary.
fn page_out(pid: u32, duration: &str, flags: &[&str]) -> Value {
    let (folder, pid) = (scratch(), pid.to_string());
    let mut command = isotherm([
        "run",
        "--json",
        "--no-guard",
        "--duration",
        duration,
        "--pid",
    ]);
    command.arg(pid).arg("-o").arg(folder.path().join("record"));
    command
        .args(["--scheme", "4K max 0 0 2s max pageout"])
        .args(flags);
    let done = run(&mut command).success();
    serde_json::from_str(&done.stdout).expect("run --json prints JSON")
}

/// Two mappings of 32 MiB, none of which is touched again; the first is locked.
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
    const TEST: &str = "locked_memory_is_not_promised_and_not_touched";
    let Some(_turn) = with_swap(TEST) else { return };
    let mut target = Running::start(&mut python(LOCKED));
    target.line("ready");
    let pid = target.pid();
    assert_eq!(proc_bytes(pid, "status", "VmLck:"), 32 * MIB);

    let summary = report(pid, "summary");
    let reclaim = &summary["reclaim"];
    let kept = reclaim["unreclaimable_bytes"].as_u64();
    assert!(
        kept >= Some(31 * MIB) && kept <= Some(33 * MIB),
        "{summary}"
    );
    let saved = reclaim["bytes"].as_u64();
    assert!(
        saved >= Some(30 * MIB) && saved <= Some(50 * MIB),
        "{summary}"
    );

    let huge = proc_bytes(pid, "smaps_rollup", "AnonHugePages:");
    for flags in [&["--dry-run"][..], &[]] {
        let summary = page_out(pid, "5s", flags);
        let scheme = &summary["schemes"][0];
        let applied = scheme["sz_applied"].as_u64();
        assert!(
            applied >= Some(30 * MIB) && applied <= Some(50 * MIB),
            "{summary}"
        );
        let locked = scheme["refused"]["locked"].as_u64();
        assert!(locked >= Some(31 * MIB), "{summary}");
    }
    let huge_after = proc_bytes(pid, "smaps_rollup", "AnonHugePages:");
    assert!(huge_after <= huge + 2 * MIB, "{huge} {huge_after}");
    assert_eq!(proc_bytes(pid, "status", "VmLck:"), 32 * MIB);
}

/// A thread that touches 16 of 64 MiB all the time, and a main thread that ends by itself alone.
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
    const TEST: &str = "threads_that_outlive_the_main_thread_are_watched";
    let Some(_turn) = with_swap(TEST) else { return };
    let mut target = Running::start(&mut python(ENDED_MAIN));
    target.line("ready");
    let pid = target.pid();
    until("the main thread to end", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") Z ").then_some(())
    });
    let summary = report(pid, "summary");
    let total = &summary["total"];
    let resident = total["resident_bytes"].as_u64();
    assert!(
        resident >= Some(64 * MIB) && resident <= Some(90 * MIB),
        "{summary}"
    );
    let used = total["working_set_bytes"].as_u64();
    assert!(
        used >= Some(16 * MIB) && used <= Some(30 * MIB),
        "{summary}"
    );
    let summary = page_out(pid, "5s", &[]);
    // The kernel takes no advice about it, and that is said.
    let scheme = &summary["schemes"][0];
    assert_eq!(scheme["sz_applied"], 0, "{summary}");
    let refused = scheme["refused"]["unsupported"].as_u64();
    assert!(refused >= Some(46 * MIB), "{summary}");
}

#[test]
fn what_was_paged_out_is_read_back_at_a_pace() {
    const TEST: &str = "what_was_paged_out_is_read_back_at_a_pace";
    let Some(_turn) = with_swap(TEST) else { return };
    let mut target = Running::start(&mut python(LOCKED));
    target.line("ready");
    let (pid, text) = (target.pid(), target.pid().to_string());
    page_out(pid, "6s", &[]);
    let out = proc_bytes(pid, "status", "VmSwap:");
    assert!(out >= 28 * MIB, "{out}");
    let done = run(&mut isotherm([
        "restore", "--json", "--rate", "16M", "--pid", &text,
    ]))
    .success();
    let report: Value = serde_json::from_str(&done.stdout).expect("restore --json prints JSON");
    assert_eq!(proc_bytes(pid, "status", "VmSwap:"), 0, "{report}");
    assert_eq!(report["end"], "complete");
    assert_eq!(report["processes"][0]["swapped_before_bytes"], out);
    let least_s = out as f64 / (16 * MIB) as f64 * 0.9;
    assert!(report["seconds"].as_f64() >= Some(least_s), "{report}");
}

/// A memfd of 48 MiB that is mapped three times, as ZGC does with its heap. All of it is there by each address; the first 8 are
/// touched all the time, by the third.
const MAPPED_THRICE: &str = r#"
import mmap, os, time
size = 48 << 20
file = os.memfd_create("heap")
os.ftruncate(file, size)
maps = [mmap.mmap(file, size) for _ in range(3)]
for at in range(0, size, 4096):
    maps[0][at:at + 8] = os.urandom(8)
for m in maps:
    for at in range(0, size, 4096):
        m[at]
print("ready", flush=True)
while True:
    for at in range(0, 8 << 20, 4096):
        maps[2][at]
    time.sleep(0.02)
"#;

#[test]
fn memory_that_is_mapped_several_times_counts_once() {
    const TEST: &str = "memory_that_is_mapped_several_times_counts_once";
    let Some(_turn) = with_swap(TEST) else { return };
    let mut target = Running::start(&mut python(MAPPED_THRICE));
    target.line("ready");
    let pid = target.pid();
    let frames = proc_bytes(pid, "smaps_rollup", "Pss:");
    let summary = report(pid, "summary");
    let total = &summary["total"];
    let resident = total["resident_bytes"].as_u64().expect("it is known");
    // Pss has its part of libraries that others map as well.
    assert!(
        (frames..frames + 16 * MIB).contains(&resident),
        "{frames} {summary}"
    );
    let used = total["working_set_bytes"].as_u64();
    assert!(used >= Some(7 * MIB) && used <= Some(16 * MIB), "{summary}");
    let kept = summary["reclaim"]["unreclaimable_bytes"].as_u64();
    assert!(
        kept >= Some(36 * MIB) && kept <= Some(44 * MIB),
        "{summary}"
    );
}
