//! The curve of huge pages as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::units;

use super::{Render, Style, page};
use crate::ethp_curve::{EthpCurveReport, EthpPoint};
use crate::rows::ColumnType::{F64, Name, U64};
use crate::rows::{Column, ColumnValue, column, columns, nullable};
use crate::table::Tabulate;
use isotherm_render::plot::{self, LINES, WIDTH};
use isotherm_render::svg::{dot, grid_line, text};
use isotherm_render::table::Table;

const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 48.0;

const COVERAGE: &str = "Coverage is the share of touched translations (4 KiB pages, once a scan) that huge pages would have \
     covered: the greatest share of TLB misses that they avoid. It is not time; `isotherm thp --try` measures that";

columns! {
    /// The columns of a row for each policy and each bound of the waste.
    COLUMNS, point_row(policy: &str, point: &EthpPoint):
    column("policy", Name, "Name of the policy, or `bound`.") => policy,
    nullable("max_waste", F64, "Bound, as a share of resident memory.") => point.max_waste,
    column("huge_mean_bytes", U64, "Bytes in huge pages, mean.") => point.huge_mean_bytes,
    column("waste_mean_bytes", U64, "Untouched bytes of these.") => point.waste_mean_bytes,
    column("waste_share", F64, "Waste by resident memory, 0 to 1.") => point.waste_share,
    column("waste_of_always", F64, "Waste by that of `always`, 0 to 1.") => point.waste_of_always,
    column("coverage", F64, "Covered share of touched translations.") => point.coverage,
}

impl Tabulate for EthpCurveReport {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        let bounds = self.points.iter().map(|point| ("bound", point));
        for (policy, point) in self.named().into_iter().chain(bounds) {
            point_row(&mut *push, policy, point);
        }
    }
}

impl Render for EthpCurveReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.facts(style))?;
        let heads = "POLICY|HUGE>|WASTE>|OF RESIDENT>|OF ALWAYS>|COVERAGE>";
        Table::of(heads, self.shown(style)).write(out)?;
        let (choice, verdict) = (self.choice(style), self.verdict());
        writeln!(out, "\n{choice}.\n\n{COVERAGE}.\n\n{verdict}")
    }

    fn svg(&self) -> String {
        let note = "Translations covered by huge pages (not time), by their waste as a share of resident memory.";
        let mut svg = plot::open_titled(HEIGHT, TITLE, note);
        let shares = self.points.iter().map(|point| point.waste_share);
        let most = shares.fold(self.always.waste_share, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let x = |share: f64| LEFT + (WIDTH - LEFT - RIGHT) * share / most;
        for quarter in 0..=4 {
            let share = f64::from(quarter) / 4.0;
            let ends = (LEFT, WIDTH - RIGHT);
            grid_line(&mut svg, ends, y(share), format!("{:.0} %", 100.0 * share));
            let waste = format!("{:.1} %", 100.0 * share * most);
            let below = (x(share * most), HEIGHT - BOTTOM + 18.0);
            text(&mut svg, "c d", below, waste);
        }
        let points = self.points.iter();
        let path = plot::path(points.map(|p| (x(p.waste_share), y(p.coverage))));
        let (colour, _) = LINES[0];
        let _ = writeln!(
            svg,
            "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" d=\"{path}\"/>"
        );
        for (index, (name, point)) in self.named().into_iter().enumerate() {
            let (colour, _) = LINES[index + 1];
            let at = LEFT + 200.0 * index as f64;
            let place = (x(point.waste_share), y(point.coverage));
            dot(&mut svg, place, 5.0, colour);
            dot(&mut svg, (at + 6.0, 62.0), 5.0, colour);
            text(&mut svg, "", (at + 18.0, 66.0), name);
        }
        svg + "</svg>\n"
    }

    fn html(&self) -> String {
        let style = Style::default();
        let mut html = page::start("Huge pages", &self.record);
        let note = format!("{}. {}", self.choice(&style), self.verdict());
        html += &page::figure(TITLE, &note, &self.svg());
        let heads = "Policy|In huge pages|Waste|Of resident|Of always' waste|Coverage";
        html += &Table::of(heads, self.shown(&style)).html("By policy", &self.facts(&style));
        let _ = writeln!(html, "<p>{COVERAGE}.</p>");
        html
    }
}

