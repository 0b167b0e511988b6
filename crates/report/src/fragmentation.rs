//! The fragmentation report: scores and free blocks of each order over time, and the results of compaction.
//!
//! JSON: [`FragmentationReport`]. The target of a scope is ignored, because memory belongs to the machine.

use std::collections::BTreeMap;

use isotherm_engine::{Nanos, PAGE_SIZE};
use isotherm_policy::compaction::{
    CompactionAttributes, CompactionStatus, NR_ORDERS, NodeFacts, node_score, zone_score,
};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use super::series::{Point, Series};
use isotherm_record::item::{CompactionSample, FragmentationSample, Header, Item};

/// The largest numbers of reported nodes, and of different reasons for a round's end.
const MAX_NODES: usize = 64;
const MAX_ENDS: usize = 16;
/// The resolution of scores: series hold whole numbers, so scores are kept in thousandths of a point.
const SCORE_STEPS: f64 = 1e3;

/// A score at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScorePoint {
    /// Start of the step, since the beginning of the record.
    pub time_ns: Nanos,
    /// Lowest score in the step.
    pub min: f64,
    /// Mean over time.
    pub mean: f64,
    /// Highest score in the step.
    pub max: f64,
}

/// The free blocks of one order in all zones of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrderBlocks {
    /// The order: blocks have 2^order pages.
    pub order: u8,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Lowest number.
    pub min: u64,
    /// Mean over time.
    pub mean: u64,
    /// Highest number.
    pub max: u64,
    /// Number at the end.
    pub last: u64,
    /// The numbers over time.
    pub series: Vec<Point>,
}

/// The state of a zone at the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ZoneState {
    /// Name: `DMA32`, `Normal`...
    pub name: String,
    /// All bytes of the zone.
    pub present_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Share of the free memory in blocks that are too small, 0 to 100.
    pub extfrag: f64,
    /// The zone's part of the node's score.
    pub score: f64,
}

/// Totals of all rounds of compaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rounds {
    /// Number of rounds.
    pub count: u64,
    /// Number of rounds by the reason for their end.
    pub ended: BTreeMap<String, u64>,
    /// Time that the rounds took.
    pub took_ns: Nanos,
    /// CPU time of the rounds.
    pub cpu_ns: Nanos,
    /// Pages scanned for pages to move.
    pub migrate_scanned: u64,
    /// Pages scanned for free pages.
    pub free_scanned: u64,
    /// Pages isolated, either to be moved or as destinations.
    pub isolated: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeFragmentation {
    /// Number of the node.
    pub node: u32,
    /// The compaction attributes at the end.
    pub attributes: CompactionAttributes,
    /// Score at which compaction ends.
    pub low: f64,
    /// Score above which compaction starts.
    pub high: f64,
    /// Number of samples.
    pub samples: u64,
    /// Lowest score.
    pub score_min: f64,
    /// Mean score over time.
    pub score_mean: f64,
    /// Highest score.
    pub score_max: f64,
    /// Score at the end.
    pub score_last: f64,
    /// Score over time.
    pub score: Vec<ScorePoint>,
    /// Free blocks, smallest order first.
    pub orders: Vec<OrderBlocks>,
    /// The node's zones at the end.
    pub zones: Vec<ZoneState>,
    /// The results of compaction.
    pub rounds: Rounds,
    /// State of the controller at the end. Its counters run from the controller's start, not from the beginning of the
    /// part of the record that the report covers.
    pub status: CompactionStatus,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FragmentationReport {
    /// `fragmentation`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// The nodes in the record.
    pub nodes: Vec<NodeFragmentation>,
    /// Number of samples of nodes beyond the 64 that are reported, and of rounds of nodes without samples.
    pub left_out_samples: u64,
}

#[derive(Clone, Debug)]
struct Node {
    score: Series,
    orders: [Series; NR_ORDERS],
    samples: u64,
    last: FragmentationSample,
    rounds: Rounds,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Fragmentation {
    context: RecordContext,
    nodes: BTreeMap<u32, Node>,
    /// Number of samples and rounds of nodes beyond the limit, and of rounds of nodes not seen yet.
    left_out: u64,
}

impl Fragmentation {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            ..Self::default()
        }
    }

    fn push_sample(&mut self, sample: &FragmentationSample) {
        let offset = self.context.offset(sample.time);
        let id = sample.facts.node;
        if !self.nodes.contains_key(&id) && self.nodes.len() >= MAX_NODES {
            self.left_out += 1;
            return;
        }
        let node = self.nodes.entry(id).or_insert_with(|| Node {
            score: Series::default(),
            orders: std::array::from_fn(|_| Series::default()),
            samples: 0,
            last: sample.clone(),
            rounds: Rounds::default(),
        });
        let score = node_score(&sample.facts, sample.attributes.order);
        // Each sample counts for the time since the one before, as rounds have samples of their own.
        let weight = sample.time.since(node.last.time);
        let steps = (score * SCORE_STEPS).round() as u64;
        node.score.push(offset, weight, steps);
        for (order, series) in node.orders.iter_mut().enumerate() {
            series.push(offset, weight, blocks(&sample.facts, order));
        }
        node.samples += 1;
        node.last = sample.clone();
    }

    fn push_round(&mut self, round: &CompactionSample) {
        let Some(node) = self.nodes.get_mut(&round.node) else {
            self.left_out += 1;
            return;
        };
        let rounds = &mut node.rounds;
        rounds.count += 1;
        if rounds.ended.contains_key(&round.ended) || rounds.ended.len() < MAX_ENDS {
            *rounds.ended.entry(round.ended.clone()).or_default() += 1;
        }
        rounds.took_ns = rounds.took_ns + round.took;
        rounds.cpu_ns = rounds.cpu_ns + round.cpu;
        let sum = u64::saturating_add;
        rounds.migrate_scanned = sum(rounds.migrate_scanned, round.migrate_scanned);
        rounds.free_scanned = sum(rounds.free_scanned, round.free_scanned);
        rounds.isolated = sum(rounds.isolated, round.isolated);
    }
}

