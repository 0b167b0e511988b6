//! Reads memory of processes back from swap at a limited rate, to undo paging out.
//!
//! Approach: page maps show which pages have a swap entry, and process_vm_readv(2) faults these in
//! ([`Process::swap_in`]). It does not matter which program paged them out.
//!
//! Limits: pages of files need no restoring: they are read when they are touched. Memory that a process may not read
//! itself (`PROT_NONE`) stays in swap.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use isotherm_config::ProcessSpec;
use isotherm_engine::PAGE_SIZE;
use isotherm_linux::cgroup;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::process::Process;
use serde::Serialize;

use crate::start::parts::pids;

const AVAILABLE_MIN: f64 = 0.05;

/// Processes to read back, and the rate.
#[derive(Clone, Debug, Default)]
pub struct RestoreSpec {
    /// Processes, by id or name.
    pub processes: Vec<ProcessSpec>,
    /// Control group with further processes.
    pub cgroup: Option<PathBuf>,
    /// Limit in bytes per second; `None` for no limit.
    pub bytes_per_s_max: Option<u64>,
}

/// Result for one process.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restored {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// Bytes in swap before.
    pub swapped_before_bytes: u64,
    /// Bytes in swap now; `null` if the process has ended.
    pub swapped_after_bytes: Option<u64>,
}

/// Reason for the end of reading back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RestoreEnd {
    /// All pages were tried.
    Complete,
    /// The caller ended it.
    Stopped,
    /// Too little memory was available.
    MemoryShort,
}

/// Result of reading back.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestoreReport {
    /// Results by process.
    pub processes: Vec<Restored>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Reason for the end.
    pub end: RestoreEnd,
    /// Notes for the user, a sentence each.
    pub notes: Vec<String>,
}

impl RestoreReport {
    /// Bytes that were read back.
    pub fn restored_bytes(&self) -> u64 {
        let processes = self.processes.iter();
        let of = processes.filter_map(|process| {
            let after = process.swapped_after_bytes?;
            Some(process.swapped_before_bytes.saturating_sub(after))
        });
        of.sum()
    }

    /// Bytes that are still in swap.
    pub fn left_bytes(&self) -> u64 {
        { self.processes.iter() }
            .filter_map(|process| process.swapped_after_bytes)
            .sum()
    }
}

/// Reads back the memory of the processes in `spec`. `goes_on` gets the bytes read and their total from time to time;
/// it ends the work by returning `false`.
///
/// # Errors
/// Fails if `spec` names no process, or if a process cannot be read.
pub fn restore(
    spec: &RestoreSpec,
    mut goes_on: impl FnMut(u64, u64) -> bool,
) -> anyhow::Result<RestoreReport> {
    let mut notes = Vec::new();
    let mut all = pids(&spec.processes, &mut notes)?;
    if let Some(group) = &spec.cgroup {
        all.extend(cgroup::processes(&cgroup::find(group)?));
    }
    let mut targets = Vec::new();
    for pid in all {
        let opened = Process::open(pid).and_then(|process| Ok((process.usage()?.swap, process)));
        match opened {
            Ok((swap, process)) => targets.push((process, swap)),
            // A process of a group may have ended meanwhile.
            Err(_) if spec.cgroup.is_some() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let total: u64 = targets.iter().map(|(_, swap)| swap).sum();
    let started = Instant::now();
    let mut end = RestoreEnd::Complete;
    let mut read_bytes = 0;
    for (process, swap) in targets.iter().filter(|(_, swap)| *swap > 0) {
        if end != RestoreEnd::Complete {
            break;
        }
        let done = process.swap_in(|pages| {
            read_bytes += pages * PAGE_SIZE;
            end = end_of(goes_on(read_bytes, total));
            if let Some(rate) = spec.bytes_per_s_max {
                let due = Duration::from_secs_f64(read_bytes as f64 / rate.max(1) as f64);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
            end == RestoreEnd::Complete
        });
        if process.is_alive() {
            let bytes = isotherm_engine::units::format_bytes(*swap);
            done.with_context(|| format!("cannot read back {bytes} of process {}", process.pid()))?;
        }
    }
    let processes = targets.iter().map(|(process, swap)| Restored {
        pid: process.pid(),
        name: process.name(),
        swapped_before_bytes: *swap,
        swapped_after_bytes: process.usage().ok().map(|usage| usage.swap),
    });
    Ok(RestoreReport {
        processes: processes.collect(),
        seconds: started.elapsed().as_secs_f64(),
        end,
        notes,
    })
}

fn end_of(goes_on: bool) -> RestoreEnd {
    let meminfo = Meminfo::read();
    let known = meminfo.get("MemAvailable").zip(meminfo.get("MemTotal"));
    let is_short = |(available, total)| (available as f64) < total as f64 * AVAILABLE_MIN;
    match (goes_on, known.is_some_and(is_short)) {
        (false, _) => RestoreEnd::Stopped,
        (true, true) => RestoreEnd::MemoryShort,
        (true, false) => RestoreEnd::Complete,
    }
}
