//! Compaction, page by page, as in the kernel's `mm/compaction.c`. One scanner goes up through a zone for pages to
//! move. The other goes down for free frames to move them to.
//!
//! Pages of the lowest pageblocks go into the free frames of the highest, so that low pageblocks become free as a
//! whole. A round is over when the scanners meet. All that compact the zone share the scanners' positions, which stay
//! from round to round.
//!
//! Limits: locks are contended, and pages of processes stay where they are, only where [`Faults`] say so.

use isotherm_engine::Nanos;

use crate::cost::CompactionCosts;
use crate::fault::Faults;
use crate::memory::{BLOCK_PAGES, Memory, Owner, Pfn};

/// Pages that are moved together (COMPACT_CLUSTER_MAX).
const CLUSTER: usize = 32;

/// The scanners of a zone.
#[derive(Clone, Debug)]
pub struct Scanners {
    zone: usize,
    /// The frame, counted from the zone's start, from which the scan for pages goes on.
    migrate: u64,
    /// The pageblock, counted from the zone's start, below which the scan for free frames goes on.
    free: u64,
    /// Free frames that were isolated, and not filled yet.
    isolated: Vec<Pfn>,
    /// Whether the round has moved nothing so far.
    is_idle_round: bool,
    faults: Faults,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStep {
    /// Pages moved.
    pub moved: u64,
    /// Time that it took.
    pub took: Nanos,
    /// Frames of pageblocks that were scanned for pages to move.
    pub migrate_scanned: u64,
    /// Frames of pageblocks that were scanned for free ones.
    pub free_scanned: u64,
    /// Whether another had the zone's lock, and nothing was done.
    pub is_contended: bool,
    /// `Some(whether the round moved anything)` if the scanners met. The next step begins a new round.
    pub round_ended: Option<bool>,
}

impl Scanners {
    /// Creates scanners at the ends of a zone.
    pub fn new(memory: &Memory, zone: usize) -> Self {
        Self {
            zone,
            migrate: 0,
            free: memory.zones()[zone].nr_blocks(),
            isolated: Vec::new(),
            is_idle_round: true,
            faults: Faults::default(),
        }
    }

    /// Lets `faults` happen from now on.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The pageblock that the migrate scanner is in, counted from the zone's start.
    pub fn position(&self) -> u64 {
        self.migrate / BLOCK_PAGES
    }

    /// Pageblocks between the two scanners.
    pub fn distance(&self) -> u64 {
        self.free.saturating_sub(self.position())
    }

    /// Moves up to 32 pages of one pageblock.
    pub fn step(&mut self, memory: &mut Memory, costs: &CompactionCosts) -> CompactionStep {
        let mut step = CompactionStep::default();
        if self.faults.is_contended() {
            step.is_contended = true;
            step.took = costs.pass_block;
            return step;
        }
        let Some(sources) = self.isolate_pages(memory, costs, &mut step) else {
            return self.end_round(memory, step);
        };
        for source in sources {
            let Some(target) = self.isolate_free(memory, costs, &mut step) else {
                return self.end_round(memory, step);
            };
            step.took = step.took + costs.migrate_page;
            if self.faults.fails_migration() {
                self.isolated.push(target);
                continue;
            }
            memory.move_page(source, target);
            step.moved += 1;
        }
        self.is_idle_round &= step.moved == 0;
        step
    }

    /// Returns the isolated free frames to the zone.
    pub fn release(&mut self, memory: &mut Memory) {
        for frame in self.isolated.drain(..) {
            memory.release_isolated(frame);
        }
    }

    fn isolate_pages(
        &mut self,
        memory: &Memory,
        costs: &CompactionCosts,
        step: &mut CompactionStep,
    ) -> Option<Vec<Pfn>> {
        let zone = &memory.zones()[self.zone];
        while self.position() < self.free {
            let block = self.position();
            let end = (block + 1) * BLOCK_PAGES;
            // Moving a full block gains nothing: it would need just as much free memory.
            let is_worth = zone.movable_in(block) > 0 && zone.movable_in(block) < BLOCK_PAGES;
            if !is_worth || !zone.is_movable(block) {
                step.took = step.took + costs.pass_block;
                self.migrate = end;
                continue;
            }
            if self.migrate.is_multiple_of(BLOCK_PAGES) {
                step.took = step.took + costs.scan_block;
                step.migrate_scanned += BLOCK_PAGES;
            }
            let mut pages = Vec::with_capacity(CLUSTER);
            while self.migrate < end && pages.len() < CLUSTER {
                let frame = zone.start + self.migrate;
                if matches!(memory.owner(frame), Owner::Page(_)) {
                    pages.push(frame);
                }
                self.migrate += 1;
            }
            if !pages.is_empty() {
                return Some(pages);
            }
        }
        None
    }

