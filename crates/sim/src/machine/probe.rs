//! The engine's probe, on simulated page tables or frames.

use std::collections::BTreeSet;
use std::convert::Infallible;

use isotherm_engine::drive::TableProbe;
use isotherm_engine::monitor::bits::{self, Bitmap};
use isotherm_engine::table::{BlockFacts, ClearedBy};
use isotherm_engine::{
    AccessProbe, AddressRange, BLOCK_SIZE, Cost, Gap, Nanos, PAGE_SIZE, Sample, TargetId, Touch,
};

use super::process::Losses;
use super::{BLOCK, Place, Rules, SimMachine};
use crate::memory::{BLOCK_PAGES, Owner, Page};

/// State of a probe between two checks.
#[derive(Clone, Debug, Default)]
pub struct ProbeState {
    armed: Vec<Sample>,
    /// Whether a sample has a frame that a page owns; for physical addresses only.
    is_owned: Vec<bool>,
    /// Pages whose bits may be set when they are checked, each with the number of its sample.
    frames: Vec<(u32, Page)>,
    /// Changes of the machine at which `is_owned` and `frames` were valid.
    changes: (u64, u64),
    /// Cost of monitoring so far.
    pub cost: Cost,
    is_physical: bool,
    /// Blocks whose tables were read before.
    met: BTreeSet<(TargetId, u64)>,
    /// Time at which tables were first read; `None` once the interval after that is over.
    first_look: Option<Nanos>,
    has_looked: bool,
}

impl ProbeState {
    /// Returns the state of a probe that has not sampled yet, of virtual or of physical addresses.
    pub fn new(is_physical: bool) -> Self {
        Self {
            is_physical,
            ..Self::default()
        }
    }
}

/// A probe with the machine that it monitors.
#[derive(Debug)]
pub struct SimProbe<'a> {
    /// The monitored machine.
    pub machine: &'a mut SimMachine,
    /// State that stays between two uses.
    pub state: &'a mut ProbeState,
}

