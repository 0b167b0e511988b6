//! Costs of accesses: slow nodes, and translations that the TLB does not hold.
//!
//! Problem: a process's speed depends on where its memory lies and on how large its pages are, and single accesses are
//! not simulated.
//!
//! Approach: a process waits for memory for a share of its time, which is given for near memory only. The share grows
//! with the mean latency of its accesses. Bandwidth is a roof (Williams, Waterman and Patterson, *Roofline*, 2009).
//! Below the roof latency does not change; at the roof waits grow until demand is no more than bandwidth. For
//! translations, the TLB is a cache of the last N used. Its misses follow from the rates alone by Che's approximation
//! (Che, Tung and Wang, 2002). There is a time T within which N translations are used, and a translation is missed if
//! its last use is longer ago. Costs are relative to the same memory in small pages, with which work time is measured.
//!
//! Limits: caches are not simulated, so each access moves a cache line. The accesses given for a program should be
//! those that miss the caches. Latency below the roof does not depend on load, and a miss costs the same everywhere.
//! Rates of traces are not the program's rates of access (scans do not count), so translations are unknown there and
//! cost nothing.

use isotherm_engine::Nanos;

use super::{BLOCK, Pattern, Place, SimMachine};
use crate::memory::Page;

/// Interval at which speeds are computed; it is longer if there are many pages.
const PERIOD: Nanos = Nanos::from_millis(1_000);
const PAGES_PER_PERIOD: u64 = 4 << 20;
/// Number of classes of rates, each a quarter of an octave wide.
const CLASSES: usize = 256;
const LINE_BYTES: f64 = 64.0;
/// Number of rounds in which waits and the demand on nodes converge.
const ROUNDS: usize = 40;

/// Number of translations and the sum of their rates, by class of rate.
struct Classes {
    of: Vec<(f64, f64)>,
}

impl Classes {
    fn new() -> Self {
        Self {
            of: vec![(0.0, 0.0); CLASSES],
        }
    }

    fn add(&mut self, rate: f64) {
        self.add_many(1.0, rate);
    }

    fn add_many(&mut self, pages: f64, rate: f64) {
        if rate > 0.0 {
            let class = (libm::log2(rate) * 4.0 + 128.0).clamp(0.0, CLASSES as f64 - 1.0);
            let (count, sum) = &mut self.of[class as usize];
            *count += pages;
            *sum += pages * rate;
        }
    }

    /// Returns the share of uses that a cache of `entries` misses, and the rate of all uses.
    fn misses(&self, entries: f64) -> (f64, f64) {
        let used: Vec<(f64, f64)> = self.of.iter().copied().filter(|(n, _)| *n > 0.0).collect();
        let all: f64 = used.iter().map(|(_, sum)| sum).sum();
        let count: f64 = used.iter().map(|(n, _)| n).sum();
        if count <= entries || all <= 0.0 {
            return (0.0, all);
        }
        let within = |time: f64| -> f64 {
            let held = |(n, sum): &(f64, f64)| n * (1.0 - libm::exp(-sum / n * time));
            used.iter().map(held).sum()
        };
        let (mut low, mut high) = (0.0, 1e12);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if within(middle) < entries {
                low = middle;
            } else {
                high = middle;
            }
        }
        let missed = used.iter().map(|(n, sum)| sum * libm::exp(-sum / n * low));
        (missed.sum::<f64>() / all, all)
    }
}

/// Returns the share of accesses whose translation a TLB of `entries` misses. Each item of `pages` is a number of pages
/// and the rate of accesses to each of them.
pub fn miss_share(pages: impl IntoIterator<Item = (f64, f64)>, entries: u32) -> f64 {
    let mut classes = Classes::new();
    for (count, rate) in pages {
        classes.add_many(count, rate);
    }
    classes.misses(f64::from(entries)).0
}

