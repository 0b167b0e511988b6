//! Compacts this machine's nodes ahead of demand: the engine's controller decides, and the kernel compacts. This module
//! joins them, for each node in turn. Observations and results are reported as record items and as events.

mod node;
mod report;

use std::collections::BTreeMap;

use isotherm_engine::Nanos;
use isotherm_linux::clock::{self, Clock};
use isotherm_linux::compaction::{FragmentationReader, kernel_proactiveness};
use isotherm_linux::host;
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionDecision, CompactionState, CompactionStatus, NodeFacts,
};
use isotherm_record::{CompactionSample, FragmentationSample, Header, Item};
use serde::{Deserialize, Serialize};

use crate::signals::Signals;
use node::Node;

pub use node::{CompactionRound, RoundTotals};
pub use report::CompactionReport;

/// Interval between samples, which need 700 bytes or so each: 60 MB in a day.
const SAMPLE_INTERVAL: Nanos = Nanos::from_millis(1000);
/// Tolerance for checks that come a little early: otherwise every second sample would be left out.
const EARLY: Nanos = Nanos::from_millis(20);

/// Settings of a compaction session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompactionSpec {
    /// The NUMA node to compact; all nodes if there is none.
    pub node: Option<u32>,
    /// Order, proactiveness and interval between checks.
    pub attributes: CompactionAttributes,
    /// Whether nothing is compacted, and decisions are only reported.
    pub is_dry_run: bool,
}

/// State of a node, and the result of its check.
#[derive(Clone, Debug)]
pub struct NodeCheck {
    /// State of the node before compaction.
    pub before: NodeFacts,
    /// Decision on the node.
    pub decision: CompactionDecision,
    /// Round of compaction, if there was one.
    pub round: Option<CompactionRound>,
}

/// An event of a session that keeps checking.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CompactionEvent<'a> {
    /// The session begins.
    Start {
        /// Attributes of the session.
        attributes: CompactionAttributes,
        /// The kernel's own `vm.compaction_proactiveness`, if it has one.
        kernel_proactiveness: Option<u32>,
        /// Whether nothing will be compacted.
        dry_run: bool,
        /// The nodes that are checked.
        nodes: Vec<u32>,
    },
    /// A node's controller has changed its state.
    State {
        /// Time since the start.
        #[serde(rename = "at_ns")]
        at: Nanos,
        /// Number of the node.
        node: u32,
        /// Status of its controller.
        #[serde(flatten)]
        status: CompactionStatus,
        /// The score above which the node is compacted.
        high: f64,
        /// Whether nothing is compacted.
        dry_run: bool,
    },
    /// A round has ended.
    Round {
        /// Time since the start.
        #[serde(rename = "at_ns")]
        at: Nanos,
        /// Number of the node.
        node: u32,
        /// Results of the round.
        #[serde(flatten)]
        round: &'a CompactionRound,
    },
    /// The session ends.
    End {
        /// Time since the start.
        #[serde(rename = "elapsed_ns")]
        elapsed: Nanos,
        /// Totals of all rounds.
        rounds: RoundTotals,
        /// Status of each node's controller.
        statuses: Vec<CompactionStatus>,
        /// CPU time that checking took.
        #[serde(rename = "own_cpu_ns")]
        own_cpu: Nanos,
    },
}

/// A receiver of events and record items.
pub trait CompactionOutput {
    /// Takes an event for the user.
    ///
    /// # Errors
    /// An error ends the session.
    fn event(&mut self, event: &CompactionEvent<'_>) -> anyhow::Result<()>;

    /// Takes an item for the record.
    ///
    /// # Errors
    /// An error ends the session.
    fn item(&mut self, item: Item) -> anyhow::Result<()>;
}

/// A session that checks nodes, and compacts them when it is time.
pub struct CompactionSession {
    spec: CompactionSpec,
    nodes: Vec<Node>,
    signals: Signals,
    clock: Clock,
    sampled: Sampled,
}

/// Attributes of all samples, and the time of each node's last one.
struct Sampled {
    attributes: CompactionAttributes,
    last: BTreeMap<u32, Nanos>,
}

impl Sampled {
    fn take(&mut self, now: Nanos, status: CompactionStatus, facts: &NodeFacts) -> Option<Item> {
        let due = |last: &Nanos| now.since(*last) + EARLY >= SAMPLE_INTERVAL;
        let is_due = self.last.get(&facts.node).is_none_or(due);
        is_due.then(|| self.sample(now, status, facts))
    }

