//! Page-out as the live actuator does it: blocks as huge pages, single pages while the process goes on.
//!
//! This choice decides most of an action's duration and of the process's loss (`isotherm_linux::act`). The process
//! hardly notices a block that is paged out whole. For each single page it is interrupted, or loses the CPU on which
//! that is done.

use isotherm_engine::monitor::bits;
use isotherm_engine::{Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_policy::{Operation, Outcome, Refusal};

use super::area::Use;
use super::process::Losses;
use super::{BLOCK, Place, Rules, SimActuator, SimMachine, block_at};
use crate::memory::Page;

/// Maximum number of pages to keep in a block that is paged out whole, as in `isotherm_linux::act`.
const REST_MAX: usize = 8;

impl SimActuator<'_> {
    /// Returns the number of a block's pages in memory; `None` if nothing is mapped there, or the process has ended.
    pub(crate) fn present_in(&self, target: TargetId, block: u64) -> Option<u32> {
        let machine = &*self.machine;
        if !machine.is_running(target.0 as usize) {
            return None;
        }
        let pages = (0..PAGES_PER_BLOCK as u64).map(|i| block + i * PAGE_SIZE);
        let pages = pages.filter_map(|address| machine.page_at(target, address));
        let present = pages.map(|page| u32::from(machine.place[page as usize] == Place::Memory));
        present.reduce(|sum, is_here| sum + is_here)
    }

    /// Whether the block at `address` is paged out as one huge page. All of it has to be in memory, private and
    /// anonymous, and all but a few pages have to go.
    pub(super) fn goes_whole(&mut self, operation: &Operation, address: u64) -> bool {
        if self.is_physical || self.machine.spec.rules != Rules::Isotherm {
            return false;
        }
        let target = operation.target;
        let Some(first) = self.machine.page_at(target, address) else {
            return false;
        };
        let area = &self.machine.areas[self.machine.area_at(first)];
        let process = &self.machine.processes[area.process];
        let is_one = first.is_multiple_of(BLOCK) && first + BLOCK <= area.pages.end;
        if !is_one || area.spec.purpose != Use::Anon || process.spec.refuses_huge {
            return false;
        }
        let pages = block_at(first);
        let places = &self.machine.place[pages.start as usize..pages.end as usize];
        if places.iter().any(|place| *place != Place::Memory) {
            return false;
        }
        if self.machine.is_huge(first) {
            return true;
        }
        let mut rest = 0;
        for (i, page) in pages.enumerate() {
            let address = address + i as u64 * PAGE_SIZE;
            let is_meant = operation.range.contains(address)
                && operation
                    .pages
                    .as_deref()
                    .is_none_or(|pages| bits::has(pages, i));
            let is_spared = operation.idle_only && self.spare_accessed;
            rest += usize::from(!is_meant || is_spared && self.machine.is_accessed(page));
            if rest > REST_MAX {
                return false;
            }
        }
        true
    }

    pub(super) fn page_out(
        &mut self,
        unit: std::ops::Range<Page>,
        outcome: &mut Outcome,
    ) -> Result<(), Refusal> {
        if unit.len() > 1 {
            let took = self.machine.split(unit.start);
            // A block that is paged out whole needs no split on a live machine. Here it is split because pages are
            // counted one by one.
            let took = if self.is_whole { Nanos(0) } else { took };
            outcome.took = outcome.took + took;
        }
        for page in unit {
            let is_anonymous = self.machine.is_anonymous(page);
            let mut took = self.machine.evict(page)?;
            if is_anonymous && self.machine.is_zram() && !self.is_physical {
                took = self.take_from_process(page, took);
            }
            outcome.took = outcome.took + took;
        }
        Ok(())
    }

    /// Returns the time of paging out `page`, which takes `alone` if nothing disturbs it, and charges its process's
    /// loss.
    fn take_from_process(&mut self, page: Page, alone: Nanos) -> Nanos {
        let costs = self.machine.spec.costs;
        let process = self.machine.areas[self.machine.area_at(page)].process;
        let running = self.machine.cpus_of(process).min(1.0);
        let (took, lost) = if self.is_whole {
            let took = costs.page_out_whole;
            (took, took.0 as f64 * costs.whole_lost)
        } else {
            // The action takes the process's CPU. If another CPU is free, the process goes on there, and is
            // interrupted.
            let elsewhere = self.machine.idle_cpus().min(1.0);
            let interrupts = costs.interrupt.0 as f64 * running * elsewhere;
            let took = alone + Nanos(interrupts as u64);
            self.interrupted = self.interrupted + Nanos((took.0 as f64 * running) as u64);
            let share = 1.0 - elsewhere * (1.0 - costs.alone_lost);
            (took, took.0 as f64 * share)
        };
        let lost = Nanos((lost * running) as u64);
        self.machine.acting_beside = self.machine.acting_beside + lost;
        self.machine.processes[process].lose(lost, |losses: &mut Losses| &mut losses.acting);
        took
    }
}

impl SimMachine {
    fn is_zram(&self) -> bool {
        let kind = self.swap.as_ref().map(super::Swap::kind);
        matches!(kind, Some(super::SwapKind::Zram { .. }))
    }

    pub(crate) fn cpus_of(&self, process: usize) -> f64 {
        let process = &self.processes[process];
        if process.is_running() {
            process.cpus()
        } else {
            0.0
        }
    }

    pub(super) fn cpus_of_others(&self) -> f64 {
        super::process::at(&self.spec.others, self.now).unwrap_or(0.0)
    }

    pub(crate) fn idle_cpus(&self) -> f64 {
        let used: f64 = (0..self.processes.len()).map(|p| self.cpus_of(p)).sum();
        (f64::from(self.spec.cpus) - used - self.cpus_of_others()).max(0.0)
    }

    pub(crate) fn cpu_used(&self) -> f64 {
        let processes = self.processes.iter().map(|p| p.cpu().as_secs_f64());
        let kernel = self.background_cpu().as_secs_f64();
        processes.sum::<f64>() + kernel + self.others_cpu
    }

    /// Returns the CPU time of the kernel's threads, monitors and actions so far.
    pub(super) fn background_cpu(&self) -> Nanos {
        self.monitor_cpu
            + self.stats.acting_cpu
            + self.stats.reclaim_cpu
            + self.stats.khugepaged_cpu
            + self.stats.kcompactd_cpu
    }
}
