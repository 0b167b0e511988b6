//! Huge pages of real programs: their waste is returned, reported and bounded.

use isotherm_linux::host::split_gives_back;
use nix::sys::signal::Signal;

use crate::common::{
    Record, Running, isotherm, pause, proc_bytes, python, record_file, record_until, report,
    shared, skip, until,
};

/// Maps 64 MiB of huge pages of which every fourth page is written; all but the first 16 MiB then stay idle. Prints a
/// checksum at first (`sum`) and whenever it gets SIGUSR1 (`again`).
const WASTER: &str = r#"
import ctypes, mmap, signal, threading, time, zlib
MIB = 64
raw = mmap.mmap(-1, (MIB + 4) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
raw.madvise(mmap.MADV_HUGEPAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(raw))
first = -start % (2 << 20)
m = memoryview(raw)[first:first + (MIB << 20)]
for page in range(0, MIB * 256, 4):
    m[page * 4096:page * 4096 + 8] = (page + 1).to_bytes(8, "little")
def work():
    while True:
        for page in range(0, 16 * 256, 4):
            m[page * 4096 + 9] = m[page * 4096 + 9]
        time.sleep(0.005)
def tell(*_):
    print("again", zlib.crc32(m), flush=True)
signal.signal(signal.SIGUSR1, tell)
threading.Thread(target=work, daemon=True).start()
print("sum", zlib.crc32(m), flush=True)
while True:
    time.sleep(1)
"#;

const MIB: u64 = 1 << 20;
/// Bytes of the idle 48 MiB that were never written.
const UNUSED: u64 = 36 * MIB;

/// Starts a program with huge pages that waste memory; returns `None` if this machine cannot test it.
fn waster() -> Option<(Running, String)> {
    if !split_gives_back() {
        skip("before Linux 6.12 it takes swap");
        return None;
    }
    let mut program = Running::start(&mut python(WASTER));
    let sum = program.line("sum");
    let huge = proc_bytes(program.pid(), "smaps_rollup", "AnonHugePages:");
    if huge < 64 * MIB {
        skip("the kernel gave no huge pages");
        return None;
    }
    Some((program, sum))
}

#[test]
fn nohugepage_gives_back_exactly_what_was_never_written() {
    let Some(_turn) = shared() else { return };
    let Some((mut program, sum)) = waster() else {
        return;
    };
    let pid = program.pid();
    let before = proc_bytes(pid, "status", "RssAnon:");
    let scheme = "2M max 0 0 2s max nohugepage";
    let mut command = isotherm(["run", "--json", "--no-guard", "--scheme", scheme]);
    let runner = Running::start(command.args(["--pid", &pid.to_string()]));
    until("what was never written to be given back", || {
        (before - proc_bytes(pid, "status", "RssAnon:") >= UNUSED).then_some(())
    });
    // More would follow at once.
    pause(2.0);
    let summary = runner.interrupt().json();
    let applied = summary["schemes"][0]["sz_applied"].as_u64();
    // Its own heap may also have huge pages, if the system gives them everywhere.
    let applied = applied.expect("a count");
    assert!((UNUSED..UNUSED + 4 * MIB).contains(&applied), "{summary}");
    let after = proc_bytes(pid, "status", "RssAnon:");
    assert!((before - after).abs_diff(applied) < MIB, "{before} {after}");
    assert_eq!(proc_bytes(pid, "status", "VmSwap:"), 0);
    let huge = proc_bytes(pid, "smaps_rollup", "AnonHugePages:");
    assert!((16 * MIB..24 * MIB).contains(&huge), "{huge}");
    program.signal(Signal::SIGUSR1);
    assert_eq!(program.line("again"), sum, "its memory has changed");
}

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
    let Some((program, _)) = waster() else {
        return;
    };
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--quiet", "--all"]);
    record_until(
        "a program's huge pages to be read",
        &mut command,
        &path,
        |record| huge_bytes_read(record, program.pid()) > 0,
    );
    let report = report("machine", &path);
    let pid = program.pid();
    let huge = report["huge_pages"].as_array().expect("a list");
    let ours = huge
        .iter()
        .find(|of| of["pid"].as_u64() == Some(u64::from(pid)));
    let ours = ours.expect("our program");
    let number = |name: &str| ours[name].as_u64().expect("a count");
    assert!(
        number("bytes") >= 64 * MIB && number("read_bytes") > 0,
        "{ours}"
    );
    let share = number("waste_bytes") as f64 / number("bytes") as f64;
    assert!((0.6..=0.8).contains(&share), "{ours}");
}
