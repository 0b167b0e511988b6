//! Actions on physical addresses: the same as on virtual ones, but a run of frames at a time.
//!
//! Problem: schemes about nodes of hundreds of gigabytes scan millions of pages a second. Most of these pages do not
//! pass a filter or have no node to move to.
//!
//! Approach: consecutive frames mostly hold consecutive pages. Up to 64 of these have their accessed bits in one word,
//! and are filtered and moved together. The result is the same as page by page. Huge pages, other actions, and machines
//! with active faults are handled page by page.

use isotherm_engine::{AddressRange, Nanos, PAGE_SIZE};
use isotherm_policy::scheme::{Action, OpsFilter};
use isotherm_policy::{Operation, Outcome, Refusal};

use super::actuator::{SimActuator, refuse};
use super::area::Use;
use super::scatter::PIECE;
use crate::memory::{Owner, Page, Pfn};

#[derive(Clone, Copy, Debug)]
struct Frames {
    frame: Pfn,
    page: Page,
    count: u64,
}

impl Frames {
    fn split_off(&mut self, count: u64) -> Self {
        let count = count.min(self.count);
        let taken = Self { count, ..*self };
        self.frame += count;
        self.page += count as Page;
        self.count -= count;
        taken
    }

    fn part(self, first: u32, count: u32) -> Self {
        Self {
            frame: self.frame + u64::from(first),
            page: self.page + first,
            count: count.into(),
        }
    }
}

impl SimActuator<'_> {
    pub(super) fn frame_by_frame(&mut self, operation: &Operation, outcome: &mut Outcome) {
        let to = operation.destinations.first().map(|to| to.node);
        let has_node = to.is_some_and(|to| (to as usize) < self.machine.spec.nodes.len());
        let goes_together = !(self.machine.is_anything_wrong()
            || operation.idle_only && self.spare_accessed)
            && match operation.action {
                Action::Stat => true,
                Action::MigrateHot | Action::MigrateCold => has_node,
                _ => false,
            };
        let mut address = operation.range.start;
        while address < operation.range.end {
            let (frame, end) = self.machine.frames_from(address, operation.range.end);
            let (owner, count) = self.machine.memory.owners_from(frame, end);
            let look = self.machine.spec.costs.look_at_frame;
            outcome.took = outcome.took + Nanos(look.0 * count);
            let next = address + count * PAGE_SIZE;
            match owner {
                Owner::Page(page) if goes_together && !self.machine.is_huge(page) => {
                    let run = Frames { frame, page, count };
                    self.act_on_run(operation, run, to, outcome);
                }
                Owner::Page(_) => {
                    self.page_by_page(operation, AddressRange::new(address, next), outcome);
                }
                _ => refuse(outcome, Refusal::Unmapped, count),
            }
            address = next;
        }
    }

    fn act_on_run(
        &mut self,
        operation: &Operation,
        mut run: Frames,
        to: Option<u32>,
        outcome: &mut Outcome,
    ) {
        let from = self.machine.node_of(run.frame);
        while run.count > 0 {
            let word = run.split_off(self.machine.rest_of_word(run.page));
            let mut passing = self.passing(operation, &word, outcome);
            let bytes = u64::from(passing.count_ones()) * PAGE_SIZE;
            outcome.filter_passed += bytes;
            match to {
                _ if operation.action == Action::Stat => outcome.applied += bytes,
                Some(to) if to != from => {
                    while passing != 0 {
                        let first = passing.trailing_zeros();
                        let count = (passing >> first).trailing_ones();
                        self.migrate_run(word.part(first, count), to, outcome);
                        passing &= !(mask(count) << first);
                    }
                }
                _ if passing != 0 => refuse(outcome, Refusal::NotPresent, bytes / PAGE_SIZE),
                _ => {}
            }
        }
    }

    fn migrate_run(&mut self, mut run: Frames, to: u32, outcome: &mut Outcome) {
        let cost = self.machine.spec.costs.migrate_page;
        let from = self.machine.node_of(run.frame);
        outcome.took = outcome.took + Nanos(cost.0 * run.count);
        while run.count > 0 {
            let pages = run.page..run.page + run.count as Page;
            let moved = self.machine.move_to_node(pages, run.frame, to as usize);
            if moved == 0 {
                // There are no frames for the other pages either.
                refuse(outcome, Refusal::NoRoom, run.count);
                return;
            }
            outcome.applied += moved * PAGE_SIZE;
            outcome.moved.add(from, to, moved * PAGE_SIZE);
            run.split_off(moved);
        }
    }

    /// Returns those of up to 64 small pages in memory that pass. For each page the first filter that matches decides.
    fn passing(&mut self, operation: &Operation, word: &Frames, outcome: &mut Outcome) -> u64 {
        let all_if = |has: bool| if has { u64::MAX } else { 0 };
        let purpose = self.machine.areas[self.machine.area_at(word.page)]
            .spec
            .purpose;
        let (mut undecided, mut allowed) = (mask(word.count as u32), 0);
        for (filter, matching, allow) in operation.filters.iter() {
            let has = match filter {
                OpsFilter::Anon => all_if(purpose == Use::Anon),
                OpsFilter::Young => {
                    let scan = self.machine.spec.costs.scan_page;
                    let looks = u64::from(undecided.count_ones());
                    outcome.took = outcome.took + Nanos(scan.0 * looks);
                    self.machine.take_accessed(word.page, undecided)
                }
                OpsFilter::HugepageSize { min, max } => all_if((*min..=*max).contains(&PAGE_SIZE)),
                OpsFilter::Active => self.machine.are_accessed(word.page, undecided),
                OpsFilter::Unmapped | OpsFilter::Memcg { .. } => 0,
            };
            let matched = undecided & if *matching { has } else { !has };
            undecided &= !matched;
            allowed |= matched & all_if(*allow);
        }
        allowed | undecided & all_if(operation.pass_unmatched)
    }
}

impl super::SimMachine {
    /// Returns the frame at a physical address, and the end of the frames that follow it up to the address `end`.
    fn frames_from(&self, address: u64, end: u64) -> (Pfn, Pfn) {
        let frame = self.frame_at(address);
        let rest = (end - address) / PAGE_SIZE;
        if self.spec.is_scattered {
            (frame, frame + rest.min(PIECE - frame % PIECE))
        } else {
            (frame, frame + rest)
        }
    }

    /// Returns the number of pages from `page` on that are of its mapping and have their accessed bits in its word.
    fn rest_of_word(&self, page: Page) -> u64 {
        let end = (page / 64 * 64 + 64).min(self.areas[self.area_at(page)].pages.end);
        u64::from(end - page)
    }

    /// Returns the accessed bits of up to 64 small pages, and leaves the bits as they are.
    fn are_accessed(&mut self, first: Page, pages: u64) -> u64 {
        let is_set = |i: &u32| pages >> i & 1 == 1;
        let found = (0..64).filter(is_set);
        found.fold(0, |found, i| {
            found | u64::from(self.is_accessed(first + i)) << i
        })
    }
}

const fn mask(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}
