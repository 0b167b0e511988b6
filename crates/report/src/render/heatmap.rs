//! The heatmap as text for a terminal, and as CSV.
//!
//! Time runs to the right, addresses upwards. With colours, a character shows two rows, one above the other. Without
//! colours, it shows one row as a character of a [`Scale`]. The legend comes first, since maps are long.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::{Nanos, units};

use super::heatmap_scale::{Scale, UNKNOWN};
use super::{Render, Style, heatmap_svg, page};
use crate::heatmap::{HeatmapCell, HeatmapReport, HeatmapRow, Segment, TargetHeatmap};
use crate::rows::ColumnType::{Address, F64, Name, U64};
use crate::rows::{Column, ColumnValue, column, columns, nullable};
use crate::table::{TARGET, Tabulate};
use isotherm_render::colour::{self, Palette};

/// Number of characters before the cells: an address and a bar.
const LEFT_MARGIN: usize = 16;

columns! {
    /// The columns of a row for each watched cell.
    COLUMNS, cell_row(heatmap: &TargetHeatmap, facts: &HeatmapRow, time: Nanos, cell: &HeatmapCell):
    TARGET => heatmap.target.target,
    column("time_ns", U64, "Start of the column.") => time,
    column("address_start", Address, "First address of the row.") => facts.range.start,
    column("address_end", Address, "First address behind it.") => facts.range.end,
    column("state", Name, "`known`, or `unknown`: no access rate.")
        => if cell.access_rate.is_some() { "known" } else { "unknown" },
    nullable("access_rate", F64, "Mean access rate of the known bytes, 0 to 1; null where most are unknown.")
        => cell.access_rate,
    column("age_ns", U64, "Mean age, by bytes.") => (f64::from(cell.age) * 1e9) as u64,
    column("monitored_share", F64, "Share of bytes and time that was watched, above 0 to 1.") => cell.monitored,
    nullable("mapping", Name, "Last known mapping there.") => facts.mapping.as_ref(),
}

impl Tabulate for HeatmapReport {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for heatmap in &self.targets {
            for (row, facts) in heatmap.rows.iter().enumerate() {
                for (column, cell) in heatmap.cells.row(row).iter().enumerate() {
                    if cell.monitored <= 0.0 {
                        continue;
                    }
                    cell_row(&mut *push, heatmap, facts, self.time_at(column), cell);
                }
            }
        }
    }
}

impl Render for HeatmapReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.targets.is_empty() {
            return writeln!(out, "no snapshot in this part of the record");
        }
        let cells = self.targets.iter().flat_map(|target| &target.cells.cells);
        let scale = Scale::of(cells.filter_map(|cell| cell.access_rate));
        legend(&scale, style, out)?;
        for target in &self.targets {
            Text {
                report: self,
                target,
                style,
                scale: &scale,
            }
            .write(out)?;
        }
        match self.targets_left_out {
            0 => Ok(()),
            n => writeln!(out, "{n} smaller targets are left out; --target shows them"),
        }
    }

    fn svg(&self) -> String {
        heatmap_svg::draw(self)
    }

    fn html(&self) -> String {
        let mut html = page::start("Heatmap", &self.record);
        html += &page::figure("Access rate over time and address", "", &self.svg());
        html
    }
}

impl HeatmapReport {
    pub(crate) fn time_at(&self, column: usize) -> Nanos {
        self.start_ns + Nanos((self.column_ns * column as f64).round() as u64)
    }

    /// Returns the start of a column for an axis: if the map starts within the first column of time, the axis starts at
    /// 0.
    fn shown_time_at(&self, column: usize) -> Nanos {
        let time = self.time_at(column);
        let is_beginning = (self.start_ns.0 as f64) < self.column_ns;
        if is_beginning {
            time.since(self.start_ns)
        } else {
            time
        }
    }
}

struct Text<'a> {
    report: &'a HeatmapReport,
    target: &'a TargetHeatmap,
    style: &'a Style,
    scale: &'a Scale,
}

