//! One node: looked at, decided about, compacted.

use isotherm_engine::Nanos;
use isotherm_engine::compaction::{
    BackOff, CompactionAttributes, CompactionController, CompactionDecision, CompactionState,
    CompactionStatus, NodeFacts, RoundEnd, Stop, node_score,
};
use isotherm_linux::clock::Clock;
use isotherm_linux::compaction::{
    Compacted, CompactionError, Counters, Fragmentation, Kswapd, Trigger,
};
use serde::Serialize;

use crate::signals::Signals;

/// Time between two looks at a node while it is compacted: at some GB/s of scanning, a few MB.
const STEP: Nanos = Nanos::from_millis(5);

/// A round of compaction.
#[derive(Clone, Debug, Serialize)]
pub struct CompactionRound {
    /// The node's score before.
    pub score_before: f64,
    /// And after.
    pub score_after: f64,
    /// Why it ended.
    pub ended: RoundEnd,
    /// Time that it took.
    pub took_ns: Nanos,
    /// CPU time of that.
    pub cpu_ns: Nanos,
    /// What the machine's counters of compaction grew by.
    pub counters: Counters,
    /// How long the next one is put off, as this one brought nothing.
    pub deferred_ns: Option<Nanos>,
    /// The node afterwards.
    #[serde(skip)]
    pub after: NodeFacts,
}

/// What rounds have come to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoundTotals {
    /// How many.
    pub count: u64,
    /// Time that they took.
    pub took_ns: Nanos,
    /// CPU time of that.
    pub cpu_ns: Nanos,
}

impl std::iter::Sum for RoundTotals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            count: sum.count + one.count,
            took_ns: sum.took_ns + one.took_ns,
            cpu_ns: sum.cpu_ns + one.cpu_ns,
        })
    }
}

/// What is wanted of a node's controller, and how it is doing.
#[derive(Clone, Copy)]
pub(super) struct NodeStatus {
    pub(super) attributes: CompactionAttributes,
    pub(super) status: CompactionStatus,
}

/// One node.
pub(super) struct Node {
    number: u32,
    fragmentation: Fragmentation,
    kswapd: Kswapd,
    controller: CompactionController,
    /// None where nothing is to be done.
    trigger: Option<Trigger>,
    /// How a dry run would stand.
    trial: Option<CompactionStatus>,
    next_look: Nanos,
    totals: RoundTotals,
}

impl Node {
    /// The node, once it is known that it can be compacted; a dry run needs no such thing.
    pub(super) fn open(
        number: u32,
        fragmentation: &Fragmentation,
        attributes: CompactionAttributes,
        dry_run: bool,
    ) -> Result<Self, CompactionError> {
        let trigger = (!dry_run).then(|| Trigger::open(number)).transpose()?;
        Ok(Self {
            number,
            fragmentation: fragmentation.clone(),
            kswapd: Kswapd::of_node(number),
            controller: CompactionController::new(attributes),
            trigger,
            trial: None,
            next_look: Nanos(0),
            totals: RoundTotals::default(),
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn totals(&self) -> RoundTotals {
        self.totals
    }

    pub(super) fn attributes(&self) -> CompactionAttributes {
        *self.controller.attributes()
    }

    /// How its controller stands; in a dry run, how it would.
    pub(super) fn status(&self) -> CompactionStatus {
        self.trial.unwrap_or_else(|| self.controller.status())
    }

    /// Both at once, for a record.
    pub(super) fn node_status(&self) -> NodeStatus {
        NodeStatus {
            attributes: self.attributes(),
            status: self.status(),
        }
    }

    /// When to look again. While it is deferred it is looked at as well, for the record.
    pub(super) fn next_look(&self) -> Nanos {
        self.next_look
    }

    /// The node as it is now.
    pub(super) fn look(&mut self) -> Result<NodeFacts, CompactionError> {
        let mut facts = self.fragmentation.node(self.number)?;
        facts.kswapd_active = self.kswapd.is_active();
        Ok(facts)
    }

    /// What to do.
    pub(super) fn check(&mut self, now: Nanos, facts: &NodeFacts) -> CompactionDecision {
        self.next_look = now + self.attributes().check_interval;
        if self.trigger.is_some() {
            return self.controller.check(now, facts);
        }
        // A round that is not carried out brings nothing, which says nothing about the next.
        let mut trial = self.controller.clone();
        let decision = trial.check(now, facts);
        self.trial = Some(CompactionStatus {
            nr_rounds: 0,
            ..trial.status()
        });
        decision
    }

    /// Carries out a round; shows every look at the node in between.
    ///
    /// # Panics
    /// In a dry run.
    pub(super) fn compact(
        &mut self,
        zones: &[usize],
        clock: Clock,
        signals: &Signals,
        show: &mut dyn FnMut(NodeStatus, &NodeFacts),
    ) -> Result<CompactionRound, CompactionError> {
        let trigger = self.trigger.as_ref();
        let trigger = trigger.expect("a dry run compacts nothing");
        let counters = Counters::read();
        let score_before = self.controller.status().score.unwrap_or(0.0);
        let mut compacting = trigger.start()?;
        let ended = loop {
            if compacting.wait(STEP) {
                break RoundEnd::Completed;
            }
            if signals.is_stopped() {
                break RoundEnd::Interrupted;
            }
            let facts = self.look()?;
            let node_status = self.node_status();
            let score = Some(node_score(&facts, node_status.attributes.order));
            let status = CompactionStatus {
                score,
                ..node_status.status
            };
            show(
                NodeStatus {
                    status,
                    ..node_status
                },
                &facts,
            );
            if let Some(ended) = why_stop(&self.controller, &facts, zones) {
                break ended;
            }
        };
        let Compacted {
            took,
            cpu,
            to_the_end,
        } = compacting.finish()?;
        let after = self.look()?;
        let now = clock.now();
        self.controller.done(now, &after);
        self.next_look = now + self.attributes().check_interval;
        self.totals = [
            self.totals,
            RoundTotals {
                count: 1,
                took_ns: took,
                cpu_ns: cpu,
            },
        ]
        .into_iter()
        .sum();
        let deferred_ns = match self.controller.status().state {
            CompactionState::Deferred { until } => Some(until.since(now)),
            _ => None,
        };
        Ok(CompactionRound {
            score_before,
            score_after: node_score(&after, self.attributes().order),
            // It may have ended just when we were about to stop it.
            ended: if to_the_end {
                RoundEnd::Completed
            } else {
                ended
            },
            took_ns: took,
            cpu_ns: cpu,
            counters: Counters::read().since(counters),
            deferred_ns,
            after,
        })
    }
}

/// The kernel takes the zones in its own order: it goes on as long as any of `zones` should.
fn why_stop(
    controller: &CompactionController,
    facts: &NodeFacts,
    zones: &[usize],
) -> Option<RoundEnd> {
    let is_there = |zone: &&usize| **zone < facts.zones.len();
    let mut ended = RoundEnd::AtLow;
    for zone in zones.iter().filter(is_there) {
        match controller.stop(facts, *zone)? {
            Stop::AtLow => {}
            Stop::BackOff(BackOff::Kswapd) => ended = RoundEnd::Kswapd,
            Stop::BackOff(BackOff::Contended) => ended = RoundEnd::Contended,
        }
    }
    Some(ended)
}