const TITLE: &str = "What huge pages would waste and cover";

fn fields(name: &str, point: &EthpPoint, style: &Style) -> [String; 6] {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    [
        name.to_owned(),
        style.bytes(point.huge_mean_bytes),
        style.bytes(point.waste_mean_bytes),
        percent(point.waste_share),
        percent(point.waste_of_always),
        percent(point.coverage),
    ]
}

impl EthpCurveReport {
    fn named(&self) -> [(&'static str, &EthpPoint); 4] {
        [
            ("never", &self.never),
            ("chosen", &self.chosen),
            ("ethp, no bound", &self.unbounded),
            ("always", &self.always),
        ]
    }

    /// Returns the rows of the table: the policies with the bounds between them.
    fn shown(&self, style: &Style) -> Vec<[String; 6]> {
        let bounds = self.points.iter().map(|point| match point.max_waste {
            None => fields("any waste", point, style),
            Some(share) => {
                let name = format!("waste <= {}", units::format_share(share));
                fields(&name, point, style)
            }
        });
        let [never, _, unbounded, always] =
            self.named().map(|(name, point)| fields(name, point, style));
        let mut rows = vec![never];
        rows.extend(bounds);
        rows.extend([unbounded, always]);
        rows
    }

    fn facts(&self, style: &Style) -> String {
        let mut facts = format!(
            "{} that could be huge, on average over {}, scanned every {}; {:.0} pages touched in a scan; waste is \
             given back after {} of idleness",
            style.bytes(self.resident_mean_bytes),
            units::format_time(self.duration_ns),
            units::format_time(self.scan_interval_ns),
            self.touched_per_scan,
            units::format_time(self.idle_ns),
        );
        if self.unknown_mean_bytes > 0 {
            let _ = write!(
                facts,
                "; of {} nothing is known, and it counts as untouched",
                style.bytes(self.unknown_mean_bytes)
            );
        }
        if self.recorded_huge_mean_bytes > 0 {
            let _ = write!(
                facts,
                "; {} were in huge pages already, which show one accessed bit for all of their pages, and are left \
                 out: record with huge pages off",
                style.bytes(self.recorded_huge_mean_bytes)
            );
        }
        facts
    }

    fn choice(&self, style: &Style) -> String {
        let bound = self.chosen.max_waste.unwrap_or(0.0);
        let [_, huge, waste, share, of_always, coverage] = fields("", &self.chosen, style);
        format!(
            "With --max-waste {}: {huge} in huge pages waste {waste} ({share} of resident, {of_always} of what huge pages \
             everywhere waste) and cover {coverage} of touched translations",
            units::format_share(bound)
        )
    }

    /// Returns what to do: the least bound that keeps most of what huge pages everywhere cover.
    fn verdict(&self) -> String {
        let (always, percent) = (&self.always, |share: f64| 100.0 * share);
        let is_good = |point: &EthpPoint| point.coverage >= MOST * always.coverage;
        let bounds = self.points.iter();
        let mut bounds = bounds.filter_map(|point| Some((point.max_waste?, point)));
        let text = match bounds.find(|(_, point)| is_good(point)) {
            _ if always.coverage < LITTLE => "small pages (huge ones cover little)",
            _ if always.waste_share < LITTLE => "huge pages everywhere (they waste little)",
            Some((bound, point)) if point.waste_of_always < MOST => &format!(
                "isotherm run --preset ethp --max-waste {} ({:.0} % of the coverage of huge pages everywhere, {:.0} % of \
                 their waste)",
                units::format_share(bound),
                percent(point.coverage / always.coverage),
                percent(point.waste_of_always)
            ),
            _ => "isotherm thp --try (no bound saves much of the waste and keeps the coverage)",
        };
        format!("Verdict: {text}.")
    }
}

/// Part of the coverage of huge pages everywhere that a good bound keeps.
const MOST: f64 = 0.8;
/// Coverage, and waste by resident memory, that count as little.
const LITTLE: f64 = 0.02;

fn y(share: f64) -> f64 {
    HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share.clamp(0.0, 1.0)
}
