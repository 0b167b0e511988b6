//! The difference of two blame reports as text, CSV, SVG and HTML.

use std::io::{self, Write};

use isotherm_engine::units;

use crate::blame::{BlameDiffReport, BlameTotals, HugeBytes};
use crate::render::{Render, Style, page};
use crate::rows::ColumnType::{Name, U64};
use crate::rows::{Column, ColumnValue, column};
use crate::table::Tabulate;
use isotherm_render::plot::{Bar, bars};
use isotherm_render::table::Table;

const ROWS: usize = 20;

impl Tabulate for BlameDiffReport {
    /// The columns of a row for each stack.
    const COLUMNS: &'static [Column] = &[
        column("stack", Name, "Callers first, separated by semicolons."),
        column("before_bytes", U64, "Bytes in the first record."),
        column("after_bytes", U64, "Bytes in the second."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for stack in &self.stacks {
            let [before, after] = [stack.before_bytes, stack.after_bytes].map(Into::into);
            push(&[stack.stack.join(";").as_str().into(), before, after]);
        }
        let [before, after] = [&self.before, &self.after].map(unknown);
        push(&["[unknown]".into(), before.into(), after.into()]);
    }
}

impl Render for BlameDiffReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.title(style))?;
        let mut rows = Vec::new();
        let mut row = |before: u64, after: u64, name: &str| {
            let [old, new] = [before, after].map(|bytes| style.bytes(bytes));
            rows.push([change(before, after, style), old, new, name.to_owned()]);
        };
        for one in self.blamed.iter().take(ROWS) {
            row(one.before_bytes, one.after_bytes, &one.name);
        }
        if let Some(rest) = self.blamed.get(ROWS..).filter(|rest| !rest.is_empty()) {
            let before = rest.iter().map(|one| one.before_bytes).sum();
            let after = rest.iter().map(|one| one.after_bytes).sum();
            row(before, after, &format!("({} others)", rest.len()));
        }
        let [before, after] = [&self.before, &self.after].map(unknown);
        if before + after > 0 {
            row(before, after, "? whose code is not known");
        }
        row(self.before.total_bytes, self.after.total_bytes, "all");
        for (bytes, name) in [
            (|huge| huge.read_bytes, "(huge pages that were read)"),
            (|huge| huge.bytes, "(huge pages)"),
        ] as [(fn(HugeBytes) -> u64, &str); 2]
        {
            if let Some((before, after)) = self.before.huge.zip(self.after.huge) {
                row(bytes(before), bytes(after), name);
            }
        }
        let by = super::blame::by_name(self.by);
        Table::of(&format!("CHANGE>|BEFORE>|AFTER>|{by}"), rows).write(out)
    }

    fn svg(&self) -> String {
        let style = Style::default();
        let largest = self.blamed.first();
        let largest = largest.map_or(1, |one| one.before_bytes.abs_diff(one.after_bytes).max(1));
        let rows = self.blamed.iter().take(ROWS).map(|one| Bar {
            label: one.name.clone(),
            value: change(one.before_bytes, one.after_bytes, &style),
            share: one.before_bytes.abs_diff(one.after_bytes) as f64 / largest as f64,
            colour: None,
        });
        let totals = [&self.before, &self.after];
        let [before, after] = totals.map(|of| units::format_bytes(of.total_bytes));
        let note = format!("{before} before, {after} after");
        bars(&self.title(&style), &note, rows)
    }

    fn html(&self) -> String {
        let style = Style::default();
        let title = self.title(&style);
        let mut html = page::start(&title, &self.after.record);
        html += &page::figure(&title, "", &self.svg());
        let rows = self.blamed.iter().take(200).map(|one| {
            let change = change(one.before_bytes, one.after_bytes, &style);
            let [before, after] = [one.before_bytes, one.after_bytes].map(units::format_bytes);
            [one.name.clone(), change, before, after]
        });
        let heads = [super::blame::by_name(self.by), "Change", "Before", "After"];
        let note = format!("Before: {}", page::subject(&self.before.record));
        html + &page::table("Touched first by", &note, &heads, rows)
    }
}

impl BlameDiffReport {
    fn title(&self, style: &Style) -> String {
        let title = super::blame::title(self.measure, self.at_least_ns, style);
        format!("{title}: what changed")
    }
}

fn unknown(totals: &BlameTotals) -> u64 {
    totals.unknown.before_sampling + totals.unknown.not_sampled
}

fn change(before: u64, after: u64, style: &Style) -> String {
    let sign = if after < before { "-" } else { "+" };
    format!("{sign}{}", style.bytes(before.abs_diff(after)))
}
