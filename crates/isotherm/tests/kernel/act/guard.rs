//! The guard charges schemes with the time that they took, and with nothing else on the machine.

use serde_json::Value;

use crate::common::{MIB, Running, isotherm, python, scratch, with_swap};

/// Maps 64 MiB of a kind (the first argument), of which 8 are touched all the time. With `back` as the second argument,
/// it reads all of them in one of five seconds.
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

/// Runs schemes on targets of these kinds at the same time, and returns the result of each.
fn run_on(runs: &[(&'static str, Vec<&str>)], how: &str) -> Vec<(&'static str, Value)> {
    let folder = scratch();
    let start = |(kind, _): &(&str, Vec<&str>)| {
        let mut command = python(TARGET);
        Running::ready(command.args([kind, how]).arg(folder.path()))
    };
    let targets: Vec<Running> = runs.iter().map(start).collect();
    let mut runners = Vec::new();
    for ((kind, flags), target) in runs.iter().zip(&targets) {
        let pid = target.pid().to_string();
        let mut command = isotherm(["run", "--json", "--max-refaults", "20/s"]);
        command.args(["--duration", "12s", "--pid", &pid, "-o"]);
        let record = folder.path().join(format!("{pid}.isotherm"));
        runners.push((*kind, Running::start(command.arg(record).args(flags))));
    }
    let runners = runners.into_iter();
    runners
        .map(|(kind, runner)| (kind, runner.succeed().json()))
        .collect()
}

const IDLE_2S: [&str; 2] = ["--scheme", "4K max 0 0 2s max pageout"];

#[test]
fn a_neighbour_that_swaps_stops_no_scheme() {
    let Some(_turn) = with_swap() else { return };
    let _neighbour = Running::ready(&mut python(NEIGHBOUR));
    let dry = [IDLE_2S.as_slice(), &["--dry-run"]].concat();
    let runs = KINDS.map(|kind| (kind, IDLE_2S.to_vec()));
    let runs = [runs.as_slice(), &[("anonymous", dry)]].concat();
    for (kind, summary) in run_on(&runs, "idle") {
        assert_eq!(summary["guard_stops"], 0, "{kind}: {summary}");
        let out = summary["schemes"][0]["sz_applied"].as_u64();
        assert!(out >= Some(56 * MIB * 9 / 10), "{kind}: {summary}");
    }
}

#[test]
fn what_the_target_reads_back_stops_schemes() {
    let Some(_turn) = with_swap() else { return };
    let flags = ["--scheme", "4K max 0 0 1s max pageout"];
    for (kind, summary) in run_on(&KINDS.map(|kind| (kind, flags.to_vec())), "back") {
        let stops = summary["guard_stops"].as_u64();
        assert!(stops >= Some(1), "{kind}: {summary}");
    }
}
