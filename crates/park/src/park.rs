//! Pages out all that the processes of a group map.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use isotherm_engine::AddressRange;
use isotherm_engine::units::format_bytes;
use isotherm_linux::areas::MappedArea;
use isotherm_linux::cgroup;
use isotherm_linux::process::Process;
use isotherm_linux::swap;
use serde::Serialize;

use crate::note::{Note, NotedProcess};
use crate::order::{bytes, sorted};

const FREEZE: &str = "cgroup.freeze";
/// Time limit for a group to freeze.
const FROZEN_WITHIN: Duration = Duration::from_secs(5);
/// Times that pages are asked to go: the first call leaves those that wait for the kernel's lists.
const PASSES: usize = 2;
/// Bytes between two questions whether to go on.
const PIECE: u64 = 64 << 20;

/// A parked process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ParkedProcess {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// Resident bytes before.
    pub resident_before_bytes: u64,
    /// Resident bytes afterwards; `null` if the process has ended.
    pub resident_after_bytes: Option<u64>,
}

/// Result of parking.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ParkReport {
    /// The processes.
    pub processes: Vec<ParkedProcess>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Whether the group is frozen now.
    pub is_frozen: bool,
    /// Whether the user ended it before all memory was tried.
    pub was_stopped: bool,
}

impl ParkReport {
    /// Returns the resident bytes of all processes before and afterwards.
    pub fn resident_bytes(&self) -> (u64, u64) {
        let processes = self.processes.iter();
        let pair = |of: &ParkedProcess| {
            (
                of.resident_before_bytes,
                of.resident_after_bytes.unwrap_or(0),
            )
        };
        processes
            .map(pair)
            .fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }
}

/// Pages out the memory of all processes of the group at `group`. With `freezes` none of them runs until the group is
/// woken. `goes_on` is called with the bytes tried and their sum; it ends the work by returning `false`.
///
/// # Errors
/// Fails without swap for it, and if the group has no processes, holds this one, or cannot be frozen. The group then
/// runs as before.
pub fn park(
    group: &Path,
    freezes: bool,
    goes_on: impl FnMut(u64, u64) -> bool,
) -> anyhow::Result<ParkReport> {
    let started = Instant::now();
    let processes = processes_of(group)?;
    require_swap(group, &processes)?;
    let mut note = Note::read(group)?;
    let was_frozen = note.is_frozen;
    if freezes {
        freeze(&mut note)?;
    }
    let parked = page_all_out(&processes, &mut note, goes_on);
    if parked.is_err() && !was_frozen {
        unfreeze(&mut note)?;
    }
    let (processes, was_stopped) = parked?;
    Ok(ParkReport {
        processes,
        seconds: started.elapsed().as_secs_f64(),
        is_frozen: note.is_frozen,
        was_stopped,
    })
}

/// Notes what is in memory, and pages it out. Returns whether the user ended that, too. Processes that end meanwhile
/// are left out.
fn page_all_out(
    processes: &[Process],
    note: &mut Note,
    mut goes_on: impl FnMut(u64, u64) -> bool,
) -> anyhow::Result<(Vec<ParkedProcess>, bool)> {
    let mut noted: Vec<NotedProcess> = Vec::new();
    let mut all = Vec::new();
    for process in processes {
        let look = || Ok((process.present(&pageable(process)?)?, process.usage()?.rss));
        let looked: anyhow::Result<_> = look();
        let (resident, rss) = match looked {
            Err(_) if !process.is_alive() => continue,
            looked => looked?,
        };
        let before = note.of(process);
        noted.push(NotedProcess {
            // What an earlier call has paged out is parked still.
            resident: sorted(&[&before.resident[..], &resident].concat()),
            remained: None,
            ..before
        });
        all.push((process, resident, rss));
    }
    note.processes = noted;
    note.write()?;
    let total: u64 = all.iter().map(|(_, resident, _)| bytes(resident)).sum();
    let mut tried = 0;
    let mut was_stopped = false;
    for ((process, resident, _), noted) in all.iter().zip(&mut note.processes) {
        was_stopped |= !page_out(process, resident, |more| {
            tried += more;
            goes_on(tried.min(total), total)
        })?;
        noted.remained = process.present(&noted.resident).ok();
        if was_stopped {
            break;
        }
    }
    note.write()?;
    let parked = all.iter().map(|(process, _, rss)| ParkedProcess {
        pid: process.pid(),
        name: process.name(),
        resident_before_bytes: *rss,
        resident_after_bytes: process.usage().ok().map(|usage| usage.rss),
    });
    Ok((parked.collect(), was_stopped))
}

