//! The nodes' compaction threads: scanners execute the decisions of the engine's controller in simulated time.

use isotherm_engine::Nanos;
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, CompactionStatus, NodeFacts,
    RoundEnd, ZoneFacts, node_score,
};

use crate::compaction::Scanners;
use crate::cost::CompactionCosts;
use crate::memory::Memory;

/// A node's score at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreSample {
    pub time: Nanos,
    /// The node.
    pub node: u32,
    /// The score, from 0 to 100.
    pub score: f64,
}

/// A round of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Time at which it ended.
    pub time: Nanos,
    /// The node.
    pub node: u32,
    /// Reason of its end.
    pub ended: RoundEnd,
    /// The node's score before.
    pub score_before: f64,
    /// The node's score after.
    pub score_after: f64,
    /// CPU time that it took.
    pub took: Nanos,
    /// Pages that it moved.
    pub moved: u64,
    /// Frames of pageblocks that it scanned for pages to move.
    pub migrate_scanned: u64,
    /// Frames of pageblocks that it scanned for free ones.
    pub free_scanned: u64,
}

#[derive(Clone, Debug)]
struct Thread {
    node: u32,
    controller: CompactionController,
    /// Zones that it still compacts in this round, by their place among the node's; the last first.
    zones: Vec<usize>,
    is_compacting: bool,
    round: Round,
    has_met_end: bool,
    ended: Vec<Round>,
    /// The zone whose lock was contended in this round, by its place among the node's.
    contended: Option<usize>,
    /// Time until which it is busy, or sleeps.
    clock: Nanos,
    busy: Nanos,
    moved: u64,
    is_kswapd_awake: bool,
}

/// All nodes' threads.
#[derive(Clone, Debug)]
pub struct Kcompactd {
    threads: Vec<Thread>,
    /// The nodes' scores at every check.
    pub scores: Vec<ScoreSample>,
    order: u8,
}

/// Totals of a node's thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadSummary {
    /// The node.
    pub node: u32,
    /// Status of its controller.
    pub status: CompactionStatus,
    /// CPU time that it took.
    pub busy: Nanos,
    /// Pages that it moved.
    pub moved: u64,
}

impl Kcompactd {
    /// Creates a thread for each node.
    pub fn new(memory: &Memory, attributes: CompactionAttributes) -> Self {
        let thread = |node| Thread {
            node,
            controller: CompactionController::new(attributes),
            zones: Vec::new(),
            is_compacting: false,
            round: Round {
                time: Nanos(0),
                node,
                ended: RoundEnd::AtLow,
                score_before: 0.0,
                score_after: 0.0,
                took: Nanos(0),
                moved: 0,
                migrate_scanned: 0,
                free_scanned: 0,
            },
            has_met_end: false,
            ended: Vec::new(),
            contended: None,
            clock: Nanos(0),
            busy: Nanos(0),
            moved: 0,
            is_kswapd_awake: false,
        };
        Self {
            threads: (0..memory.nr_nodes()).map(thread).collect(),
            scores: Vec::new(),
            order: attributes.order,
        }
    }

    /// Sets whether a node's kswapd is active: its compaction thread then backs off.
    pub fn note_kswapd(&mut self, node: u32, is_awake: bool) {
        self.threads[node as usize].is_kswapd_awake = is_awake;
    }

    /// Lets the threads run up to `until`. A step that begins before `until` may end after it.
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
                    let facts = thread.facts(memory);
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

    /// Totals of each thread.
    pub fn summary(&self) -> Vec<ThreadSummary> {
        let summary = |thread: &Thread| ThreadSummary {
            node: thread.node,
            status: thread.controller.status(),
            busy: thread.busy,
            moved: thread.moved,
        };
        self.threads.iter().map(summary).collect()
    }

    /// CPU time that the threads took together.
    pub fn busy(&self) -> Nanos {
        let busy = self.threads.iter().map(|thread| thread.busy);
        busy.fold(Nanos(0), |sum, busy| sum + busy)
    }

    /// The status of a node's controller.
    pub fn status(&self, node: u32) -> CompactionStatus {
        self.threads[node as usize].controller.status()
    }

    /// Removes and returns the rounds that have ended since the last call, node by node.
    pub fn take_rounds(&mut self) -> Vec<Round> {
        let threads = self.threads.iter_mut();
        threads.flat_map(|thread| thread.ended.drain(..)).collect()
    }

    /// Whether every thread sleeps.
    pub fn is_at_rest(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_compacting)
    }
}

impl Thread {
    fn facts(&self, memory: &Memory) -> NodeFacts {
        NodeFacts {
            kswapd_active: self.is_kswapd_awake,
            ..node_facts(memory, self.node)
        }
    }

    fn end_round(&mut self, facts: &NodeFacts) {
        let attributes = self.controller.attributes();
        let score_after = node_score(facts, attributes.order);
        let ended = if score_after <= attributes.low() {
            RoundEnd::AtLow
        } else if self.contended.is_some() {
            RoundEnd::Contended
        } else if facts.kswapd_active && !self.has_met_end {
            RoundEnd::Kswapd
        } else {
            RoundEnd::ToTheEnd
        };
        self.ended.push(Round {
            time: self.clock,
            ended,
            score_after,
            ..self.round
        });
    }

    fn check(&mut self, facts: &NodeFacts) {
        if let CompactionDecision::Compact { mut zones } = self.controller.check(self.clock, facts)
        {
            zones.reverse();
            self.zones = zones;
            self.is_compacting = true;
            self.has_met_end = false;
            self.round = Round {
                score_before: node_score(facts, self.controller.attributes().order),
                took: Nanos(0),
                moved: 0,
                migrate_scanned: 0,
                free_scanned: 0,
                ..self.round
            };
        } else {
            self.clock = self.controller.next_check().max(self.clock + Nanos(1));
        }
    }

    fn step(&mut self, memory: &mut Memory, scanners: &mut [Scanners], costs: &CompactionCosts) {
        let mut facts = self.facts(memory);
        if let Some(zone) = self.contended {
            facts.zones[zone].contended = true;
        }
        let Some(&zone) = self.zones.last() else {
            self.controller.done(self.clock, &facts);
            self.end_round(&facts);
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
            self.has_met_end = true;
        }
        let round = &mut self.round;
        round.took = round.took + step.took;
        round.moved += step.moved;
        round.migrate_scanned += step.migrate_scanned;
        round.free_scanned += step.free_scanned;
        self.clock = self.clock + step.took;
        self.busy = self.busy + step.took;
        self.moved += step.moved;
    }
}

/// Returns the facts about a node that its controller needs.
pub fn node_facts(memory: &Memory, node: u32) -> NodeFacts {
    let zones = memory.zones_of(node).map(|place| {
        let zone = &memory.zones()[place];
        ZoneFacts {
            name: zone.name.to_owned(),
            present_pages: zone.pages,
            free_blocks: zone.free_blocks,
            contended: false,
        }
    });
    NodeFacts {
        node,
        zones: zones.collect(),
        kswapd_active: false,
    }
}
