//! Selects the lines of a suite's output for the terminal.
//!
//! The harness also prints the output of passing tests. It is needed to count skips, and hides the failures. The log
//! has all of it.

#[derive(Default)]
pub(super) struct Shown {
    in_successes: bool,
}

impl Shown {
    pub(super) fn is(&mut self, line: &str) -> bool {
        match line.trim() {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            text if text.starts_with("test result:") => self.in_successes = false,
            text if text.starts_with("SKIP ") || text.starts_with("AGAIN ") => return true,
            // Most of them wait for their turn.
            text if text.ends_with("has been running for over 60 seconds") => return false,
            _ => {}
        }
        !self.in_successes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passing_tests_said_is_left_to_the_log() {
        let output = "test a ... ok\n\nsuccesses:\n\n---- a stdout ----\nlong\nSKIP a: no\n\nsuccesses:\n    a\n\
                      failures:\n---- b stdout ----\nwhy\nfailures:\n    b\ntest result: FAILED.\nnext\n";
        let mut shown = Shown::default();
        let lines: Vec<&str> = output.lines().filter(|line| shown.is(line)).collect();
        let wanted = "test a ... ok\n\nSKIP a: no\nfailures:\n---- b stdout ----\nwhy\nfailures:\n    b\n\
                      test result: FAILED.\nnext";
        assert_eq!(lines.join("\n"), wanted);
    }
}
