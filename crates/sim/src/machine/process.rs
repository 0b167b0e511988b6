//! A process: its mappings, the progress of its work, and the time that it lost by waiting.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use isotherm_engine::{Nanos, PAGE_SIZE};

use super::Place;
use super::area::{Area, AreaSpec, Use};
use super::pattern::Pattern;

use crate::memory::{BLOCK_PAGES, Page};

/// A process to be started.
#[derive(Clone, Debug, Default)]
pub struct SimProcessSpec {
    /// Name of the process.
    pub name: String,
    /// Threads; 0 counts as one.
    pub threads: u32,
    /// CPUs that it keeps busy, each number from its moment of the work on; if empty, one for each thread.
    pub cpus: Vec<(Nanos, f64)>,
    /// Whether it has run for a while: pages that it fills at the start of its work are in memory when it starts.
    pub has_run: bool,
    /// Whether it forbids huge pages in its memory (PR_SET_THP_DISABLE).
    pub refuses_huge: bool,
    /// Work after which it ends; `None` if it has no end of its own.
    pub work: Option<Nanos>,
    /// Share of its time that it waits for memory if all of its memory is near.
    pub memory_bound: f64,
    /// Accesses to memory per second of its work, which determine the cost of translations. `None` is unknown, and
    /// translations then cost nothing.
    pub accesses_per_s: Option<f64>,
    /// Its mappings, in address order, without overlap.
    pub areas: Vec<AreaSpec>,
}

impl SimProcessSpec {
    /// Returns the bytes that it maps.
    pub fn mapped_bytes(&self) -> u64 {
        self.areas.iter().map(|area| area.range.len()).sum()
    }

    /// Returns the bytes that it maps and other processes map as well.
    pub fn shared_bytes(&self) -> u64 {
        let shared = self.areas.iter().filter(|area| area.purpose == Use::Shared);
        shared.map(|area| area.range.len()).sum()
    }

    /// Returns the CPU time that its work takes, in seconds. It is the process's weight among others of its program.
    pub fn cpu_seconds(&self) -> f64 {
        let end = self.work.unwrap_or_default();
        if self.cpus.is_empty() {
            return end.as_secs_f64() * f64::from(self.threads.max(1));
        }
        let until = { self.cpus.iter().skip(1) }.map(|(at, _)| *at).chain([end]);
        let parts = self.cpus.iter().zip(until);
        parts
            .map(|((from, cpus), until)| until.min(end).since(*from).as_secs_f64() * cpus)
            .sum()
    }
}

/// Wall-clock time that a process lost, in seconds, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    /// Waiting for pages that had been reclaimed.
    pub refaults: f64,
    /// First faults of pages.
    pub first_faults: f64,
    /// Direct compaction for huge pages at first faults.
    pub compaction: f64,
    /// Accesses to slow nodes.
    pub tiers: f64,
    /// Translations; negative where huge pages saved some.
    pub translations: f64,
    /// Flushes that monitoring caused.
    pub monitoring: f64,
    /// Shortage of CPUs.
    pub contention: f64,
    /// Page-outs by schemes: interrupts, and the CPU time that they took from the process.
    pub acting: f64,
}

impl Losses {
    /// Returns the sum of all losses, in seconds.
    pub fn total(&self) -> f64 {
        self.refaults
            + self.first_faults
            + self.compaction
            + self.tiers
            + self.translations
            + self.monitoring
            + self.contention
            + self.acting
    }
}

/// A simulated process.
#[derive(Clone, Debug, Default)]
pub struct SimProcess {
    /// As it was started, without its mappings, and with at least one thread.
    pub(super) spec: SimProcessSpec,
    /// Time at which it started.
    pub started: Nanos,
    /// Time at which it ended, if it has.
    pub ended: Option<Nanos>,
    /// Whether it was killed because there was no memory.
    pub was_killed: bool,
    /// Indices of the machine's areas, in address order.
    areas: Vec<usize>,
    /// Work done, in nanoseconds.
    pub(super) work: f64,
    pub(super) work_end: f64,
    /// Time that it still has to wait, in nanoseconds.
    pub(super) debt: f64,
    /// Extra time per unit of work because of slow nodes.
    pub(super) slow_tiers: f64,
    /// Share of its accesses that goes to each node.
    pub(super) shares: Vec<f64>,
    /// Extra time per unit of work because of translations.
    pub(super) slow_translations: f64,
    /// Next accesses to pages that are not in memory, on the work clock.
    pub(super) returns: BinaryHeap<Reverse<(u64, Page)>>,
    /// Pending fills: moment of the work and pages.
    pub(super) fills: VecDeque<(Nanos, Range<Page>)>,
    /// Pending releases: moment of the work, pages and their share.
    pub(super) returnings: VecDeque<(Nanos, Range<Page>, f64)>,
    pub(super) cpu: f64,
    /// Losses so far.
    pub losses: Losses,
    /// Number of faults that read a page back.
    pub major_faults: u64,
    pub(super) huge_blocks: u64,
    in_memory: u64,
    in_swap: u64,
    in_file: u64,
}

impl SimProcess {
    pub(super) fn new(mut spec: SimProcessSpec, now: Nanos) -> Self {
        spec.threads = spec.threads.max(1);
        Self {
            started: now,
            work_end: spec.work.map_or(f64::INFINITY, |work| work.0 as f64),
            spec,
            ..Self::default()
        }
    }

