//! The reclaim curve as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::{Nanos, units};

use super::{Render, Style, page};
use crate::reclaim_curve::backoff::THRESHOLDS;
use crate::reclaim_curve::{ReclaimCurveReport, ReclaimPoint, RefaultCostSource};
use crate::rows::ColumnType::{F64, Name, U64};
use crate::rows::{Column, ColumnValue, column, columns, nullable};
use crate::table::Tabulate;
use isotherm_render::plot::{self, LINES, WIDTH};
use isotherm_render::svg::{grid_line, line_name, text};
use isotherm_render::table::Table;

const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 78.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 44.0;

columns! {
    /// The columns of a row for each threshold.
    COLUMNS, point_row(policy: &str, point: &ReclaimPoint):
    column("policy", Name,
        "`idle`: each page is taken once it was idle for this time. `backoff`: pages by the guard's age.") => policy,
    column("threshold_ns", U64, "Minimum idle time.") => point.threshold_ns,
    column("saved_byte_seconds", F64, "Bytes times seconds.") => point.saved_byte_seconds,
    column("saved_mean_bytes", U64, "Mean over time.") => point.saved_mean_bytes,
    column("saved_share", F64, "Share of mean resident memory, 0 to 1.") => point.saved_share,
    nullable("steady_share", F64, "The same without the beginning.") => point.steady_share,
    column("refaults_per_s", F64, "Pages read back per second.") => point.refaults_per_s,
    column("slowdown", F64, "Share of the program's time that is lost.") => point.slowdown,
}

impl Tabulate for ReclaimCurveReport {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        let first = self.points.iter().map(|point| ("idle", point));
        let second = self.backoff_points.iter().map(|point| ("backoff", point));
        for (policy, point) in first.chain(second) {
            point_row(&mut *push, policy, point);
        }
    }
}

impl Render for ReclaimCurveReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.facts(style))?;
        let heads = "IDLE FOR>|SAVED, MEAN>|OF RESIDENT>|STEADY>|REFAULTS/S>|SLOWDOWN>";
        table(heads, self.shown(), style).write(out)?;
        if !self.backoff_points.is_empty() {
            writeln!(out, "\n{BACKOFF}:\n")?;
            table(heads, self.backoff_points.iter().copied(), style).write(out)?;
        }
        if let Some(sentence) = self.choice(style) {
            writeln!(out, "\n{sentence}")?;
        }
        Ok(())
    }

    /// Draws the savings (left axis) and the losses (right axis) over the threshold on a logarithmic axis.
    fn svg(&self) -> String {
        let title = "What reclaiming would save and cost";
        let note = "By how long memory has to be idle before it is reclaimed.";
        let mut svg = plot::open_titled(HEIGHT, title, note);
        let shortest = self.scan_interval_ns.max(Nanos(1));
        let points = self.points.iter();
        let points: Vec<&ReclaimPoint> = points.filter(|p| p.threshold_ns >= shortest).collect();
        if let Some(frame) = Frame::of(&points) {
            frame.grid(&mut svg);
            let slowest = frame.slowest;
            let saved = |point: &ReclaimPoint| point.saved_share;
            let slowdown = |point: &ReclaimPoint| point.slowdown / slowest;
            let ends = points[0].threshold_ns..=points[points.len() - 1].threshold_ns;
            let backed_off = self.backoff_points.iter();
            let backed_off = backed_off.filter(|point| ends.contains(&point.threshold_ns));
            let backed_off: Vec<&ReclaimPoint> = backed_off.collect();
            frame.line(&mut svg, 0, "saved, of resident (left)", &points, saved);
            frame.line(&mut svg, 1, "slowdown (right)", &points, slowdown);
            frame.line(&mut svg, 2, "saved, by age of pages", &backed_off, saved);
            frame.line(&mut svg, 3, "slowdown, by that age", &backed_off, slowdown);
        }
        svg + "</svg>\n"
    }

    fn html(&self) -> String {
        let style = Style::default();
        let mut html = page::start("Reclaim curve", &self.record);
        let note = self.choice(&style).unwrap_or_default();
        html += &page::figure("What reclaiming would save and cost", &note, &self.svg());
        let heads = "Idle for|Saved, mean|Of resident|Steady|Refaults/s|Slowdown";
        html += &table(heads, self.shown(), &style).html("By threshold", &self.facts(&style));
        let backed_off = self.backoff_points.iter().copied();
        html + &table(heads, backed_off, &style)
            .html("By the age that the guard gives single pages", BACKOFF)
    }
}

const BACKOFF: &str = "Where a page waits longer by the square of one plus the number of its idle times that ended, \
     as under the guard of `run`";

fn table(heads: &str, points: impl Iterator<Item = ReclaimPoint>, style: &Style) -> Table {
    Table::of(heads, points.map(|point| fields(&point, style)))
}