impl SimMachine {
    pub(super) fn refresh_speeds(&mut self) {
        let periods = self.pages_to_weigh().div_ceil(PAGES_PER_PERIOD).max(1);
        let period = Nanos(PERIOD.0 * periods);
        self.find_contention(period);
        self.speeds_due = self.now + period;
        for index in 0..self.processes.len() {
            if self.processes[index].is_running() {
                self.refresh_speed(index);
            }
        }
        self.find_waits();
    }

    /// Returns the number of pages that the computation of all speeds reads.
    fn pages_to_weigh(&self) -> u64 {
        let mut pages = 0;
        for (index, process) in self.processes.iter().enumerate() {
            let needs_translations = process.spec.accesses_per_s.is_some();
            if !process.is_running() || !(needs_translations || self.needs_tiers(index)) {
                continue;
            }
            for area in process.areas().iter().map(|area| &self.areas[*area]) {
                // The accesses on each node are stored for mappings without traces.
                let is_trace = matches!(area.spec.pattern, Pattern::Trace(..));
                if area.spec.pattern.is_ever_accessed() && (is_trace || needs_translations) {
                    pages += area.pages.len() as u64;
                }
            }
        }
        pages
    }

    /// Computes the contention: the demand of processes, other programs and the kernel's threads over the CPUs that
    /// exist.
    fn find_contention(&mut self, period: Nanos) {
        // CPU time that processes lost to actions directly is not counted twice.
        let busy = self.background_cpu().since(self.acting_beside);
        let background = busy.since(self.busy_before).as_secs_f64() / period.as_secs_f64();
        self.busy_before = busy;
        let processes = 0..self.processes.len();
        let processes: f64 = processes.map(|process| self.cpus_of(process)).sum();
        let wanted = processes + self.cpus_of_others() + background;
        self.contention = (wanted / f64::from(self.spec.cpus)).max(1.0);
    }

    fn refresh_speed(&mut self, index: usize) {
        let process = &self.processes[index];
        let (areas, accesses) = (process.areas().to_vec(), process.spec.accesses_per_s);
        let mut shares = vec![0.0; self.spec.nodes.len()];
        if self.needs_tiers(index) {
            for area in &areas {
                let lines = self.lines_by_node(*area);
                shares
                    .iter_mut()
                    .zip(lines)
                    .for_each(|(share, lines)| *share += lines);
            }
            let all: f64 = shares.iter().sum();
            for share in &mut shares {
                *share /= all.max(f64::MIN_POSITIVE);
            }
        }
        let mut translations = 0.0;
        if let Some(accesses) = accesses {
            let (mut small, mut mixed) = (Classes::new(), Classes::new());
            for area in areas {
                self.add_translations(area, &mut small, &mut mixed);
            }
            let costs = &self.spec.costs;
            let entries = f64::from(costs.tlb_entries);
            let saved = mixed.misses(entries).0 - small.misses(entries).0;
            // Some accesses are to the same page as the one before: the rates know of pages only.
            translations = saved * accesses * costs.tlb_miss.as_secs_f64();
        }
        let process = &mut self.processes[index];
        process.shares = shares;
        process.slow_translations = translations;
    }

    /// Whether a process's speed depends on which nodes its memory is on.
    fn needs_tiers(&self, index: usize) -> bool {
        let process = &self.processes[index];
        let nodes = &self.spec.nodes;
        let has_tiers = nodes.len() > 1 || nodes.iter().any(|node| node.bandwidth.is_some());
        has_tiers && (process.spec.memory_bound > 0.0 || process.spec.accesses_per_s.is_some())
    }

