//! memtierd's pages of interest: files of addresses that its policy `demote-idle` reads (`policy_demoteidle.go`).
//!
//! `PID.vab` has pairs of a start and an end, each a little-endian number of 64 bits. memtierd holds a shared lock
//! (flock) on the file `lock` while it reads the directory.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use isotherm_report::AccessTable;

use crate::whole_file;

/// Writes the regions of each table's process into `directory`.
pub(super) fn write(directory: &Path, tables: &[AccessTable]) -> anyhow::Result<()> {
    let path = directory.join("lock");
    let locked = || {
        let lock = File::options().create(true).append(true).open(&path)?;
        lock.lock().map(|()| lock)
    };
    let _lock = locked().with_context(|| format!("cannot lock {}", path.display()))?;
    for table in tables {
        let pid = table.target.pid.filter(|pid| *pid > 0);
        let pid = pid.with_context(|| {
            let target = table.target.label();
            format!("{target} is no process, and pages of interest are those of processes")
        })?;
        let regions = table.regions.iter();
        let bytes = regions.flat_map(|region| [region.start, region.end].map(u64::to_le_bytes));
        let bytes: Vec<u8> = bytes.flatten().collect();
        whole_file::write(&directory.join(format!("{pid}.vab")), bytes)?;
    }
    Ok(())
}
