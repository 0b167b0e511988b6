//! `isotherm size`: does it name the memory that a program needs, and does a limit of that keep the promise?

use std::fs;
use std::path::PathBuf;

use super::groups::{Group, memory_group};
use crate::common::{
    MIB, Running, Workload, isotherm, paced_workload, record_file, run, shared, until_so, with_swap,
};

#[test]
fn what_a_program_uses_is_what_it_needs() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let file = path.to_str().expect("a path of ours");
    let workload = Workload::start(&paced_workload(256, 16), &[]);
    let hot: u64 = workload.hot().iter().map(|range| range.len()).sum();
    let pid = workload.pid().to_string();
    let flags = ["size", "--pid", &pid, "--duration", "8s", "--record", file];
    let live = run(isotherm(flags).arg("--json")).success().json();
    let bytes = |of: &str| live[of]["request"]["bytes"].as_u64().expect("bytes");
    let need = bytes("with_swap");
    let is_hot = (hot..hot + 24 * MIB).contains(&need);
    assert!(is_hot, "{need} of {hot}: {live}");
    let without = bytes("without_swap");
    let is_all = (250 * MIB..300 * MIB).contains(&without);
    assert!(is_all, "{without}: {live}");
    // The record says the same, and shows it.
    let recorded = run(&mut isotherm(["size", file, "--json"])).success();
    assert_eq!(recorded.json()["with_swap"], live["with_swap"]);
    let shown = run(&mut isotherm(["size", file])).success();
    shown.prints("if a loss of 1 % is allowed");
    let both = ["size", file, "--pid", &pid];
    run(&mut isotherm(both)).refused("exclude each other");
}

/// The program uses 32 of its 192 MiB.
const PROGRAM: &str = "
import time
memory = bytearray(192 << 20)
for i in range(0, len(memory), 4096):
    memory[i] = 1
print('ready', flush=True)
while True:
    for i in range(0, 32 << 20, 4096):
        memory[i] = 2
    time.sleep(0.01)
";

/// Starts the program in a group of its own. Returns the file of the group's limit as well.
fn limitable() -> Option<(Group, Running, PathBuf)> {
    let group = memory_group("size")?;
    let mut command = group.shell("exec python3 -u -c \"$PROGRAM\"");
    let program = Running::ready(command.env("PROGRAM", PROGRAM));
    let limit = group.limit().expect("it was made for that");
    Some((group, program, limit))
}

#[test]
fn a_limit_that_is_tried_is_enough_and_is_undone() {
    let Some(_turn) = with_swap() else { return };
    let Some((group, mut program, limit)) = limitable() else {
        return;
    };
    let before = fs::read_to_string(&limit).expect("a limit");
    let mut size = isotherm(["size", "--cgroup", &group.name(), "--duration", "6s"]);
    let json = run(size.args(["--verify", "--trial", "4s", "--json"]))
        .success()
        .json();
    let least = json["verified"]["least_bytes"].as_u64().expect("one fits");
    assert!((32 * MIB..80 * MIB).contains(&least), "{json}");
    let high = json["with_swap"]["high"]["bytes"].as_u64().expect("bytes");
    assert!(least <= high, "less than estimated is enough: {json}");
    assert_eq!(fs::read_to_string(&limit).expect("a limit"), before);
    assert!(program.is_running());
}

#[test]
fn a_group_that_is_short_of_memory_needs_more_than_it_has() {
    let Some(_turn) = with_swap() else { return };
    let Some((group, _program, limit)) = limitable() else {
        return;
    };
    // The kernel refuses a limit that it cannot reach at once.
    let lower = || fs::write(&limit, (24 * MIB).to_string()).is_ok();
    until_so("a limit below its use", lower);
    let mut size = isotherm(["size", "--cgroup", &group.name(), "--duration", "6s"]);
    let json = run(size.arg("--json")).success().json();
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    assert!(number(&json["present_slowdown"]) > 0.01, "{json}");
    let request = number(&json["with_swap"]["request"]["bytes"]);
    assert!(request > 20.0 * MIB as f64, "{json}");
}

#[test]
fn what_a_killed_trial_has_set_is_undone_by_the_next_command() {
    let Some(_turn) = with_swap() else { return };
    let Some((group, mut program, limit)) = limitable() else {
        return;
    };
    let read = || fs::read_to_string(&limit).expect("a limit");
    let before = read();
    let flags = ["size", "--cgroup", &group.name(), "--duration", "3s"];
    let trying = Running::start(isotherm(flags).arg("--verify"));
    until_so("a limit that is tried", || read() != before);
    drop(trying);
    assert_ne!(read(), before, "it was killed");
    run(&mut isotherm(flags)).success();
    assert_eq!(read(), before);
    assert!(program.is_running());
}
