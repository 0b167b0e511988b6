//! The blame report as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::{Nanos, units};

use crate::blame::{BlameReport, By, FlameNode, HugeBytes, Measure};
use crate::render::flame::Flame;
use crate::render::{Render, Style, page};
use crate::rows::ColumnType::{Name, U32, U64};
use crate::rows::{Column, ColumnValue, column, nullable};
use crate::table::Tabulate;
use isotherm_render::table::Table;

/// Number of rows of the table, and of children of a node, that text shows.
const ROWS: usize = 20;
/// Share of all bytes below which tree nodes are merged.
const SHARE_MIN: f64 = 0.01;

impl Tabulate for BlameReport {
    /// The columns of a row for each stack, and for the bytes without one.
    const COLUMNS: &'static [Column] = &[
        nullable("target", U32, "Number of the target."),
        nullable("thread", Name, "Name of the thread."),
        nullable("mapping", Name, "Name of the mapping."),
        column("function", Name, "The function, or why it is unknown."),
        column("bytes", U64, "Bytes that it touched first."),
        column("likely_bytes", U64, "Likely ones of these bytes."),
        nullable("stack", Name, "Callers first, separated by semicolons."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for stack in &self.stacks {
            push(&[
                stack.target.into(),
                stack.thread.as_str().into(),
                (&*stack.mapping).into(),
                stack.function.as_str().into(),
                stack.bytes.into(),
                stack.likely_bytes.into(),
                stack.stack.join(";").as_str().into(),
            ]);
        }
        let none = ColumnValue::Null;
        for (what, bytes) in [
            ("[before sampling]", self.unknown.before_sampling),
            ("[not sampled]", self.unknown.not_sampled),
        ] {
            let nothing = 0_u64.into();
            push(&[none, none, none, what.into(), bytes.into(), nothing, none]);
        }
    }
}

impl Render for BlameReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let title = title(self.measure, self.at_least_ns, style);
        writeln!(out, "{title}, at {}\n", style.duration(self.time_ns))?;
        if self.total_bytes == 0 {
            return writeln!(out, "{}", self.nothing(style));
        }
        self.table(style, out)?;
        writeln!(out)?;
        if 2 * self.unnamed_python_bytes() > self.blamed_bytes {
            writeln!(
                out,
                "Most of this is laid to the Python interpreter itself. Python 3.12 or later names the program's \
                 functions: python3 -X perf\n"
            )?;
        }
        writeln!(
            out,
            "Who called whom (bytes that it and what it called touched first):\n"
        )?;
        let tree = FlameNode::tree(&self.stacks);
        for child in shown(&tree.children, self.total_bytes) {
            branch(child, 0, self.total_bytes, style, out)?;
        }
        writeln!(out, "\n{}", self.facts(style))
    }

    fn svg(&self) -> String {
        self.flame(false)
    }

    fn html(&self) -> String {
        let style = Style::default();
        let title = title(self.measure, self.at_least_ns, &style);
        let mut html = page::start(&title, &self.record);
        html += &self.flame(true);
        let rows = self.blamed.iter().take(200).map(|blamed| {
            let [bytes, likely] = [blamed.bytes, blamed.likely_bytes].map(units::format_bytes);
            [blamed.name.clone(), bytes, likely]
        });
        let heads = [by_name(self.by), "Bytes", "Of these, likely"];
        html + &page::table("Touched first by", &self.facts(&style), &heads, rows)
    }
}

impl BlameReport {
    fn flame(&self, is_interactive: bool) -> String {
        let style = Style::default();
        let flame = Flame {
            title: &title(self.measure, self.at_least_ns, &style),
            note: &self.facts(&style),
            tree: &FlameNode::tree(&self.stacks),
            unknown: &[
                (
                    "touched before sampling began",
                    self.unknown.before_sampling,
                ),
                ("far from any sample", self.unknown.not_sampled),
            ],
        };
        if is_interactive {
            flame.interactive()
        } else {
            flame.svg(false)
        }
    }

    fn nothing(&self, style: &Style) -> String {
        match self.measure {
            Measure::Idle if self.watched_ns < self.at_least_ns => format!(
                "nothing has been watched for that long: the record is of {} (--idle)",
                style.duration(self.watched_ns)
            ),
            Measure::Idle => "no byte".to_owned(),
            Measure::Resident => "no snapshot in this part of the record".to_owned(),
            Measure::Accessed => "nothing was accessed in the last interval".to_owned(),
            Measure::Refaulted => "no page of a sample was brought back from swap".to_owned(),
            Measure::Waste => no_waste(self.huge, style),
        }
    }

    fn table(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let share = |bytes: u64| units::format_share(bytes as f64 / self.total_bytes as f64);
        let row = |bytes: u64, parts: [Option<u64>; 2], name: &str| {
            let [likely, inclusive] = parts.map(|n| n.map_or_else(String::new, |n| style.bytes(n)));
            let (bytes, share) = (style.bytes(bytes), share(bytes));
            vec![bytes, share, likely, inclusive, name.to_owned()]
        };
        let rows = self.blamed.iter().take(ROWS).map(|of| {
            let parts = [Some(of.likely_bytes), of.inclusive_bytes];
            row(of.bytes, parts, &of.name)
        });
        let by = by_name(self.by);
        let mut table = Table::of(&format!("BYTES>|SHARE>|LIKELY>|WITH CALLED>|{by}"), rows);
        if let Some(rest) = self.blamed.get(ROWS..).filter(|rest| !rest.is_empty()) {
            let bytes = rest.iter().map(|blamed| blamed.bytes).sum();
            table.row(row(bytes, [None; 2], &format!("({} others)", rest.len())));
        }
        let unknown = &self.unknown;
        for (bytes, what) in [
            (unknown.before_sampling, "? touched before sampling began"),
            (unknown.not_sampled, "? far from any sample"),
        ] {
            if bytes > 0 {
                table.row(row(bytes, [None; 2], what));
            }
        }
        table.write(out)
    }