fn fields(point: &ReclaimPoint, style: &Style) -> [String; 6] {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    [
        style.duration(point.threshold_ns),
        style.bytes(point.saved_mean_bytes),
        percent(point.saved_share),
        point.steady_share.map_or_else(|| "?".into(), percent),
        format!("{:.1}", point.refaults_per_s),
        format!("{:.3} %", 100.0 * point.slowdown),
    ]
}

impl ReclaimCurveReport {
    fn shown(&self) -> impl Iterator<Item = ReclaimPoint> + '_ {
        let fits = self.scan_interval_ns..self.duration_ns;
        let thresholds = THRESHOLDS.into_iter();
        let thresholds = thresholds.filter(move |threshold| fits.contains(threshold));
        thresholds.map(|threshold| self.at(threshold))
    }

    fn facts(&self, style: &Style) -> String {
        let mut facts = format!(
            "{} resident on average over {}, scanned every {} (shorter idleness cannot be measured); \
             a refault costs {} ({})",
            style.bytes(self.resident_mean_bytes),
            units::format_time(self.duration_ns),
            units::format_time(self.scan_interval_ns),
            units::format_time(self.refault_cost_ns),
            match self.refault_cost_source {
                RefaultCostSource::Given => "as given",
                RefaultCostSource::Measured => "as measured with the record",
                RefaultCostSource::Default => "as on other machines: not measured with the record",
            },
        );
        if self.unknown_mean_bytes > 0 {
            let _ = write!(
                facts,
                "; of {} nothing is known, and nothing is taken",
                style.bytes(self.unknown_mean_bytes)
            );
        }
        if self.unreclaimable_mean_bytes > 0 {
            let _ = write!(
                facts,
                "; {} is unreclaimable (locked, for instance), and nothing of it is taken",
                style.bytes(self.unreclaimable_mean_bytes)
            );
        }
        facts += ". Steady: without the beginning, in which nothing could be idle for so long yet";
        let unsteady = self.shown().filter(|point| point.steady_share.is_none());
        if let Some(last) = unsteady.last() {
            let longer = units::format_time(Nanos(last.threshold_ns.0 * 2));
            let _ = write!(facts, "; record for {longer} or more to tell it of all");
        }
        facts
    }

    fn choice(&self, style: &Style) -> Option<String> {
        let limit = units::format_share(self.max_slowdown?);
        Some(match &self.chosen {
            Some(point) => {
                let [threshold, saved, share, _, refaults, slowdown] = fields(point, style);
                format!(
                    "At most {limit} slower: reclaim after {threshold} of idleness; saves {saved} ({share}) at \
                     {refaults} refaults a second, {slowdown}"
                )
            }
            None => {
                format!("No threshold keeps the slowdown at {limit} or less; record for longer")
            }
        })
    }
}

struct Frame {
    /// Logarithms of the thresholds at the ends.
    from: f64,
    to: f64,
    slowest: f64,
}

impl Frame {
    fn of(points: &[&ReclaimPoint]) -> Option<Self> {
        let (first, last) = (points.first()?, points.last()?);
        let from = log(first.threshold_ns);
        let slowdowns = points.iter().map(|point| point.slowdown);
        Some(Self {
            from,
            to: log(last.threshold_ns).max(from + 0.1),
            slowest: slowdowns.fold(1e-6, f64::max),
        })
    }

    fn x(&self, time: Nanos) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (log(time) - self.from) / (self.to - self.from)
    }

    fn grid(&self, svg: &mut String) {
        for quarter in 0..=4 {
            let share = f64::from(quarter) / 4.0;
            let (up, right) = (y(share), WIDTH - RIGHT);
            grid_line(svg, (LEFT, right), up, format!("{:.0} %", 100.0 * share));
            let slowdown = format!("{:.2} %", 100.0 * share * self.slowest);
            text(svg, "d", (right + 8.0, up + 4.0), slowdown);
        }
        for time in THRESHOLDS {
            if (self.from..=self.to).contains(&log(time)) {
                let below = (self.x(time), HEIGHT - BOTTOM + 18.0);
                text(svg, "c d", below, units::format_time(time));
            }
        }
    }

    fn line(
        &self,
        svg: &mut String,
        index: usize,
        name: &str,
        points: &[&ReclaimPoint],
        of: impl Fn(&ReclaimPoint) -> f64,
    ) {
        let (colour, dashes) = LINES[index];
        let points = points.iter();
        let path = plot::path(points.map(|point| (self.x(point.threshold_ns), y(of(point)))));
        let at = LEFT + 200.0 * index as f64;
        let _ = writeln!(
            svg,
            "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\" d=\"{path}\"/>"
        );
        line_name(svg, (at, 66.0), LINES[index], name);
    }
}

fn log(time: Nanos) -> f64 {
    time.as_secs_f64().log10()
}

fn y(share: f64) -> f64 {
    HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share.clamp(0.0, 1.0)
}