    fn sample(&mut self, now: Nanos, status: CompactionStatus, facts: &NodeFacts) -> Item {
        self.last.insert(facts.node, now);
        Item::Fragmentation(FragmentationSample {
            time: now,
            attributes: self.attributes,
            facts: facts.clone(),
            status,
        })
    }
}

impl CompactionSession {
    /// Opens the nodes that are asked for.
    ///
    /// # Errors
    /// Fails if a node cannot be read or, except in a dry run, compacted.
    pub fn start(spec: CompactionSpec) -> anyhow::Result<Self> {
        let fragmentation = FragmentationReader::open()?;
        let numbers = match spec.node {
            Some(node) => vec![fragmentation.node(node)?.node],
            None => fragmentation
                .nodes()?
                .iter()
                .map(|facts| facts.node)
                .collect(),
        };
        let nodes = numbers
            .into_iter()
            .map(|number| Node::open(number, &fragmentation, spec.attributes, spec.is_dry_run));
        Ok(Self {
            spec,
            nodes: nodes.collect::<Result<_, _>>()?,
            signals: Signals::watch()?,
            clock: Clock::start(),
            sampled: Sampled {
                attributes: spec.attributes,
                last: BTreeMap::new(),
            },
        })
    }

    /// Returns the header of a record of this session.
    pub fn header(&self, command_line: Vec<String>) -> Header {
        let attributes = self.spec.attributes;
        let settings = [
            ("method", "compaction".to_owned()),
            ("order", attributes.order.to_string()),
            ("proactiveness", attributes.proactiveness.to_string()),
        ];
        Header {
            writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
            host: host::hostname(),
            kernel: host::kernel_release(),
            command: command_line,
            started: self.clock.now(),
            operations: "paddr".into(),
            settings: settings.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Header::default()
        }
    }

    /// Checks each node once, and compacts it if it is time to.
    ///
    /// # Errors
    /// Fails if a node cannot be read or compacted, or if `out` fails.
    pub fn look_once(&mut self, out: &mut dyn CompactionOutput) -> anyhow::Result<Vec<NodeCheck>> {
        let mut checks = Vec::new();
        for index in 0..self.nodes.len() {
            let before = self.nodes[index].look()?;
            let decision = self.nodes[index].check(self.clock.now(), &before);
            self.sample(index, &before, out)?;
            let round = match &decision {
                CompactionDecision::Compact { zones } if !self.spec.is_dry_run => {
                    Some(self.compact(index, zones, out)?)
                }
                _ => None,
            };
            checks.push(NodeCheck {
                before,
                decision,
                round,
            });
        }
        Ok(checks)
    }