/// Fails without swap for the group's anonymous and shared memory.
fn require_swap(group: &Path, processes: &[Process]) -> anyhow::Result<()> {
    let charge = cgroup::charge(group);
    let charged = charge.anonymous.zip(charge.shared);
    let rss = || {
        processes
            .iter()
            .filter_map(|process| Some(process.usage().ok()?.rss))
            .sum()
    };
    let to_swap: u64 = charged.map_or_else(rss, |(anonymous, shared)| anonymous + shared);
    let facts = swap::facts();
    let free = facts.free.saturating_sub(facts.reserve());
    ensure!(
        free >= to_swap,
        "{} would go to swap, and {} are free there: set up more (`isotherm swap zram --size 4G`)",
        format_bytes(to_swap),
        format_bytes(free)
    );
    Ok(())
}

pub(crate) fn processes_of(group: &Path) -> anyhow::Result<Vec<Process>> {
    let pids = cgroup::processes(group);
    ensure!(
        !pids.contains(&std::process::id()),
        "control group {} holds this command itself: run it from another group",
        group.display()
    );
    // A process may have ended since.
    let processes: Vec<Process> = pids
        .iter()
        .filter_map(|pid| Process::open(*pid).ok())
        .collect();
    ensure!(
        !processes.is_empty(),
        "control group {} has no processes",
        group.display()
    );
    Ok(processes)
}

/// Returns the ranges that the kernel may reclaim.
fn pageable(process: &Process) -> anyhow::Result<Vec<AddressRange>> {
    let is_pageable = |area: &MappedArea| {
        area.unreclaimable.is_none()
            && !matches!(&*area.name, "[vdso]" | "[vvar]" | "[vvar_vclock]")
    };
    let areas = process.mappings()?.into_iter().filter(is_pageable);
    Ok(areas.map(|area| area.range).collect())
}

/// Asks the kernel to page out these ranges; returns whether all were tried.
fn page_out(
    process: &Process,
    resident: &[AddressRange],
    mut goes_on: impl FnMut(u64) -> bool,
) -> anyhow::Result<bool> {
    let mut left = resident.to_vec();
    let mut outcomes = Vec::new();
    for pass in 0..PASSES {
        let mut piece = Vec::new();
        for (at, range) in left.iter().enumerate() {
            piece.push(*range);
            let size = bytes(&piece);
            if size < PIECE && at + 1 < left.len() {
                continue;
            }
            // A range that was unmapped meanwhile is refused, and the rest is tried.
            let advised = process.advise(&piece, libc::MADV_PAGEOUT, &mut outcomes);
            if !process.is_alive() {
                return Ok(true);
            }
            advised?;
            piece.clear();
            if !goes_on(if pass == 0 { size } else { 0 }) {
                return Ok(false);
            }
        }
        left = process.present(&left)?;
    }
    Ok(true)
}

/// Freezes a control group of version 2. A group that is frozen already is left alone. The note is written before, so
/// that `wake` thaws the group even if this command is killed.
fn freeze(note: &mut Note) -> anyhow::Result<()> {
    let path = note.group.join(FREEZE);
    let now = fs::read_to_string(&path).with_context(|| {
        format!(
            "{} cannot be frozen: only control groups of version 2 can; leave --freeze out",
            note.group.display()
        )
    })?;
    if now.trim() == "1" {
        return Ok(());
    }
    note.is_frozen = true;
    note.write()?;
    set_frozen(&note.group, true)
}

fn set_frozen(group: &Path, is_frozen: bool) -> anyhow::Result<()> {
    let path = group.join(FREEZE);
    let value = if is_frozen { "1" } else { "0" };
    fs::write(&path, value)
        .with_context(|| format!("cannot write {value} to {}", path.display()))?;
    let wanted = format!("frozen {value}");
    let since = Instant::now();
    while since.elapsed() < FROZEN_WITHIN {
        let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
        if events.lines().any(|line| line == wanted) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // Some process is in a call that cannot be interrupted; it freezes when that ends.
    Ok(())
}

/// Lets a group run again that we have frozen.
pub(crate) fn unfreeze(note: &mut Note) -> anyhow::Result<()> {
    if note.is_frozen {
        set_frozen(&note.group, false)?;
        note.is_frozen = false;
        note.write()?;
    }
    Ok(())
}
