//! The footprint report as text, CSV, SVG and HTML.

use std::io::{self, Write};

use isotherm_engine::units;

use super::plot::{Line, PlotText, lines};
use super::table::{Align, Table};
use super::wss::spark;
use super::{Render, Style, csv_line, page};
use crate::footprint::{FootprintReport, Metric};

/// The longest sparkline beside the numbers.
const SPARK_WIDTH: usize = 40;

impl Render for FootprintReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "Memory footprint of {}\n", self.subject())?;
        if self.metrics.is_empty() {
            return writeln!(out, "the record says nothing about it in this part");
        }
        let bytes = |n: u64| {
            if style.raw {
                n.to_string()
            } else {
                units::format_bytes(n)
            }
        };
        let mut table = Table::new(&[
            ("", Align::Left),
            ("MIN", Align::Right),
            ("MEAN", Align::Right),
            ("MAX", Align::Right),
            ("OVER TIME", Align::Left),
        ]);
        for metric in &self.metrics {
            table.row(vec![
                title(metric.name).into(),
                bytes(metric.min_bytes),
                bytes(metric.mean_bytes),
                bytes(metric.max_bytes),
                spark(&metric.series, SPARK_WIDTH),
            ]);
        }
        table.write(out)?;
        if let Some(total) = self.system_total_bytes {
            writeln!(out, "\nthe machine has {}", bytes(total))?;
        }
        if style.over_time {
            for metric in &self.metrics {
                series(metric, style, out)?;
            }
        }
        Ok(())
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let head = ["metric", "time_ns", "min_bytes", "mean_bytes", "max_bytes"];
        csv_line(out, &head.map(String::from))?;
        for metric in &self.metrics {
            for point in &metric.series {
                let numbers = [point.time_ns.0, point.min, point.mean, point.max];
                let mut fields = vec![metric.name.to_string()];
                fields.extend(numbers.map(|n| n.to_string()));
                csv_line(out, &fields)?;
            }
        }
        Ok(())
    }

    fn svg(&self) -> String {
        self.picture(|_| true)
    }

    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut html = page::start("Memory footprint", &self.record);
        let of_system = |name: &str| name.starts_with("system");
        html += &page::figure("The target", "", &self.picture(|name| !of_system(name)));
        html += &page::figure("The machine", "", &self.picture(of_system));
        let row = |metric: &Metric| {
            let mut row = vec![title(metric.name).to_string()];
            let numbers = [metric.min_bytes, metric.mean_bytes, metric.max_bytes];
            row.extend(numbers.map(units::format_bytes));
            row
        };
        let rows: Vec<Vec<String>> = self.metrics.iter().map(row).collect();
        html += &page::table("Summary", "", &["", "Least", "Mean", "Most"], &rows);
        html += page::END;
        out.write_all(html.as_bytes())
    }
}

impl FootprintReport {
    fn subject(&self) -> String {
        match self.target {
            Some(target) => format!("target {}", target.0),
            None => "all targets".into(),
        }
    }

    fn picture(&self, admit: impl Fn(&str) -> bool) -> String {
        let admitted = self.metrics.iter().filter(|metric| admit(metric.name));
        let plots: Vec<Line> = admitted
            .map(|metric| Line {
                name: title(metric.name).into(),
                points: &metric.series,
            })
            .collect();
        let title = format!("Memory footprint of {}", self.subject());
        let text = PlotText {
            title: &title,
            note: "",
        };
        lines(&text, &plots)
    }
}

fn series(metric: &Metric, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("TIME", Align::Right),
        ("MIN", Align::Right),
        ("MEAN", Align::Right),
        ("MAX", Align::Right),
    ]);
    let bytes = |n: u64| {
        if style.raw {
            n.to_string()
        } else {
            units::format_bytes(n)
        }
    };
    for point in &metric.series {
        let time = if style.raw {
            point.time_ns.0.to_string()
        } else {
            units::format_time(point.time_ns)
        };
        table.row(vec![
            time,
            bytes(point.min),
            bytes(point.mean),
            bytes(point.max),
        ]);
    }
    writeln!(out, "\n{}\n", title(metric.name))?;
    table.write(out)
}

fn title(name: &str) -> &str {
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
