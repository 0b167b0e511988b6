//! Reads back into memory what processes have in swap, at a pace: the way back from paging out.
//!
//! Approach: page maps tell which pages have a swap entry, and process_vm_readv(2) faults these in
//! ([`Process::swap_in`]). Whoever paged them out, they come back.
//!
//! Limits: pages of files need no way back: they are read when they are touched. What a process may not read itself
//! (`PROT_NONE`) stays in swap.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use isotherm_config::ProcessSpec;
use isotherm_engine::PAGE_SIZE;
use isotherm_linux::cgroup;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::process::Process;
use serde::Serialize;

use crate::start::pids;

/// It ends while less of the machine's memory than this share is available.
const AVAILABLE_MIN: f64 = 0.05;

/// Whose memory is read back, and how fast.
#[derive(Clone, Debug, Default)]
pub struct RestoreSpec {
    /// Processes, by id or name.
    pub processes: Vec<ProcessSpec>,
    /// And those of a control group.
    pub cgroup: Option<PathBuf>,
    /// Bytes in a second at most; `None`: as fast as the machine can.
    pub bytes_per_s_max: Option<u64>,
}

/// What was read back of one process.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restored {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What it had in swap before.
    pub swapped_before_bytes: u64,
    /// What it has in swap now; `null`: it has ended.
    pub swapped_after_bytes: Option<u64>,
}

/// Why reading back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RestoreEnd {
    /// All was tried.
    Complete,
    /// The caller ended it.
    Stopped,
    /// Too little memory was available.
    MemoryShort,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestoreReport {
    /// By process.
    pub processes: Vec<Restored>,
    /// Time that it took.
    pub seconds: f64,
    /// Why it ended.
    pub end: RestoreEnd,
    /// What the user should know, a sentence each.
    pub notes: Vec<String>,
}

impl RestoreReport {
    /// Bytes that were read back.
    pub fn restored_bytes(&self) -> u64 {
        let processes = self.processes.iter();
        let of = processes.filter_map(|process| {
            Some(
                process
                    .swapped_before_bytes
                    .saturating_sub(process.swapped_after_bytes?),
            )
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

/// Reads back what `spec` names. `goes_on` is told now and then how many bytes were read, of how many; `false` ends it.
///
/// # Errors
/// Nobody is meant, or may be looked at.
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
            // Of a group one may have ended meanwhile.
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
