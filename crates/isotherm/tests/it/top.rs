//! `isotherm top` without a terminal to draw on, and its ends.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{Ended, Killed, isotherm, until};

#[test]
fn without_a_terminal_top_says_what_to_use_instead() {
    let mut top = isotherm();
    top.args(["top", "--pid", "1"]).stdin(Stdio::null());
    let output = top.output().expect("isotherm runs");
    output.refused("use `isotherm record`");
    // Nothing was written to a possible file or pipe.
    assert!(output.stdout.is_empty());
}

#[test]
fn on_a_terminal_that_cannot_go_back_nothing_is_drawn() {
    let program = env!("CARGO_BIN_EXE_isotherm");
    let check = |arguments: &str, wanted: &str| {
        let output = Command::new("script")
            .args(["-qec", &format!("{program} {arguments}"), "/dev/null"])
            .env("TERM", "dumb")
            .stdin(Stdio::null())
            .output();
        let Ok(output) = output else {
            eprintln!("SKIP: there is no script(1) to make a terminal");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains('\u{1b}'), "{said:?}");
        assert!(said.contains(wanted), "{said:?}");
    };
    check("top --pid 1", "TERM=dumb");
    check("doctor", "What works here");
    check("record --simulated -d 2s -o /dev/null", "recorded 2");
}

/// Plays a record back to its end on a terminal of its own; returns the terminal's other side.
fn played() -> (Child, File) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let record = directory.path().join("record");
    let mut made = isotherm();
    made.args(["record", "--simulated", "--quiet", "--duration", "1s", "-o"]);
    assert!(made.arg(&record).status().expect("it runs").success());
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = openpty(&size, None).expect("a terminal");
    // Unlike the first descriptors, copies are not inherited. Otherwise top itself would hold them open.
    let copy = |of: &OwnedFd| of.try_clone().expect("a copy of a descriptor");
    let (side, mut screen) = (copy(&terminal.slave), File::from(copy(&terminal.master)));
    drop(terminal);
    let side = || Stdio::from(copy(&side));
    let mut top = isotherm();
    top.args(["top", "--speed", "100", "--replay"]).arg(&record);
    top.stdin(side()).stdout(side()).stderr(side());
    let top = top.env("TERM", "xterm").spawn().expect("isotherm runs");
    let mut drawn = Vec::new();
    while !String::from_utf8_lossy(&drawn).contains("END") {
        let mut part = [0; 4096];
        let length = screen.read(&mut part).expect("the terminal is open");
        drawn.extend_from_slice(&part[..length]);
    }
    (top, screen)
}

fn ends(top: Child, why: &str) -> ExitStatus {
    let mut top = Killed(top);
    until(&format!("end of top {why}"), || {
        top.0.try_wait().expect("our child").is_some()
    });
    top.0.wait().expect("it has ended")
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let (top, screen) = played();
    drop(screen);
    ends(top, "although its terminal is closed");
}

#[test]
fn top_ends_on_signals_after_the_record_has() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let (top, screen) = played();
        let pid = Pid::from_raw(i32::try_from(top.id()).expect("a process's id"));
        kill(pid, signal).expect("a signal can be sent");
        assert!(ends(top, "after a signal").success(), "{signal}");
        drop(screen);
    }
}
