//! Memory on several nodes.

use isotherm_report::TiersReport;
use serde::Serialize;

use super::SeriesJson;
use crate::container::Arrays;

#[derive(Serialize)]
pub(super) struct TiersJson<'a> {
    nodes: Vec<NodeJson>,
    ways: Vec<WayJson>,
    counters: Vec<CounterJson<'a>>,
}

#[derive(Serialize)]
struct NodeJson {
    node: u32,
    total: u64,
    used: SeriesJson,
    mapped: SeriesJson,
    idle: SeriesJson,
}

#[derive(Serialize)]
struct WayJson {
    from: u32,
    to: u32,
    bytes: u64,
    course: SeriesJson,
}

/// A counter of the kernel, in pages.
#[derive(Serialize)]
struct CounterJson<'a> {
    name: &'a str,
    pages: u64,
    course: SeriesJson,
}

impl<'a> TiersJson<'a> {
    pub(super) fn of(of: &'a TiersReport, arrays: &mut Arrays) -> Self {
        Self {
            nodes: { of.nodes.iter() }
                .map(|node| NodeJson {
                    node: node.node,
                    total: node.total_bytes,
                    used: SeriesJson::of(&node.used, arrays),
                    mapped: SeriesJson::of(&node.mapped, arrays),
                    idle: SeriesJson::of(&node.idle, arrays),
                })
                .collect(),
            ways: { of.ways.iter() }
                .map(|way| WayJson {
                    from: way.from,
                    to: way.to,
                    bytes: way.bytes,
                    course: SeriesJson::of(&way.points, arrays),
                })
                .collect(),
            counters: { of.counters.iter() }
                .map(|counter| CounterJson {
                    name: &counter.name,
                    pages: counter.pages,
                    course: SeriesJson::of(&counter.points, arrays),
                })
                .collect(),
        }
    }
}
