//! An orderly end on a signal.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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
