//! The guard charges schemes with what they took, and with nothing else that happens on the machine.

use serde_json::Value;

use crate::common::{Running, alone, at_once, isotherm, python, run, scratch};
use crate::swap::Swap;

const MIB: u64 = 1 << 20;

/// Maps 64 MiB of a kind (the first argument), of which 8 are touched all the time. `back`, as the second argument, has it
/// read all of that in one of five seconds.
const TARGET: &str = r#"
import mmap, os, sys, tempfile, time
kind, how, folder = sys.argv[1:]
size = 64 << 20
if kind == "anonymous":
    m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
elif kind == "memfd":
    file = os.memfd_create("memory")
    os.ftruncate(file, size)
    m = mmap.mmap(file, size)
else:
    file = tempfile.TemporaryFile(dir="/dev/shm" if kind == "tmpfs" else folder)
    file.truncate(size)
    m = mmap.mmap(file.fileno(), size)
for at in range(0, size, 4096):
    m[at:at + 1024] = os.urandom(1024)
if kind == "file":
    m.flush()
print("ready", flush=True)
started = time.monotonic()
while True:
    all_of_it = how == "back" and int(time.monotonic() - started) % 5 == 4
    for at in range(0, size if all_of_it else 8 << 20, 4096):
        m[at]
    time.sleep(0.05)
"#;

/// Pages out 64 MiB of its own, and reads them back, over and over.
const NEIGHBOUR: &str = r#"
import mmap, os, time
size = 64 << 20
m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 4096):
    m[at:at + 1024] = os.urandom(1024)
print("ready", flush=True)
while True:
    m.madvise(21)  # MADV_PAGEOUT
    for at in range(0, size, 4096):
        m[at]
    time.sleep(0.2)
"#;

const KINDS: [&str; 4] = ["anonymous", "memfd", "tmpfs", "file"];

/// Runs a scheme on targets of these kinds at the same time, and yields what came of each.
fn run_on(kinds: &[&str], how: &str, flags: &[&str]) -> Vec<(String, Value)> {
    let folder = scratch();
    let start = |kind: &&str| {
        let mut command = python(TARGET);
        let mut target = Running::start(command.args([kind, how]).arg(folder.path()));
        target.line("ready");
        target
    };
    let targets: Vec<(&str, Running)> = kinds.iter().map(|kind| (*kind, start(kind))).collect();
    let all = std::sync::Mutex::new(Vec::new());
    at_once(&targets, |(kind, target)| {
        let record = folder.path().join(format!("{kind}.isotherm"));
        let pid = target.pid().to_string();
        let mut command = isotherm(["run", "--json", "--duration", "16s", "--pid", &pid, "-o"]);
        let done = run(command.arg(&record).args(flags)).success();
        let summary = serde_json::from_str(&done.stdout).expect("run --json prints JSON");
        let mut all = all.lock().expect("no test panics with it");
        all.push(((*kind).to_owned(), summary));
    });
    all.into_inner().expect("no test panics with it")
}

const IDLE_2S: [&str; 4] = [
    "--scheme",
    "4K max 0 0 2s max pageout",
    "--max-refaults",
    "20/s",
];

#[test]
fn a_neighbour_that_swaps_stops_no_scheme() {
    const TEST: &str = "a_neighbour_that_swaps_stops_no_scheme";
    let Some(_turn) = alone(TEST) else { return };
    let Some(_swap) = Swap::set_up(TEST) else {
        return;
    };
    let mut neighbour = Running::start(&mut python(NEIGHBOUR));
    neighbour.line("ready");
    for (kind, summary) in run_on(&KINDS, "idle", &IDLE_2S) {
        assert_eq!(summary["guard_stops"], 0, "{kind}: {summary}");
        let out = summary["schemes"][0]["sz_applied"].as_u64();
        assert!(out >= Some(56 * MIB * 9 / 10), "{kind}: {summary}");
    }
}

#[test]
fn what_the_target_reads_back_stops_schemes() {
    const TEST: &str = "what_the_target_reads_back_stops_schemes";
    let Some(_turn) = alone(TEST) else { return };
    let Some(_swap) = Swap::set_up(TEST) else {
        return;
    };
    let flags = [
        "--scheme",
        "4K max 0 0 1s max pageout",
        "--max-refaults",
        "20/s",
    ];
    for (kind, summary) in run_on(&KINDS, "back", &flags) {
        assert!(
            summary["guard_stops"].as_u64() >= Some(1),
            "{kind}: {summary}"
        );
    }
}

#[test]
fn a_dry_run_has_no_refaults() {
    const TEST: &str = "a_dry_run_has_no_refaults";
    let Some(_turn) = alone(TEST) else { return };
    let Some(_swap) = Swap::set_up(TEST) else {
        return;
    };
    let mut neighbour = Running::start(&mut python(NEIGHBOUR));
    neighbour.line("ready");
    let flags = [IDLE_2S.as_slice(), &["--dry-run"]].concat();
    for (kind, summary) in run_on(&["anonymous"], "idle", &flags) {
        assert_eq!(summary["guard_stops"], 0, "{kind}: {summary}");
        let out = summary["schemes"][0]["sz_applied"].as_u64();
        assert!(out >= Some(56 * MIB * 9 / 10), "{kind}: {summary}");
    }
}
