//! Huge pages of real programs: their waste is reported.

use isotherm_linux::host::split_gives_back;

use nix::sys::signal::Signal;

use crate::common::{
    MIB, Record, Running, isotherm, proc_bytes, python, record_file, record_until, report, run,
    shared, skip, until_so,
};

/// Maps 64 MiB of huge pages of which every fourth page is written.
const WASTER: &str = r#"
import ctypes, mmap, time
MIB = 64
raw = mmap.mmap(-1, (MIB + 4) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
raw.madvise(mmap.MADV_HUGEPAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(raw))
first = -start % (2 << 20)
m = memoryview(raw)[first:first + (MIB << 20)]
for page in range(0, MIB * 256, 4):
    m[page * 4096:page * 4096 + 8] = (page + 1).to_bytes(8, "little")
print("ready", flush=True)
time.sleep(600)
"#;

/// Returns the bytes of a process's huge pages that were read by the last sample of the machine.
fn huge_bytes_read(record: &Record, pid: u32) -> u64 {
    let target = record.target(pid);
    let last = record.machine().last().copied();
    let huge = last.into_iter().flat_map(|sample| &sample.huge);
    let own = huge.filter(|of| Some(of.target) == target);
    own.map(|of| of.read).sum()
}

#[test]
fn the_waste_of_huge_pages_is_told_by_process() {
    let Some(_turn) = shared() else { return };
    if !split_gives_back() {
        return skip("before Linux 6.12 it takes swap");
    }
    let program = Running::ready(&mut python(WASTER));
    let pid = program.pid();
    if proc_bytes(pid, "smaps_rollup", "AnonHugePages:") < 64 * MIB {
        return skip("the kernel gave no huge pages");
    }
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--quiet", "--all"]);
    let what = "a program's huge pages to be read";
    record_until(what, &mut command, &path, |record| {
        huge_bytes_read(record, pid) > 0 && record.snapshots().next().is_some()
    });
    let report = report("machine", &path);
    let mut huge = report["huge_pages"].as_array().expect("a list").iter();
    let ours = huge.find(|of| of["pid"] == pid).expect("our program");
    let number = |name: &str| ours[name].as_u64().expect("a count");
    let is_read = number("bytes") >= 64 * MIB && number("read_bytes") > 0;
    let share = number("waste_bytes") as f64 / number("bytes") as f64;
    assert!(is_read && (0.6..=0.8).contains(&share), "{ours}");
}

/// Writes to every STEPth page of 128 MiB at random, after a call with ADVICE. Where the advice is huge pages, it waits
/// until all are huge: few of the first faults find huge pages where the page cache fills the memory.
const RANDOM: &str = r#"
import mmap
memory = mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(ADVICE)
for page in range(1 << 15): memory[page << 12] = 1
COLLAPSE, tries = 25, 100
while ADVICE == mmap.MADV_HUGEPAGE and tries:
    tries -= 1
    try:
        memory.madvise(COLLAPSE)
        break
    except OSError:
        pass
print("ready", flush=True)
page = 1
while True:
    page = page * 1229 + 45007 & 0x7fff
    memory[page // STEP * STEP << 12] = 2
"#;

fn random(advice: &str, step: u32) -> Running {
    let program = RANDOM.replace("ADVICE", advice);
    Running::ready(&mut python(&program.replace("STEP", &step.to_string())))
}

#[test]
fn a_program_is_judged_and_a_trial_is_undone() {
    let Some(_turn) = shared() else { return };
    let program = random("mmap.MADV_NORMAL", 1);
    let huge = || proc_bytes(program.pid(), "smaps_rollup", "AnonHugePages:");
    if huge() > 0 {
        return skip("the system makes huge pages everywhere");
    }
    let pid = program.pid().to_string();
    let judged = run(&mut isotherm(["thp", "--json", "--pid", &pid])).success();
    let report = judged.json();
    let number = |name: &str| report[name].as_f64().unwrap_or(0.0);
    assert!(number("small_bytes") >= (120 * MIB) as f64, "{report}");
    assert!(number("page_walks_per_s") >= 10_000.0, "{report}");
    assert!(number("saved_share_max") > 0.0, "{report}");
    assert!(report["trial"].is_null(), "{report}");
    let trial = Running::start(&mut isotherm(["thp", "--try", "--pid", &pid]));
    until_so("pages to become huge", || huge() >= 32 * MIB);
    trial.signal(Signal::SIGINT);
    let ended = trial.finish();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert_eq!(huge(), 0);
}

#[test]
fn huge_pages_are_looked_into_and_are_huge_again() {
    let Some(_turn) = shared() else { return };
    let program = random("mmap.MADV_HUGEPAGE", 8);
    let huge = || proc_bytes(program.pid(), "smaps_rollup", "AnonHugePages:");
    let all = huge();
    if all < 120 * MIB {
        return skip("the kernel gave no huge pages");
    }
    let pid = program.pid().to_string();
    let judged = Running::start(&mut isotherm(["thp", "--try", "--json", "--pid", &pid]));
    until_so("a sample to be split", || huge() < all);
    // The sample is half of them. It is huge again for an instant, before the trial splits three quarters.
    until_so("the trial to split more", || huge() < all / 2);
    judged.signal(Signal::SIGINT);
    let ended = judged.finish();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert_eq!(huge(), all);
    let report = ended.json();
    assert_eq!(report["split"]["is_undone"], true, "{report}");
    let sizes = report["page_sizes"].as_array().expect("a list");
    let used = |bytes: u64| {
        let mut sizes = sizes.iter();
        let size = sizes.find(|size| size["page_bytes"] == bytes);
        size.and_then(|size| size["used_share"].as_f64())
    };
    let share = used(4096).expect("split");
    assert!((0.1..0.15).contains(&share), "{report}");
    assert!(used(MIB << 1).expect("split") > 0.98, "{report}");
}