impl SimProbe<'_> {
    fn spend(&mut self, cpu: Nanos) {
        self.state.cost.monitor_cpu = self.state.cost.monitor_cpu + cpu;
        self.machine.monitor_cpu = self.machine.monitor_cpu + cpu;
    }

    /// Clears the bits of a range of a process, with one flush.
    fn clear_range(&mut self, target: TargetId, range: AddressRange) {
        let costs = self.machine.spec().costs;
        let (mut pages, mut needs_flush) = (0, false);
        for address in (range.start..range.end).step_by(PAGE_SIZE as usize) {
            if let Some(page) = self.machine.page_at(target, address)
                && self.machine.place[page as usize] == Place::Memory
            {
                if self.machine.is_contended() {
                    self.state.cost.refused += 1;
                    continue;
                }
                // A huge page is cleared by its first page.
                if self.machine.unit(page).start == page {
                    needs_flush |= self.machine.is_accessed(page);
                    self.machine.clear(page);
                    pages += 1;
                }
            }
        }
        self.state.cost.clears += 1;
        if !needs_flush {
            self.spend(Nanos(costs.clear_old.0 * pages.max(1)));
            return;
        }
        self.spend(costs.clear_range + Nanos(costs.clear_page.0 * pages));
        self.state.cost.induced_cpu = self.state.cost.induced_cpu + costs.clear_stolen;
        if let Some(process) = self.machine.processes.get_mut(target.0 as usize)
            && process.is_running()
        {
            process.wait(costs.clear_stolen, |losses: &mut Losses| {
                &mut losses.monitoring
            });
        }
    }

    fn look_at_block(&mut self, target: TargetId, facts: &mut BlockFacts) {
        let machine = &mut *self.machine;
        let block = AddressRange::new(facts.address, facts.address + BLOCK_SIZE);
        let areas = machine.processes[target.0 as usize].areas();
        let first =
            areas.partition_point(|area| machine.areas[*area].spec.range.end <= block.start);
        let here = areas[first..].iter().copied();
        let here: Vec<usize> = here
            .take_while(|area| machine.areas[*area].spec.range.start < block.end)
            .collect();
        for area in here {
            let range = machine.areas[area].spec.range;
            let Some(part) = range.intersection(block) else {
                continue;
            };
            let first = machine.areas[area].pages.start;
            let page = |address: u64| first + ((address - range.start) / PAGE_SIZE) as Page;
            let pages = page(part.start)..page(part.end);
            if machine.is_huge(pages.start) {
                facts.huge = true;
                facts.present = [u64::MAX; 8];
                if machine.is_accessed(pages.start) {
                    facts.accessed = [u64::MAX; 8];
                }
                return;
            }
            let offset = ((part.start - block.start) / PAGE_SIZE) as usize;
            machine.look_at_run(area, pages, offset, facts);
        }
    }

    /// Returns the page of a sample, if the process runs and maps it.
    fn find(&self, sample: &Sample) -> Result<Page, Gap> {
        if !self.machine.is_running(sample.target.0 as usize) {
            return Err(Gap::Exited);
        }
        let page = self.machine.page_at(sample.target, sample.address);
        page.ok_or(Gap::Unmapped)
    }

    /// Finds the pages that own the samples' frames, for all samples at once. Each lookup is a cache miss, and the
    /// processor overlaps several misses only if no step depends on one of them.
    fn find_frames(&mut self) {
        let machine = &*self.machine;
        let state = &mut *self.state;
        state.changes = machine.bit_changes();
        state.frames.clear();
        state.is_owned.clear();
        for (i, sample) in (0..).zip(&state.armed) {
            let owner = machine.memory.owner(machine.frame_at(sample.address));
            if let Owner::Page(page) = owner {
                state.frames.push((i, page));
            }
            state.is_owned.push(matches!(owner, Owner::Page(_)));
        }
    }

    fn check_frames(&mut self, touches: &mut Vec<Touch>) {
        if self.state.changes != self.machine.bit_changes() {
            self.find_frames();
        }
        let Self { machine, state } = self;
        let mut accessed = vec![false; state.armed.len()];
        let may_be_contended = machine.is_anything_wrong();
        let rules = machine.spec.rules;
        if !may_be_contended {
            machine.find_accessed(&state.frames, &mut accessed);
        }
        let mut rest = &state.frames[..];
        let mut looks = 0;
        for (i, is_owned) in state.is_owned.iter().enumerate() {
            if !is_owned {
                touches.push(match rules {
                    Rules::Isotherm => Touch::Unknown(Gap::NoMapping),
                    Rules::KernelDamon => Touch::Idle,
                });
                continue;
            }
            if may_be_contended {
                let frames = rest.partition_point(|(of, _)| *of as usize <= i);
                let frames = rest.split_off(..frames).unwrap_or_default();
                if machine.is_contended() {
                    touches.push(Touch::Unknown(Gap::Unclearable));
                    continue;
                }
                machine.find_accessed(frames, &mut accessed);
            }
            touches.push(Touch::of(accessed[i]));
            looks += 1;
        }
        state.cost.checks += looks;
        let read_bit = self.machine.spec().costs.read_bit;
        self.spend(Nanos(read_bit.0 * looks));
    }
}

impl AccessProbe for SimProbe<'_> {
    type Error = Infallible;

    fn arm(&mut self, samples: &[Sample]) -> Result<(), Infallible> {
        self.state.armed.clear();
        self.state.armed.extend_from_slice(samples);
        let costs = self.machine.spec().costs;
        if !samples.is_empty() {
            self.spend(costs.batch);
        }
        if self.state.is_physical {
            // Bits are cleared through the reverse map and without a flush, as DAMON does it.
            self.find_frames();
            self.machine.clear_all(&mut self.state.frames);
            let nr = samples.len() as u64;
            self.state.cost.clears += nr;
            self.spend(Nanos(costs.scan_page.0 * nr));
            return Ok(());
        }
        for sample in samples {
            let end = sample.address + PAGE_SIZE;
            self.clear_range(sample.target, AddressRange::new(sample.address, end));
        }
        Ok(())
    }

    fn check(&mut self, touches: &mut Vec<Touch>) -> Result<(), Infallible> {
        touches.clear();
        let costs = self.machine.spec().costs;
        self.spend(costs.wake);
        if self.state.is_physical {
            self.check_frames(touches);
            return Ok(());
        }
        let armed = std::mem::take(&mut self.state.armed);
        for sample in &armed {
            touches.push(match self.find(sample) {
                Err(gap) => Touch::Unknown(gap),
                Ok(_) if self.machine.is_contended() => Touch::Unknown(Gap::Unclearable),
                Ok(page) => {
                    self.state.cost.checks += 1;
                    self.spend(costs.read_bit);
                    let is_there = self.machine.place[page as usize] == Place::Memory;
                    Touch::of(is_there && self.machine.is_accessed(page))
                }
            });
        }
        self.state.armed = armed;
        Ok(())
    }

    fn cost(&self) -> Cost {
        self.state.cost
    }
}

