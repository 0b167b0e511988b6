//! Time that targets wait for memory that schemes took from them.
//!
//! Refaults are pages that schemes paged out and that page tables show to be back ([`Taken`]). Where these pages are
//! not known (the kernel's DAMON acts), refaults are estimated: major faults, or a fall of VmSwap below its former
//! value plus the bytes paged out, at most the pages that the system read from swap. Where physical memory is acted on,
//! refaults are the machine's reads of swap, multiplied by the schemes' part of the pages in swap.
//!
//! Three accounts measure the cost of refaults. The worst of them counts, as each may miss something:
//!
//! - the kernel's delay accounting, where it is on: it sees only threads that began after it was turned on;
//! - pressure (PSI) of the control group, where one is watched: it misses pages that the kernel does not count as part
//!   of the working set;
//! - refaults, times the cost of one as measured on this machine.
//!
//! The first two cover all that threads waited for. They are charged by the part of the major faults that were
//! refaults.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::statistics::nearest_rank;
use isotherm_engine::{Nanos, PAGE_SIZE, TargetId};
use isotherm_linux::act::ProcessActuator;
use isotherm_linux::clock::process_cpu;
use isotherm_linux::delays::{self, Delays};
use isotherm_linux::load::CpuTimes;
use isotherm_linux::meminfo::Meminfo;
use isotherm_linux::pressure;
use isotherm_linux::process::Process;
use isotherm_linux::refault_cost::{self, RefaultSample, refault_cost_now};
use isotherm_policy::guard::WaitSource;

use super::file_waits::FilesRead;
use super::taken::Taken;

/// Time after which the cost of a refault is measured again: it depends on the load.
const COST_LASTS: Nanos = Nanos(60_000_000_000);
/// Number of samples whose median counts. At the start they follow each other at once.
const SAMPLES: usize = 5;
/// A scan for refaults may take the time that faults may have cost, divided by this, and reads this number of blocks at
/// least.
const SCAN_SHARE: f64 = 10.0;
const SCAN_LEAST: usize = 64;
/// Least time of reading a block, and the cost of a refault where it is not known, in nanoseconds.
const LEAST_BLOCK_NS: f64 = 250.0;
const UNKNOWN_COST_NS: f64 = 5000.0;
/// Number of targets up to which all are scanned each time.
const FEW: usize = 16;
/// Number of targets that are scanned each time if there are more than [`FEW`]: those with the most memory paged out.
const MOST_OUT: usize = 8;
/// Number of other targets that are scanned in turn then. Each takes some 20 us, 40 if any of it is paged out.
const IN_TURN: usize = 8;

/// State of a target at the last scan.
#[derive(Clone, Copy)]
struct Seen {
    at: Nanos,
    /// Pages that the system has read from swap.
    swapped_in: Option<u64>,
    progress: pressure::Progress,
    /// Bytes in swap, if they are needed.
    swap: Option<u64>,
    delay: Option<Nanos>,
}

/// State of the machine at the last scan.
#[derive(Clone, Copy)]
struct MachineSeen {
    at: Nanos,
    swapped_in: Option<u64>,
    /// Time in which something waited for memory.
    pressure_us: Option<u64>,
    times: Option<CpuTimes>,
}

/// Sums over the targets since the last scan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Waited {
    /// Refaults of all targets, major or not.
    pub(super) refaults: u64,
    /// Major faults of all targets, for any reason.
    pub(super) major_faults: u64,
    pub(super) cpu_s: f64,
    pub(super) resident: u64,
    pub(super) together: Option<Nanos>,
    /// Longest wait of a single target, as the mean of its running threads.
    pub(super) longest: Option<Nanos>,
    /// Account that measured the longest wait.
    pub(super) by: Option<WaitSource>,
}