impl Text<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let report = self.report;
        let time_at = |column| units::format_time(report.shown_time_at(column));
        let (from, to) = (time_at(0), time_at(report.columns));
        let column = units::format_time(Nanos(report.column_ns as u64));
        let target = self.target.target.label();
        writeln!(out, "{target}, {from} to {to}, {column} a column\n")?;
        for segment in self.target.segments.iter().rev() {
            self.segment(segment, out)?;
            if segment.gap_before_bytes > 0 {
                let label = format!(" {} ", page::gap_label(segment.gap_before_bytes));
                let width = report.columns.max(label.chars().count());
                writeln!(out, "{:>LEFT_MARGIN$}{label:~^width$}", " ")?;
            }
        }
        self.time_axis(out)
    }

    /// Writes the rows of a segment, highest address first.
    fn segment(&self, segment: &Segment, out: &mut dyn Write) -> io::Result<()> {
        let is_plain = self.style.palette == Palette::Plain;
        let step = if is_plain { 1 } else { 2 };
        let rows = segment.first_row..segment.first_row + segment.rows;
        let rows: Vec<usize> = rows.rev().collect();
        let mut named = None;
        for (nr, pair) in rows.chunks(step).enumerate() {
            let lowest = pair.last().copied().unwrap_or_default();
            let address = self.target.rows[lowest].range.start;
            let mapping = self.target.rows[lowest].mapping.as_ref();
            let cells = match pair {
                [one] if is_plain => self.plain(*one),
                _ => self.coloured(pair),
            };
            let name = mapping.map(|mapping| &mapping.name);
            let label = mapping.filter(|_| name != named);
            let label = label.map(ToString::to_string).unwrap_or_default();
            named = name;
            let size = match nr {
                0 => format!("{:>9}", units::format_bytes(segment.shown_bytes)),
                _ => " ".repeat(9),
            };
            let line = format!("{address:#014x} |{cells}| {size}  {}", short(&label));
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn plain(&self, row: usize) -> String {
        let cells = self.target.cells.row(row).iter();
        let show = |cell: &HeatmapCell| match cell.monitored {
            m if m <= 0.0 => ' ',
            _ => self.scale.character(cell.access_rate),
        };
        cells.map(show).collect()
    }

    /// Formats one or two rows as upper and lower halves of characters.
    fn coloured(&self, pair: &[usize]) -> String {
        let palette = self.style.palette;
        let colour_at = |row: Option<&usize>, column: usize| {
            let cell = self.target.cells.row(*row?)[column];
            (cell.monitored > 0.0).then(|| colour::of(cell.access_rate))
        };
        let mut line = String::new();
        let mut current = String::new();
        for column in 0..self.report.columns {
            let above = colour_at(pair.first(), column);
            let below = colour_at(pair.get(1), column);
            let (codes, character) = match (above, below) {
                (None, None) => (String::new(), ' '),
                (Some(a), Some(b)) if a == b && a == colour::UNKNOWN => {
                    (colour::escape(palette, 38, a), '▒')
                }
                (Some(a), Some(b)) => (
                    colour::escape(palette, 38, a) + &colour::escape(palette, 48, b),
                    '▀',
                ),
                (Some(a), None) if a == colour::UNKNOWN => (colour::escape(palette, 38, a), '▒'),
                (Some(a), None) => (colour::escape(palette, 38, a), '▀'),
                (None, Some(b)) => (colour::escape(palette, 38, b), '▄'),
            };
            if codes != current {
                line += "\x1b[0m";
                line += &codes;
                current = codes;
            }
            line.push(character);
        }
        line + "\x1b[0m"
    }

    fn time_axis(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.report.columns;
        let end = units::format_time(self.report.shown_time_at(columns));
        let mut ruler = vec!['-'; columns];
        let mut labels = String::new();
        for column in (0..columns).step_by(16) {
            ruler[column] = '+';
            let label = units::format_time(self.report.shown_time_at(column));
            if column + label.chars().count() + end.chars().count() + 2 <= columns {
                let _ = write!(labels, "{label:<16}");
            }
        }
        let ruler: String = ruler.into_iter().collect();
        writeln!(out, "{:>LEFT_MARGIN$}{ruler}", "+")?;
        labels.truncate(columns.saturating_sub(end.chars().count()));
        let room = columns.saturating_sub(end.chars().count());
        writeln!(out, "{:>LEFT_MARGIN$}{labels:<room$}{end}\n", " ")
    }
}

/// Writes the meaning of characters or colours, in lines of whole entries.
fn legend(scale: &Scale, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    const TICKS: [f32; 7] = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0];
    // Escape sequences take no space on the terminal, so each entry carries its width.
    let entry = |sample: String, width: usize, text: &str| {
        let width = 3 + width + text.chars().count();
        (format!("  {sample} {text}"), width)
    };
    let swatch = |rgb, sample: &str, text: &str| {
        let coloured = colour::escape(style.palette, 38, rgb) + sample + "\x1b[0m";
        entry(coloured, sample.chars().count(), text)
    };
    let rate = |rate| units::format_rate(Some(rate));
    let (end, mut entries) = if style.palette == Palette::Plain {
        let steps = scale.steps().chain([(None, UNKNOWN)]);
        let named = |most: Option<f32>| most.map_or_else(|| "unknown".to_owned(), rate);
        let entries = steps.map(|(most, c)| entry(c.into(), 1, &named(most)));
        (", up to:", entries.collect::<Vec<_>>())
    } else {
        let ticks = TICKS.map(|tick| swatch(colour::of_rate(tick), "██", &rate(tick)));
        let mut entries = ticks.to_vec();
        entries.push(swatch(colour::UNKNOWN, "▒▒", "unknown"));
        (":", entries)
    };
    let head = format!("access rate (share of checks that found an access){end}");
    let blank = "not resident, swapped out or not watched";
    entries.push(entry("blank:".to_owned(), 6, blank));
    write!(out, "{head}")?;
    let mut used = head.chars().count();
    for (text, width) in entries {
        if used + width > style.width {
            writeln!(out)?;
            used = 0;
        }
        used += width;
        write!(out, "{text}")?;
    }
    writeln!(out, "\n")
}

/// Shortens a long path to its file's name, which is more informative than its directories.
fn short(name: &str) -> String {
    const MOST: usize = 28;
    let name = match name.rsplit_once('/') {
        Some((_, file)) if name.starts_with('/') => file,
        _ => name,
    };
    match name.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{}…", &name[..cut]),
        None => name.into(),
    }
}
