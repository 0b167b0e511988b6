//! A control group of this machine whose memory is limited for a while.
//!
//! Version 2 is limited by `memory.high`, which never kills. Version 1 has only `memory.limit_in_bytes`: its OOM killer
//! is off meanwhile, so that a process that finds no memory waits for the next look. What was set before is noted
//! first, in `/run/isotherm`; after a crash the next command sets it again ([`recover`]).
//!
//! The loss is the greatest of three: the time by PSI in which some task waited for memory (version 2, or version 1
//! beside it), major faults times the cost of a refault, and the delays of threads, where delay accounting is on. To the
//! last two comes the time of files' refaults. While a process waits for the OOM killer, all time is lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use isotherm_engine::Nanos;
use isotherm_linux::cgroup;
use isotherm_linux::delays::Delays;
use isotherm_linux::process::{self, Process};
use isotherm_linux::{pressure, state};

use crate::report::SizeReport;
use crate::verify::{GroupState, LimitedGroup};

const HIGH: &str = "memory.high";
const LIMIT: &str = "memory.limit_in_bytes";
const OOM_CONTROL: &str = "memory.oom_control";
/// Names of notes begin so, and end in the process id of their writer.
const NOTE: &str = "size-";
const POLL: Duration = Duration::from_millis(100);

/// A control group under trial. What was set before is set again when this is dropped.
pub struct TriedGroup {
    directory: PathBuf,
    /// Changed files, with their values before.
    before: Vec<(PathBuf, String)>,
    note: PathBuf,
    stop: Arc<AtomicBool>,
    fault_cost: Nanos,
    nr_running: f64,
    /// Sums until the last look, and what they are made of.
    state: GroupState,
    last_look: Instant,
    seen: BTreeMap<u32, Seen>,
    delays: Option<Delays>,
    psi_us: Option<u64>,
    file_cost: Nanos,
    file_refaults: u64,
    is_kept: bool,
}

/// Counters of a process at a look.
#[derive(Clone, Copy)]
struct Seen {
    major_faults: u64,
    waited: Nanos,
    cpu: Nanos,
}

impl TriedGroup {
    /// Prepares trials on the group at `directory`; `stop` ends them. The report says what a fault costs.
    ///
    /// # Errors
    /// Fails if the group cannot be limited, or if there is no place for a note.
    pub fn new(
        directory: &Path,
        report: &SizeReport,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let before = limits_of(directory)?;
        ensure!(
            !cgroup::processes(directory).contains(&std::process::id()),
            "{} holds this command itself: run it from another group",
            directory.display()
        );
        let other = noted().find(|(_, pid, text)| {
            is_live(*pid)
                && text
                    .lines()
                    .any(|line| line.ends_with(&before[0].0.display().to_string()))
        });
        if let Some((_, pid, _)) = other {
            bail!("process {pid} tries limits on {} now", directory.display());
        }
        let note = state::directory()?.join(format!("{NOTE}{}", std::process::id()));
        let lines = before
            .iter()
            .map(|(path, value)| format!("{value} {}\n", path.display()));
        fs::write(&note, lines.collect::<String>())
            .with_context(|| format!("cannot note what is set now in {}", note.display()))?;
        Ok(Self {
            directory: directory.to_owned(),
            before,
            note,
            stop,
            fault_cost: report.costs.swap_ns,
            nr_running: report.nr_running.max(1.0),
            state: GroupState::default(),
            last_look: Instant::now(),
            seen: BTreeMap::new(),
            delays: Delays::open().ok(),
            psi_us: None,
            file_cost: report.costs.file_ns,
            file_refaults: 0,
            is_kept: false,
        })
    }

    /// Leaves a limit in place, and returns it: `least`, or `with_room` in version 1, whose limit kills.
    pub fn keep(&mut self, least: u64, with_room: u64) -> anyhow::Result<u64> {
        let is_high = self.limit_file().ends_with(HIGH);
        let bytes = if is_high { least } else { least.max(with_room) };
        self.limit(bytes)?;
        self.is_kept = true;
        Ok(bytes)
    }

    fn limit_file(&self) -> &Path {
        &self.before[0].0
    }

