//! Messages and exit codes of the command, with privilege and without.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Record, Running, at_once, isotherm, record_file, run, scratch, shared};

#[test]
fn a_commands_exit_code_is_passed_on() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let cases = [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ];
    for (script, code) in cases {
        let path = directory.path().join(code.to_string());
        let mut command = isotherm(["record", "-o"]);
        let done = run(command.arg(&path).args(["--", "sh", "-c", script]));
        assert_eq!(done.code(), code, "{script}: {done:?}");
        done.warns("recorded");
        let record = Record::read(&path);
        assert_eq!(record.truncated, None);
        let exits = record.exits();
        let exit = exits.last().expect("an end");
        let signal = (code > 128).then_some(code - 128);
        assert_eq!(exit.signal, signal, "{script}");
        assert_eq!(exit.exit_code, signal.map_or(Some(code), |_| None));
    }
}

#[test]
fn a_command_that_ends_at_once_is_recorded_by_its_name() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let ways = [&[][..], &["--pages"], &["--faithful"], &["--children"]];
    // A name that is read too early is the recorder's.
    for flags in ways.into_iter().cycle().take(24) {
        let mut command = isotherm(["record", "--quiet", "-o"]);
        let done = run(command.arg(&path).args(flags).args(["--", "true"]));
        assert_eq!((done.code(), &*done.complaints()), (0, ""), "{flags:?}");
        let record = Record::read(&path);
        assert_eq!(record.truncated, None, "{flags:?}");
        for start in record.starts() {
            assert_ne!(start.name, "isotherm", "{flags:?}");
        }
    }
}

/// Runs `record -o FILE ARGS`, which must fail with a message that holds `words`, and leave no file.
fn check_refused(args: &str, words: &[&str]) {
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "-o"]);
    let done = run(command.arg(&path).args(args.split_whitespace()));
    for word in words {
        done.refused(word);
    }
    assert!(!path.exists(), "{args} left a file");
}

/// Returns a process id that is never used: one above the largest possible.
fn free_pid() -> String {
    let max = fs::read_to_string("/proc/sys/kernel/pid_max").expect("proc");
    (max.trim().parse::<u32>().expect("a number") + 1).to_string()
}

#[test]
fn what_cannot_be_recorded_is_refused_with_the_reason() {
    for (args, words) in [
        ("", &["nothing to watch", "--pid", "-- COMMAND"][..]),
        ("--bogus", &["--bogus", "--help"]),
        ("--pid one", &["no process is named 'one'"]),
        ("--pid 1 --cpu-budget 0%", &["--cpu-budget", "0.5%"]),
        (
            "--pid 1 --pages --cpu-budget 1%",
            &["--pages", "--cpu-budget"],
        ),
        ("--pid 1 -- true", &["--pid"]),
        ("--pid 1 --duration soon", &["'soon'", "--duration"]),
        ("--pid 1 --range 0x2000-0x1000", &["before it starts"]),
    ] {
        check_refused(args, words);
    }
    let Some(_turn) = shared() else { return };
    let free_pid = free_pid();
    let pid = format!("--pid {free_pid}");
    check_refused(&pid, &[&free_pid, "does not exist", "did it end"]);
    for flag in ["--faithful", "--pages"] {
        check_refused(&format!("{flag} {pid}"), &[&free_pid, "does not exist"]);
    }
    let words = ["cannot start /no/such/program", "No such file"];
    check_refused("-- /no/such/program", &words);
    // Process 2 is a kernel thread: it exists, but has no memory of its own.
    check_refused("--pid 2", &["process 2"]);
    let words = ["/no/such/group", "looked for"];
    check_refused("--cgroup /no/such/group", &words);
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_command_runs() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let trace = directory.path().join("ran");
    let script = format!("touch {}", trace.display());
    for output in ["/no/such/directory/record", "/proc/record", "/"] {
        let mut record = isotherm(["record", "-o", output, "--", "sh", "-c", &script]);
        run(&mut record).refused(&format!("cannot create {output}"));
    }
    assert!(!trace.exists(), "the command ran, unrecorded");
}

#[test]
fn a_refused_recording_leaves_an_older_record_as_it_was() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    fs::write(&path, "an older record").expect("a file");
    let targets: [&[&str]; 3] = [
        &["--pid", &free_pid()],
        &["--", "/no/such/program"],
        &["--cgroup", "/no/such/group"],
    ];
    for target in targets {
        let mut command = isotherm(["record", "-o"]);
        let done = run(command.arg(&path).args(target));
        assert_eq!(done.code(), 2, "{done:?}");
        let kept = fs::read_to_string(&path).expect("a file");
        assert_eq!(kept, "an older record");
    }
}

#[test]
fn completions_are_generated() {
    let directory = scratch();
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&mut isotherm(["completions", shell])).success().stdout;
        assert!(script.contains("cpu-budget"), "{shell}");
        let path = directory.path().join(shell);
        fs::write(&path, script).expect("a file");
    }
    // The other shells are seldom installed on test machines; bash is.
    let bash = directory.path().join("bash");
    run(Command::new("bash").arg("-n").arg(bash)).success();
    let done = run(&mut isotherm(["completions", "cmd.exe"]));
    assert_eq!(done.code(), 2);
}