    /// Computes how much longer each process waits for memory than if all of it were near and idle. This follows from
    /// the nodes' latencies. They are stretched where the demand on a node exceeds its bandwidth, until it no longer
    /// does.
    fn find_waits(&mut self) {
        let near = self.spec.nodes[0].latency.as_secs_f64();
        let latencies = { self.spec.nodes.iter() }.map(|node| node.latency.as_secs_f64() / near);
        let latencies: Vec<f64> = latencies.collect();
        let mut stretch = vec![1.0_f64; latencies.len()];
        for _ in 0..ROUNDS {
            let mut asked = vec![0.0; latencies.len()];
            for process in self.processes.iter_mut().filter(|p| p.is_running()) {
                let waits = process.shares.iter().zip(&latencies).zip(&stretch);
                let wait: f64 = waits
                    .map(|((share, latency), stretch)| share * latency * stretch)
                    .sum();
                let knows = process.shares.iter().any(|share| *share > 0.0);
                process.slow_tiers = if knows {
                    process.spec.memory_bound * (wait - 1.0)
                } else {
                    0.0
                };
                let slow = (1.0 + process.slow_tiers + process.slow_translations).max(0.05);
                let lines = process.spec.accesses_per_s.unwrap_or(0.0) / (slow * self.contention);
                for (asked, share) in asked.iter_mut().zip(&process.shares) {
                    *asked += lines * LINE_BYTES * share;
                }
            }
            let nodes = self.spec.nodes.iter().zip(&mut stretch).zip(asked);
            for ((node, stretch), asked) in nodes {
                if let Some(bandwidth) = node.bandwidth {
                    *stretch = (*stretch * (asked / bandwidth as f64)).max(1.0);
                }
            }
        }
    }

    /// Adds an area's accesses to `small` by page, and to `mixed` by the small or huge page that maps them.
    fn add_translations(&self, area: usize, small: &mut Classes, mixed: &mut Classes) {
        let area = &self.areas[area];
        let is_trace = matches!(area.spec.pattern, Pattern::Trace(..));
        if is_trace && self.spec.nodes.len() < 2 || !area.spec.pattern.is_ever_accessed() {
            return;
        }
        let work = self.processes[area.process].work();
        let pages = area.pages.clone();
        let mut first = pages.start;
        while first < pages.end {
            let block_end = (first / BLOCK + 1) * BLOCK;
            let end = block_end.min(pages.end);
            let is_huge = self.is_huge(first);
            let mut of_block = 0.0;
            while first < end {
                let (rate, alike) = area.spec.pattern.rate_from(first - pages.start, work);
                let next = first.saturating_add(alike).min(end);
                let count = self.in_use(first..next);
                if count > 0.0 && rate > 0.0 {
                    small.add_many(count, rate);
                    if is_huge {
                        of_block += count * rate;
                    } else {
                        mixed.add_many(count, rate);
                    }
                }
                first = next;
            }
            mixed.add(of_block);
        }
    }

    /// Returns the number of these pages in memory, except those that a huge page has added: they are never accessed.
    fn in_use(&self, pages: std::ops::Range<Page>) -> f64 {
        let places = &self.place[pages.start as usize..pages.end as usize];
        let used = places.iter().zip(pages.clone());
        let used = used.filter(|(place, page)| **place == Place::Memory && self.filled.get(*page));
        used.count() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tlb_that_holds_everything_misses_nothing() {
        let mut classes = Classes::new();
        (0..1000).for_each(|_| classes.add(100.0));
        assert!(classes.misses(1000.0).0 <= 0.0);
    }

    #[test]
    fn of_even_accesses_what_does_not_fit_is_missed() {
        let mut classes = Classes::new();
        (0..4000).for_each(|_| classes.add(100.0));
        let (share, all) = classes.misses(1000.0);
        assert!((share - 0.75).abs() < 0.01, "{share}");
        assert!((all - 400_000.0).abs() < 1.0);
    }

    #[test]
    fn what_is_used_often_stays() {
        let mut classes = Classes::new();
        (0..900).for_each(|_| classes.add(1000.0));
        (0..100_000).for_each(|_| classes.add(0.01));
        // 900 entries are held by those in steady use; nearly all rare uses are missed.
        let (share, _) = classes.misses(1000.0);
        assert!((0.0005..0.0015).contains(&share), "{share}");
    }
}
