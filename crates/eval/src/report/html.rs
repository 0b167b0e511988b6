//! One page with the whole report: savings and costs as pictures, then the tables.

use std::fmt::Write;

use isotherm_engine::statistics::ValueSummary;
use isotherm_render::figure::step;
use isotherm_render::page::{END, begin, escape, figure};
use isotherm_render::plot::{LINES as SERIES_STYLES, WIDTH, open_titled};
use isotherm_render::svg::text;

use super::summary_rows;
use crate::metric::{METRICS, RSS, RSS_AND_POOL, RUNTIME};
use crate::suite::Suite;
use crate::text_table::TextTable;

const LEFT: f64 = 250.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 58.0;
const ROW: f64 = 18.0;
const GAP: f64 = 10.0;

/// Returns the page.
pub fn page(suite: &Suite) -> String {
    let title = format!("Evaluation: {}", suite.name);
    let remarks = super::remarks(suite);
    let (first, rest) = remarks
        .split_first()
        .map_or(("", &[][..]), |(f, r)| (f.as_str(), r));
    let mut html = begin(&title, first);
    for remark in rest {
        let _ = writeln!(html, "<p>{}</p>", escape(remark));
    }
    html += SCROLL;
    let tables = summary_rows::summary(suite);
    let (first, rest) = tables.split_at(tables.len().min(1));
    html.extend(first.iter().map(TextTable::html));
    for metric in [RUNTIME, RSS, RSS_AND_POOL] {
        html += &figure(METRICS[metric].name, "", &overheads(suite, metric));
    }
    html.extend(rest.iter().map(TextTable::html));
    html.extend(super::MAIN.map(|metric| summary_rows::detail(suite, metric).html()));
    html + END
}

/// A table that is wider than its card scrolls within it, and its fields stay on one line.
const SCROLL: &str = "<style>section{overflow-x:auto}td{white-space:nowrap}</style>\n";

/// Draws a line for each workload and configuration: the repeats' overheads from least to greatest, and a point at
/// their median.
fn overheads(suite: &Suite, metric: usize) -> String {
    let mut lines: Vec<(usize, usize, ValueSummary)> = Vec::new();
    for workload in 0..suite.workloads.len() {
        for configuration in 1..suite.configurations.len() {
            let overhead = suite.paired_overheads(workload, configuration, metric);
            lines.extend(overhead.map(|o| (workload, configuration, o)));
        }
    }
    let title = format!("{}: overhead in percent", METRICS[metric].name);
    let nr_groups = lines.chunk_by(|a, b| a.0 == b.0).count();
    let height = TOP + ROW * lines.len() as f64 + GAP * nr_groups as f64 + 34.0;
    let axis = Axis::of(lines.iter().flat_map(|(_, _, o)| [o.min, o.max]));
    let note = format!(
        "Within each repeat, against {}: least, median and greatest. Left of 0 is less. Hollow: within noise.",
        suite.configurations[0]
    );
    let mut svg = open_titled(height, &title, &note);
    axis.draw(&mut svg, height - 34.0);
    let mut y = TOP;
    for group in lines.chunk_by(|a, b| a.0 == b.0) {
        text(&mut svg, "", (16.0, y + 13.0), &suite.workloads[group[0].0]);
        for (_, configuration, overhead) in group {
            let (colour, _) = SERIES_STYLES[(configuration - 1) % SERIES_STYLES.len()];
            let (from, to) = (axis.x(overhead.min), axis.x(overhead.max));
            let at = axis.x(overhead.median);
            let (middle, below) = (y + 9.0, y + 13.0);
            let interval = suite.interval(group[0].0, *configuration, metric);
            let is_noise = interval.is_none_or(|interval| interval.may_be(0.0));
            let fill = if is_noise { "var(--bg)" } else { colour };
            let name = &suite.configurations[*configuration];
            text(&mut svg, "e d", (LEFT - 12.0, below), name);
            let _ = writeln!(
                svg,
                "<path d=\"M{from:.1} {middle:.1}H{to:.1}\" stroke=\"{colour}\" stroke-width=\"3\" stroke-opacity=\".45\"/>\
                 <circle cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"4.5\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
            );
            let median = format!("{:+.2} %", overhead.median);
            text(&mut svg, "e m", (WIDTH - 16.0, below), median);
            y += ROW;
        }
        y += GAP;
    }
    svg + "</svg>\n"
}

/// An axis of percentages that always includes 0.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values.fold((0.0_f64, 0.0_f64), |(l, m), v| (l.min(v), m.max(v)));
        let step = step((most - least).max(1.0));
        Self {
            from: (least / step).floor() * step,
            to: ((most / step).ceil() * step).max(step),
            step,
        }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (value - self.from) / (self.to - self.from)
    }

    fn draw(&self, svg: &mut String, bottom: f64) {
        let nr = ((self.to - self.from) / self.step).round() as i64;
        for tick in 0..=nr {
            let value = self.from + self.step * tick as f64;
            let x = self.x(value);
            let width = if value.abs() < self.step / 2.0 { 2 } else { 1 };
            let digits = usize::from(self.step < 1.0);
            // A sum of steps may give a zero of -0.
            let value = value + 0.0;
            let _ = writeln!(
                svg,
                "<path class=\"g\" stroke-width=\"{width}\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/>"
            );
            text(svg, "c d", (x, bottom + 18.0), format!("{value:.digits$}"));
        }
    }
}
