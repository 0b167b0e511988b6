//! A machine of fast and slow nodes, watched by physical address: a probe of its accessed bits, and an
//! actuator that migrates its pages.
//!
//! A node is one zone, and node `n` is zone `n`. New pages go to the first node that has room, as by
//! default in the kernel, and stay where they are unless a scheme moves them.

use std::collections::BTreeMap;

use isotherm_engine::scheme::{Action, OpsFilter};
use isotherm_engine::{AddressRange, Nanos, Operation, Outcome, PAGE_SIZE, Refusal, Sample, Touch};

use crate::access::{Accesses, Use};
use crate::cost::TierCosts;
use crate::memory::{Memory, NodeSize, Owner, Page, Pfn};

/// The machine.
#[derive(Clone, Debug)]
pub struct TieredMachine {
    /// Where pages are.
    pub memory: Memory,
    /// How they are accessed.
    pub accesses: Accesses,
    costs: TierCosts,
    /// Pages that each node keeps free.
    moved: BTreeMap<(u32, u32), u64>,
}

impl TieredMachine {
    /// Nodes of so many pages, of which `reserved` each are never given to processes.
    pub fn new(nodes: &[(u64, u64)], costs: TierCosts, seed: u64) -> Self {
        let sizes = nodes.iter().map(|(pages, _)| NodeSize {
            zones: vec![("Normal", *pages)],
        });
        let mut memory = Memory::new(&sizes.collect::<Vec<_>>());
        for (node, (_, reserved)) in nodes.iter().enumerate() {
            memory.set_watermark(node, *reserved);
        }
        Self {
            memory,
            accesses: Accesses::new(seed),
            costs,
            moved: BTreeMap::new(),
        }
    }

    /// The node that a frame is on.
    pub fn node_of(&self, frame: Pfn) -> u32 {
        self.memory.zone_at(frame) as u32
    }

    /// A node's physical addresses.
    pub fn range_of(&self, node: u32) -> AddressRange {
        let zone = &self.memory.zones()[node as usize];
        AddressRange::new(zone.start() * PAGE_SIZE, zone.end() * PAGE_SIZE)
    }

    /// Puts the `2^order` pages from `page` on on the first of `nodes` that has room. Where none has
    /// room for all, page by page; whether all are in memory.
    pub fn populate(&mut self, page: Page, order: u8, nodes: &[u32]) -> bool {
        let place = |machine: &mut Self, page, order| {
            let mut nodes = nodes.iter();
            nodes.any(|node| {
                machine
                    .memory
                    .allocate_pages(*node as usize, order, page)
                    .is_some()
            })
        };
        place(self, page, order) || (order > 0 && (0..1 << order).all(|i| place(self, page + i, 0)))
    }

    /// Pages that were moved from one node to another.
    pub fn moved(&self) -> &BTreeMap<(u32, u32), u64> {
        &self.moved
    }

    /// Starts to watch `samples`, by physical address.
    pub fn arm(&mut self, samples: &[Sample], now: Nanos) {
        for sample in samples {
            for frame in frames_of(sample) {
                if let Owner::Page(page) = self.memory.owner(frame) {
                    self.accesses.clear(page, now);
                }
            }
        }
    }

    /// What became of `samples`, armed before.
    pub fn check(&mut self, samples: &[Sample], now: Nanos, touches: &mut Vec<Touch>) {
        touches.clear();
        for sample in samples {
            let mut accessed = 0;
            for frame in frames_of(sample) {
                if let Owner::Page(page) = self.memory.owner(frame) {
                    accessed += u32::from(self.accesses.is_accessed(page, now));
                }
            }
            // The kernel takes a frame that nobody has for one that nobody accesses, and so it is.
            touches.push(Touch::Seen {
                observed: sample.nr_pages,
                accessed,
            });
        }
    }

    /// Carries out operations: one outcome for each, in their order.
    pub fn act(
        &mut self,
        operations: &[Operation],
        now: Nanos,
        moves: &mut Vec<(Page, u32)>,
    ) -> Vec<Outcome> {
        let act = |operation| self.act_on(operation, now, moves);
        operations.iter().map(act).collect()
    }

