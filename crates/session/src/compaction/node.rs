//! One node, with its checks, decisions and rounds of compaction.

use isotherm_engine::Nanos;
use isotherm_linux::clock::Clock;
use isotherm_linux::compaction::{
    Compacted, CompactionCounters, CompactionError, FragmentationReader, Kswapd, Trigger,
};
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionController, CompactionDecision, CompactionState,
    CompactionStatus, NodeFacts, RoundEnd, node_score,
};
use serde::Serialize;

use crate::signals::Signals;

/// Time between two checks of a node while it is compacted: at some GB/s of scanning, a few MB.
const STEP: Nanos = Nanos::from_millis(5);

/// A round of compaction.
#[derive(Clone, Debug, Serialize)]
pub struct CompactionRound {
    /// The node's score before.
    pub score_before: f64,
    /// The node's score after.
    pub score_after: f64,
    /// Reason for its end.
    pub ended: RoundEnd,
    /// Time that it took.
    pub took_ns: Nanos,
    /// CPU time that it took.
    pub cpu_ns: Nanos,
    /// Growth of the machine's counters of compaction.
    pub counters: CompactionCounters,
    /// Time for which the next round is deferred, if this one brought nothing.
    pub deferred_ns: Option<Nanos>,
    /// The node afterwards.
    #[serde(skip)]
    pub after: NodeFacts,
}

/// Totals of rounds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoundTotals {
    /// Number of rounds.
    pub count: u64,
    /// Time that they took.
    pub took_ns: Nanos,
    /// CPU time that they took.
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

pub(super) struct Node {
    pub(super) number: u32,
    fragmentation: FragmentationReader,
    kswapd: Kswapd,
    controller: CompactionController,
    /// Trigger of the kernel's compaction; none in a dry run.
    trigger: Option<Trigger>,
    /// Status that the controller would have; only in a dry run.
    trial: Option<CompactionStatus>,
    /// Time of the next check. A deferred node is checked as well, for the record.
    pub(super) next_look: Nanos,
    pub(super) totals: RoundTotals,
}

impl Node {
    /// Opens a node, and checks that it can be compacted, which a dry run does not need.
    pub(super) fn open(
        number: u32,
        fragmentation: &FragmentationReader,
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

    fn attributes(&self) -> CompactionAttributes {
        *self.controller.attributes()
    }

    /// Returns the status of the controller; in a dry run, the one that it would have.
    pub(super) fn status(&self) -> CompactionStatus {
        self.trial.unwrap_or_else(|| self.controller.status())
    }

    pub(super) fn look(&mut self) -> Result<NodeFacts, CompactionError> {
        let mut facts = self.fragmentation.node(self.number)?;
        facts.kswapd_active = self.kswapd.is_active();
        Ok(facts)
    }

    /// Returns the decision on the node, and sets the time of the next check.
    pub(super) fn check(&mut self, now: Nanos, facts: &NodeFacts) -> CompactionDecision {
        self.next_look = now + self.attributes().check_interval;
        if self.trigger.is_some() {
            return self.controller.check(now, facts);
        }
        // The check runs on a copy: a round that is not executed brings nothing, but must not defer the next one.
        let mut trial = self.controller.clone();
        let decision = trial.check(now, facts);
        self.trial = Some(CompactionStatus {
            nr_rounds: 0,
            ..trial.status()
        });
        decision
    }

    /// Executes a round, and passes each check of the node in between to `show`. Panics in a dry run.
    pub(super) fn compact(
        &mut self,
        zones: &[usize],
        clock: Clock,
        signals: &Signals,
        show: &mut dyn FnMut(CompactionStatus, &NodeFacts),
    ) -> Result<CompactionRound, CompactionError> {
        let trigger = self.trigger.as_ref();
        let trigger = trigger.expect("a dry run compacts nothing");
        let counters = CompactionCounters::read();
        let score_before = self.controller.status().score.unwrap_or(0.0);
        let mut compacting = trigger.start()?;
        let ended = loop {
            if compacting.wait(STEP) {
                break RoundEnd::ToTheEnd;
            }
            if signals.is_stopped() {
                break RoundEnd::Interrupted;
            }
            let facts = self.look()?;
            let score = Some(node_score(&facts, self.attributes().order));
            let status = self.status();
            show(CompactionStatus { score, ..status }, &facts);
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
        self.totals.count += 1;
        self.totals.took_ns = self.totals.took_ns + took;
        self.totals.cpu_ns = self.totals.cpu_ns + cpu;
        let deferred_ns = match self.controller.status().state {
            CompactionState::Deferred { until } => Some(until.since(now)),
            _ => None,
        };
        Ok(CompactionRound {
            score_before,
            score_after: node_score(&after, self.attributes().order),
            // The round may have ended just when it was about to be stopped.
            ended: if to_the_end {
                RoundEnd::ToTheEnd
            } else {
                ended
            },
            took_ns: took,
            cpu_ns: cpu,
            counters: CompactionCounters::read().since(counters),
            deferred_ns,
            after,
        })
    }
}

/// Returns the reason to stop a round, if there is one. The kernel takes the zones in its own order: the round
/// continues as long as any of `zones` needs it.
fn why_stop(
    controller: &CompactionController,
    facts: &NodeFacts,
    zones: &[usize],
) -> Option<RoundEnd> {
    let is_there = |zone: &&usize| **zone < facts.zones.len();
    let mut ended = RoundEnd::AtLow;
    for zone in zones.iter().filter(is_there) {
        let why = controller.stop(facts, *zone)?;
        if why != RoundEnd::AtLow {
            ended = why;
        }
    }
    Some(ended)
}
