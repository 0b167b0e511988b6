//! `isotherm top` where it cannot draw.

use std::process::{Command, Stdio};

#[test]
fn without_a_terminal_top_says_what_to_use_instead() {
    let output = Command::new(env!("CARGO_BIN_EXE_isotherm"))
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
