//! `isotherm top` where it cannot draw.

use std::process::{Command, Stdio};

use crate::common::isotherm;

#[test]
fn without_a_terminal_top_says_what_to_use_instead() {
    let output = isotherm()
        .args(["top", "--pid", "1"])
        .stdin(Stdio::null())
        .output()
        .expect("isotherm runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("use `isotherm record`"), "{said}");
    // Nothing was done to what might be a file or a pipe.
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
    check(
        "record --simulated --duration 2s -o /dev/null",
        "recorded 2",
    );
}
