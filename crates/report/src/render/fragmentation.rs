//! The fragmentation report as text, CSV, SVG and HTML.

use std::io::{self, Write};

use isotherm_engine::{Nanos, PAGE_SIZE, units};

use super::over_time::spark;
use super::{Render, Style, page};
use crate::fragmentation::{FragmentationReport, NodeFragmentation, Rounds, ScorePoint, ZoneState};
use crate::rows::ColumnType::{F64, Name, U32, U64};
use crate::rows::{Column, ColumnValue, column};
use crate::series::Point;
use crate::table::Tabulate;
use isotherm_render::plot::{NamedLine, Unit, lines, lines_of, score};
use isotherm_render::table::Table;

const SPARK_WIDTH: usize = 40;

impl Tabulate for FragmentationReport {
    /// The columns of a row for each step of time.
    const COLUMNS: &'static [Column] = &[
        column("node", U32, "Number of the node."),
        column("metric", Name, "`score`, or `free_blocks_` and an order."),
        column("time_ns", U64, "Start of the step."),
        column("min", F64, "Least value in the step."),
        column("mean", F64, "Mean over the step."),
        column("max", F64, "Greatest value in the step."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for node in &self.nodes {
            let number = node.node.into();
            let mut row = |metric: &str, time: Nanos, values: [ColumnValue<'_>; 3]| {
                let [min, mean, max] = values;
                push(&[number, metric.into(), time.into(), min, mean, max]);
            };
            for point in &node.score {
                let values = [point.min, point.mean, point.max];
                row("score", point.time_ns, values.map(Into::into));
            }
            for order in &node.orders {
                let metric = format!("free_blocks_{}", order.order);
                for point in &order.series {
                    let values = [point.min, point.mean, point.max];
                    row(&metric, point.time_ns, values.map(Into::into));
                }
            }
        }
    }
}

impl Render for FragmentationReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            text_of(node, style, out)?;
        }
        match self.left_out_samples {
            0 => Ok(()),
            n => writeln!(out, "\n{n} samples of more nodes are left out"),
        }
    }

    fn svg(&self) -> String {
        let nodes = self.nodes.iter();
        let nodes =
            nodes.map(|node| NamedLine::new(format!("node {}", node.node), in_steps(&node.score)));
        let mut plots: Vec<NamedLine> = nodes.collect();
        if let Some(node) = self.nodes.first() {
            for (name, threshold) in [("starts above", node.high), ("ends at", node.low)] {
                let level = |point: &ScorePoint| ScorePoint {
                    time_ns: point.time_ns,
                    min: threshold,
                    mean: threshold,
                    max: threshold,
                };
                let ends = [node.score.first(), node.score.last()];
                let points: Vec<ScorePoint> = ends.into_iter().flatten().map(level).collect();
                let name = format!("{name} {}", score(threshold));
                plots.push(NamedLine::new(name, in_steps(&points)));
            }
        }
        let note =
            "Share of the free memory that lies in blocks too small for the order; 0 is best.";
        lines_of(Unit::Score, "Fragmentation score", note, plots)
    }

    fn html(&self) -> String {
        let mut html = page::start("Fragmentation", &self.record);
        let style = Style::default();
        html += &page::figure("Score", "", &self.svg());
        for node in &self.nodes {
            let number = node.node;
            let title = format!("Free memory of node {number} by the size of its blocks");
            html += &page::figure(&title, "", &free_memory(&title, node));
            let rows = node.zones.iter().map(|zone| zone_row(zone, &style));
            let title = format!("Zones of node {} at the end", node.node);
            let heads = "Zone|Size|Free|Too small for the order, %|Score";
            html += &Table::of(heads, rows).html(&title, &rounds(&node.rounds));
        }
        html
    }
}

