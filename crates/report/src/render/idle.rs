//! The idle report as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::{Nanos, units};

use super::{Render, Style, page};
use crate::idle::{IdleMemory, IdleReport};
use crate::rows::ColumnType::{F64, Name, U64};
use crate::rows::{Column, ColumnValue, column, nullable};
use crate::table::{TARGET_OR_TOTAL, Tabulate};
use isotherm_render::plot::{Bar, bars};
use isotherm_render::table::Table;

impl Tabulate for IdleReport {
    /// The columns of a row for each minimum idle time, each percentile and each total.
    const COLUMNS: &'static [Column] = &[
        TARGET_OR_TOTAL,
        column("time_ns", U64, "Time of the count."),
        column(
            "kind",
            Name,
            "`idle_at_least`: `bytes` were idle for `idle_ns` or longer. `percentile`: `percent` of the known bytes \
             were idle for `idle_ns` at most. Others: `bytes` of this kind.",
        ),
        nullable("percent", F64, "Share of the bytes, 0 to 100."),
        nullable("idle_ns", U64, "Idle time."),
        nullable("bytes", U64, "Bytes; null: not watched for so long."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for memory in self.memories() {
            let [target, time] = [memory.target.target.into(), memory.time_ns.into()];
            let mut line =
                |kind: &str, percent: Option<f64>, idle: Option<Nanos>, n: Option<u64>| {
                    let [percent, idle, bytes] = [percent.into(), idle.into(), n.into()];
                    push(&[target, time, kind.into(), percent, idle, bytes]);
                };
            for idle in &memory.idle {
                line("idle_at_least", None, Some(idle.at_least_ns), idle.bytes);
            }
            for p in &memory.percentiles {
                line("percentile", Some(p.percent), Some(Nanos(p.value)), None);
            }
            line("accessed", None, None, Some(memory.accessed_bytes));
            line("unknown", None, None, Some(memory.unknown_bytes));
            line("monitored", None, None, Some(memory.monitored_bytes));
            line("resident", None, None, memory.resident_bytes);
            line("swapped", None, None, memory.swapped_bytes);
            line("rss", None, None, memory.rss_bytes);
        }
    }
}

impl Render for IdleReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.targets.is_empty() {
            return writeln!(out, "no snapshot in this part of the record");
        }
        for (index, memory) in self.memories().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            text_of(memory, style, out)?;
        }
        match self.ended_targets {
            0 => Ok(()),
            n => writeln!(
                out,
                "\n{n} targets had ended before; --target or --at show them"
            ),
        }
    }

    fn svg(&self) -> String {
        // One file has one picture: the sum, or the only target.
        match self.memories().last() {
            Some(memory) => picture(memory),
            None => bars("Idle memory", "no snapshot", []),
        }
    }

    fn html(&self) -> String {
        let style = Style::default();
        let mut html = page::start("Idle memory", &self.record);
        for memory in self.memories() {
            html += &page::figure(&memory.target.label(), "", &picture(memory));
            let note = "This share of the known bytes has been idle for at most so long.";
            let rows = percentiles(memory, &style);
            html += &page::table("Idle time by bytes", note, &["Bytes", "Idle for"], rows);
        }
        html
    }
}

impl IdleReport {
    fn memories(&self) -> impl Iterator<Item = &IdleMemory> {
        self.targets.iter().chain(&self.total)
    }
}

fn title(memory: &IdleMemory, style: &Style) -> String {
    let (label, at) = (memory.target.label(), style.duration(memory.time_ns));
    format!("Idle memory of {label}, at {at}")
}

fn text_of(memory: &IdleMemory, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}\n", title(memory, style))?;
    let known = known_bytes(memory);
    let rows = memory.idle.iter().map(|idle| {
        let least = format!(">= {}", style.duration(idle.at_least_ns));
        let Some(n) = idle.bytes else {
            let why = "not watched for so long".to_owned();
            return [least, "?".into(), "?".into(), why];
        };
        // The share is at most 1: the sums saturate where a foreign record claims more memory than exists.
        let share = (n as f32 / known.max(1) as f32).min(1.0);
        let bar = "#".repeat((share * 40.0).round() as usize);
        [least, style.bytes(n), units::format_rate(Some(share)), bar]
    });
    Table::of("IDLE FOR>|BYTES>|OF KNOWN>|", rows).write(out)?;
    writeln!(out)?;
    Table::of("BYTES>|IDLE FOR AT MOST>", percentiles(memory, style)).write(out)?;
    writeln!(out, "\n{}", facts(memory, style))
}

fn percentiles(memory: &IdleMemory, style: &Style) -> impl Iterator<Item = [String; 2]> {
    let percentiles = memory.percentiles.iter();
    percentiles.map(move |p| [format!("{} %", p.percent), style.duration(Nanos(p.value))])
}

fn known_bytes(memory: &IdleMemory) -> u64 {
    let all = memory.resident_bytes.unwrap_or(memory.monitored_bytes);
    all.saturating_sub(memory.unknown_bytes)
}

fn facts(memory: &IdleMemory, style: &Style) -> String {
    let bytes = |n: u64| style.bytes(n);
    if let (Some(resident), Some(swapped)) = (memory.resident_bytes, memory.swapped_bytes) {
        return format!(
            "resident {}: accessed {}, unknown {}; swapped out {}; in {} of addresses",
            bytes(resident),
            bytes(memory.accessed_bytes),
            bytes(memory.unknown_bytes),
            bytes(swapped),
            bytes(memory.monitored_bytes)
        );
    }
    let mut facts = format!(
        "monitored {}: accessed {}, unknown {}",
        bytes(memory.monitored_bytes),
        bytes(memory.accessed_bytes),
        bytes(memory.unknown_bytes)
    );
    if let Some(rss) = memory.rss_bytes {
        let _ = write!(facts, "; resident {}", bytes(rss));
        if memory.monitored_bytes > rss {
            facts += ", the rest of the monitored addresses holds no memory";
        }
    }
    facts
}

fn picture(memory: &IdleMemory) -> String {
    let known = known_bytes(memory).max(1) as f64;
    let rows = memory.idle.iter().map(|idle| Bar {
        label: format!("≥ {}", units::format_time(idle.at_least_ns)),
        value: match idle.bytes {
            None => "unknown: not watched for so long".into(),
            Some(n) => {
                let share = units::format_share(n as f64 / known);
                format!("{} · {share}", units::format_bytes(n))
            }
        },
        share: idle.bytes.unwrap_or(0) as f64 / known,
        colour: None,
    });
    let style = Style::default();
    bars(&title(memory, &style), &facts(memory, &style), rows)
}
