//! Many processes: none of them ends the session, and all of them together cost little.

use std::process::Command;

use crate::common::{
    Record, Running, at_once, isotherm, measuring, python, record_file, run, shared, stop_once,
    until_written,
};
use crate::watch::groups::{Group, group};

/// Starts a Python program that is in the group from its first line on, and waits until it is ready.
fn member(group: &Group, program: &str) -> Running {
    let first = "import os, signal, sys, time\n\
                 open(os.environ['PROCS'], 'w').write(str(os.getpid()))\n";
    Running::ready(python(&format!("{first}{program}")).env("PROCS", group.procs()))
}

const FORKS: &str = r#"
for _ in range(int(os.environ.get("NR", "400"))):
    if os.fork() == 0:
        signal.pause()
        os._exit(0)
print("ready", flush=True)
signal.pause()
"#;

/// The group grows past the limit of open files.
#[test]
fn a_group_that_forks_past_the_file_limit_is_watched_on() {
    let Some(_turn) = shared() else { return };
    let Some(group) = group("forks") else { return };
    let (_directory, path) = record_file();
    let mut command = Command::new("prlimit");
    command.args(["--nofile=128:128", env!("CARGO_BIN_EXE_isotherm")]);
    command.args(["record", "--cgroup"]);
    let recorder = Running::start(command.arg(&group.directory).arg("-o").arg(&path));
    until_written(&path);
    let _parent = member(&group, FORKS);
    let what = "some to be watched, and others left out";
    let done = stop_once(what, recorder, &path, |record| {
        record.notes().contains("left out") && record.snapshots().next().is_some()
    });
    let nr = Record::whole(&path).starts().len();
    assert!((2..100).contains(&nr), "{nr} were watched");
    done.warns("left out");
}

const CHURN: &str = r#"
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.03)
        os._exit(0)
    time.sleep(0.02)
"#;

#[test]
fn fifty_processes_a_second_come_and_go() {
    let Some(_turn) = shared() else { return };
    let Some(group) = group("churn") else { return };
    let _parent = member(&group, CHURN);
    let pages = ["--pages", "--aggregation-interval", "50ms"];
    at_once(&[&[][..], &pages, &["--faithful"]], |&flags| {
        let (_directory, path) = record_file();
        let mut command = isotherm(["record", "--quiet", "--duration", "3s", "--cgroup"]);
        command.arg(&group.directory).args(flags);
        run(command.arg("-o").arg(&path)).success();
        let record = Record::whole(&path);
        let starts = record.starts();
        assert!(starts.len() >= 2, "{flags:?}: {starts:?}");
        assert!(!record.exits().is_empty(), "{flags:?}: some have ended");
    });
}

#[test]
fn a_thousand_processes_cost_little() {
    let Some(_turn) = measuring() else { return };
    let Some(group) = group("many") else { return };
    let (_directory, path) = record_file();
    let _parent = member(&group, &FORKS.replace("400", "999"));
    let mut command = isotherm(["record", "--json", "--duration", "10s", "--cgroup"]);
    let done = run(command.arg(&group.directory).arg("-o").arg(&path)).success();
    let record = Record::whole(&path);
    let (watched, notes) = (record.starts().len(), record.notes());
    let mut lines = notes.lines();
    let waiting = lines.find_map(|line| {
        let (before, rest) = line.split_once(" processes with ")?;
        let nr = before.rsplit(' ').next()?.parse::<usize>().ok()?;
        rest.contains("not watched yet").then_some(nr)
    });
    eprintln!("{watched} watched, at first {waiting:?} waited");
    // The budget pays for a part of them.
    assert!((20..1000).contains(&watched), "{watched}");
    assert!(waiting.is_some_and(|nr| nr + watched >= 1000), "{notes}");
    let summary = done.json();
    let cpu = summary["monitor_cpu_percent"].as_f64().expect("a number");
    // This is a debug build, maybe on a busy machine; docs/results/accuracy.md has the cost of a release build.
    assert!(cpu < 3.0, "{cpu} % of a CPU");
}