    /// Keeps checking the nodes, until `duration` has passed or a signal asks for the end.
    ///
    /// # Errors
    /// Fails if a node cannot be read or compacted, or if `out` fails.
    pub fn keep_looking(
        &mut self,
        duration: Option<Nanos>,
        out: &mut dyn CompactionOutput,
    ) -> anyhow::Result<()> {
        let started = self.clock.now();
        let cpu_before = clock::process_cpu();
        let ends_at = duration.map_or(Nanos(u64::MAX), |d| started + d);
        out.event(&CompactionEvent::Start {
            attributes: self.spec.attributes,
            kernel_proactiveness: kernel_proactiveness(),
            dry_run: self.spec.is_dry_run,
            nodes: self.nodes.iter().map(|node| node.number).collect(),
        })?;
        while !self.signals.is_stopped() && self.clock.now() < ends_at {
            for index in 0..self.nodes.len() {
                self.look_at(index, started, out)?;
            }
            let next = self.nodes.iter().map(|node| node.next_look).min();
            // A machine always has a node; without one, the loop would wait for the end instead of spinning.
            let next = next.unwrap_or(ends_at).min(ends_at);
            self.clock.sleep_until(next, &[self.signals.wakes()]);
            // The end of a round's process leaves a byte in the pipe, which would end every later sleep.
            self.signals.take_child_end();
        }
        let now = self.clock.now();
        out.event(&CompactionEvent::End {
            elapsed: now.since(started),
            rounds: self.nodes.iter().map(|node| node.totals).sum(),
            statuses: self.nodes.iter().map(Node::status).collect(),
            own_cpu: clock::process_cpu() - cpu_before,
        })
    }

    fn look_at(
        &mut self,
        index: usize,
        started: Nanos,
        out: &mut dyn CompactionOutput,
    ) -> anyhow::Result<()> {
        let now = self.clock.now();
        if now < self.nodes[index].next_look {
            return Ok(());
        }
        let was = self.nodes[index].status();
        let facts = self.nodes[index].look()?;
        let decision = self.nodes[index].check(now, &facts);
        let status = self.nodes[index].status();
        self.sample(index, &facts, out)?;
        // A round reports itself, and the deferral that it leads to.
        let is_told_by_round = match status.state {
            CompactionState::Compacting => !self.spec.is_dry_run,
            CompactionState::Deferred { .. } => true,
            CompactionState::Idle | CompactionState::BackedOff(_) => false,
        };
        let is_news = was.score.is_none() || status.state != was.state;
        if is_news && !is_told_by_round {
            out.event(&CompactionEvent::State {
                at: now.since(started),
                node: facts.node,
                status,
                high: self.spec.attributes.high(),
                dry_run: self.spec.is_dry_run,
            })?;
        }
        if let CompactionDecision::Compact { zones } = decision
            && !self.spec.is_dry_run
        {
            let round = self.compact(index, &zones, out)?;
            out.event(&CompactionEvent::Round {
                at: self.clock.now().since(started),
                node: facts.node,
                round: &round,
            })?;
        }
        Ok(())
    }

    fn compact(
        &mut self,
        index: usize,
        zones: &[usize],
        out: &mut dyn CompactionOutput,
    ) -> anyhow::Result<CompactionRound> {
        let (clock, sampled) = (self.clock, &mut self.sampled);
        let mut written = Ok(());
        let mut show = |status: CompactionStatus, facts: &NodeFacts| {
            if let Some(item) = sampled.take(clock.now(), status, facts)
                && written.is_ok()
            {
                written = out.item(item);
            }
        };
        let round = self.nodes[index].compact(zones, clock, &self.signals, &mut show)?;
        written?;
        let now = self.clock.now();
        let node = &self.nodes[index];
        out.item(Item::Compaction(CompactionSample {
            time: now,
            node: node.number,
            score_before: round.score_before,
            score_after: round.score_after,
            ended: round.ended.name().to_owned(),
            took: round.took_ns,
            cpu: round.cpu_ns,
            migrate_scanned: round.counters.migrate_scanned,
            free_scanned: round.counters.free_scanned,
            isolated: round.counters.isolated,
        }))?;
        out.item(self.sampled.sample(now, node.status(), &round.after))?;
        Ok(round)
    }

    fn sample(
        &mut self,
        index: usize,
        facts: &NodeFacts,
        out: &mut dyn CompactionOutput,
    ) -> anyhow::Result<()> {
        let status = self.nodes[index].status();
        match self.sampled.take(self.clock.now(), status, facts) {
            Some(item) => out.item(item),
            None => Ok(()),
        }
    }
}
