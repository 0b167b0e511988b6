//! The engine's actuator: what schemes ask for, done to simulated memory, page by page.

use std::convert::Infallible;

use isotherm_engine::scheme::{Action, OpsFilter};
use isotherm_engine::{
    Actuator, AddressRange, BLOCK_SIZE, Operation, Outcome, PAGE_SIZE, PAGES_PER_BLOCK, Refusal,
};

use super::process::Use;
use super::{Machine, Place, Rules};
use crate::memory::{BLOCK_PAGES, Page};

/// An actuator while it acts on its machine.
#[derive(Debug)]
pub struct SimActuator<'a> {
    /// What it acts on.
    pub machine: &'a mut Machine,
    /// Ranges are of physical addresses.
    pub is_physical: bool,
    /// Pages that were accessed since their bit was cleared are spared by schemes about idle memory,
    /// and their bits cleared. For monitors that clear every page's bit.
    pub spare_accessed: bool,
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
        let target = operation.target.0 as usize;
        let is_gone = !self.is_physical
            && !self
                .machine
                .processes
                .get(target)
                .is_some_and(super::Process::is_running);
        if is_gone {
            refuse(
                &mut outcome,
                Refusal::Exited,
                operation.extent() / PAGE_SIZE,
            );
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
        while address < range.end {
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

    /// Acts on a page, or on the huge page that it is the first of: whether it was meant, and of how
    /// many pages that is the answer.
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
        if operation.idle_only && self.spare_accessed && self.machine.is_accessed(page) {
            self.machine.clear(page);
            return (Err(Refusal::Kept), pages);
        }
        if unit.len() > 1 && !is_whole && operation.action != Action::Cold {
            // Part of a huge page: it is split, as the kernel does.
            outcome.took = outcome.took + self.machine.split(unit.start);
        }
        let done = match operation.action {
            Action::Pageout => self.page_out(unit.start..unit.start + pages as Page, page, outcome),
            Action::Cold | Action::LruDeprio => {
                outcome.took = outcome.took + self.machine.spec.costs.clear_page;
                self.machine.clear(page);
                Ok(())
            }
            Action::Willneed => {
                outcome.took = outcome.took + self.machine.spec.costs.refault_zram;
                self.machine
                    .bring_back(page)
                    .map(|_| ())
                    .ok_or(Refusal::NoRoom)
            }
            Action::Nohugepage => self.split(page, outcome),
            Action::MigrateHot | Action::MigrateCold => {
                self.migrate(operation, page, pages, outcome)
            }
            _ => Err(Refusal::Unsupported),
        };
        (done.map(|()| true), pages)
    }

    fn page_out(
        &mut self,
        unit: std::ops::Range<Page>,
        page: Page,
        outcome: &mut Outcome,
    ) -> Result<(), Refusal> {
        if unit.len() > 1 {
            outcome.took = outcome.took + self.machine.split(unit.start);
            for page in unit {
                outcome.took = outcome.took + self.machine.evict(page)?;
            }
            return Ok(());
        }
        outcome.took = outcome.took + self.machine.evict(page)?;
        Ok(())
    }

    fn split(&mut self, page: Page, outcome: &mut Outcome) -> Result<(), Refusal> {
        self.machine.advise(page, false);
        if !self.machine.is_huge(page) {
            return Err(Refusal::NotPresent);
        }
        let unit = self.machine.unit(page);
        outcome.took = outcome.took + self.machine.split(unit.start);
        Ok(())
    }

    /// Advises the kernel of what a range's huge pages are to be from now on. A block that a range cuts is
    /// in two mappings afterwards, and can be huge no more.
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
        let to = operation
            .destinations
            .first()
            .ok_or(Refusal::Unsupported)?
            .node;
        if to as usize >= self.machine.spec.nodes.len() {
            return Err(Refusal::Unsupported);
        }
        if pages > 1 {
            // As if split: huge pages are moved page by page here.
            outcome.took = outcome.took + self.machine.split(page);
        }
        for page in page..page + pages as Page {
            let Some(frame) = self.machine.memory.frame_of(page) else {
                return Err(Refusal::NotPresent);
            };
            if self.machine.node_of(frame) == to {
                return Err(Refusal::NotPresent);
            }
            outcome.took = outcome.took + self.machine.spec.costs.migrate_page;
            let fails = self.machine.fails_to_migrate();
            if fails {
                return Err(Refusal::Kept);
            }
            if self
                .machine
                .move_to_node(page..page + 1, frame, to as usize)
                == 0
            {
                return Err(Refusal::NoRoom);
            }
        }
        Ok(())
    }

    /// Blocks that lie whole within the range become huge pages, where at least half of them is in
    /// memory, as on the live machine.
    fn collapse(&mut self, operation: &Operation, outcome: &mut Outcome) {
        let range = operation.range;
        let mut address = range.start;
        while address < range.end {
            let next = (address / BLOCK_SIZE + 1) * BLOCK_SIZE;
            let length = next.min(range.end) - address;
            let pages = length / PAGE_SIZE;
            let page = self.page_at(operation, address);
            match page {
                Some(page) if length == BLOCK_SIZE && !self.is_physical => {
                    outcome.filter_passed += length;
                    self.machine.advise(page, true);
                    match self.machine.collapse(page, PAGES_PER_BLOCK / 2) {
                        Ok(took) => {
                            outcome.applied += length;
                            outcome.took = outcome.took + took;
                        }
                        Err(why) => refuse(outcome, why, pages),
                    }
                }
                Some(_) => refuse(outcome, Refusal::Unsupported, pages),
                None => refuse(outcome, Refusal::Unmapped, pages),
            }
            address += length;
        }
    }

    /// The first filter that matches decides.
    fn passes(&mut self, operation: &Operation, page: Page, outcome: &mut Outcome) -> bool {
        for (filter, matching, allow) in &operation.filters {
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
