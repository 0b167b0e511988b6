//! The working-set report as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::units;

use super::over_time::{series, spark};
use super::{Render, Style, page};
use crate::rows::ColumnType::U64;
use crate::rows::{Column, ColumnValue, column};
use crate::table::{TARGET_OR_TOTAL, Tabulate};
use crate::wss::{WorkingSet, WssReport};
use isotherm_render::plot::{NamedLine, lines};
use isotherm_render::table::Table;

impl Tabulate for WssReport {
    /// The columns of a row for each step of time.
    const COLUMNS: &'static [Column] = &[
        TARGET_OR_TOTAL,
        column("time_ns", U64, "Start of the step."),
        column("min_bytes", U64, "Least value in the step."),
        column("mean_bytes", U64, "Mean over the step."),
        column("max_bytes", U64, "Greatest value in the step."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for set in self.sets() {
            let target = set.target.target.into();
            for point in &set.series {
                let [min, mean, max] = [point.min, point.mean, point.max].map(Into::into);
                push(&[target, point.time_ns.into(), min, mean, max]);
            }
        }
    }
}

impl Render for WssReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.targets.is_empty() {
            return writeln!(out, "no snapshot in this part of the record");
        }
        for (index, set) in self.sets().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            self.text_of(set, style, out)?;
        }
        Ok(())
    }

    fn svg(&self) -> String {
        let sets = self.sets();
        let plots = sets.map(|set| NamedLine::new(set.target.label(), &set.series));
        lines("Working set over time", &self.counted(), plots)
    }

    fn html(&self) -> String {
        let mut html = page::start("Working set", &self.record);
        html += &page::figure("Working set over time", "", &self.svg());
        for set in self.sets() {
            let rows = set.percentiles.iter();
            let rows = rows.map(|p| [format!("{} %", p.percent), units::format_bytes(p.value)]);
            let facts = facts(set, &Style::default());
            let heads = "Percentile|Working set";
            html += &Table::of(heads, rows).html(&set.target.label(), &facts);
        }
        html
    }
}

impl WssReport {
    fn sets(&self) -> impl Iterator<Item = &WorkingSet> {
        self.targets.iter().chain(&self.total)
    }

    fn counted(&self) -> String {
        match self.min_rate {
            None => "Regions with any access.".into(),
            rate => {
                let rate = units::format_rate(rate);
                format!("Regions with an access rate of {rate} or more.")
            }
        }
    }

    fn text_of(&self, set: &WorkingSet, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let (label, snapshots) = (set.target.label(), set.snapshots);
        writeln!(out, "Working set of {label}, {snapshots} snapshots")?;
        writeln!(out, "{}\n", self.counted())?;
        let bytes = |n: u64| style.bytes(n);
        let values = set.percentiles.iter().map(|p| p.value);
        let max = values.max().unwrap_or(0).max(1);
        let rows = set.percentiles.iter().map(|p| {
            let bar = (p.value as f64 / max as f64 * 40.0).round() as usize;
            [p.percent.to_string(), bytes(p.value), "#".repeat(bar)]
        });
        Table::of("PERCENTILE>|WORKING SET>|", rows).write(out)?;
        writeln!(out, "\n{}", facts(set, style))?;
        if style.over_time {
            writeln!(out, "\nover time, 0 to {}:", bytes(max))?;
            writeln!(out, "{}", spark(&set.series, style.width))?;
            writeln!(out)?;
            series(&set.series, style).write(out)?;
        }
        Ok(())
    }
}

fn facts(set: &WorkingSet, style: &Style) -> String {
    let bytes = |n: u64| style.bytes(n);
    let mut facts = format!("mean {}", bytes(set.mean_bytes));
    if let Some(resident) = set.resident_mean_bytes.or(set.rss_mean_bytes) {
        let _ = write!(facts, " of {} resident", bytes(resident));
    }
    if let Some(swapped) = set.swapped_mean_bytes.filter(|bytes| *bytes > 0) {
        let _ = write!(facts, ", {} swapped out", bytes(swapped));
    }
    let addresses = bytes(set.monitored_mean_bytes);
    let _ = match set.resident_mean_bytes {
        Some(_) => write!(facts, " (in {addresses} of addresses)"),
        None => write!(facts, " ({addresses} monitored)"),
    };
    if set.unknown_mean_bytes > 0 {
        let unknown = bytes(set.unknown_mean_bytes);
        let _ = write!(facts, "; of another {unknown} nothing is known");
    }
    if set.resolution_bytes > 0 {
        let resolution = bytes(set.resolution_bytes);
        let _ = write!(facts, "; percentiles may be {resolution} too low");
    }
    facts
}
