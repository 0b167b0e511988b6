//! The fragmentation report: scores and free blocks of each order over time, and what compacting has
//! done about it.
//!
//! JSON: [`FragmentationReport`]. The target of a scope means nothing here: memory is the machine's.

use std::collections::BTreeMap;

use isotherm_engine::compaction::{
    CompactionAttributes, CompactionStatus, NR_ORDERS, NodeFacts, node_score, zone_score,
};
use isotherm_engine::{Nanos, PAGE_SIZE};
use serde::Serialize;

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, RecordInfo, Scope};
use super::series::{Point, Series};
use isotherm_record::item::{CompactionSample, FragmentationSample, Header, Item};

/// Most nodes that are told of, and most different ends of rounds.
const MAX_NODES: usize = 64;
const MAX_ENDS: usize = 16;
/// A series holds whole numbers: scores are kept in thousandths of a point.
const SCORE_STEPS: f64 = 1e3;

/// A score at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScorePoint {
    /// When the step begins, since the beginning of the record.
    pub time_ns: Nanos,
    /// Least score seen in it.
    pub min: f64,
    /// Mean over time.
    pub mean: f64,
    /// Greatest score seen in it.
    pub max: f64,
}

/// The free blocks of one order, of all zones of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrderBlocks {
    /// Blocks of 2^order pages.
    pub order: u8,
    /// Bytes of one.
    pub block_bytes: u64,
    /// Least number.
    pub min: u64,
    /// Mean over time.
    pub mean: u64,
    /// Greatest number.
    pub max: u64,
    /// Number at the end.
    pub last: u64,
    /// Over time.
    pub series: Vec<Point>,
}

/// A zone at the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ZoneState {
    /// `DMA32`, `Normal`...
    pub name: String,
    /// What it holds.
    pub present_bytes: u64,
    /// What is free of that.
    pub free_bytes: u64,
    /// Share of the free memory in blocks that are too small, 0 to 100.
    pub extfrag: f64,
    /// What it adds to the node's score.
    pub score: f64,
}

/// What rounds of compaction have come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rounds {
    /// How many.
    pub count: u64,
    /// By the reason for which they ended.
    pub ended: BTreeMap<String, u64>,
    /// Time that they took.
    pub took_ns: Nanos,
    /// CPU time of that.
    pub cpu_ns: Nanos,
    /// Pages that were looked at for pages to move.
    pub migrate_scanned: u64,
    /// Pages that were looked at for free ones.
    pub free_scanned: u64,
    /// Pages taken out of use, to be moved or to move them to.
    pub isolated: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeFragmentation {
    /// Its number.
    pub node: u32,
    /// What was wanted at the end.
    pub attributes: CompactionAttributes,
    /// Score at which compacting ends.
    pub low: f64,
    /// Score above which it starts.
    pub high: f64,
    /// How often it was looked at.
    pub samples: u64,
    /// Least score.
    pub score_min: f64,
    /// Mean over time.
    pub score_mean: f64,
    /// Greatest score.
    pub score_max: f64,
    /// Score at the end.
    pub score_last: f64,
    /// Score over time.
    pub score: Vec<ScorePoint>,
    /// Free blocks, smallest order first.
    pub orders: Vec<OrderBlocks>,
    /// Its zones at the end.
    pub zones: Vec<ZoneState>,
    /// What compacting has done.
    pub rounds: Rounds,
    /// How the controller stood at the end: since its start, not since the beginning of the part of
    /// the record that the report is about.
    pub status: CompactionStatus,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FragmentationReport {
    /// `fragmentation`.
    pub report: &'static str,
    /// The version of this JSON.
    pub version: u32,
    /// Where the facts come from.
    pub record: RecordInfo,
    /// The nodes that the record tells of.
    pub nodes: Vec<NodeFragmentation>,
    /// Samples of nodes beyond the 64 that are reported, and rounds of nodes without samples.
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
#[derive(Clone, Debug)]
pub struct Fragmentation {
    context: RecordContext,
    nodes: BTreeMap<u32, Node>,
    /// Samples and rounds of nodes beyond the bound, and rounds of nodes not seen yet.
    left_out: u64,
}

impl Fragmentation {
    /// For a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            nodes: BTreeMap::new(),
            left_out: 0,
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
    type Report = FragmentationReport;

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

    fn end(&mut self, end: RecordEnd) {
        self.context.end(end);
    }

    fn finish(self) -> FragmentationReport {
        FragmentationReport {
            report: "fragmentation",
            version: crate::VERSION,
            record: self.context.record_info(),
            nodes: self.nodes.into_values().filter_map(Node::finish).collect(),
            left_out_samples: self.left_out,
        }
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