    fn facts(&self, style: &Style) -> String {
        let total = style.bytes(self.total_bytes);
        let mut facts = match (self.measure, self.huge) {
            (Measure::Idle, _) => format!("{total} of idle memory:"),
            (Measure::Resident, _) => format!("{total} of resident memory:"),
            (Measure::Accessed, _) => format!("{total} accessed in the last interval:"),
            (Measure::Refaulted, _) => format!("{total} of memory brought back:"),
            (Measure::Waste, huge) => {
                let HugeBytes { bytes, read_bytes } = huge.unwrap_or_default();
                let [bytes, read] = [bytes, read_bytes].map(|bytes| style.bytes(bytes));
                format!("Huge pages: {bytes}, of which {read} were read: {total} never written;")
            }
        };
        let _ = write!(
            facts,
            " touched first by known code {}, of these {} likely; unknown {}; by {} samples",
            style.bytes(self.blamed_bytes),
            style.bytes(self.likely_bytes),
            style.bytes(self.unknown.before_sampling + self.unknown.not_sampled),
            self.nr_samples
        );
        if self.nr_lost > 0 {
            let _ = write!(facts, " ({} found no room)", self.nr_lost);
        }
        if self.not_counted_ns > Nanos(0) {
            let time = style.duration(self.not_counted_ns);
            let _ = write!(facts, "; none were taken for {time}, for the budget");
        }
        facts
    }
}

fn no_waste(huge: Option<HugeBytes>, style: &Style) -> String {
    match huge {
        None => "the record does not tell what huge pages hold".to_owned(),
        Some(HugeBytes { bytes: 0, .. }) => {
            "there are no huge pages of private anonymous memory".to_owned()
        }
        Some(HugeBytes {
            bytes,
            read_bytes: 0,
        }) => format!(
            "none of the {} in huge pages was read: what was never written of them is not known",
            style.bytes(bytes)
        ),
        Some(HugeBytes { bytes, read_bytes }) => format!(
            "every page was written of the {} in huge pages that were read, of {}",
            style.bytes(read_bytes),
            style.bytes(bytes)
        ),
    }
}

pub(in crate::render) fn title(measure: Measure, at_least: Nanos, style: &Style) -> String {
    match measure {
        Measure::Idle => format!(
            "Memory idle for {} or more, by the code that touched it first",
            style.duration(at_least)
        ),
        Measure::Resident => "Resident memory, by the code that touched it first".to_owned(),
        Measure::Accessed => {
            "Memory in use at the end, by the code that touched it first".to_owned()
        }
        Measure::Refaulted => {
            "Memory brought back from swap, by the code that touched it then".to_owned()
        }
        Measure::Waste => {
            "Pages of huge pages that were never written, by the code that touched the huge page first".to_owned()
        }
    }
}

pub(in crate::render) fn by_name(by: By) -> &'static str {
    match by {
        By::Function => "FUNCTION",
        By::Innermost => "INNERMOST FUNCTION",
        By::Stack => "STACK",
        By::Library => "LIBRARY",
        By::Thread => "THREAD",
        By::Mapping => "MAPPING",
        By::Target => "TARGET",
    }
}

fn shown(children: &[FlameNode], total: u64) -> impl Iterator<Item = &FlameNode> {
    let least = total as f64 * SHARE_MIN;
    let most = children.iter().take(ROWS);
    most.take_while(move |child| child.bytes as f64 >= least)
}

/// Writes a node and its callees. Callers with a single callee share its line.
fn branch(
    node: &FlameNode,
    depth: usize,
    total: u64,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut names = vec![node.name.as_str()];
    let mut at = node;
    while let [child] = &at.children[..]
        && child.bytes == at.bytes
    {
        names.push(&child.name);
        at = child;
    }
    let share = units::format_share(node.bytes as f64 / total as f64);
    let (bytes, indent) = (style.bytes(node.bytes), "  ".repeat(depth));
    writeln!(out, "{bytes:>10} {share:>6}  {indent}{}", names.join(" > "))?;
    for child in shown(&at.children, total) {
        branch(child, depth + 1, total, style, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::samples::report;

    #[test]
    fn a_python_interpreter_without_names_of_the_program_is_told() {
        let said = |report: &BlameReport| {
            let mut out = Vec::new();
            report.text(&Style::default(), &mut out).expect("a vector");
            let text = String::from_utf8(out).expect("text");
            text.matches("-X perf").count()
        };
        let mut report = report();
        assert_eq!(said(&report), 0);
        let python = Some("python3.11".to_owned());
        report.stacks[0].libraries.fill(python);
        assert_eq!(said(&report), 1);
    }
}