impl SimProbe<'_> {
    fn judge(&mut self, target: TargetId, facts: &BlockFacts) {
        let costs = self.machine.spec().costs;
        let is_new = self.state.met.insert((target, facts.address));
        let accessed = bits::count(&bits::and(&facts.present, &facts.accessed));
        let present = bits::count(&facts.present);
        if facts.huge && !is_new {
            self.spend(costs.judge_huge);
            return;
        }
        let mut each = if (1..present).contains(&accessed) {
            costs.judge_mixed_page
        } else {
            costs.judge_page
        };
        if is_new {
            each = each + costs.meet_page;
        }
        self.spend(Nanos(each.0 * u64::from(present)));
    }

    /// Charges one-time work to the interval between the first two scans of tables.
    fn pay_for_first_interval(&mut self) {
        let now = self.machine.now();
        if !std::mem::replace(&mut self.state.has_looked, true) {
            self.state.first_look = Some(now);
        } else if self
            .state
            .first_look
            .take_if(|first| *first < now)
            .is_some()
        {
            self.spend(self.machine.spec().costs.first_interval);
        }
    }
}

impl TableProbe for SimProbe<'_> {
    fn occupied_blocks(
        &mut self,
        target: TargetId,
        ranges: &[AddressRange],
    ) -> Result<Option<Vec<u64>>, Infallible> {
        if !self.machine.processes[target.0 as usize].is_running() {
            return Ok(None);
        }
        let mut blocks: Vec<u64> = Vec::new();
        for range in ranges {
            let mut address = range.start / BLOCK_SIZE * BLOCK_SIZE;
            while address < range.end {
                let page = self.machine.page_at(target, address.max(range.start));
                let has_table = page.is_some_and(|p| self.machine.has_table[(p / BLOCK) as usize]);
                if has_table && blocks.last() != Some(&address) {
                    blocks.push(address);
                }
                address += BLOCK_SIZE;
            }
        }
        self.pay_for_first_interval();
        // Each block needs an upper-level entry, which takes as long as reading a bit.
        let read_bit = self.machine.spec().costs.read_bit;
        self.spend(Nanos(read_bit.0 * blocks.len() as u64));
        Ok(Some(blocks))
    }

    fn read_blocks(
        &mut self,
        target: TargetId,
        blocks: &[u64],
        mut look: impl FnMut(BlockFacts),
    ) -> Result<bool, Infallible> {
        if !self.machine.processes[target.0 as usize].is_running() {
            return Ok(false);
        }
        for &address in blocks {
            let mut facts = BlockFacts {
                address,
                ..BlockFacts::default()
            };
            self.look_at_block(target, &mut facts);
            self.judge(target, &facts);
            look(facts);
            self.state.cost.checks += BLOCK_PAGES;
        }
        let read_block = self.machine.spec().costs.read_block;
        self.spend(Nanos(read_block.0 * blocks.len() as u64));
        Ok(true)
    }

    fn clear(&mut self, target: TargetId, ranges: &[AddressRange]) -> Result<(), Infallible> {
        self.spend(self.machine.spec().costs.batch);
        for range in ranges {
            self.clear_range(target, *range);
        }
        Ok(())
    }

    fn clearable(
        &mut self,
        _: TargetId,
        _: u64,
        pages: &Bitmap,
        _: ClearedBy,
    ) -> Result<Bitmap, Infallible> {
        Ok(if self.machine.is_contended() {
            bits::NONE
        } else {
            *pages
        })
    }

    /// Clears all bits as `/proc/PID/clear_refs` does: without a flush, in time proportional to the number of pages.
    fn clear_space(
        &mut self,
        target: TargetId,
        nr_pages: u64,
        hold_max: Nanos,
    ) -> Result<bool, Infallible> {
        let took = Nanos(self.machine.spec().costs.clear_space_page.0 * nr_pages);
        if took > hold_max || self.machine.is_anything_wrong() {
            return Ok(false);
        }
        let areas = self.machine.processes[target.0 as usize].areas().to_vec();
        for area in areas {
            for page in self.machine.areas[area].pages.clone() {
                // A huge page is cleared by its first page.
                if self.machine.place[page as usize] == Place::Memory
                    && self.machine.unit(page).start == page
                {
                    self.machine.clear(page);
                }
            }
        }
        self.state.cost.clears += 1;
        self.spend(took);
        Ok(true)
    }
}
