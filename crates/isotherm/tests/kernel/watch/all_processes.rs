//! All processes of the machine.

use std::path::Path;

use isotherm_engine::{Nanos, TargetId};
use serde_json::Value;

use crate::common::{
    Record, Running, free_address, http_get, isotherm, pause, proc_bytes, python, record_file,
    record_until, report, run, scratch, stop_once, until, until_snapshot, watching,
};

const WAIT: &str = "print('ready', flush=True)\nimport time; time.sleep(600)";

#[test]
fn all_processes_are_watched_but_those_left_out() {
    let Some(_turn) = watching() else { return };
    let start = || Running::ready(&mut python(WAIT));
    let (early, excluded) = (start(), start());
    let (_directory, path) = record_file();
    // A busy machine does not use up this budget by listing processes.
    let mut command = isotherm(["record", "--all", "--cpu-budget", "5%", "--exclude"]);
    let excluded_pid = excluded.pid().to_string();
    let recorder = Running::start(command.arg(excluded_pid).arg("-o").arg(&path));
    until_snapshot(&path);
    let before = crate::common::now();
    let late = start();
    let isotherm_pid = recorder.pid();
    let has_snapshot = |record: &Record, pid: u32| {
        let target = record.target(pid);
        let mut snapshots = record.snapshots();
        snapshots.any(|snapshot| Some(snapshot.target) == target)
    };
    stop_once("snapshots of all", recorder, &path, |record| {
        let mut pids = [early.pid(), late.pid(), std::process::id()].into_iter();
        pids.all(|pid| has_snapshot(record, pid))
    });
    let record = Record::whole(&path);
    let starts = record.starts();
    let found = |pid: u32| starts.iter().find(|start| start.pid == pid);
    assert!(found(early.pid()).is_some(), "{starts:?}");
    assert!(found(std::process::id()).is_some(), "the test itself");
    assert!(found(excluded.pid()).is_none(), "{starts:?}");
    assert!(found(isotherm_pid).is_none(), "itself: {starts:?}");
    assert!(found(2).is_none(), "a kernel thread: {starts:?}");
    let late = found(late.pid()).expect("one that came later");
    let waited = late.time.since(before);
    // Processes are listed once a second, and the machine may be busy.
    assert!(waited < Nanos::from_millis(2_500), "after {waited:?}");
}

/// A name excludes a process, whatever program it ran before. Another program stays the same target after exec.
#[test]
fn a_name_is_left_out_whenever_it_comes() {
    let Some(_turn) = watching() else { return };
    let directory = scratch();
    let program = directory.path().join("left-out");
    std::fs::copy("/bin/sleep", &program).expect("a copy");
    let path = directory.path().join("record");
    let mut command = isotherm(["record", "--all", "--exclude", "left-out", "-o"]);
    let recorder = Running::start(command.arg(&path));
    until_snapshot(&path);
    // Shells become their programs when the pipe is opened.
    let pipe = directory.path().join("pipe");
    run(std::process::Command::new("mkfifo").arg(&pipe)).success();
    let start = |program: &Path| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "read go <\"$1\"; exec \"$0\" 60"]);
        Running::start(shell.arg(program).arg(&pipe))
    };
    let (shell, other) = (start(&program), start(Path::new("/bin/sleep")));
    let target = until("the shell to be found", || {
        let record = Record::try_read(&path)?;
        record.target(other.pid())?;
        record.target(shell.pid())
    });
    // One shell reads the line, the other the end.
    std::fs::write(&pipe, "go\n").expect("both read it");
    until("the program to be left out", || {
        let record = Record::try_read(&path)?;
        let mut exits = record.exits().into_iter();
        exits.find(|exit| exit.target == target).map(|_| ())
    });
    // Processes are listed once a second: by then the program would have been found.
    pause(2.5);
    recorder.interrupt();
    let record = Record::whole(&path);
    let named = |of: &Running| -> Vec<(&str, TargetId)> {
        let starts = record.starts().into_iter();
        let starts = starts.filter(|start| start.pid == of.pid());
        starts.map(|s| (s.name.as_str(), s.target)).collect()
    };
    assert!(named(&shell).iter().all(|(name, _)| *name == "sh"));
    let target = record.target(other.pid()).expect("it was found");
    assert_eq!(named(&other), [("sh", target), ("sleep", target)]);
}

