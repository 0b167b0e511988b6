//! The summary and the comparison of two records as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::units;

use super::{Render, Style, or_empty, page};
use isotherm_record::machine::ChargedMemory;
use isotherm_render::plot::{Bar, bars};
use isotherm_render::table::Table;

use crate::diff::{DiffReport, Figures};
use crate::overview::{IDLE, MappingOverview, TargetOverview};
use crate::rows::ColumnType::{Name, U32, U64};
use crate::rows::{Column, ColumnValue, column, columns, nullable};
use crate::summary::SummaryReport;
use crate::table::{TARGET, Tabulate};

const TARGETS: usize = 20;

columns! {
    /// The columns of a row for each target.
    COLUMNS, table_row(target: &TargetOverview):
    TARGET => target.target.target,
    nullable("pid", U32, "Process id.") => target.target.pid,
    nullable("name", Name, "Name of the process.") => target.target.name.as_deref(),
    nullable("resident_bytes", U64, "Bytes in memory.") => target.resident_bytes,
    nullable("working_set_bytes", U64, "Working set, mean over time.") => target.working_set_bytes,
    nullable("idle_bytes", U64, "Bytes idle for 5 s or longer.") => target.idle_bytes(),
    nullable("swapped_bytes", U64, "Bytes swapped out.") => target.swapped_bytes,
    column("unknown_bytes", U64, "Bytes of unknown use.") => target.unknown_bytes,
    column("monitored_bytes", U64, "Bytes of monitored addresses.") => target.monitored_bytes,
}

impl Tabulate for SummaryReport {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for target in &self.overview.targets {
            table_row(&mut *push, target);
        }
    }
}

impl Render for SummaryReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let overview = &self.overview;
        writeln!(out, "{}.\n", self.verdict)?;
        let total = (overview.targets.len() > 1).then_some(&overview.total);
        let shown = overview.targets.iter().take(TARGETS).chain(total);
        let rows = shown.map(|target| target_row(target, style));
        let heads = "PID>|NAME|RESIDENT>|WORKING SET>|IDLE >= 5 s>|SWAPPED>|UNKNOWN>";
        Table::of(heads, rows).write(out)?;
        if overview.counts_pages_once && overview.targets.len() > 1 {
            writeln!(
                out,
                "The last row counts memory once that several of them map."
            )?;
        }
        if let Some(charged) = &overview.charged {
            writeln!(out, "{}", charge(charged, style))?;
        }
        let more = overview.targets.len().saturating_sub(TARGETS);
        if more > 0 {
            writeln!(out, "and {more} more targets")?;
        }
        if overview.ended_targets > 0 {
            writeln!(out, "{} targets had ended before", overview.ended_targets)?;
        }
        if !overview.mappings.is_empty() {
            writeln!(out, "\nMost idle memory:")?;
            let rows = overview.mappings.iter().map(|mapping| {
                let resident = style.maybe_bytes(mapping.resident_bytes);
                let idle = style.bytes(mapping.idle_bytes);
                [idle, resident, self.mapping_name(mapping)]
            });
            Table::of("IDLE >= 5 s>|RESIDENT>|MAPPING", rows).write(out)?;
        }
        writeln!(out, "\n{}", self.savings(style))?;
        if let Some(needed) = &self.needed {
            writeln!(out, "It {}: see `isotherm size`.", needed.words())?;
        }
        if let Some(share) = overview.monitor_cpu_share {
            let share = units::format_share(share);
            writeln!(out, "Watching took {share} of a CPU.")?;
        }
        writeln!(out, "Next: {}", self.next)
    }

    fn svg(&self) -> String {
        let most = self.overview.mappings.iter().map(|m| m.idle_bytes).max();
        let most = most.unwrap_or(0).max(1) as f64;
        let rows = self.overview.mappings.iter().map(|mapping| Bar {
            label: self.mapping_name(mapping),
            value: format!(
                "{} of {} resident",
                units::format_bytes(mapping.idle_bytes),
                Style::default().maybe_bytes(mapping.resident_bytes)
            ),
            share: mapping.idle_bytes as f64 / most,
            colour: None,
        });
        bars("Most idle memory, by mapping", &self.verdict, rows)
    }

    fn html(&self) -> String {
        let style = Style::default();
        let mut html = page::start("Summary", &self.overview.record);
        let next = format!("{} Next: {}", self.savings(&style), self.next);
        html += &page::figure(&self.verdict, &next, &self.svg());
        let targets = self.overview.targets.iter();
        let rows = targets.map(|target| target_row(target, &style));
        let heads = "PID|Name|Resident|Working set|Idle ≥ 5 s|Swapped|Unknown";
        html + &Table::of(heads, rows).html("Targets", &self.verdict)
    }
}

impl SummaryReport {
    fn savings(&self, style: &Style) -> String {
        let idle = units::format_time(IDLE);
        match self.reclaim.bytes {
            None => format!(
                "Nothing was watched long enough to tell what `prcl` (idle for {idle}) would save."
            ),
            Some(n) => {
                let mut text = format!(
                    "`prcl` (page out what was idle for {idle}) would save up to {}.",
                    style.bytes(n)
                );
                if self.reclaim.unreclaimable_bytes > 0 {
                    let kept = style.bytes(self.reclaim.unreclaimable_bytes);
                    let _ = write!(
                        text,
                        " Another {kept} idle cannot be paged out: locked, shared, mapped several times, or a device's."
                    );
                }
                text
            }
        }
    }

    fn mapping_name(&self, mapping: &MappingOverview) -> String {
        let mut name = match (&self.overview.targets[..], mapping.target.pid) {
            ([_, _, ..], Some(pid)) => format!("{} (pid {pid})", mapping.mapping),
            _ => mapping.mapping.clone(),
        };
        if 2 * mapping.unreclaimable_bytes > mapping.idle_bytes {
            name += " (cannot be paged out)";
        }
        name
    }
}