    /// Isolates a free frame of the highest pageblocks that have some and are not free as a whole.
    fn isolate_free(
        &mut self,
        memory: &mut Memory,
        costs: &CompactionCosts,
        step: &mut CompactionStep,
    ) -> Option<Pfn> {
        while self.isolated.is_empty() {
            let source = (self.migrate - 1) / BLOCK_PAGES;
            if self.free <= source + 1 {
                return None;
            }
            self.free -= 1;
            let zone = &memory.zones()[self.zone];
            let free = zone.free_in(self.free);
            if free == 0 || free == BLOCK_PAGES || !zone.is_movable(self.free) {
                step.took = step.took + costs.pass_block;
                continue;
            }
            step.took = step.took + costs.scan_block;
            step.free_scanned += BLOCK_PAGES;
            for (frame, order) in zone.free_blocks_in(self.free) {
                memory.isolate(self.zone, frame, order);
                self.isolated.extend(frame..frame + (1 << order));
            }
        }
        self.isolated.pop()
    }

    fn end_round(&mut self, memory: &mut Memory, step: CompactionStep) -> CompactionStep {
        self.release(memory);
        let moved = !self.is_idle_round || step.moved > 0;
        let faults = std::mem::take(&mut self.faults);
        *self = Self::new(memory, self.zone).with_faults(faults);
        CompactionStep {
            round_ended: Some(moved),
            ..step
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cost::PUBLISHED_MACHINE;
    use crate::memory::{BLOCK_ORDER, NodeSize};

    /// Builds a zone of pageblocks. The first `used` pages of each are a process's.
    fn zone_with(used: &[u64]) -> Memory {
        let blocks = used.len().next_multiple_of(2) as u64;
        let zones = vec![("Normal", blocks * BLOCK_PAGES)];
        let mut memory = Memory::new(&[NodeSize { zones }]);
        for &used in used {
            let pages = memory.add_pages(BLOCK_PAGES);
            memory
                .allocate_pages(0, BLOCK_ORDER, pages.start)
                .expect("room");
            memory.free_run(pages.start + used as u32, (BLOCK_PAGES - used) as u32);
        }
        memory
    }

    fn compact(memory: &mut Memory) -> (u64, bool) {
        let mut scanners = Scanners::new(memory, 0);
        let mut moved = 0;
        loop {
            let step = scanners.step(memory, &PUBLISHED_MACHINE);
            memory.check().expect("every frame is in one place");
            moved += step.moved;
            if let Some(any) = step.round_ended {
                return (moved, any);
            }
        }
    }

    #[test]
    fn four_quarters_become_one_block() {
        let mut memory = zone_with(&[128; 8]);
        assert_eq!(memory.zones()[0].free_blocks[9..], [0, 0]);
        let (moved, any) = compact(&mut memory);
        assert_eq!((moved, any), (6 * 128, true));
        assert_eq!(memory.zones()[0].free_blocks[9..], [0, 3]);
    }

    #[test]
    fn the_kernels_pages_stay() {
        let zones = vec![("Normal", 8 * BLOCK_PAGES)];
        let mut memory = Memory::new(&[NodeSize { zones }]);
        for _ in 0..8 {
            let frame = memory.allocate_kernel(0, BLOCK_ORDER).expect("room");
            memory.free_kernel(frame, BLOCK_ORDER - 1);
        }
        assert_eq!(compact(&mut memory), (0, false));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn nothing_is_lost_and_whole_blocks_are_never_fewer(used in prop::collection::vec(1_u64..511, 2..24)) {
            let mut memory = zone_with(&used);
            let whole = |memory: &Memory| {
                let nr = memory.zones()[0].free_blocks;
                nr[9] + 2 * nr[10]
            };
            let (free, before) = (memory.free_pages(), whole(&memory));
            compact(&mut memory);
            prop_assert_eq!(memory.free_pages(), free);
            prop_assert!(whole(&memory) >= before);
        }
    }
}