#[test]
fn all_goes_with_no_other_target() {
    for flags in [
        &["--all", "--pid", "1"][..],
        &["--all", "--physical"],
        &["--all", "--", "true"],
        &["--exclude", "sh", "--pid", "1"],
    ] {
        let done = run(isotherm(["record", "-o", "/dev/null"]).args(flags));
        assert_eq!(done.code(), 2, "{flags:?}: {done:?}");
    }
}

const IDLE: &str = "memory = bytearray(300 << 20)\n\
    for at in range(0, len(memory), 4096): memory[at] = 1\n\
    print('ready', flush=True)\nimport time; time.sleep(600)";

/// Returns the bytes of a process that have been idle for 5 s, by the last sample of the machine.
fn idle_for_5s(record: &Record, pid: u32) -> u64 {
    let target = record.target(pid);
    let last = record.machine().last().copied();
    let mapped = last.into_iter().flat_map(|sample| &sample.mapped);
    let own = mapped.filter(|of| of.target.is_some() && of.target == target);
    own.map(|of| of.bytes.idle_from(1)).sum()
}

/// The report gives the owner of memory, its size and its idleness, and counts all of the machine's memory once.
#[test]
fn the_machines_memory_is_told_by_who_uses_it() {
    let Some(_turn) = watching() else { return };
    let process = Running::ready(&mut python(IDLE));
    let rss = proc_bytes(process.pid(), "status", "RssAnon:");
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "--all", "--cpu-budget", "5%"]);
    record_until("memory that idles for 5 s", &mut command, &path, |record| {
        idle_for_5s(record, process.pid()) > rss / 10 * 9
    });
    let report = report("machine", &path);
    let number = |value: &Value| value.as_u64().expect("a number");
    let classes = report["classes"].as_array().expect("classes");
    let sum: u64 = classes.iter().map(|class| number(&class["bytes"])).sum();
    assert_eq!(sum, number(&report["total_bytes"]), "{report}");
    let known_use = report["known_use"].as_f64().expect("a share");
    assert!(known_use > 0.8, "{known_use} of what is used");
    let mut processes = report["processes"].as_array().expect("a list").iter();
    let found = processes.find(|of| of["pid"] == process.pid());
    let found = found.expect("the process");
    let bytes = number(&found["bytes"]);
    assert!(bytes.abs_diff(rss) < rss / 20, "{bytes} of {rss}: {found}");
    let ages = found["ages"]["idle"].as_array().expect("classes");
    let idle: u64 = ages[2..].iter().map(number).sum();
    assert!(idle > 9 * (rss / 10), "{found}");
    for (format, begins) in [
        ("text", "memory, "),
        ("csv", "kind,name"),
        ("svg", "<svg"),
        ("html", "<!doctype"),
    ] {
        let flags = ["report", "machine", "--format", format];
        run(isotherm(flags).arg(&path)).success().prints(begins);
    }
}

/// Metrics are by control group and age, for Prometheus.
#[test]
fn metrics_say_whose_memory_is_how_old() {
    let Some(_turn) = watching() else { return };
    let process = Running::ready(&mut python(IDLE));
    let rss = proc_bytes(process.pid(), "status", "RssAnon:");
    let directory = scratch();
    let address = free_address();
    let mut command = isotherm(["start", "--all", "--dry-run", "--cpu-budget", "5%"]);
    command.args(["--scheme", "4K max 0% 0% 30s max stat"]);
    command.args(["--metrics", &address]);
    let socket = directory.path().join("socket");
    let _daemon = Running::start(command.arg("--socket").arg(socket));
    // A monitor with long intervals reports memory when it is older.
    let ages = ["5s-30s", "30s-2m", "2m-10m"];
    let ages = ages.map(|age| format!("class=\"anonymous\",age=\"{age}\""));
    let metrics = until("idle memory in the metrics", || {
        let body = http_get(&address, "/metrics")?;
        let lines = body.lines().filter(|line| {
            line.starts_with("isotherm_machine_mapped_bytes{cgroup=\"/")
                && ages.iter().any(|age| line.contains(age))
        });
        let bytes = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        let bytes: u64 = bytes.sum();
        (bytes > rss / 10 * 9).then_some(body)
    });
    assert!(metrics.contains("isotherm_machine_node_bytes{node=\"0\",kind=\"free\"}"));
}