fn charge(ChargedMemory { group, charge }: &ChargedMemory, style: &Style) -> String {
    let parts = [
        ("anonymous", charge.anonymous),
        ("shared", charge.shared),
        ("page cache", charge.page_cache),
        ("kernel", charge.kernel),
    ];
    let parts = parts.map(|(name, bytes)| format!("{name} {}", style.maybe_bytes(bytes)));
    format!(
        "{group} is charged {}: {}; and {} of swap.",
        style.maybe_bytes(charge.total),
        parts.join(", "),
        style.maybe_bytes(charge.swap)
    )
}

fn target_row(target: &TargetOverview, style: &Style) -> [String; 7] {
    let of = &target.target;
    [
        or_empty(of.pid.filter(|pid| *pid > 0)),
        of.name.clone().unwrap_or_else(|| of.label()),
        style.maybe_bytes(target.resident_bytes),
        style.maybe_bytes(target.working_set_bytes),
        style.maybe_bytes(target.idle_bytes()),
        style.maybe_bytes(target.swapped_bytes),
        style.bytes(target.unknown_bytes),
    ]
}

impl Tabulate for DiffReport {
    /// The columns of a row for each figure.
    const COLUMNS: &'static [Column] = &[
        column("name", Name, "Name of the targets."),
        nullable("mapping", Name, "Name of the mapping; null: all."),
        column("what", Name, "Name of the figure."),
        nullable("a_bytes", U64, "Bytes in the first record."),
        nullable("b_bytes", U64, "Bytes in the second."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for (name, what, a, b) in self.figures() {
            let [name, what] = [name.as_str(), what.as_str()].map(Into::into);
            push(&[name, ColumnValue::Null, what, a.into(), b.into()]);
        }
        for mapping in &self.mappings {
            let [name, label] = [mapping.name.as_str(), mapping.mapping.as_str()].map(Into::into);
            let [a, b] = mapping.resident_bytes.map(Into::into);
            push(&[name, label, "resident".into(), a, b]);
            let [a, b] = mapping.idle_bytes.map(Into::into);
            push(&[name, label, "idle 5 s".into(), a, b]);
        }
    }
}

impl Render for DiffReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        Table::of("NAME||A>|B>|CHANGE>", self.figure_rows(style)).write(out)?;
        if self.mappings.is_empty() {
            return writeln!(out, "\nno mapping changed");
        }
        writeln!(out, "\nMappings that changed most:")?;
        let rows = self.mappings.iter().map(|mapping| {
            let [a, b] = mapping.resident_bytes.map(|n| style.maybe_bytes(n));
            let [idle_a, idle_b] = mapping.idle_bytes.map(|n| style.bytes(n));
            let name = format!("{}: {}", mapping.name, mapping.mapping);
            [a, b, idle_a, idle_b, name]
        });
        Table::of("RESIDENT A>|B>|IDLE >= 5 s A>|B>|MAPPING", rows).write(out)
    }

    fn svg(&self) -> String {
        let sides = self.mappings.iter().flat_map(|mapping| {
            let [a, b] = mapping.resident_bytes.map(Option::unwrap_or_default);
            [("A", a, mapping), ("B", b, mapping)]
        });
        let most = sides.clone().map(|(_, n, _)| n).max();
        let most = most.unwrap_or(0).max(1) as f64;
        let rows = sides.map(|(side, n, mapping)| Bar {
            label: format!("{side} {}", mapping.mapping),
            value: units::format_bytes(n),
            share: n as f64 / most,
            colour: None,
        });
        let title = "Resident memory of the mappings that changed most";
        bars(title, "", rows)
    }

    fn html(&self) -> String {
        let style = Style::default();
        let mut html = page::begin("Two records compared", &page::subject(&self.b));
        html += &page::figure("Resident memory of mappings", "", &self.svg());
        let rows = self.figure_rows(&style);
        html + &page::table("Targets", "", &["Name", "", "A", "B", "Change"], rows)
    }
}

/// A figure of both records: target name, name of the figure, and its bytes in the first and in the second.
type Pair = (String, String, Option<u64>, Option<u64>);

impl DiffReport {
    fn figure_rows(&self, style: &Style) -> impl Iterator<Item = [String; 5]> {
        let figures = self.figures().into_iter();
        figures.map(move |(name, what, a, b)| {
            let change = signed(style, a, b);
            let [a, b] = [a, b].map(|n| style.maybe_bytes(n));
            [name, what, a, b, change]
        })
    }

    fn figures(&self) -> Vec<Pair> {
        let mut rows = Vec::new();
        for target in &self.targets {
            let (a, b) = (target.a.as_ref(), target.b.as_ref());
            let mut row = |what: String, of: &dyn Fn(&Figures) -> Option<u64>| {
                rows.push((target.name.clone(), what, a.and_then(of), b.and_then(of)));
            };
            row("resident".into(), &|f| f.resident_bytes);
            row("working set".into(), &|f| f.working_set_bytes);
            row("swapped out".into(), &|f| f.swapped_bytes);
            let times = a.or(b).map_or(&[][..], |figures| &figures.idle);
            for (at, idle) in times.iter().enumerate() {
                let what = format!("idle >= {}", units::format_time(idle.at_least_ns));
                row(what, &|f| f.idle.get(at)?.bytes);
            }
        }
        rows
    }
}

fn signed(style: &Style, a: Option<u64>, b: Option<u64>) -> String {
    match (a, b) {
        (Some(a), Some(b)) if b >= a => format!("+{}", style.bytes(b - a)),
        (Some(a), Some(b)) => format!("-{}", style.bytes(a - b)),
        _ => "?".into(),
    }
}
