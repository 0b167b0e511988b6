//! The actions report as text, CSV, SVG and HTML.

use std::io::{self, Write};

use isotherm_engine::{Nanos, units};
use isotherm_policy::Refusal;

use super::over_time::spark;
use super::{Render, Style, or_empty, page};
use crate::actions::{ActionsReport, GuardCourse, SchemeActions};
use crate::rows::ColumnType::{Name, U32, U64};
use crate::rows::{Column, ColumnValue, column, nullable};
use crate::table::Tabulate;
use isotherm_render::plot::{NamedLine, lines};
use isotherm_render::table::Table;

const SPARK_WIDTH: usize = 24;
/// Number of processes that text and pages show; JSON has all.
const PROCESSES_SHOWN: usize = 20;

impl Tabulate for ActionsReport {
    /// The columns of a row for each metric of each scheme, counter of the kernel, process and context.
    const COLUMNS: &'static [Column] = &[
        nullable("context", Name, "Context, in a record of several."),
        nullable("scheme", U32, "Place of the scheme in its context."),
        nullable("action", Name, "Its action, or the counter's node."),
        column("metric", Name, "Name of the metric."),
        nullable("time_ns", U64, "Time; null: the end of the record."),
        column("value", U64, "Value of the metric."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        let none = ColumnValue::Null;
        for scheme in &self.schemes {
            let context = scheme.context.as_deref().into();
            let [number, action] = [scheme.scheme.into(), scheme.action.as_str().into()];
            let mut row = |metric: &str, time: Option<Nanos>, value: u64| {
                let [time, value] = [time.into(), value.into()];
                push(&[context, number, action, metric.into(), time, value]);
            };
            row("tried_bytes", None, scheme.tried_bytes);
            for way in &scheme.moved {
                let metric = format!("moved_bytes: node {} to {}", way.from, way.to);
                row(&metric, None, way.bytes);
            }
            for (why, n) in &scheme.refused_bytes {
                row(&format!("refused_bytes: {}", reason(*why)), None, *n);
            }
            for point in &scheme.series {
                row("applied_bytes_sum", Some(point.time_ns), point.max);
            }
        }
        for (node, counter, pages) in self.kernel_counters() {
            let metric = format!("kernel_pages: {counter}");
            let [node, metric] = [node.as_str(), metric.as_str()].map(Into::into);
            push(&[none, none, node, metric, none, pages.into()]);
        }
        for of in &self.processes {
            let metric = format!("applied_bytes: pid {}", or_empty(of.target.pid));
            let metric = metric.as_str().into();
            push(&[none, none, none, metric, none, of.applied_bytes.into()]);
        }
        for guard in &self.guards {
            let context = guard.context.as_deref().into();
            let metric = "guard_allowed_bytes_per_s".into();
            for point in &guard.allowed {
                let (time, mean) = (point.time_ns.into(), point.mean.into());
                push(&[context, none, none, metric, time, mean]);
            }
        }
    }
}

impl Render for ActionsReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let rows = self.schemes.iter().map(|scheme| {
            [
                name(scheme),
                style.bytes(scheme.tried_bytes),
                style.bytes(scheme.applied_bytes),
                units::format_time(scheme.took_ns),
                spark(&scheme.series, SPARK_WIDTH),
            ]
        });
        if self.schemes.is_empty() {
            writeln!(out, "no scheme tried anything")?;
        } else {
            Table::of("SCHEME|TRIED>|APPLIED>|TOOK>|OVER TIME", rows).write(out)?;
        }
        if self.processes.len() > 1 {
            writeln!(out)?;
            self.process_table(style).write(out)?;
        }
        for scheme in self.schemes.iter().filter(|s| !s.refused_bytes.is_empty()) {
            writeln!(out, "\nNot acted on by {}:", name(scheme))?;
            let refused = scheme.refused_bytes.iter();
            let rows = refused.map(|(why, n)| [style.bytes(*n), reason(*why)]);
            Table::of("BYTES>|WHY", rows).write(out)?;
        }
        self.moves_text(style, out)?;
        for guard in &self.guards {
            writeln!(out, "\n{}", guard_text(guard))?;
        }
        Ok(())
    }

    fn svg(&self) -> String {
        let schemes = self.schemes.iter();
        let plots = schemes.map(|scheme| NamedLine::new(name(scheme), &scheme.series));
        let note = "The sum of bytes that each scheme acted on.";
        lines("Memory acted on since the beginning", note, plots)
    }

    fn html(&self) -> String {
        let style = Style::default();
        let mut html = page::start("Actions", &self.record);
        html += &page::figure("Acted on, over time", "", &self.svg());
        if self.guards.iter().any(|guard| !guard.allowed.is_empty()) {
            html += &page::figure("What the guard allowed", "", &self.allowed());
        }
        let mut rows = Vec::new();
        for scheme in &self.schemes {
            let tried = style.bytes(scheme.tried_bytes);
            rows.push([name(scheme), "tried".into(), tried]);
            let applied = style.bytes(scheme.applied_bytes);
            rows.push([name(scheme), "applied".into(), applied]);
            for way in &scheme.moved {
                let what = format!("from node {} to node {}", way.from, way.to);
                rows.push([name(scheme), what, style.bytes(way.bytes)]);
            }
            for (why, n) in &scheme.refused_bytes {
                let what = format!("refused: {}", reason(*why));
                rows.push([name(scheme), what, style.bytes(*n)]);
            }
        }
        html += &page::table("Schemes", "", &["Scheme", "", "Bytes"], rows);
        let rows = self.counter_rows();
        if !rows.is_empty() {
            let heads = ["Of", "Counter", "Pages"];
            html += &page::table("Moved by the kernel itself", "", &heads, rows);
        }
        if self.processes.len() > 1 {
            html += &self.process_table(&style).html("By process", "");
        }
        if !self.guards.is_empty() {
            let rows = self.guards.iter().map(|guard| [guard_text(guard)]);
            html += &page::table("Guard", "", &[""], rows);
        }
        html
    }
}

