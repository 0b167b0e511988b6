//! Output that is closed or full, and arguments that are not text: they cause an end or an error, never a panic.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::common::{self, Ended};

const PRINTING: [&str; 5] = [
    "doctor",
    "doctor --json",
    "completions bash",
    "workload --check ../../experiments/workloads/idle_1g.cfg",
    "workload --check --json ../../experiments/workloads/idle_1g.cfg",
];

fn isotherm(line: &str) -> Command {
    let mut command = common::isotherm();
    command.args(line.split(' ')).stdin(Stdio::null());
    command
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    for arguments in PRINTING {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = isotherm(arguments).stdout(writer).output().expect("starts");
        assert_eq!(output.errors(), "", "{arguments}");
        // The command ended itself, not by a signal or a panic (101).
        let ended = matches!(output.status.code(), Some(0 | 1));
        assert!(ended, "{arguments}: {output:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    for arguments in PRINTING {
        let full = File::options().write(true).open("/dev/full");
        let full = full.expect("a device");
        let output = isotherm(arguments).stdout(full).output().expect("starts");
        output.refused("No space left");
    }
}

#[test]
fn arguments_that_are_no_text_are_an_error_or_a_path() {
    let odd = OsStr::from_bytes(b"\xff\xfe");
    for (arguments, why) in [
        ("record -d", "UTF-8"),
        ("report wss", "cannot open the record"),
    ] {
        let output = isotherm(arguments).arg(odd).output();
        output.expect("starts").refused(why);
    }
    // The record names its command, whatever its name is.
    let folder = tempfile::TempDir::new().expect("a directory");
    let path = folder.path().join(odd);
    let mut command = isotherm("record --simulated -d 1s -o");
    let output = command.arg(&path).output();
    output.expect("starts").success();
    assert!(path.exists());
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    for (arguments, why) in [
        ("-p 1 --faithful --cpu-budget 1%", "--cpu-budget"),
        ("-p 1 --node 0", "--node"),
        ("-p 1 --max-stall 1ms", "--pages"),
        ("-p 1 --clear-by madvise", "--pages"),
        ("-p 1 -d 0s", "nothing happens in no time"),
        ("-p 1 --stop-command", "--duration"),
        ("-p 0", "no process has the id 0"),
        ("--simulated --json -o -", "standard output"),
    ] {
        let output = isotherm(&format!("record {arguments}")).output();
        output.expect("starts").refused(why);
    }
}

#[test]
fn a_record_goes_to_standard_output() {
    let output = isotherm("record --simulated -d 1s -o -").output();
    let output = output.expect("starts");
    let reader = isotherm_record::Reader::open(&output.stdout[..]).expect("a record");
    assert!(reader.replay_pages().all(|item| item.is_ok()));
}