#[test]
fn doctor_prints_json() {
    let done = run(&mut isotherm(["doctor", "--json"]));
    let report = done.json();
    for key in ["host", "kernel", "checks", "abilities"] {
        assert!(!report[key].is_null(), "no {key} in {report}");
    }
    let works = &report["abilities"][0]["works"];
    assert_eq!(done.code(), i32::from(*works != true));
}

#[test]
fn without_privilege_it_says_what_is_missing_and_does_the_rest() {
    let Some(_turn) = shared() else { return };
    // The test's files are otherwise private: copy the binary and a record to a directory for every user.
    let directory = scratch();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777));
    open(directory.path()).expect("ours");
    let program = directory.path().join("isotherm");
    fs::copy(env!("CARGO_BIN_EXE_isotherm"), &program).expect("a copy of the binary");
    open(&program).expect("ours");
    let record = directory.path().join("record");
    let mut command = isotherm(["record", "--quiet", "-o"]);
    run(command.arg(&record).args(["--", "sleep", "1"])).success();
    open(&record).expect("ours");
    let config = directory.path().join("config");
    fs::write(&config, "heap, 1MiB\n\nserve\n100\nheap, 1, 64, 1\n").expect("a file");
    let unprivileged = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.current_dir(directory.path()).arg(&program);
        run(command.args(args))
    };

    let doctor = unprivileged(&["doctor", "--json"]);
    assert_eq!(doctor.code(), 1, "{doctor:?}");
    let report = doctor.json();
    let mut checks = report["checks"].as_array().expect("checks").iter();
    let missing = checks.find(|of| of["name"] == "capabilities" && of["outcome"] == "missing");
    let remedy = missing.expect("capabilities are missing")["remedy"].as_str();
    assert!(remedy.is_some_and(|text| !text.is_empty()), "{report}");
    assert!(report["abilities"][0]["why_not"].is_string());
    // libbpf's message about each of two programs is long enough once.
    let doctor = unprivileged(&["doctor"]);
    assert!(doctor.stdout.matches("libbpf: ").count() <= 4, "{doctor:?}");
    for command in ["run, start", "swap", "compact", "tier"] {
        doctor.prints(&format!("NO   {command}"));
    }
    for args in [&["swap", "zram", "--size", "64M"][..], &["swap", "off"]] {
        unprivileged(args).refused("run as root");
    }

    let target = Running::start(Command::new("sleep").arg("60"));
    unprivileged(&["record", "-o", "mine", "--pid", &target.pid().to_string()])
        .refused("isotherm doctor");
    assert!(!directory.path().join("mine").exists());

    let path = record.to_str().expect("plain");
    for args in [
        &["report", "wss", path][..],
        &["report", "access", path, "--format", "json"],
        &["convert", "--help"],
        &["workload", "config"],
    ] {
        unprivileged(args).success();
    }
}

#[test]
fn a_command_is_waited_for_or_ended() {
    let Some(_turn) = shared() else { return };
    let (_directory, path) = record_file();
    let mut command = isotherm(["record", "-d", "1s", "-o"]);
    let waited = run(command.arg(&path).args(["--", "sleep", "3"])).success();
    waited.warns("waiting for the command");
    let mut command = isotherm(["record", "-d", "1s", "--stop-command", "-o"]);
    let started = std::time::Instant::now();
    run(command.arg(&path).args(["--", "sleep", "600"])).success();
    assert!(started.elapsed().as_secs() < 60);
    Record::whole(&path);
}

#[test]
fn children_that_nobody_watches_are_told() {
    let Some(_turn) = shared() else { return };
    at_once(&[&[][..], &["--children"]], |flags| {
        let (_directory, path) = record_file();
        let mut command = isotherm(["record", "-o"]);
        let script = ["--", "sh", "-c", "sleep 4 & sleep 4"];
        let done = run(command.arg(&path).args(*flags).args(script)).success();
        let message = "at least 2 child processes were not watched";
        let is_told = done.stderr.contains(message);
        assert_eq!(is_told, flags.is_empty(), "{done:?}");
        if flags.is_empty() {
            let record = Record::read(&path);
            let [start] = record.starts()[..] else {
                panic!("{:?}", record.starts())
            };
            assert!(record.snapshots().all(|s| s.target == start.target));
        }
    });
}

#[test]
fn processes_are_found_by_name() {
    let Some(_turn) = shared() else { return };
    let (directory, path) = record_file();
    // The name is unique, so that no other process has it.
    let program = directory.path().join(format!("n{}", std::process::id()));
    fs::copy("/bin/sleep", &program).expect("copied");
    let start = || Running::start(Command::new(&program).arg("60"));
    let (one, two) = (start(), start());
    let name = program.file_name().expect("a name");
    let mut command = isotherm(["record", "-d", "1s", "-p"]);
    let done = run(command.arg(name).arg("-o").arg(&path)).success();
    done.warns("is 2 processes");
    let record = Record::whole(&path);
    let found: BTreeSet<u32> = record.starts().iter().map(|start| start.pid).collect();
    assert_eq!(found, BTreeSet::from([one.pid(), two.pid()]));
    run(&mut isotherm(["record", "-d", "1s", "-p", "no-such-name"])).refused("no process is named");
    let pid = one.pid().to_string();
    let range = ["record", "-d", "1s", "-p", &pid, "--range", "0x1000-0x2000"];
    run(&mut isotherm(range)).refused("map nothing within --range");
}