fn in_steps(score: &[ScorePoint]) -> Vec<Point> {
    let steps = |points: f64| (points * 1e3).round() as u64;
    let points = score.iter().map(|point| Point {
        time_ns: point.time_ns,
        min: steps(point.min),
        mean: steps(point.mean),
        max: steps(point.max),
    });
    points.collect()
}

fn free_memory(title: &str, node: &NodeFragmentation) -> String {
    let plots = node.orders.iter().map(|order| {
        let size = order.block_bytes;
        let points = order.series.iter().map(|point| Point {
            time_ns: point.time_ns,
            min: point.min.saturating_mul(size),
            mean: point.mean.saturating_mul(size),
            max: point.max.saturating_mul(size),
        });
        let name = format!("order {}: {}", order.order, units::format_bytes(size));
        NamedLine::new(name, points.collect::<Vec<_>>())
    });
    lines(title, "", plots)
}

fn text_of(node: &NodeFragmentation, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let order = node.attributes.order;
    writeln!(
        out,
        "Fragmentation of node {} for order {order} (blocks of {}), proactiveness {}: compacts above {}, down to {}\n",
        node.node,
        units::format_bytes(PAGE_SIZE.checked_shl(order.into()).unwrap_or(0)),
        node.attributes.proactiveness,
        score(node.high),
        score(node.low),
    )?;
    let first = [
        "score".to_owned(),
        score(node.score_min),
        score(node.score_mean),
        score(node.score_max),
        score(node.score_last),
        spark(&in_steps(&node.score), SPARK_WIDTH),
    ];
    let orders = node.orders.iter().map(|order| {
        let name = format!("free blocks of {}", style.bytes(order.block_bytes));
        let numbers = [order.min, order.mean, order.max, order.last];
        let [min, mean, max, last] = numbers.map(|n| n.to_string());
        let course = spark(&order.series, SPARK_WIDTH);
        [name, min, mean, max, last, course]
    });
    let rows = std::iter::once(first).chain(orders);
    Table::of("|MIN>|MEAN>|MAX>|LAST>|OVER TIME", rows).write(out)?;
    writeln!(out)?;
    let rows = node.zones.iter().map(|zone| zone_row(zone, style));
    Table::of("ZONE AT THE END|SIZE>|FREE>|EXTFRAG>|SCORE>", rows).write(out)?;
    writeln!(out, "\n{}", rounds(&node.rounds))?;
    let status = &node.status;
    writeln!(
        out,
        "{} back-offs, {} deferrals since compacting began",
        status.nr_back_offs, status.nr_deferrals
    )?;
    if style.over_time {
        over_time(node, style, out)?;
    }
    Ok(())
}

fn zone_row(zone: &ZoneState, style: &Style) -> [String; 5] {
    [
        zone.name.clone(),
        style.bytes(zone.present_bytes),
        style.bytes(zone.free_bytes),
        score(zone.extfrag),
        score(zone.score),
    ]
}

fn rounds(rounds: &Rounds) -> String {
    if rounds.count == 0 {
        return "no round of compaction".into();
    }
    let ended = rounds.ended.iter();
    let ended = ended.map(|(why, count)| format!("{count} {}", why.replace('_', " ")));
    let ended: Vec<String> = ended.collect();
    format!(
        "{} {} of compaction ({}): {}, {} of CPU time; {} pages looked at to move, {} to move to, {} isolated",
        rounds.count,
        if rounds.count == 1 { "round" } else { "rounds" },
        ended.join(", "),
        units::format_time(rounds.took_ns),
        units::format_time(rounds.cpu_ns),
        rounds.migrate_scanned,
        rounds.free_scanned,
        rounds.isolated,
    )
}

fn over_time(node: &NodeFragmentation, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let rows = node.score.iter().map(|point| {
        let [min, mean, max] = [point.min, point.mean, point.max].map(score);
        [style.duration(point.time_ns), min, mean, max]
    });
    writeln!(out, "\nscore\n")?;
    Table::of("TIME>|MIN>|MEAN>|MAX>", rows).write(out)
}