    /// Maps an area that has these pages, and schedules its fills and releases.
    pub(super) fn add(&mut self, area: usize, spec: &AreaSpec, pages: Range<Page>) {
        self.areas.push(area);
        if let Some((at, share)) = spec.released {
            self.returnings.push_back((at, pages.clone(), share));
        }
        match (&spec.pattern, spec.fill) {
            (Pattern::Trace(trace, first), None) => {
                for page in pages.clone() {
                    let Some(at) = trace.present_from(first + page - pages.start) else {
                        continue;
                    };
                    self.touch(at, page);
                }
                let all = *first..*first + (pages.end - pages.start);
                for (page, gone, back) in trace.absences(all) {
                    let page = pages.start + (page - first);
                    self.give_up(gone, page);
                    if let Some(back) = back {
                        self.touch(back, page);
                    }
                }
            }
            (Pattern::Phases(phases), None) => {
                let mut is_filled = vec![false; pages.len()];
                for (at, rates) in phases {
                    for page in pages.clone() {
                        let offset = page - pages.start;
                        let is_new = !is_filled[offset as usize] && rates.of(offset) > 0.0;
                        if is_new {
                            is_filled[offset as usize] = true;
                            self.touch(*at, page);
                        }
                    }
                }
            }
            (_, fill) => {
                let (from, length) = fill.unwrap_or_default();
                let blocks = pages.clone().step_by(BLOCK_PAGES as usize);
                let nr = blocks.len().max(1) as u64;
                for (i, first) in blocks.enumerate() {
                    let at = from + Nanos(length.0 / nr * i as u64);
                    let filled = spec.filled_of_block.unwrap_or(BLOCK_PAGES as u32);
                    let end = (first + filled.min(BLOCK_PAGES as u32)).min(pages.end);
                    self.fills.push_back((at, first..end));
                }
            }
        }
    }

    /// Schedules the fill of a page; the last run grows if it has the same time and ends at the page.
    fn touch(&mut self, at: Nanos, page: Page) {
        match self.fills.back_mut() {
            Some((last, run)) if *last == at && run.end == page => run.end += 1,
            _ => self.fills.push_back((at, page..page + 1)),
        }
    }

    /// Schedules the release of a page; the last run grows if it has the same time and ends at the page.
    fn give_up(&mut self, at: Nanos, page: Page) {
        match self.returnings.back_mut() {
            Some((last, run, _)) if *last == at && run.end == page => run.end += 1,
            _ => self.returnings.push_back((at, page..page + 1, 1.0)),
        }
    }

    pub(super) fn finish_layout(&mut self, areas: &[Area]) {
        self.areas.sort_by_key(|area| areas[*area].spec.range.start);
        self.fills.make_contiguous().sort_by_key(|(at, _)| *at);
        self.returnings
            .make_contiguous()
            .sort_by_key(|(at, _, _)| *at);
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    pub(super) fn areas(&self) -> &[usize] {
        &self.areas
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    pub(super) fn end(&mut self, now: Nanos, was_killed: bool) {
        self.ended = Some(now);
        self.was_killed = was_killed;
        self.returns.clear();
        self.fills.clear();
        self.returnings.clear();
    }

    /// Returns the work done so far.
    pub fn work(&self) -> Nanos {
        Nanos(self.work as u64)
    }

    /// Returns the CPU time used so far.
    pub fn cpu(&self) -> Nanos {
        Nanos(self.cpu as u64)
    }

    /// Returns the bytes in memory.
    pub fn rss(&self) -> u64 {
        self.in_memory * PAGE_SIZE
    }

    /// Returns the bytes in swap.
    pub fn swapped(&self) -> u64 {
        self.in_swap * PAGE_SIZE
    }

    /// Returns the bytes in memory that huge pages map.
    pub fn huge(&self) -> u64 {
        self.huge_blocks * BLOCK_PAGES * PAGE_SIZE
    }

    pub(super) fn count(&mut self, was: Place, is: Place, pages: u64) {
        let mut of = |place: Place, by: i64| {
            let counter = match place {
                Place::Nowhere => return,
                Place::Memory => &mut self.in_memory,
                Place::Swap => &mut self.in_swap,
                Place::File => &mut self.in_file,
            };
            *counter = counter.wrapping_add_signed(by);
        };
        of(was, -(pages as i64));
        of(is, pages as i64);
    }

    pub(super) fn fault(&mut self, count: u64, cost: Nanos) {
        let all = Nanos(cost.0 * count);
        self.wait(all, |losses: &mut Losses| &mut losses.first_faults);
    }

    pub(super) fn cpus(&self) -> f64 {
        at(&self.spec.cpus, self.work()).unwrap_or_else(|| f64::from(self.spec.threads))
    }

    pub(super) fn take_first_fills(&mut self) -> Vec<Range<Page>> {
        let nr = self.fills.partition_point(|(at, _)| *at == Nanos(0));
        self.fills.drain(..nr).map(|(_, pages)| pages).collect()
    }

    /// Resets losses: they happened before the simulation began.
    pub(super) fn forget_losses(&mut self) {
        self.debt = 0.0;
        self.losses = Losses::default();
    }

    pub(super) fn lose(&mut self, time: Nanos, of: impl FnOnce(&mut Losses) -> &mut f64) {
        self.debt += time.0 as f64;
        *of(&mut self.losses) += time.0 as f64 / 1e9;
    }

    /// Delays one of its threads by `time`: the process loses `time` divided by its threads.
    pub(super) fn wait(&mut self, time: Nanos, of: impl FnOnce(&mut Losses) -> &mut f64) {
        let lost = time.0 as f64 / f64::from(self.spec.threads);
        self.debt += lost;
        *of(&mut self.losses) += lost / 1e9;
    }
}

/// Returns the value of the last step that began by `now`. Before the first step, that is the first value.
pub(super) fn at(steps: &[(Nanos, f64)], now: Nanos) -> Option<f64> {
    let next = steps.partition_point(|(from, _)| *from <= now);
    steps.get(next.saturating_sub(1)).map(|(_, value)| *value)
}
