//! The heatmap as an SVG picture: a panel for each target.
//!
//! Cells of the same colour are one path, and neighbours in time are one rectangle of it. A picture of 40,000 cells
//! therefore stays well under a megabyte.

use std::collections::BTreeMap;
use std::fmt::Write;

use isotherm_engine::units;

use super::page::{escape, gap_label};
use crate::heatmap::{HeatmapCell, HeatmapReport, Segment, TargetHeatmap};
use isotherm_render::colour::{self, Rgb};
use isotherm_render::plot::{self, time_ticks};
use isotherm_render::svg::{heading, text, tick};

const LEFT: f64 = 132.0;
const PLOT: f64 = 640.0;
const RIGHT: f64 = 228.0;
const WIDTH: f64 = LEFT + PLOT + RIGHT;
const PANEL: f64 = 400.0;
const GAP: f64 = 18.0;
const HEAD: f64 = 66.0;
/// Minimum height of a segment that shows its size between its addresses.
const SIZE_FITS: f64 = 40.0;
/// Number of steps of the ramp, to which colours are rounded.
const STEPS: f32 = 48.0;

pub(super) fn draw(report: &HeatmapReport) -> String {
    let heights = report.targets.iter().map(height);
    let total = heights.sum::<f64>() + 64.0;
    let mut svg = plot::open(WIDTH, total, "Heatmap of memory accesses");
    svg += "<defs><pattern id=\"u\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
            <rect width=\"2\" height=\"6\" fill=\"#6d747f\"/></pattern></defs>\n";
    let mut top = 0.0;
    for target in &report.targets {
        Panel {
            report,
            target,
            top,
        }
        .draw(&mut svg);
        top += height(target);
    }
    legend(&mut svg, top + 12.0);
    svg + "</svg>\n"
}

fn height(target: &TargetHeatmap) -> f64 {
    HEAD + PANEL + GAP * target.segments.len().saturating_sub(1) as f64 + 40.0
}

struct Panel<'a> {
    report: &'a HeatmapReport,
    target: &'a TargetHeatmap,
    top: f64,
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String) {
        let subject = super::page::subject(&self.report.record);
        heading(svg, self.top, &self.target.target.label(), &subject);
        let mut y = self.top + HEAD;
        for segment in self.target.segments.iter().rev() {
            let height = self.row_height() * segment.rows as f64;
            self.cells(svg, segment, y);
            self.addresses(svg, segment, y);
            self.mappings(svg, segment, y);
            y += height;
            if segment.gap_before_bytes > 0 {
                let _ = writeln!(
                    svg,
                    "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{PLOT}\" height=\"{GAP}\" fill=\"var(--gap)\"/>\
                     <path class=\"g\" stroke-dasharray=\"3 3\" d=\"M{LEFT} {y:.1}h{PLOT}m0 {GAP}h-{PLOT}\"/>"
                );
                let label = gap_label(segment.gap_before_bytes);
                text(svg, "c d", (LEFT + PLOT / 2.0, y + 13.0), label);
                y += GAP;
            }
        }
        self.time_axis(svg, y);
    }

    fn row_height(&self) -> f64 {
        PANEL / self.target.rows.len().max(1) as f64
    }

    fn cells(&self, svg: &mut String, segment: &Segment, y: f64) {
        let mut paths: BTreeMap<Fill, String> = BTreeMap::new();
        for index in 0..segment.rows {
            // The highest address is drawn first.
            let row = segment.first_row + segment.rows - 1 - index;
            let cells = self.target.cells.row(row);
            let mut column = 0;
            for run in cells.chunk_by(|a, b| fill(a) == fill(b)) {
                if let Some(fill) = fill(&run[0]) {
                    let path = paths.entry(fill).or_default();
                    let width = run.len();
                    let _ = write!(path, "M{column} {index}h{width}v1h-{width}z");
                }
                column += run.len();
            }
        }
        let x_scale = PLOT / self.report.columns.max(1) as f64;
        let (y_scale, height) = (self.row_height(), self.row_height() * segment.rows as f64);
        // Unmonitored cells look like gaps.
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{y:.2}\" width=\"{PLOT}\" height=\"{height:.2}\" fill=\"var(--gap)\"/>\n\
             <g transform=\"translate({LEFT} {y:.2}) scale({x_scale:.4} {y_scale:.4})\" shape-rendering=\"crispEdges\">"
        );
        for (fill, path) in &paths {
            let colour = match fill {
                Fill::Unknown => "#b9bfc8".into(),
                Fill::Rate(step) => colour::hex(step_colour(*step)),
            };
            let _ = writeln!(svg, "<path fill=\"{colour}\" d=\"{path}\"/>");
        }
        svg.push_str("</g>\n");
        if let Some(path) = paths.get(&Fill::Unknown) {
            // The hatching is drawn in the picture's own scale, over the grey, because the scaled group would stretch
            // it.
            let target = self.target.target.target.map_or(0, |target| target.0);
            let id = format!("k{target}-{}", segment.first_row);
            let _ = writeln!(
                svg,
                "<clipPath id=\"{id}\"><path transform=\"translate({LEFT} {y:.2}) scale({x_scale:.4} {y_scale:.4})\" d=\"{path}\"/></clipPath>\
                 <rect x=\"{LEFT}\" y=\"{y:.2}\" width=\"{PLOT}\" height=\"{height:.2}\" fill=\"url(#u)\" clip-path=\"url(#{id})\"/>"
            );
        }
    }

    /// Draws the lowest and the highest address, and some between where there is space.
    fn addresses(&self, svg: &mut String, segment: &Segment, y: f64) {
        let height = self.row_height() * segment.rows as f64;
        if height >= SIZE_FITS {
            let bytes = units::format_bytes(segment.shown_bytes);
            text(svg, "e d", (LEFT - 9.0, y + 22.0), bytes);
        }
        let labels = ((height / 44.0) as usize).clamp(1, 8);
        for label in 0..=labels {
            let row = segment.rows * label / labels;
            let at = y + height - self.row_height() * row as f64;
            if label == labels && height < 26.0 {
                continue;
            }
            let address = match row.checked_sub(1) {
                None => segment.range.start,
                Some(below) => self.target.rows[segment.first_row + below].range.end,
            };
            // The label stays inside the segment, because the space beyond it is another segment's.
            let baseline = match label {
                0 => at,
                last if last == labels => at + 9.0,
                _ => at + 4.0,
            };
            let (mark, label) = (LEFT - 5.0, format!("{address:#x}"));
            let _ = writeln!(svg, "<path class=\"g\" d=\"M{mark} {at:.1}h5\"/>");
            text(svg, "e m d", (LEFT - 9.0, baseline), label);
        }
    }

    /// Draws neighbouring rows of the same mapping, with its name.
    fn mappings(&self, svg: &mut String, segment: &Segment, y: f64) {
        let rows = &self.target.rows[segment.first_row..segment.first_row + segment.rows];
        let x = LEFT + PLOT + 6.0;
        let mut below = 0;
        let mut free_above = f64::INFINITY;
        for run in rows.chunk_by(|a, b| name(a) == name(b)) {
            let bottom = y + self.row_height() * (segment.rows - below) as f64;
            let top = bottom - self.row_height() * run.len() as f64;
            below += run.len();
            let middle = f64::midpoint(top, bottom) + 4.0;
            let Some(name) = name(&run[0]) else { continue };
            let (top, bottom) = (top + 1.0, bottom - 1.0);
            let _ = write!(
                svg,
                "<path fill=\"none\" stroke=\"var(--dim)\" d=\"M{x} {top:.1}h4V{bottom:.1}h-4\"/>"
            );
            // Names of thin runs would overlap.
            if middle + 11.0 <= free_above {
                free_above = middle;
                let (x, short, name) = (x + 9.0, escape(&fitting(name)), escape(name));
                let _ = writeln!(
                    svg,
                    "<text class=\"m\" x=\"{x}\" y=\"{middle:.1}\"><title>{name}</title>{short}</text>"
                );
            }
        }
    }

    fn time_axis(&self, svg: &mut String, y: f64) {
        let report = self.report;
        let (from, to) = (report.start_ns, report.time_at(report.columns));
        let span = to.since(from).0.max(1) as f64;
        for time in time_ticks(from, to, 8) {
            let x = LEFT + PLOT * time.since(from).0 as f64 / span;
            tick(svg, (x, y), units::format_time(time));
        }
    }
}

