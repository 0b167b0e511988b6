//! The engine's actuator: applies the operations of schemes to simulated memory, page by page.

use std::convert::Infallible;

use isotherm_engine::monitor::bits;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, PAGES_PER_BLOCK, TargetId};
use isotherm_policy::scheme::huge::{BlockUse, UNUSED_MIN};
use isotherm_policy::scheme::{Action, OpsFilter};
use isotherm_policy::{Actuator, Operation, Outcome, Refusal};

use super::area::Use;
use super::{Place, Rules, SimMachine, block_start};
use crate::memory::{BLOCK_PAGES, Page};

/// An actuator with the machine that it acts on.
#[derive(Debug)]
pub struct SimActuator<'a> {
    pub(crate) machine: &'a mut SimMachine,
    pub(crate) is_physical: bool,
    pub(super) spare_accessed: bool,
    /// Whether the current block is paged out as a huge page.
    pub(super) is_whole: bool,
    /// Time in which single pages of processes were paged out while these ran.
    pub(super) interrupted: Nanos,
}

impl<'a> SimActuator<'a> {
    /// Returns an actuator for `machine`. Ranges are of physical addresses if it `is_physical`. If `spare_accessed`,
    /// schemes about idle memory keep pages that were accessed since their bit was cleared, and clear the bit unless they
    /// name pages. This is for monitors that clear every page's bit.
    pub fn new(machine: &'a mut SimMachine, is_physical: bool, spare_accessed: bool) -> Self {
        Self {
            machine,
            is_physical,
            spare_accessed,
            is_whole: false,
            interrupted: Nanos(0),
        }
    }

    /// Returns the time in which processes were interrupted while they ran, since the last call.
    pub(crate) fn take_interrupted(&mut self) -> Nanos {
        std::mem::take(&mut self.interrupted)
    }
}

impl Actuator for SimActuator<'_> {
    type Error = Infallible;

    fn lacks(&self, action: Action) -> Option<String> {
        let swap = self.machine.swap.is_some();
        match action {
            Action::Pageout if !swap => Some("the machine has no swap".to_owned()),
            Action::MigrateHot | Action::MigrateCold if self.machine.spec.nodes.len() < 2 => {
                Some("the machine has one node".to_owned())
            }
            Action::LruPrio => Some("only a kernel can put memory first on its lists".to_owned()),
            _ => None,
        }
    }

    fn act(
        &mut self,
        operations: &[Operation],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Infallible> {
        for operation in operations {
            let outcome = self.act_on(operation);
            let stats = &mut self.machine.stats;
            stats.acting_cpu = stats.acting_cpu + outcome.took;
            outcomes.push(outcome);
        }
        Ok(())
    }
}

pub(super) fn refuse(outcome: &mut Outcome, why: Refusal, pages: u64) {
    *outcome.refused.entry(why).or_default() += pages * PAGE_SIZE;
}