    fn act_on(
        &mut self,
        operation: &Operation,
        now: Nanos,
        moves: &mut Vec<(Page, u32)>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let to = operation.destinations.first().map(|to| to.node);
        let (first, end) = (
            operation.range.start / PAGE_SIZE,
            operation.range.end / PAGE_SIZE,
        );
        let refused = |why, outcome: &mut Outcome| {
            *outcome.refused.entry(why).or_default() += PAGE_SIZE;
        };
        for frame in first..end {
            outcome.took = outcome.took + self.costs.look_at_frame;
            let Owner::Page(page) = self.memory.owner(frame) else {
                refused(Refusal::NotPresent, &mut outcome);
                continue;
            };
            if !self.passes(operation, page, now, &mut outcome.took) {
                continue;
            }
            outcome.filter_passed += PAGE_SIZE;
            let from = self.node_of(frame);
            let to = match operation.action {
                Action::Stat => {
                    outcome.applied += PAGE_SIZE;
                    continue;
                }
                Action::MigrateHot | Action::MigrateCold => to,
                _ => None,
            };
            match to {
                None => refused(Refusal::Unsupported, &mut outcome),
                Some(to) if to == from => refused(Refusal::NotPresent, &mut outcome),
                Some(to) => {
                    outcome.took = outcome.took + self.costs.migrate_page;
                    if self.memory.migrate(frame, to as usize) {
                        outcome.applied += PAGE_SIZE;
                        *self.moved.entry((from, to)).or_default() += 1;
                        moves.push((page, to));
                    } else {
                        refused(Refusal::NoRoom, &mut outcome);
                    }
                }
            }
        }
        outcome
    }

    /// The first filter that matches decides.
    fn passes(&mut self, operation: &Operation, page: Page, now: Nanos, took: &mut Nanos) -> bool {
        for (filter, matching, allow) in &operation.filters {
            let has = match filter {
                OpsFilter::Anon => self.accesses.purpose(page) == Use::Anon,
                OpsFilter::Young => {
                    *took = *took + self.costs.look_at_bit;
                    let young = self.accesses.is_accessed(page, now);
                    self.accesses.clear(page, now);
                    young
                }
                OpsFilter::Unmapped => self.accesses.purpose(page) == Use::File,
                OpsFilter::HugepageSize { min, .. } => *min <= PAGE_SIZE,
                OpsFilter::Active | OpsFilter::Memcg { .. } => false,
            };
            if has == *matching {
                return *allow;
            }
        }
        operation.pass_unmatched
    }
}

fn frames_of(sample: &Sample) -> std::ops::Range<Pfn> {
    let first = sample.address / PAGE_SIZE;
    first..first + u64::from(sample.nr_pages)
}

#[cfg(test)]
mod tests {
    use isotherm_engine::TargetId;
    use isotherm_engine::scheme::Destination;

    use super::*;
    use crate::access::Rates;
    use crate::cost::PUBLISHED_TIERS;

    fn demotion(range: AddressRange) -> Operation {
        Operation {
            scheme: 0,
            action: Action::MigrateCold,
            destinations: vec![Destination { node: 1, weight: 1 }],
            target: TargetId(0),
            range,
            filters: vec![(OpsFilter::Young, true, false)],
            pass_unmatched: true,
            idle_only: true,
        }
    }

    #[test]
    fn idle_pages_move_as_long_as_there_is_room() {
        let mut machine = TieredMachine::new(&[(4096, 0), (1024, 0)], PUBLISHED_TIERS, 1);
        let pages = machine.memory.add_pages(4096);
        machine.accesses.add(pages, Use::Anon, Rates::Never);
        for block in 0..8 {
            assert!(machine.populate(block * 512, 9, &[0, 1]));
        }
        let operation = demotion(machine.range_of(0));
        let mut moves = Vec::new();
        // At first all are young, as they were just filled; looking makes them old.
        let first = machine.act(std::slice::from_ref(&operation), Nanos(0), &mut moves);
        assert_eq!((first[0].filter_passed, moves.len()), (0, 0));
        let second = machine.act(&[operation], Nanos::from_millis(1_000), &mut moves);
        assert_eq!(second[0].applied, 1024 * PAGE_SIZE);
        assert_eq!(second[0].refused[&Refusal::NoRoom], 3072 * PAGE_SIZE);
        assert_eq!((moves.len(), machine.moved()[&(0, 1)]), (1024, 1024));
        machine.memory.check().expect("every frame is in one place");
    }
}