    /// Whether a process waits for memory that version 1 cannot reclaim.
    fn is_stuck(&self) -> bool {
        let control = fs::read_to_string(self.directory.join(OOM_CONTROL));
        control.is_ok_and(|text| text.lines().any(|line| line == "under_oom 1"))
    }

    /// Returns the time that the group's processes waited for memory since the last look, their major faults, and
    /// whether any process is left. Adds their CPU time to the sums.
    fn new_waits(&mut self) -> (Nanos, u64, bool) {
        let pids = cgroup::processes(&self.directory);
        let delay = |pid: u32| self.delays.as_ref()?.waited_for_memory(pid).ok();
        let seen = pids.into_iter().filter_map(|pid| {
            let process = Process::open(pid).ok()?;
            let progress = pressure::progress(&process)?;
            let seen = Seen {
                major_faults: progress.major_faults,
                waited: delay(pid).unwrap_or_default(),
                cpu: progress.cpu,
            };
            Some((pid, seen))
        });
        let seen: BTreeMap<u32, Seen> = seen.collect();
        let (mut waited, mut nr_faults) = (Nanos(0), 0);
        for (pid, now) in &seen {
            let before = self.seen.get(pid).unwrap_or(now);
            let faults = now.major_faults.saturating_sub(before.major_faults);
            let by_cost = Nanos(faults.saturating_mul(self.fault_cost.0));
            // Threads that began before delay accounting was on have no delays.
            waited = waited + by_cost.max(now.waited.since(before.waited));
            nr_faults += faults;
            self.state.cpu = self.state.cpu + now.cpu.since(before.cpu);
        }
        let is_alive = !seen.is_empty();
        self.seen = seen;
        (waited, nr_faults, is_alive)
    }
}

impl LimitedGroup for TriedGroup {
    fn limit(&mut self, bytes: u64) -> anyhow::Result<()> {
        for (path, _) in self.before.iter().skip(1) {
            write(path, "1")?;
        }
        let path = self.limit_file();
        match fs::write(path, bytes.to_string()) {
            // Version 1 refuses a limit that it cannot reach, and keeps the one before.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            written => {
                written.with_context(|| format!("cannot write {bytes} to {}", path.display()))
            }
        }
    }

    fn free(&mut self) -> anyhow::Result<()> {
        let (path, value) = &self.before[0];
        write(path, value)
    }

    fn look(&mut self) -> anyhow::Result<GroupState> {
        let (waited, faults, is_alive) = self.new_waits();
        let charge = cgroup::charge(&self.directory);
        let file_refaults = charge.file_refaults.unwrap_or(0);
        let new = file_refaults.saturating_sub(self.file_refaults);
        self.file_refaults = file_refaults;
        let waited = waited + Nanos(new.saturating_mul(self.file_cost.0));
        let waited = Nanos((waited.0 as f64 / self.nr_running) as u64);
        let psi_us = pressure::some_memory_us(Some(&self.directory));
        let psi_before = std::mem::replace(&mut self.psi_us, psi_us);
        let by_psi = psi_us.zip(psi_before);
        let by_psi = by_psi.map_or(Nanos(0), |(now, before)| {
            Nanos::from_micros(now.saturating_sub(before))
        });
        let elapsed = std::mem::replace(&mut self.last_look, Instant::now()).elapsed();
        let lost = if self.is_stuck() {
            Nanos(elapsed.as_nanos() as u64)
        } else {
            by_psi.max(waited)
        };
        self.state = GroupState {
            lost: self.state.lost + lost,
            major_faults: self.state.major_faults + faults,
            cpu: self.state.cpu,
            used_bytes: charge.total.unwrap_or(0),
            is_alive,
        };
        Ok(self.state)
    }

    fn wait(&mut self, time: Duration) -> bool {
        let mut left = time;
        while !self.stop.load(Ordering::Relaxed) && left > Duration::ZERO {
            let step = left.min(POLL);
            std::thread::sleep(step);
            left -= step;
        }
        left == Duration::ZERO
    }
}

impl Drop for TriedGroup {
    fn drop(&mut self) {
        let to_undo = self.before.iter().skip(usize::from(self.is_kept));
        let undone: Vec<bool> = to_undo.map(|(path, value)| undo(path, value)).collect();
        if undone.iter().all(|is_undone| *is_undone) {
            let _ = fs::remove_file(&self.note);
        }
    }
}

