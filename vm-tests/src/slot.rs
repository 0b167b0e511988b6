//! Limits the virtual machines that run at once on this checkout to two, across all processes.
//!
//! `cargo test` runs tests on all processors, and each test file is a process of its own. The limit is therefore a pair
//! of locked files. The kernel releases the locks however their holder ends.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::Duration;

use crate::cache::{cache_dir, open_lock};
use crate::error::VmError;

const SLOTS: usize = 2;

/// The right to run a machine, until dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _file: File,
}

impl Slot {
    /// Waits for any slot.
    pub(crate) fn wait() -> Result<Self, VmError> {
        let cache = cache_dir()?;
        loop {
            for index in 0..SLOTS {
                let path = cache.join(format!("slot-{index}.lock"));
                let file = open_lock(&path)?;
                match file.try_lock() {
                    Ok(()) => return Ok(Self { _file: file }),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(e)) => return Err(VmError::io("lock", path)(e)),
                }
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}
