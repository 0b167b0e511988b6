//! Memory on several nodes over time: the used and idle memory of each node, and the memory that moved between nodes.
//! Schemes and the kernel itself move memory. The module serves pages.
//!
//! **Limits.** Only records of the whole machine (`--all`, `--physical`) have the used memory of nodes. All records
//! whose schemes move memory have the moves. All records of a machine with several nodes have the kernel's counters.

use std::collections::BTreeMap;

use isotherm_engine::frames::AgeBytes;
use isotherm_engine::{Nanos, NodeMoves};

use super::Accumulate;
use super::context::{RecordContext, RecordEnd, Scope};
use super::series::{Point, Series};
use isotherm_record::item::{Header, Item, UsageSample};
use isotherm_record::machine::MachineSample;

/// The largest number of nodes, of pairs of nodes, and of counters that are kept apart.
const MOST: usize = 64;
/// Index of two minutes in [`AGE_BOUNDS`](isotherm_engine::frames::AGE_BOUNDS), the idle time that counts.
const IDLE: usize = 3;

/// A node's memory over time, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeCourse {
    /// Number of the node.
    pub node: u32,
    /// All bytes of the node, at the end.
    pub total_bytes: u64,
    /// Used bytes over time.
    pub used: Vec<Point>,
    /// Bytes that processes map there, as far as page tables show them.
    pub mapped: Vec<Point>,
    /// Mapped bytes that were idle for two minutes or longer.
    pub idle: Vec<Point>,
}

/// Bytes that schemes moved from one node to another, since the beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct WayCourse {
    /// The source node.
    pub from: u32,
    /// The destination node.
    pub to: u32,
    /// All moved bytes.
    pub bytes: u64,
    /// The moved bytes over time.
    pub points: Vec<Point>,
}

/// One of the kernel's counters of pages that it moved itself.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterCourse {
    /// Name of the counter in `/proc/vmstat`.
    pub name: String,
    /// Growth of the counter in pages.
    pub pages: u64,
    /// Growth over time, since the beginning.
    pub points: Vec<Point>,
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct TiersReport {
    /// Nodes by number.
    pub nodes: Vec<NodeCourse>,
    /// Moves by node.
    pub ways: Vec<WayCourse>,
    /// Counters by name; unchanged counters are left out.
    pub counters: Vec<CounterCourse>,
}

/// The accumulator.
#[derive(Clone, Debug, Default)]
pub struct Tiers {
    context: RecordContext,
    nodes: BTreeMap<u32, Node>,
    moved: NodeMoves,
    ways: BTreeMap<(u32, u32), Series>,
    counters: BTreeMap<String, Counter>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    total: u64,
    used: Series,
    mapped: Series,
    idle: Series,
}

#[derive(Clone, Debug)]
struct Counter {
    first: u64,
    grown: u64,
    series: Series,
}

impl Tiers {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            ..Self::default()
        }
    }

    fn machine(&mut self, sample: &MachineSample) {
        let time = self.context.offset(sample.time);
        for memory in &sample.nodes {
            if self.nodes.len() >= MOST && !self.nodes.contains_key(&memory.node) {
                continue;
            }
            let node = self.nodes.entry(memory.node).or_default();
            node.total = memory.total;
            let used = memory.total.saturating_sub(memory.free);
            node.used.push(time, Nanos(1), used);
            let on_it = sample.mapped.iter().filter(|m| m.node == memory.node);
            let ages: AgeBytes = on_it.map(|mapped| &mapped.bytes).sum();
            node.mapped.push(time, Nanos(1), ages.total());
            node.idle.push(time, Nanos(1), ages.idle_from(IDLE));
        }
    }

    fn moves(&mut self, time: Nanos, moved: &NodeMoves) {
        let time = self.context.offset(time);
        self.moved.merge(moved);
        for way in self.moved.iter().take(MOST) {
            let series = self.ways.entry((way.from, way.to)).or_default();
            series.push(time, Nanos(1), way.bytes);
        }
    }

    fn usage(&mut self, sample: &UsageSample) {
        let time = self.context.offset(sample.time);
        for (name, &pages) in &sample.migrations.machine {
            if self.counters.len() >= MOST && !self.counters.contains_key(name) {
                continue;
            }
            let counter = self.counters.entry(name.clone()).or_insert(Counter {
                first: pages,
                grown: 0,
                series: Series::default(),
            });
            counter.grown = pages.saturating_sub(counter.first);
            counter.series.push(time, Nanos(1), counter.grown);
        }
    }
}