/// Sets again what a command that was killed had changed. Returns the changed files.
pub fn recover() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (note, _, text) in noted().filter(|(_, pid, _)| !is_live(*pid)) {
        let noted = text.lines().filter_map(|line| line.split_once(' '));
        let undone = noted.map(|(value, path)| {
            let is_undone = undo(Path::new(path), value);
            files.extend(is_undone.then(|| PathBuf::from(path)));
            is_undone
        });
        let undone: Vec<bool> = undone.collect();
        // A value that cannot be set again now stays noted.
        if undone.iter().all(|is_undone| *is_undone) {
            let _ = fs::remove_file(note);
        }
    }
    files
}

/// Returns the notes, with the process ids of their writers and their texts.
fn noted() -> impl Iterator<Item = (PathBuf, u32, String)> {
    let entries = state::path().ok().and_then(|path| fs::read_dir(path).ok());
    entries.into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry
            .file_name()
            .to_str()?
            .strip_prefix(NOTE)?
            .parse()
            .ok()?;
        let text = fs::read_to_string(entry.path()).ok()?;
        Some((entry.path(), pid, text))
    })
}

/// Whether another command that wrote a note still runs.
fn is_live(pid: u32) -> bool {
    pid != std::process::id() && process::has_name(pid, "isotherm")
}

/// Returns the files by which the group at `directory` is limited, with their values.
///
/// # Errors
/// Fails if the group cannot be limited.
pub fn limits_of(directory: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let names: &[&str] = if directory.join(HIGH).exists() {
        &[HIGH]
    } else {
        &[LIMIT, OOM_CONTROL]
    };
    let values = names.iter().map(|name| {
        let path = directory.join(name);
        let value = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: a control group with a memory controller can be tried, of version 2 ({HIGH}) or 1 \
                 ({LIMIT}), but not the topmost one",
                path.display()
            )
        })?;
        Ok((path, value_of(name, &value)))
    });
    values.collect()
}

/// Sets a file's value of before again. Returns whether that was done, or is not needed: the group is gone.
fn undo(path: &Path, value: &str) -> bool {
    let is_ours = [HIGH, LIMIT, OOM_CONTROL]
        .iter()
        .any(|name| path.ends_with(name));
    is_ours && (fs::write(path, value).is_ok() || !path.exists())
}

/// Returns what to write to set the value that this file shows.
fn value_of(name: &str, shown: &str) -> String {
    match name {
        OOM_CONTROL => {
            let is_disabled = shown.lines().any(|line| line == "oom_kill_disable 1");
            u8::from(is_disabled).to_string()
        }
        _ => shown.trim().to_owned(),
    }
}

fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
}

/// Fails if there is no swap for the `bytes` that trials may take from a group.
pub fn require_swap(bytes: u64) -> anyhow::Result<()> {
    let free = isotherm_linux::swap::facts().free;
    ensure!(
        free >= bytes,
        "trials would take up to {} from the group, and {} of swap are free: set up more (`isotherm swap zram --size 4G`)",
        isotherm_engine::units::format_bytes(bytes),
        isotherm_engine::units::format_bytes(free)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        assert_eq!(value_of(HIGH, "max\n"), "max");
        assert_eq!(value_of(LIMIT, "4096\n"), "4096");
        assert_eq!(
            value_of(OOM_CONTROL, "oom_kill_disable 1\nunder_oom 0\n"),
            "1"
        );
        assert_eq!(
            value_of(OOM_CONTROL, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
            "0"
        );
    }

    #[test]
    fn only_limits_of_groups_are_undone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let other = scratch.path().join("passwd");
        fs::write(&other, "before").expect("written");
        assert!(!undo(&other, "x"));
        assert_eq!(fs::read_to_string(&other).expect("there"), "before");
        assert!(undo(&scratch.path().join("gone").join(HIGH), "max"));
        let limit = scratch.path().join(LIMIT);
        fs::write(&limit, "1").expect("written");
        assert!(undo(&limit, "5") && fs::read_to_string(&limit).expect("there") == "5");
    }
}