#[derive(Default)]
pub(super) struct Waits {
    delays: Option<Delays>,
    /// Costs of a refault in the last samples, the latest last.
    costs: VecDeque<Nanos>,
    /// Time at which a sample was last paged out; `sample` is the one that has not been brought back yet.
    sampled: Nanos,
    sample: Option<RefaultSample>,
    /// Pages of samples that were read from swap.
    sampled_pages: u64,
    /// Pages that schemes paged out, where they are known.
    taken: Taken,
    /// CPU time of the last scan for them, in nanoseconds a block.
    block_ns: f64,
    before: BTreeMap<TargetId, Seen>,
    /// Bytes that were paged out of each target since the last scan.
    paged_out: BTreeMap<TargetId, u64>,
    /// Bytes of each target that were paged out and have not been read back since.
    out: BTreeMap<TargetId, u64>,
    /// CPUs that each target has kept busy lately.
    running: BTreeMap<TargetId, f64>,
    /// Last target that was scanned in turn.
    turn: Option<TargetId>,
    pressure_us: Option<u64>,
    /// State of the machine as a whole, where physical memory is acted on.
    machine: Option<MachineSeen>,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self {
            delays: Delays::open().ok(),
            costs: refault_cost_now().into_iter().collect(),
            ..Self::default()
        }
    }

    /// Returns the gaps in the accounts of this machine, with a remedy; `None` if there is none.
    pub(super) fn lacks(&self) -> Option<String> {
        let hint = if delays::is_on() {
            ""
        } else {
            "; `sysctl kernel.task_delayacct=1` would let the kernel tell it, of programs that start \
             after"
        };
        match (&self.delays, self.cost()) {
            (Some(_), _) => None,
            (None, Some(cost)) => Some(format!(
                "how long targets wait for memory is estimated: refaults, at {:.1} us each as \
                 measured here{hint}",
                cost.0 as f64 / 1e3
            )),
            (None, None) => Some(format!(
                "how long targets wait for memory is not known here (there is no swap to measure, \
                 and no delay accounting), so the guard does not let schemes act faster{hint}"
            )),
        }
    }

    /// Returns the most time that targets lost while single pages of theirs were paged out for these times. Each time
    /// is weighted by the CPUs that the target kept busy, one at most. A target's sleep does not offset the loss: a
    /// program that waits for the target may sleep meanwhile.
    pub(super) fn interrupted(&self, times: &BTreeMap<TargetId, Nanos>) -> Nanos {
        let running = |target| self.running.get(target).map_or(1.0, |cpus| cpus.min(1.0));
        let lost = times
            .iter()
            .map(|(target, time)| time.0 as f64 * running(target));
        Nanos(lost.sum::<f64>() as u64)
    }

    pub(super) fn paged_out(&mut self, target: TargetId, bytes: u64) {
        *self.paged_out.entry(target).or_default() += bytes;
        *self.out.entry(target).or_default() += bytes;
    }

    pub(super) fn pages_paged_out(&mut self, target: TargetId, block: u64, pages: &Bitmap) {
        self.paged_out(target, bits::bytes(pages));
        self.taken.add(target, block, pages);
    }

    /// Returns the bytes of live targets that were paged out and have not been read back.
    pub(super) fn out(&self) -> u64 {
        self.out.values().sum()
    }

    /// Returns the number of targets that were scanned and live.
    pub(super) fn nr_seen(&self) -> usize {
        self.before.len()
    }

    /// Returns the time for which the targets have run: the mean by resident memory.
    pub(super) fn lived(&self) -> Nanos {
        let all = self.before.values().map(|seen| seen.progress);
        let (mut time, mut resident) = (0.0, 0.0);
        for progress in all.filter(|progress| progress.resident > 0) {
            resident += progress.resident as f64;
            time += progress.lived().0 as f64 * progress.resident as f64;
        }
        Nanos((time / f64::max(resident, 1.0)) as u64)
    }

    pub(super) fn forget(&mut self, target: TargetId) {
        self.out.remove(&target);
        self.taken.forget(target);
        self.before.remove(&target);
        self.paged_out.remove(&target);
        self.running.remove(&target);
    }

    /// Scans `targets`. `group` is their control group, if they are all of its processes; `elapsed` has passed since
    /// the last scan. `actuator` reads page tables, if it is known which pages were paged out.
    pub(super) fn look<'a>(
        &mut self,
        now: Nanos,
        elapsed: Option<Nanos>,
        targets: impl Iterator<Item = (TargetId, &'a Process)>,
        group: Option<&Path>,
        mut actuator: Option<&mut ProcessActuator>,
    ) -> Waited {
        self.learn_cost(now);
        let swapped_in = self.swapped_in();
        let mut waited = Waited::default();
        let targets: Vec<(TargetId, &Process)> = targets.collect();
        let due = self.due(&targets);
        let seconds = elapsed.map_or(0.0, Nanos::as_secs_f64);
        for (target, process) in targets {
            if due.contains(&target) {
                let actuator = actuator.as_deref_mut();
                let at = (now, swapped_in);
                self.look_at(&mut waited, at, (target, process), actuator);
            }
            // All targets count with their latest rates, also those that are not due or were last scanned a while ago.
            if let Some(seen) = self.before.get(&target) {
                waited.cpu_s += self.running.get(&target).map_or(0.0, |cpus| cpus * seconds);
                waited.resident += seen.progress.resident;
            }
        }
        let stalled = group.and_then(|group| pressure::some_memory_us(Some(group)));
        let before = std::mem::replace(&mut self.pressure_us, stalled);
        if let Some((stalled, before)) = stalled.zip(before) {
            let stalled = Nanos::from_micros(stalled.saturating_sub(before));
            waited.stall(part_of(waited.refaults, waited.major_faults, stalled));
        }
        waited
    }

    /// Scans the machine as a whole, where the owners of the memory acted on are not known: its reads of swap, and its
    /// pressure. Schemes are charged with a part of both: the part of the memory in swap that they paged out.
    pub(super) fn look_at_machine(&mut self, now: Nanos) -> Waited {
        self.learn_cost(now);
        let meminfo = Meminfo::read();
        let kinds = ["Active(anon)", "Inactive(anon)", "Mapped"];
        let seen = MachineSeen {
            at: now,
            swapped_in: self.swapped_in(),
            pressure_us: pressure::some_memory_us(None),
            times: CpuTimes::read(),
        };
        let mut waited = Waited {
            resident: kinds.iter().filter_map(|kind| meminfo.get(kind)).sum(),
            ..Waited::default()
        };
        let Some(before) = self.machine.replace(seen) else {
            return waited;
        };
        if let Some((then, times)) = before.times.zip(seen.times) {
            let wall = now.since(before.at).as_secs_f64() * f64::from(times.nr);
            waited.cpu_s = (wall - times.idle.since(then.idle).as_secs_f64()).max(0.0);
        }
        let grown = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let out: u64 = self.out.values().sum();
        let in_swap = meminfo.get("SwapTotal").zip(meminfo.get("SwapFree"));
        let in_swap = in_swap.map_or(0, |(total, free)| total.saturating_sub(free));
        let part = (out as f64 / in_swap.max(1) as f64).min(1.0);
        let read = grown(seen.swapped_in, before.swapped_in).unwrap_or(0);
        let refaults = (read as f64 * part).ceil() as u64;
        waited.refaults = refaults.min(out.div_ceil(PAGE_SIZE));
        let mut left = waited.refaults * PAGE_SIZE;
        for out in self.out.values_mut() {
            let back = left.min(*out);
            (*out, left) = (*out - back, left - back);
        }
        if let Some(cost) = self.cost() {
            let counted = Nanos(waited.refaults * cost.0);
            waited.together = Some(counted);
            note(&mut waited, counted, WaitSource::Refaults);
        }
        if let Some(stalled) = grown(seen.pressure_us, before.pressure_us) {
            let stalled = Nanos::from_micros(stalled).0 as f64 * part;
            waited.stall(Nanos(stalled as u64));
        }
        waited
    }

    /// Brings back the sample that was paged out at the last scan; without one, pages a new one out if that is due.
    fn learn_cost(&mut self, now: Nanos) {
        if let Some(sample) = self.sample.take() {
            if self.costs.len() == SAMPLES {
                self.costs.pop_front();
            }
            self.costs.extend(sample.bring_back());
            self.sampled_pages += refault_cost::PAGES;
        } else if self.costs.len() < SAMPLES || now.since(self.sampled) >= COST_LASTS {
            self.sample = RefaultSample::page_out();
            self.sampled = now;
        }
    }

    /// Returns the pages that the machine has read from swap, without those of samples.
    fn swapped_in(&self) -> Option<u64> {
        Some(pressure::swapped_in()?.saturating_sub(self.sampled_pages))
    }

    /// Returns the cost of a refault; `None` if it cannot be measured.
    pub(super) fn cost(&self) -> Option<Nanos> {
        let mut costs: Vec<Nanos> = self.costs.iter().copied().collect();
        costs.sort_unstable();
        nearest_rank(&costs, 50)
    }

    /// Returns the targets to scan now: all, or those with the most memory paged out and some others in turn.
    fn due(&mut self, targets: &[(TargetId, &Process)]) -> BTreeSet<TargetId> {
        let ids = targets.iter().map(|(target, _)| *target);
        if targets.len() <= FEW {
            return ids.collect();
        }
        let mut out: Vec<_> = { ids.clone() }
            .filter_map(|target| Some((self.out.get(&target).copied()?, target)))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        out.sort_unstable_by(|a, b| b.cmp(a));
        out.truncate(MOST_OUT);
        let mut due: BTreeSet<TargetId> = out.into_iter().map(|(_, target)| target).collect();
        let after = ids.clone().filter(|target| Some(*target) > self.turn);
        let in_turn = after.chain(ids).filter(|target| !due.contains(target));
        let in_turn: Vec<TargetId> = in_turn.take(IN_TURN).collect();
        self.turn = in_turn.last().copied();
        due.extend(in_turn);
        due
    }

    fn look_at(
        &mut self,
        waited: &mut Waited,
        (now, swapped_in): (Nanos, Option<u64>),
        (target, process): (TargetId, &Process),
        actuator: Option<&mut ProcessActuator>,
    ) {
        let Some(progress) = pressure::progress(process) else {
            self.before.remove(&target);
            return;
        };
        let paged_out = self.paged_out.remove(&target).unwrap_or(0);
        let is_out = self.out.get(&target).is_some_and(|out| *out > 0);
        let swap = || process.usage().ok().map(|usage| usage.swap);
        let delays = self.delays.as_ref();
        let seen = Seen {
            at: now,
            swapped_in,
            progress,
            swap: (is_out && actuator.is_none()).then(swap).flatten(),
            delay: delays.and_then(|delays| delays.waited(process.pid()).ok()),
        };
        let Some(before) = self.before.insert(target, seen) else {
            return;
        };
        let known = actuator.and_then(|actuator| {
            let faults = Faults::between(&before, &seen);
            self.read_back(target, faults, actuator)
        });
        // Refaults are at most the pages out: others page out as well, and programs read files for the first time.
        let out = self.out.get(&target).copied().unwrap_or(0);
        let refaults = known
            .unwrap_or_else(|| refaults(&before, &seen, paged_out).min(out.div_ceil(PAGE_SIZE)));
        if let Some(left) = self.out.get_mut(&target) {
            let by_count = out.saturating_sub(refaults * PAGE_SIZE);
            let known = known.and_then(|_| self.taken.bytes(target));
            *left = known.unwrap_or(by_count);
        }
        self.add(waited, target, (&before, &seen), refaults);
    }

    /// Returns the paged-out pages of `target` that page tables show to be back; `None` if it has ended.
    fn read_back(
        &mut self,
        target: TargetId,
        faults: Faults,
        actuator: &mut ProcessActuator,
    ) -> Option<u64> {
        let out = self.taken.bytes(target).unwrap_or(0);
        if faults.all == 0 || out == 0 {
            return Some(0);
        }
        let cost = self.cost().map_or(UNKNOWN_COST_NS, |cost| cost.0 as f64);
        let lost_ns = faults.major as f64 * cost;
        let most = (lost_ns / SCAN_SHARE / self.block_ns.max(LEAST_BLOCK_NS)) as usize;
        let faults = faults.major.max(faults.read);
        let (before, mut nr) = (process_cpu(), 0);
        let found = self
            .taken
            .look(target, faults, most.max(SCAN_LEAST), |blocks, see| {
                nr = blocks.len();
                let read = actuator.read_blocks(target, blocks, |facts| see(&facts));
                read.unwrap_or(false)
            })?;
        self.block_ns = process_cpu().since(before).0 as f64 / nr.max(1) as f64;
        Some(found)
    }

    /// Adds a target's work and waits between two scans, with the pages read back meanwhile.
    fn add(
        &mut self,
        waited: &mut Waited,
        target: TargetId,
        (before, seen): (&Seen, &Seen),
        refaults: u64,
    ) {
        let majors = Faults::between(before, seen).major;
        waited.refaults += refaults;
        waited.major_faults += majors;
        let elapsed = seen.at.since(before.at);
        let cpu_s = seen.progress.cpu.since(before.progress.cpu).as_secs_f64();
        if elapsed.0 > 0 {
            self.running.insert(target, cpu_s / elapsed.as_secs_f64());
        }
        let delayed = seen.delay.zip(before.delay);
        let delayed = delayed.map(|(now, before)| part_of(refaults, majors, now.since(before)));
        let counted = self.cost().map(|cost| Nanos(refaults * cost.0));
        if let Some(worst) = delayed.max(counted) {
            waited.together = Some(waited.together.unwrap_or_default() + worst);
        }
        // Threads that run side by side wait side by side.
        let threads = self.running.get(&target).map_or(1.0, |cpus| cpus.max(1.0));
        for (time, by) in [
            (delayed, WaitSource::Delays),
            (counted, WaitSource::Refaults),
        ] {
            if let Some(time) = time {
                note(waited, Nanos((time.0 as f64 / threads) as u64), by);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Faults {
    all: u64,
    major: u64,
    /// Pages that the machine read from swap meanwhile.
    read: u64,
}

impl Faults {
    fn between(before: &Seen, now: &Seen) -> Self {
        let (then, progress) = (before.progress, now.progress);
        let read = now.swapped_in.zip(before.swapped_in);
        let major = progress.major_faults.saturating_sub(then.major_faults);
        Self {
            all: major + progress.minor_faults.saturating_sub(then.minor_faults),
            major,
            read: read.map_or(0, |(now, before)| now.saturating_sub(before)),
        }
    }
}

/// Returns the part of a wait that is due to refaults: schemes are not the cause of the rest.
fn part_of(refaults: u64, major_faults: u64, wait: Nanos) -> Nanos {
    let faults = major_faults.max(refaults).max(1);
    Nanos((wait.0 as f64 * refaults as f64 / faults as f64) as u64)
}

impl Waited {
    /// Raises the waits to the time that pressure shows.
    fn stall(&mut self, time: Nanos) {
        self.together = self.together.max(Some(time));
        note(self, time, WaitSource::Pressure);
    }

    /// Adds pages of files that were read back. Returns their part of the total wait, or of all pages read back if no
    /// times are known; `None` if that total is zero.
    pub(super) fn add_files(&mut self, files: &FilesRead) -> Option<f64> {
        self.refaults += files.returned;
        if let Some(time) = files.waited {
            self.together = Some(self.together.unwrap_or_default() + time);
            note(self, time, WaitSource::Files);
        }
        let (part, whole) = match files.waited.zip(self.together) {
            Some((files, together)) => (files.0, together.0),
            None => (files.returned, self.refaults),
        };
        (whole > 0).then(|| part as f64 / whole as f64)
    }
}

/// Keeps a wait and its account if it is the longest so far.
fn note(waited: &mut Waited, time: Nanos, by: WaitSource) {
    if waited.longest.is_none_or(|longest| time > longest) {
        (waited.longest, waited.by) = (Some(time), Some(by));
    }
}

/// Returns the estimated refaults of a target of which `out` bytes were paged out.
fn refaults(before: &Seen, now: &Seen, out: u64) -> u64 {
    let Faults { major, read, .. } = Faults::between(before, now);
    // An unknown former swap counts as 0: schemes had nothing of the target out then.
    let expected = before.swap.unwrap_or(0) + out;
    let fallen = { now.swap }.map_or(0, |swap| expected.saturating_sub(swap) / PAGE_SIZE);
    major.max(fallen.min(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(major_faults: u64, swapped_pages: u64, swapped_in: u64) -> Seen {
        Seen {
            at: Nanos(0),
            swapped_in: Some(swapped_in),
            progress: pressure::Progress {
                major_faults,
                ..pressure::Progress::default()
            },
            swap: Some(swapped_pages * PAGE_SIZE),
            delay: None,
        }
    }

    #[test]
    fn what_comes_back_without_a_major_fault_is_a_refault() {
        // With read-ahead, 10 major faults bring 80 pages.
        assert_eq!(refaults(&seen(0, 100, 5), &seen(10, 20, 85), 0), 80);
        // The pages are paged out and in again between two scans.
        let out = 50 * PAGE_SIZE;
        assert_eq!(refaults(&seen(0, 100, 0), &seen(0, 100, 60), out), 50);
        // Freed pages cause no wait.
        assert_eq!(refaults(&seen(0, 100, 0), &seen(0, 20, 0), 0), 0);
        // Major faults are for pages of files.
        assert_eq!(refaults(&seen(0, 0, 0), &seen(7, 0, 0), 0), 7);
        // Pages are only paged out.
        assert_eq!(refaults(&seen(0, 0, 0), &seen(0, 50, 1000), out), 0);
        // Nothing is out any more, so its swap was not read.
        let not_read = Seen {
            swap: None,
            ..seen(1, 0, 90)
        };
        assert_eq!(refaults(&seen(0, 100, 0), &not_read, 0), 1);
        // Pages are paged out after a time without any, and a part of them is read back.
        assert_eq!(refaults(&not_read, &seen(1, 30, 190), out), 20);
    }

    #[test]
    fn of_many_targets_those_most_of_which_is_out_are_looked_at_and_all_in_turn() {
        let me = Process::open(std::process::id()).expect("we exist");
        let targets: Vec<(TargetId, &Process)> = (0..100).map(|id| (TargetId(id), &me)).collect();
        let mut waits = Waits::new();
        waits.paged_out(TargetId(7), 1 << 20);
        assert_eq!(waits.due(&targets[..FEW]).len(), FEW);
        let mut seen = BTreeSet::new();
        for _ in 0..100_usize.div_ceil(IN_TURN) {
            let due = waits.due(&targets);
            assert!(due.len() <= MOST_OUT + IN_TURN && due.contains(&TargetId(7)));
            seen.extend(due);
        }
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn waits_for_files_are_added() {
        let files = |returned, waited: Option<u64>| FilesRead {
            returned,
            waited: waited.map(Nanos),
            cached: 0,
        };
        let mut waited = Waited::default();
        assert_eq!(waited.add_files(&files(0, None)), None);
        waited.refaults = 1;
        assert_eq!(waited.add_files(&files(3, None)), Some(0.75));
        assert_eq!((waited.refaults, waited.together), (4, None));
        waited.together = Some(Nanos(3));
        assert_eq!(waited.add_files(&files(2, Some(9))), Some(0.75));
        assert_eq!((waited.refaults, waited.together), (6, Some(Nanos(12))));
        assert_eq!(waited.by, Some(WaitSource::Files));
    }

    #[test]
    fn the_longest_wait_counts() {
        let mut waited = Waited::default();
        note(&mut waited, Nanos(0), WaitSource::Delays);
        note(&mut waited, Nanos(5), WaitSource::Refaults);
        note(&mut waited, Nanos(3), WaitSource::Pressure);
        assert_eq!(waited.longest, Some(Nanos(5)));
        assert_eq!(waited.by, Some(WaitSource::Refaults));
    }
}