/// The fill of a cell; `None` stands for an unmonitored one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fill {
    Unknown,
    Rate(u8),
}

fn fill(cell: &HeatmapCell) -> Option<Fill> {
    (cell.monitored > 0.0).then(|| match cell.access_rate {
        None => Fill::Unknown,
        Some(rate) => Fill::Rate((colour::position(rate) * STEPS).ceil() as u8),
    })
}

fn step_colour(step: u8) -> Rgb {
    let position = f32::from(step) / STEPS;
    colour::of_rate(position * position)
}

fn name(row: &crate::heatmap::HeatmapRow) -> Option<&str> {
    row.mapping.as_ref().map(|m| &*m.name)
}

fn fitting(name: &str) -> String {
    const MOST: usize = 30;
    let length = name.chars().count();
    if length <= MOST {
        return name.into();
    }
    let end: String = name.chars().skip(length - MOST + 1).collect();
    format!("…{end}")
}

fn legend(svg: &mut String, y: f64) {
    const BAR: f64 = 300.0;
    let base = y + 12.0;
    text(svg, "d", (LEFT, base), "access rate");
    let x = LEFT + 84.0;
    for step in 0..=STEPS as u8 {
        let width = BAR / (f64::from(STEPS) + 1.0);
        let (x, width) = (x + width * f64::from(step), width + 0.4);
        let fill = colour::hex(step_colour(step));
        let _ = write!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"14\" fill=\"{fill}\"/>"
        );
    }
    for rate in [0.0_f32, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0] {
        let at = x + BAR * f64::from(colour::position(rate));
        let label = units::format_rate(Some(rate)).replace(' ', "");
        text(svg, "c d", (at, y + 28.0), label);
    }
    let unknown = x + BAR + 40.0;
    let gap = unknown + 108.0;
    let _ = writeln!(
        svg,
        "<rect x=\"{unknown}\" y=\"{y:.1}\" width=\"26\" height=\"14\" fill=\"#b9bfc8\"/>\
         <rect x=\"{unknown}\" y=\"{y:.1}\" width=\"26\" height=\"14\" fill=\"url(#u)\"/>\
         <rect style=\"fill:var(--gap);stroke:var(--dim)\" x=\"{gap}\" y=\"{y:.1}\" width=\"26\" height=\"14\"/>"
    );
    text(svg, "d", (unknown + 33.0, base), "unknown");
    text(svg, "d", (gap + 33.0, base), "not monitored");
}