impl SimActuator<'_> {
    fn act_on(&mut self, operation: &Operation) -> Outcome {
        let mut outcome = Outcome::default();
        if !self.is_physical && !self.machine.is_running(operation.target.0 as usize) {
            let pages = operation.extent() / PAGE_SIZE;
            refuse(&mut outcome, Refusal::Exited, pages);
            return outcome;
        }
        let advises = self.machine.spec.rules == Rules::KernelDamon && !self.is_physical;
        match operation.action {
            Action::Hugepage if advises => self.advise(operation, true, &mut outcome),
            Action::Nohugepage if advises => self.advise(operation, false, &mut outcome),
            Action::Hugepage | Action::Collapse => self.collapse(operation, &mut outcome),
            _ if self.is_physical => self.frame_by_frame(operation, &mut outcome),
            _ => {
                for range in operation.stretches() {
                    self.page_by_page(operation, range, &mut outcome);
                }
            }
        }
        outcome
    }

    fn page_at(&self, operation: &Operation, address: u64) -> Option<Page> {
        if self.is_physical {
            self.machine.page_of(self.machine.frame_at(address))
        } else {
            self.machine.page_at(operation.target, address)
        }
    }

    pub(super) fn page_by_page(
        &mut self,
        operation: &Operation,
        range: AddressRange,
        outcome: &mut Outcome,
    ) {
        let mut address = range.start;
        let mut block = None;
        while address < range.end {
            if operation.action == Action::Pageout && block != Some(address / BLOCK_SIZE) {
                block = Some(address / BLOCK_SIZE);
                self.is_whole = self.goes_whole(operation, address / BLOCK_SIZE * BLOCK_SIZE);
            }
            let page = self.page_at(operation, address);
            let (what, pages) = match page {
                None => (Err(Refusal::Unmapped), 1),
                Some(page) => self.act_on_page(operation, page, address, outcome),
            };
            match what {
                Ok(true) => outcome.applied += pages * PAGE_SIZE,
                Ok(false) => {}
                Err(why) => refuse(outcome, why, pages),
            }
            address += pages * PAGE_SIZE;
        }
    }

    /// Acts on a page, or on the huge page that it is the first of. Returns whether the action was applied, and the
    /// number of pages that this result is for.
    fn act_on_page(
        &mut self,
        operation: &Operation,
        page: Page,
        address: u64,
        outcome: &mut Outcome,
    ) -> (Result<bool, Refusal>, u64) {
        let unit = self.machine.unit(page);
        let is_whole = unit.len() > 1
            && unit.start == page
            && address + BLOCK_SIZE <= operation.range.end
            && operation.pages.is_none();
        let pages = if is_whole { BLOCK_PAGES } else { 1 };
        if !self.passes(operation, page, outcome) {
            return (Ok(false), pages);
        }
        outcome.filter_passed += pages * PAGE_SIZE;
        let place = self.machine.place[page as usize];
        if operation.action == Action::Stat {
            return (Ok(true), pages);
        }
        let wants_in = operation.action == Action::Willneed;
        if (place == Place::Memory) == wants_in || place == Place::Nowhere {
            return (Err(Refusal::NotPresent), pages);
        }
        if self.machine.is_contended() {
            return (Err(Refusal::Locked), pages);
        }
        if operation.action.is_reclaim()
            && let Use::Unreclaimable(why) = self.machine.use_of(page)
        {
            return (Err(why.into()), pages);
        }
        if operation.idle_only && self.spare_accessed && self.machine.is_accessed(page) {
            if operation.pages.is_none() {
                self.machine.clear(page);
            }
            return (Err(Refusal::Kept), pages);
        }
        if operation.action == Action::Nohugepage {
            return (self.give_back_unused(unit, is_whole, outcome), pages);
        }
        if unit.len() > 1 && !is_whole && operation.action != Action::Cold {
            // An operation on a part of a huge page splits it, as in the kernel.
            outcome.took = outcome.took + self.machine.split(unit.start);
        }
        let done = match operation.action {
            Action::Pageout if is_whole => self.page_out(unit, outcome),
            Action::Pageout => self.page_out(page..page + 1, outcome),
            Action::Cold | Action::LruDeprio => {
                outcome.took = outcome.took + self.machine.spec.costs.clear_page;
                self.machine.clear(page);
                Ok(())
            }
            Action::Willneed => {
                outcome.took = outcome.took + self.machine.spec.costs.refault_zram;
                let frame = self.machine.bring_back(page);
                frame.map(|_| ()).ok_or(Refusal::NoRoom)
            }
            Action::MigrateHot | Action::MigrateCold => {
                self.migrate(operation, page, pages, outcome)
            }
            _ => Err(Refusal::Unsupported),
        };
        (done.map(|()| true), pages)
    }

    /// Splits a huge page, and gives back the pages in it that the program has never written.
    fn give_back_unused(
        &mut self,
        unit: std::ops::Range<Page>,
        is_whole: bool,
        outcome: &mut Outcome,
    ) -> Result<bool, Refusal> {
        if !is_whole {
            return Err(Refusal::NotPresent);
        }
        let costs = &self.machine.spec.costs;
        outcome.took = outcome.took + costs.read_contents;
        let is_anonymous = self.machine.is_anonymous(unit.start);
        let unused = self.machine.unused_of(unit.clone());
        if !is_anonymous || unused < u64::from(UNUSED_MIN) {
            return Err(if is_anonymous {
                Refusal::Written
            } else {
                Refusal::Unsupported
            });
        }
        outcome.took = outcome.took + self.machine.split(unit.start);
        self.machine.drop_unused(unit);
        outcome.applied += unused * PAGE_SIZE;
        refuse(outcome, Refusal::Written, BLOCK_PAGES - unused);
        Ok(false)
    }

    /// Sets the advice about huge pages for a range. A block that a range cuts is in two mappings afterwards, and can
    /// no longer be huge.
    fn advise(&mut self, operation: &Operation, huge: bool, outcome: &mut Outcome) {
        let range = operation.range;
        let mut address = range.start;
        while address < range.end {
            let next = ((address / BLOCK_SIZE + 1) * BLOCK_SIZE).min(range.end);
            let length = next - address;
            match self.page_at(operation, address) {
                Some(page) => {
                    self.machine.advise(page, huge && length == BLOCK_SIZE);
                    outcome.filter_passed += length;
                    outcome.applied += length;
                }
                None => refuse(outcome, Refusal::Unmapped, length / PAGE_SIZE),
            }
            address = next;
        }
    }

    fn migrate(
        &mut self,
        operation: &Operation,
        page: Page,
        pages: u64,
        outcome: &mut Outcome,
    ) -> Result<(), Refusal> {
        let to = operation.destinations.first();
        let to = to.ok_or(Refusal::Unsupported)?.node;
        if to as usize >= self.machine.spec.nodes.len() {
            return Err(Refusal::Unsupported);
        }
        if pages > 1 {
            // Huge pages are moved page by page here, as if they were split.
            outcome.took = outcome.took + self.machine.split(page);
        }
        for page in page..page + pages as Page {
            let Some(frame) = self.machine.memory.frame_of(page) else {
                return Err(Refusal::NotPresent);
            };
            let from = self.machine.node_of(frame);
            if from == to {
                return Err(Refusal::NotPresent);
            }
            outcome.took = outcome.took + self.machine.spec.costs.migrate_page;
            if self.machine.fails_to_migrate() {
                return Err(Refusal::Kept);
            }
            let pages = page..page + 1;
            if self.machine.move_to_node(pages, frame, to as usize) == 0 {
                return Err(Refusal::NoRoom);
            }
            outcome.moved.add(from, to, PAGE_SIZE);
        }
        Ok(())
    }

    /// Returns the use of a process's block; `None` if nothing is mapped there, or the process has ended.
    pub(crate) fn block_use(
        &mut self,
        target: TargetId,
        block: u64,
        is_read: bool,
    ) -> Option<BlockUse> {
        let machine = &mut *self.machine;
        let page = machine.page_in(target, block)?;
        if !machine.is_running(target.0 as usize) {
            return None;
        }
        let costs = &machine.spec.costs;
        let cost = if is_read {
            costs.read_contents
        } else {
            costs.read_block
        };
        machine.stats.acting_cpu = machine.stats.acting_cpu + cost;
        let first = block_start(page);
        let mut present = bits::NONE;
        for i in 0..PAGES_PER_BLOCK {
            if machine.place[first as usize + i] == Place::Memory {
                bits::set(&mut present, i);
            }
        }
        let unused = is_read.then(|| machine.unused_in_memory(first) as u32);
        Some(BlockUse {
            block,
            is_huge: machine.is_huge(first),
            present,
            unused,
        })
    }

    /// Makes blocks huge pages. These are the blocks that the operation names, or else those with at least half in
    /// memory within the range, as on the live machine.
    fn collapse(&mut self, operation: &Operation, outcome: &mut Outcome) {
        let range = operation.range;
        let mut address = range.start;
        while address < range.end {
            let block = address & !(BLOCK_SIZE - 1);
            let next = (block + BLOCK_SIZE).min(range.end);
            let pages = (next - address) / PAGE_SIZE;
            let page = self.page_at(operation, address);
            let done = match page {
                Some(page) if !self.is_physical => {
                    outcome.filter_passed += pages * PAGE_SIZE;
                    let run = page..page + pages as Page;
                    self.collapse_block(operation.means_block(block), run)
                }
                Some(_) => Err(Refusal::Unsupported),
                None => Err(Refusal::Unmapped),
            };
            match done {
                Ok(took) => {
                    outcome.applied += pages * PAGE_SIZE;
                    outcome.took = outcome.took + took;
                }
                Err(why) => refuse(outcome, why, pages),
            }
            address = next;
        }
    }

    fn collapse_block(
        &mut self,
        is_meant: Option<bool>,
        pages: std::ops::Range<Page>,
    ) -> Result<Nanos, Refusal> {
        let least = match is_meant {
            Some(false) => return Err(Refusal::Wasteful),
            Some(true) => 1,
            None => PAGES_PER_BLOCK / 2,
        };
        let places = &self.machine.place[pages.start as usize..pages.end as usize];
        let there = places.iter().filter(|place| **place == Place::Memory);
        if there.count() < least.min(pages.len()) || pages.len() < least {
            return Err(Refusal::Sparse);
        }
        let first = block_start(pages.start);
        self.machine.collapse(first, 1)
    }

    /// Whether a page passes the filters. The first filter that matches decides.
    fn passes(&mut self, operation: &Operation, page: Page, outcome: &mut Outcome) -> bool {
        for (filter, matching, allow) in operation.filters.iter() {
            let area = &self.machine.areas[self.machine.area_at(page)];
            let is_here = self.machine.place[page as usize] == Place::Memory;
            let has = match filter {
                OpsFilter::Anon => area.spec.purpose == Use::Anon,
                OpsFilter::Young => {
                    outcome.took = outcome.took + self.machine.spec.costs.scan_page;
                    let young = is_here && self.machine.is_accessed(page);
                    if is_here {
                        self.machine.clear(page);
                    }
                    young
                }
                OpsFilter::HugepageSize { min, max } => {
                    let size = if self.machine.is_huge(page) {
                        BLOCK_SIZE
                    } else {
                        PAGE_SIZE
                    };
                    (*min..=*max).contains(&size)
                }
                OpsFilter::Active => is_here && self.machine.is_accessed(page),
                // All that is in memory is mapped, and groups are not simulated.
                OpsFilter::Unmapped | OpsFilter::Memcg { .. } => false,
            };
            if has == *matching {
                return *allow;
            }
        }
        operation.pass_unmatched
    }
}