impl Accumulate for Fragmentation {
    type Report = Option<FragmentationReport>;

    fn push(&mut self, item: &Item) {
        match item {
            Item::Fragmentation(sample) if self.context.admits_time(sample.time) => {
                self.push_sample(sample);
            }
            Item::Compaction(round) if self.context.admits_time(round.time) => {
                self.push_round(round);
            }
            _ => {}
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> Option<FragmentationReport> {
        self.context.end(end);
        let nodes = self.nodes.into_values().filter_map(Node::finish);
        let nodes: Vec<NodeFragmentation> = nodes.collect();
        (!nodes.is_empty()).then(|| FragmentationReport {
            report: "fragmentation",
            version: crate::VERSION,
            record: self.context.record_info(),
            nodes,
            left_out_samples: self.left_out,
        })
    }
}

impl Node {
    fn finish(self) -> Option<NodeFragmentation> {
        let FragmentationSample {
            attributes,
            facts,
            status,
            ..
        } = self.last;
        let (min, mean, max) = self.score.summary()?;
        let points = |steps: u64| steps as f64 / SCORE_STEPS;
        let score = self.score.points().into_iter().map(|point| ScorePoint {
            time_ns: point.time_ns,
            min: points(point.min),
            mean: points(point.mean),
            max: points(point.max),
        });
        let orders = self.orders.iter().enumerate();
        let orders = orders.filter_map(|(order, series)| {
            let (min, mean, max) = series.summary()?;
            Some(OrderBlocks {
                order: order as u8,
                block_bytes: PAGE_SIZE << order,
                min,
                mean,
                max,
                last: blocks(&facts, order),
                series: series.points(),
            })
        });
        Some(NodeFragmentation {
            node: facts.node,
            attributes,
            low: attributes.low(),
            high: attributes.high(),
            samples: self.samples,
            score_min: points(min),
            score_mean: points(mean),
            score_max: points(max),
            score_last: rounded(node_score(&facts, attributes.order)),
            score: score.collect(),
            orders: orders.collect(),
            zones: zones(&facts, attributes.order),
            rounds: self.rounds,
            status,
        })
    }
}

fn blocks(facts: &NodeFacts, order: usize) -> u64 {
    let blocks = facts.zones.iter().map(|zone| zone.free_blocks[order]);
    blocks.fold(0, u64::saturating_add)
}

fn zones(facts: &NodeFacts, order: u8) -> Vec<ZoneState> {
    let zones = facts.zones.iter().enumerate();
    zones
        .map(|(index, zone)| ZoneState {
            name: zone.name.clone(),
            present_bytes: zone.present_pages.saturating_mul(PAGE_SIZE),
            free_bytes: zone.free_pages().saturating_mul(PAGE_SIZE),
            extfrag: rounded(zone.extfrag(order)),
            score: rounded(zone_score(facts, index, order)),
        })
        .collect()
}

fn rounded(score: f64) -> f64 {
    (score * SCORE_STEPS).round() / SCORE_STEPS
}
