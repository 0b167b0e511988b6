//! The end of a watched command.

use std::process::{Child, ExitCode};
use std::time::Duration;

const LAST_WORDS: Duration = Duration::from_secs(5);

/// Asks the command to end, and kills it if it does not.
pub(super) fn end_in_time(child: &mut Child) {
    isotherm_linux::process::terminate(child);
    let started = std::time::Instant::now();
    while started.elapsed() < LAST_WORDS {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().ok();
}

/// Waits for the command, passes on a request to stop, and returns its exit code as this process's.
pub(super) fn wait_for(child: &mut Child, stopped: bool) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    if stopped {
        // From a terminal the command got the signal itself; from elsewhere only this process did.
        std::thread::sleep(Duration::from_millis(50));
        isotherm_linux::process::terminate(child);
    }
    match child.wait() {
        Ok(status) => {
            let code = status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal));
            ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
        }
        Err(_) => ExitCode::FAILURE,
    }
}
