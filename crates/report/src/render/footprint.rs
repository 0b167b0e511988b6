//! The footprint report as text, CSV, SVG and HTML.

use std::io::{self, Write};

use isotherm_engine::units;

use super::over_time::{series, spark};
use super::{Render, Style, page};
use crate::footprint::FootprintReport;
use crate::rows::ColumnType::{Name, U64};
use crate::rows::{Column, ColumnValue, column};
use crate::table::Tabulate;
use isotherm_render::plot::{NamedLine, lines};
use isotherm_render::table::Table;

const SPARK_WIDTH: usize = 40;

impl Tabulate for FootprintReport {
    /// The columns of a row for each step of time.
    const COLUMNS: &'static [Column] = &[
        column("metric", Name, "Name of the metric."),
        column("time_ns", U64, "Start of the step."),
        column("min_bytes", U64, "Least value in the step."),
        column("mean_bytes", U64, "Mean over the step."),
        column("max_bytes", U64, "Greatest value in the step."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for metric in &self.metrics {
            for point in &metric.series {
                let [min, mean, max] = [point.min, point.mean, point.max].map(Into::into);
                push(&[metric.name.into(), point.time_ns.into(), min, mean, max]);
            }
        }
    }
}

impl Render for FootprintReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.heading())?;
        let bytes = |n: u64| style.bytes(n);
        let rows = self.metrics.iter().map(|metric| {
            let numbers = [metric.min_bytes, metric.mean_bytes, metric.max_bytes];
            let [min, mean, max] = numbers.map(bytes);
            let over_time = spark(&metric.series, SPARK_WIDTH);
            [named(metric.name).into(), min, mean, max, over_time]
        });
        Table::of("|MIN>|MEAN>|MAX>|OVER TIME", rows).write(out)?;
        if let Some(total) = self.system_total_bytes {
            writeln!(out, "\nthe machine has {}", bytes(total))?;
        }
        if style.over_time {
            for metric in &self.metrics {
                writeln!(out, "\n{}\n", named(metric.name))?;
                series(&metric.series, style).write(out)?;
            }
        }
        Ok(())
    }

    fn svg(&self) -> String {
        self.picture(&self.heading(), |_| true)
    }

    fn html(&self) -> String {
        let mut html = page::start("Memory footprint", &self.record);
        let of_system = |name: &str| name.starts_with("system");
        let target = self.picture(&self.heading(), |name| !of_system(name));
        html += &page::figure("The target", "", &target);
        let machine = self.picture("Memory of the machine", of_system);
        html += &page::figure("The machine", "", &machine);
        let rows = self.metrics.iter().map(|metric| {
            let numbers = [metric.min_bytes, metric.mean_bytes, metric.max_bytes];
            let [min, mean, max] = numbers.map(units::format_bytes);
            [named(metric.name).to_owned(), min, mean, max]
        });
        html + &page::table("Summary", "", &["", "Least", "Mean", "Most"], rows)
    }
}

impl FootprintReport {
    fn heading(&self) -> String {
        match self.target {
            Some(target) => format!("Memory footprint of target {}", target.0),
            None => "Memory footprint of all targets".into(),
        }
    }

    fn picture(&self, title: &str, admit: impl Fn(&str) -> bool) -> String {
        let admitted = self.metrics.iter().filter(|metric| admit(metric.name));
        let plots = admitted.map(|metric| NamedLine::new(named(metric.name), &metric.series));
        lines(title, "", plots)
    }
}

fn named(name: &str) -> &str {
    match name {
        "rss" => "resident",
        "swap" => "swapped out",
        "resident" => "resident, as watched",
        "working_set" => "working set",
        "unknown" => "of unknown use",
        "system_used" => "machine: used",
        "system_unavailable" => "machine: unavailable",
        "monitor_rss" => "Isotherm itself",
        other => other,
    }
}
