//! The access report as text, CSV, JSON, SVG and HTML.
//!
//! Snapshots are written as they come: all snapshots of a long record are more than memory holds.

use std::io::{self, Write};

use isotherm_engine::units;

use super::{ReportFormat, Style, page};
use crate::access::{AccessReport, AccessTable, Row, Totals};
use crate::context::RecordInfo;
use crate::rows::ColumnType::{Address, F64, Name, U32, U64};
use crate::rows::{Column, ColumnValue, column, columns, nullable};
use crate::table::{TARGET, Tabulate};
use isotherm_render::plot::{Bar, bars};
use isotherm_render::table::Table;

/// The largest number of regions in a picture; with more, rows would be thinner than their text.
const MAX_BARS: usize = 200;
const MAX_MAPPINGS: usize = 12;

columns! {
    /// The columns of a row for each region.
    COLUMNS, region_row(table: &AccessTable, region: &Row):
    TARGET => table.target.target,
    column("snapshot", U64, "Number of the target's snapshot.") => table.snapshot,
    column("start_ns", U64, "Start of its interval.") => table.start_ns,
    column("end_ns", U64, "End of its interval.") => table.end_ns,
    column("address_start", Address, "First address.") => region.start,
    column("address_end", Address, "First address behind it.") => region.end,
    column("size_bytes", U64, "Length of the region.") => region.size_bytes,
    nullable("access_rate", F64, "Share of checks that found an access, 0 to 1; null: not known.")
        => region.access_rate,
    column("age_ns", U64, "Time since the access rate changed.") => region.age_ns,
    column("age_intervals", U32, "Number of intervals since then.") => region.age_intervals,
    column("nr_samples", U32, "Checks in the interval.") => table.nr_samples,
    nullable("mapping", Name, "Name of the mapping there.") => region.mapping.as_ref().map(|label| &*label.name),
    nullable("mapping_others", U64, "Other names that lie there.")         => region.mapping.as_ref().map(|label| label.others as u64),
    nullable("resident_bytes", U64, "Bytes in memory.") => region.memory.map(|memory| memory.resident),
    nullable("touched_bytes", U64, "Accessed resident bytes.") => region.memory.map(|memory| memory.touched),
    nullable("unknown_bytes", U64, "Resident bytes of unknown access.") => region.memory.map(|memory| memory.unknown),
    nullable("swapped_bytes", U64, "Bytes swapped out.") => region.memory.map(|memory| memory.swapped),
}

impl Tabulate for AccessTable {
    const COLUMNS: &'static [Column] = COLUMNS;

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for region in &self.regions {
            region_row(&mut *push, self, region);
        }
    }
}

impl Tabulate for AccessReport {
    const COLUMNS: &'static [Column] = AccessTable::COLUMNS;

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for table in &self.snapshots {
            table.rows(push);
        }
    }
}

impl AccessReport {
    /// Writes all tables.
    pub fn write(&self, format: ReportFormat, style: Style, out: &mut dyn Write) -> io::Result<()> {
        let mut writer = AccessWriter::new(format, style, out);
        for table in &self.snapshots {
            writer.table(&self.record, table)?;
        }
        writer.finish(&self.record).map(|_| ())
    }
}

/// Writes access tables one after the other.
pub struct AccessWriter<'a> {
    out: &'a mut dyn Write,
    format: ReportFormat,
    style: Style,
    written: usize,
}

impl<'a> AccessWriter<'a> {
    /// Creates a writer into `out`.
    pub fn new(format: ReportFormat, style: Style, out: &'a mut dyn Write) -> Self {
        Self {
            out,
            format,
            style,
            written: 0,
        }
    }

    /// Writes one table. `record` is written with the first one where the format has a place for it.
    pub fn table(&mut self, record: &RecordInfo, table: &AccessTable) -> io::Result<()> {
        self.begin(record)?;
        let first = self.written == 0;
        self.written += 1;
        match self.format {
            ReportFormat::Text => {
                if !first {
                    writeln!(self.out)?;
                }
                text(table, &self.style, self.out)
            }
            ReportFormat::Table(format) => format.rows(table, &self.style, self.out),
            ReportFormat::Json => {
                if !first {
                    self.out.write_all(b",\n")?;
                }
                serde_json::to_writer(&mut *self.out, table)?;
                Ok(())
            }
            ReportFormat::Svg => self.out.write_all(picture(table).as_bytes()),
            ReportFormat::Html => {
                let totals = totals(&table.totals, &self.style);
                let section = page::figure(&title(table), &totals, &picture(table));
                self.out.write_all(section.as_bytes())?;
                let heads = "Regions|Hot|Cold|Idle|Unknown|Mapping";
                let mappings = mapping_table(heads, table, &self.style);
                let section = mappings.html("By mapping", "");
                self.out.write_all(section.as_bytes())
            }
        }
    }

    /// Returns the number of written tables.
    pub fn nr_written(&self) -> usize {
        self.written
    }