impl Accumulate for Tiers {
    /// The report; `None` on one node without moves.
    type Report = Option<TiersReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Machine(sample) if self.context.admits_time(sample.time) => self.machine(sample),
            Item::Action(sample) if self.context.admits_time(sample.time) => {
                self.moves(sample.time, &sample.moved);
            }
            Item::Usage(sample) if self.context.admits_time(sample.time) => self.usage(sample),
            _ => {}
        }
    }

    fn finish_at(self, _: RecordEnd) -> Option<TiersReport> {
        let grown = |(name, counter): (String, Counter)| {
            (counter.grown > 0).then(|| CounterCourse {
                name: isotherm_record::printable(&name).into_owned(),
                pages: counter.grown,
                points: counter.series.points(),
            })
        };
        let ways = self.moved.iter().filter_map(|way| {
            Some(WayCourse {
                from: way.from,
                to: way.to,
                bytes: way.bytes,
                points: self.ways.get(&(way.from, way.to))?.points(),
            })
        });
        let nodes = self.nodes.into_iter().map(|(node, memory)| NodeCourse {
            node,
            total_bytes: memory.total,
            used: memory.used.points(),
            mapped: memory.mapped.points(),
            idle: memory.idle.points(),
        });
        let report = TiersReport {
            counters: self.counters.into_iter().filter_map(grown).collect(),
            ways: ways.collect(),
            nodes: nodes.collect(),
        };
        let has_tiers =
            report.nodes.len() > 1 || !report.ways.is_empty() || !report.counters.is_empty();
        has_tiers.then_some(report)
    }
}

#[cfg(test)]
mod tests {
    use isotherm_record::item::ActionSample;
    use isotherm_record::{KernelMigrations, NodeMemory};

    use super::*;
    use crate::test_records::header;

    fn machine(second: u64, free: [u64; 2]) -> Item {
        let node = |(node, free)| NodeMemory {
            node,
            total: 1 << 30,
            free,
            ..NodeMemory::default()
        };
        Item::Machine(MachineSample {
            time: Nanos(second * 1_000_000_000),
            nodes: (0..).zip(free).map(node).collect(),
            ..MachineSample::default()
        })
    }

    fn moved(second: u64, bytes: u64) -> Item {
        let mut sample = ActionSample {
            time: Nanos(second * 1_000_000_000),
            ..ActionSample::default()
        };
        sample.moved.add(0, 1, bytes);
        Item::Action(sample)
    }

    fn usage(second: u64, pages: u64) -> Item {
        let mut migrations = KernelMigrations::default();
        migrations.machine.insert("pgdemote_kswapd".into(), pages);
        migrations.machine.insert("pgpromote_success".into(), 5);
        Item::Usage(UsageSample {
            time: Nanos(second * 1_000_000_000),
            migrations,
            ..UsageSample::default()
        })
    }

    #[test]
    fn nodes_fill_and_memory_moves_from_one_to_another() {
        let mut tiers = Tiers::new(&header(), Scope::default());
        for item in [
            machine(0, [1 << 20, 1 << 30]),
            moved(1, 4096),
            usage(1, 100),
            machine(2, [2 << 20, 1 << 20]),
            moved(3, 8192),
            usage(3, 130),
        ] {
            tiers.push(&item);
        }
        let report = tiers.finish().expect("two nodes");
        let last = |points: &[Point]| points.last().map(|point| point.max);
        assert_eq!(report.nodes.len(), 2);
        assert_eq!(last(&report.nodes[0].used), Some((1 << 30) - (2 << 20)));
        assert_eq!(report.ways[0].bytes, 12_288);
        assert_eq!(last(&report.ways[0].points), Some(12_288));
        let counters: Vec<(&str, u64)> = { report.counters.iter() }
            .map(|counter| (&*counter.name, counter.pages))
            .collect();
        assert_eq!(counters, [("pgdemote_kswapd", 30)]);
    }

    #[test]
    fn one_node_has_no_tiers() {
        let mut tiers = Tiers::new(&header(), Scope::default());
        tiers.push(&Item::Machine(MachineSample {
            nodes: vec![NodeMemory::default()],
            ..MachineSample::default()
        }));
        assert_eq!(tiers.finish(), None);
    }
}
