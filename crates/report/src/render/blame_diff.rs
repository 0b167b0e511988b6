//! The difference of two blame reports as text, CSV, SVG and HTML.

use std::io::{self, Write};

use isotherm_engine::units;

use super::plot::{Bar, bars};
use super::table::{Align, Table};
use super::{CsvWriter, Render, Style, page};
use crate::blame::{BlameDiffReport, BlameTotals, HugeBytes};

/// Number of rows that text and pictures show.
const ROWS: usize = 20;

impl Render for BlameDiffReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.title(style))?;
        let mut table = Table::new(&[
            ("CHANGE", Align::Right),
            ("BEFORE", Align::Right),
            ("AFTER", Align::Right),
            (super::blame::by_name(self.by), Align::Left),
        ]);
        let mut row = |before: u64, after: u64, name: &str| {
            table.row(vec![
                change(before, after, style),
                style.bytes(before),
                style.bytes(after),
                name.to_owned(),
            ]);
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
        table.write(out)
    }

    fn csv(&self, out: &mut CsvWriter<'_>) -> io::Result<()> {
        out.write_record(["stack", "before_bytes", "after_bytes"])?;
        for stack in &self.stacks {
            out.write_record([
                &stack.stack.join(";"),
                &stack.before_bytes.to_string(),
                &stack.after_bytes.to_string(),
            ])?;
        }
        let [before, after] = [&self.before, &self.after].map(|of| unknown(of).to_string());
        out.write_record(["[unknown]", &before, &after])?;
        Ok(())
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
        let rows: Vec<Bar> = rows.collect();
        let [before, after] =
            [&self.before, &self.after].map(|of| units::format_bytes(of.total_bytes));
        bars(
            &self.title(&style),
            &format!("{before} before, {after} after"),
            &rows,
        )
    }

    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        let style = Style::default();
        let title = self.title(&style);
        let mut html = page::start(&title, &self.after.record);
        html += &page::figure(&title, "", &self.svg());
        let rows = self.blamed.iter().take(200).map(|one| {
            vec![
                one.name.clone(),
                change(one.before_bytes, one.after_bytes, &style),
                units::format_bytes(one.before_bytes),
                units::format_bytes(one.after_bytes),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let heads = [super::blame::by_name(self.by), "Change", "Before", "After"];
        let note = format!("Before: {}", page::subject(&self.before.record));
        html += &page::table("Touched first by", &note, &heads, &rows);
        html += page::END;
        out.write_all(html.as_bytes())
    }
}

impl BlameDiffReport {
    fn title(&self, style: &Style) -> String {
        format!(
            "{}: what changed",
            super::blame::title(self.measure, self.at_least_ns, style)
        )
    }
}

fn unknown(totals: &BlameTotals) -> u64 {
    totals.unknown.before_sampling + totals.unknown.not_sampled
}

fn change(before: u64, after: u64, style: &Style) -> String {
    let sign = if after < before { "-" } else { "+" };
    format!("{sign}{}", style.bytes(before.abs_diff(after)))
}