impl ActionsReport {
    fn moves_text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = Vec::new();
        for scheme in &self.schemes {
            for way in &scheme.moved {
                let [from, to] = [way.from, way.to].map(|node| node.to_string());
                rows.push([name(scheme), from, to, style.bytes(way.bytes)]);
            }
        }
        if !rows.is_empty() {
            writeln!(out, "\nFrom node to node:")?;
            Table::of("SCHEME|FROM NODE>|TO NODE>|BYTES>", rows).write(out)?;
        }
        let rows = self.counter_rows();
        if rows.is_empty() {
            return Ok(());
        }
        let title = "Moved by the kernel itself meanwhile, by its counters:";
        writeln!(out, "\n{title}")?;
        Table::of("OF|COUNTER|PAGES>", rows).write(out)
    }

    fn counter_rows(&self) -> Vec<[String; 3]> {
        let counters = self.kernel_counters().into_iter();
        let rows = counters.map(|(of, name, pages)| [of, name.to_owned(), pages.to_string()]);
        rows.collect()
    }

    /// Returns the kernel's counters that grew: scope, name and growth in pages.
    fn kernel_counters(&self) -> Vec<(String, &str, u64)> {
        let Some(migrations) = &self.kernel_migrations else {
            return Vec::new();
        };
        let nodes = migrations.nodes.iter();
        let nodes = nodes.map(|(node, counters)| (format!("node {node}"), counters));
        std::iter::once(("machine".to_owned(), &migrations.machine))
            .chain(nodes)
            .flat_map(|(of, counters)| {
                let counters = counters.iter();
                counters.map(move |(name, pages)| (of.clone(), name.as_str(), *pages))
            })
            .collect()
    }

    fn process_table(&self, style: &Style) -> Table {
        let rows = self.processes.iter().take(PROCESSES_SHOWN).map(|of| {
            let refused = { of.refused_bytes.iter() }.max_by_key(|(_, bytes)| **bytes);
            let refused = refused.map(|(why, n)| format!("{} {}", style.bytes(*n), reason(*why)));
            [
                or_empty(of.target.pid),
                of.target.name.clone().unwrap_or_default(),
                style.bytes(of.tried_bytes),
                style.bytes(of.applied_bytes),
                refused.unwrap_or_default(),
            ]
        });
        Table::of("PID>|NAME|TRIED>|APPLIED>|NOT ACTED ON, MOSTLY", rows)
    }

    fn allowed(&self) -> String {
        let plots = self.guards.iter().map(|guard| {
            let name = guard.context.as_deref().unwrap_or("guard");
            NamedLine::new(name, &guard.allowed)
        });
        let title = "Bytes per second that the guard allowed";
        lines(title, "0 while the schemes were stopped.", plots)
    }
}

fn name(scheme: &SchemeActions) -> String {
    let context = scheme.context.as_ref();
    let context = context.map_or_else(String::new, |c| format!("{c}, "));
    let dry = if scheme.dry_run { " (dry run)" } else { "" };
    format!("{context}{} {}{dry}", scheme.scheme, scheme.action)
}

/// Returns the reason why memory was refused, in words.
pub fn reason(why: Refusal) -> String {
    let name = serde_json::to_value(why).unwrap_or_default();
    name.as_str().unwrap_or("other").replace('_', " ")
}

fn guard_text(guard: &GuardCourse) -> String {
    let context = guard.context.as_ref();
    let context = context.map_or_else(String::new, |c| format!(" of {c}"));
    let stops = match guard.stops {
        0 => "never stopped the schemes".to_owned(),
        n => {
            let times = match n {
                1 => "once".to_owned(),
                n => format!("{n} times"),
            };
            let of_cache = guard.page_cache_closed_ns;
            let of_cache = of_cache.map_or_else(String::new, |closed| {
                format!(" (the page cache for {})", units::format_time(closed))
            });
            let closed = units::format_time(guard.closed_ns);
            format!("stopped the schemes {times}, for {closed}{of_cache}")
        }
    };
    let limit_ratio = guard.limit_ratio_max;
    let limit_ratio = limit_ratio.map(|limit_ratio| format!("limit ratio up to {limit_ratio:.2}"));
    let lost = guard.account.map(|account| {
        let [lost, allowed] = [account.lost, account.allowed].map(units::format_time);
        format!(
            "targets lost {lost} of {allowed} allowed (waits, CPU time, interruptions by acting)"
        )
    });
    let waited = guard.slowdown_mean.zip(guard.slowdown_max);
    let waited = waited.map(|(mean, max)| {
        let [mean, max] = [mean, max].map(units::format_share);
        format!("they waited for memory for {mean} of their time (at most {max})")
    });
    let refaults = guard.refaults_per_s_mean.zip(guard.refaults_per_s_max);
    let refaults =
        refaults.map(|(mean, max)| format!("{mean:.1} refaults a second (at most {max:.1})"));
    let parts = [Some(stops), limit_ratio, lost, waited, refaults];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("Guard{context}: {}", parts.join("; "))
}
