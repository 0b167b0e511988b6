//! The nodes' compaction threads: the engine's controller, carried out by scanners in simulated time.

use isotherm_engine::Nanos;
use isotherm_engine::compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, CompactionStatus, NodeFacts,
    ZoneFacts, node_score,
};
use serde::Serialize;

use crate::compaction::Scanners;
use crate::cost::CompactionCosts;
use crate::memory::Memory;

/// A node's score at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScoreSample {
    /// When.
    pub time: Nanos,
    /// Of which node.
    pub node: u32,
    /// 0 to 100.
    pub score: f64,
}

/// One node's thread.
#[derive(Clone, Debug)]
struct Thread {
    node: u32,
    controller: CompactionController,
    /// Zones that it is to compact in this round, by their place among the node's; the last first.
    zones: Vec<usize>,
    is_compacting: bool,
    /// The zone, likewise, whose lock another had in this round.
    contended: Option<usize>,
    /// Until when it is busy, or sleeps.
    clock: Nanos,
    busy: Nanos,
    moved: u64,
}

/// All nodes' threads.
#[derive(Clone, Debug)]
pub struct Kcompactd {
    threads: Vec<Thread>,
    scores: Vec<ScoreSample>,
    order: u8,
}

/// What a node's thread came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThreadSummary {
    /// Which node's.
    pub node: u32,
    /// How its controller stands.
    pub status: CompactionStatus,
    /// CPU time that it took.
    pub busy: Nanos,
    /// Pages that it moved.
    pub moved: u64,
}

impl Kcompactd {
    /// A thread for each node.
    pub fn new(memory: &Memory, attributes: CompactionAttributes) -> Self {
        let thread = |node| Thread {
            node,
            controller: CompactionController::new(attributes),
            zones: Vec::new(),
            is_compacting: false,
            contended: None,
            clock: Nanos(0),
            busy: Nanos(0),
            moved: 0,
        };
        Self {
            threads: (0..memory.nr_nodes()).map(thread).collect(),
            scores: Vec::new(),
            order: attributes.order,
        }
    }

    /// Lets the threads run up to `until`. A step that begins before may end after.
    pub fn run(
        &mut self,
        until: Nanos,
        memory: &mut Memory,
        scanners: &mut [Scanners],
        costs: &CompactionCosts,
    ) {
        for thread in &mut self.threads {
            while thread.clock < until {
                if thread.is_compacting {
                    thread.step(memory, scanners, costs);
                } else {
                    let facts = node_facts(memory, thread.node);
                    self.scores.push(ScoreSample {
                        time: thread.clock,
                        node: thread.node,
                        score: node_score(&facts, self.order),
                    });
                    thread.check(&facts);
                }
            }
        }
    }

    /// The nodes' scores whenever they were checked, and at the end of every round.
    pub fn scores(&self) -> &[ScoreSample] {
        &self.scores
    }

    /// What the threads came to.
    pub fn summary(&self) -> Vec<ThreadSummary> {
        let summary = |thread: &Thread| ThreadSummary {
            node: thread.node,
            status: thread.controller.status(),
            busy: thread.busy,
            moved: thread.moved,
        };
        self.threads.iter().map(summary).collect()
    }

    /// Whether every thread sleeps.
    pub fn is_at_rest(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_compacting)
    }
}

impl Thread {
    fn check(&mut self, facts: &NodeFacts) {
        if let CompactionDecision::Compact { mut zones } = self.controller.check(self.clock, facts)
        {
            zones.reverse();
            self.zones = zones;
            self.is_compacting = true;
        } else {
            self.clock = self.controller.next_check().max(self.clock + Nanos(1));
        }
    }

    fn step(&mut self, memory: &mut Memory, scanners: &mut [Scanners], costs: &CompactionCosts) {
        let mut facts = node_facts(memory, self.node);
        if let Some(zone) = self.contended {
            facts.zones[zone].contended = true;
        }
        let Some(&zone) = self.zones.last() else {
            self.controller.done(self.clock, &facts);
            self.contended = None;
            self.is_compacting = false;
            self.clock = self.controller.next_check().max(self.clock + Nanos(1));
            return;
        };
        if !self.controller.keeps_going(&facts, zone) {
            self.zones.pop();
            return;
        }
        let Some(place) = memory.zones_of(self.node).nth(zone) else {
            unreachable!("the facts were of this memory");
        };
        let step = scanners[place].step(memory, costs);
        if step.is_contended {
            self.contended = Some(zone);
        }
        if step.round_ended.is_some() {
            self.zones.pop();
        }
        self.clock = self.clock + step.took;
        self.busy = self.busy + step.took;
        self.moved += step.moved;
    }
}

/// What the controller asks about a node.
pub fn node_facts(memory: &Memory, node: u32) -> NodeFacts {
    let zones = memory.zones_of(node).map(|place| {
        let zone = &memory.zones()[place];
        ZoneFacts {
            name: zone.name().to_owned(),
            present_pages: zone.pages(),
            free_blocks: zone.free_blocks(),
            contended: false,
        }
    });
    NodeFacts {
        node,
        zones: zones.collect(),
        kswapd_active: false,
    }
}