    /// Ends the document and returns its number of tables.
    pub fn finish(mut self, record: &RecordInfo) -> io::Result<usize> {
        self.begin(record)?;
        match self.format {
            ReportFormat::Json => {
                let record = serde_json::to_string(record)?;
                writeln!(self.out, "\n],\"record\":{record}}}")?;
            }
            ReportFormat::Html => self.out.write_all(page::END.as_bytes())?,
            ReportFormat::Text | ReportFormat::Table(_) | ReportFormat::Svg => {}
        }
        Ok(self.written)
    }

    fn begin(&mut self, record: &RecordInfo) -> io::Result<()> {
        if self.written > 0 {
            return Ok(());
        }
        match self.format {
            ReportFormat::Table(format) => format.head::<AccessTable>(self.out),
            ReportFormat::Html => {
                let start = page::start("Access by region", record);
                self.out.write_all(start.as_bytes())
            }
            ReportFormat::Json => {
                // The end of the record is known only at the end.
                writeln!(
                    self.out,
                    "{{\"report\":\"access\",\"version\":{},\"snapshots\":[",
                    crate::VERSION
                )
            }
            ReportFormat::Text | ReportFormat::Svg => Ok(()),
        }
    }
}

fn title(table: &AccessTable) -> String {
    let [start, end] = [table.start_ns, table.end_ns].map(units::format_time);
    let (target, snapshot) = (table.target.label(), table.snapshot);
    let regions = match (table.regions.len(), table.regions_total) {
        (shown, total) if shown == total => format!("{total} regions"),
        (shown, total) => format!("{shown} of {total} regions"),
    };
    format!("{target}, snapshot {snapshot} ({start} to {end}), {regions}")
}

fn text(table: &AccessTable, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}\n", title(table))?;
    let is_exact = table.totals.resident_bytes.is_some();
    let resident = if is_exact { "RESIDENT>|" } else { "" };
    let rows = table.regions.iter().map(|row| {
        let mut fields = vec![format!("{:#014x}", row.start), style.bytes(row.size_bytes)];
        if is_exact {
            fields.push(style.maybe_bytes(row.memory.map(|m| m.resident)));
        }
        let age = style.duration(row.age_ns);
        fields.extend([units::format_rate(row.access_rate), age, mapping(row)]);
        fields
    });
    let heads = format!("ADDRESS>|SIZE>|{resident}ACCESS>|AGE>|MAPPING");
    Table::of(&heads, rows).write(out)?;
    writeln!(out, "\n{}", totals(&table.totals, style))?;
    if table.mappings.len() < 2 {
        return Ok(());
    }
    writeln!(out, "\nBy mapping:")?;
    let heads = "REGIONS>|HOT>|COLD>|IDLE>|UNKNOWN>|MAPPING";
    mapping_table(heads, table, style).write(out)?;
    match table.mappings.len().saturating_sub(MAX_MAPPINGS) {
        0 => Ok(()),
        n => writeln!(out, "and {n} smaller ones; --format json has all"),
    }
}

fn mapping_table(heads: &str, table: &AccessTable, style: &Style) -> Table {
    let shown = table.mappings.iter().take(MAX_MAPPINGS);
    let rows = shown.map(|of| {
        let totals = &of.totals;
        [
            of.regions.to_string(),
            style.bytes(totals.hot_bytes),
            style.bytes(totals.cold_bytes),
            style.bytes(totals.idle_bytes),
            style.bytes(totals.unknown_bytes),
            of.mapping.as_deref().unwrap_or("-").to_owned(),
        ]
    });
    Table::of(heads, rows)
}

fn totals(totals: &Totals, style: &Style) -> String {
    let bytes = |n: u64| style.bytes(n);
    let held = match (totals.resident_bytes, totals.swapped_bytes) {
        (Some(resident), Some(swapped)) => format!(
            "resident {} of {} of addresses, swapped out {}",
            bytes(resident),
            bytes(totals.monitored_bytes),
            bytes(swapped)
        ),
        _ => format!("total {}", bytes(totals.monitored_bytes)),
    };
    format!(
        "{held}: hot {}, cold {}, idle {}, unknown {}",
        bytes(totals.hot_bytes),
        bytes(totals.cold_bytes),
        bytes(totals.idle_bytes),
        bytes(totals.unknown_bytes),
    )
}

fn mapping(row: &Row) -> String {
    let mapping = row.mapping.as_ref();
    mapping.map_or_else(|| "-".into(), ToString::to_string)
}

fn picture(table: &AccessTable) -> String {
    let sizes = table.regions.iter().map(|row| row.size_bytes);
    let largest = sizes.max().unwrap_or(1) as f64;
    let shown = table.regions.iter().take(MAX_BARS);
    let rows = shown.map(|row| Bar {
        label: format!("{:#x}", row.start),
        value: format!(
            "{} · {} · {} · {}",
            units::format_bytes(row.size_bytes),
            units::format_rate(row.access_rate),
            units::format_time(row.age_ns),
            mapping(row)
        ),
        share: row.size_bytes as f64 / largest,
        colour: Some(isotherm_render::colour::of(row.access_rate)),
    });
    let left_out = table.regions.len().saturating_sub(MAX_BARS);
    let note = match left_out {
        0 => "Length: size. Colour: access rate.".to_string(),
        n => format!(
            "Length: size. Colour: access rate. {n} more regions: --limit, --sort and the filters choose."
        ),
    };
    bars(&title(table), &note, rows)
}
