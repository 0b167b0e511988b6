//! An orderly end on a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Returns a flag that Ctrl-C, SIGTERM and SIGHUP set.
pub(crate) fn by_signals() -> anyhow::Result<Arc<AtomicBool>> {
    by(&[SIGINT, SIGTERM, SIGHUP])
}

pub(crate) fn by(signals: &[i32]) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals {
        signal_hook::flag::register(*signal, Arc::clone(&stop))
            .context("cannot watch for signals")?;
    }
    Ok(stop)
}

/// Sleeps until `end`, or until soon after `stop` is set.
pub(crate) fn sleep_until(end: Instant, stop: &AtomicBool) {
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_millis(200)));
    }
}
