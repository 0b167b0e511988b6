//! The heatmap as one interactive page.
//!
//! The page is a template of ours (`heatmap.html`) with the cells put in as data: two 16-bit numbers
//! each, base64, so that a page of 300,000 cells has 1.6 MB. Rates are in 1/65000, ages logarithmic.

use std::io::{self, Write};

use serde::Serialize;

use super::colour;
use super::page;
use crate::heatmap::{Cell, HeatmapReport, Segment, TargetHeatmap};

const TEMPLATE: &str = include_str!("heatmap.html");
/// Where the template wants the data.
const PLACE: &str = "__ISOTHERM_DATA__";

/// The greatest rate; above it, what is not a rate.
const FULL: u16 = 65_000;
const UNKNOWN: u16 = 65_534;
const UNMAPPED: u16 = 65_535;

#[derive(Serialize)]
struct Page<'a> {
    subject: String,
    start_s: f64,
    column_s: f64,
    columns: usize,
    ramp: [colour::Rgb; 7],
    targets: Vec<Target<'a>>,
    left_out: usize,
}

#[derive(Serialize)]
struct Target<'a> {
    label: String,
    segments: Vec<Band>,
    /// First address, end address, mapping of each row. Text: 64 bits don't fit in the page's numbers.
    rows: Vec<(String, String, Option<&'a str>, usize)>,
    rates: String,
    ages: String,
}

#[derive(Serialize)]
struct Band {
    first: usize,
    rows: usize,
    gap: Option<String>,
}

/// Writes the page.
pub(super) fn write(report: &HeatmapReport, out: &mut dyn Write) -> io::Result<()> {
    let page = Page {
        subject: page::subject(&report.record),
        start_s: report.start_ns.as_secs_f64(),
        column_s: report.column_ns / 1e9,
        columns: report.columns,
        ramp: colour::RAMP,
        targets: report.targets.iter().map(target).collect(),
        left_out: report.targets_left_out,
    };
    // `<` ends a script element whatever it stands in.
    let data = serde_json::to_string(&page)?.replace('<', "\\u003c");
    let (before, after) = TEMPLATE
        .split_once(PLACE)
        .expect("our template has a place for the data");
    out.write_all(before.as_bytes())?;
    out.write_all(data.as_bytes())?;
    out.write_all(after.as_bytes())
}

fn target(target: &TargetHeatmap) -> Target<'_> {
    let band = |segment: &Segment| Band {
        first: segment.first_row,
        rows: segment.rows,
        gap: (segment.gap_before_bytes > 0).then(|| page::gap_label(segment.gap_before_bytes)),
    };
    let rows = target.rows.iter().map(|row| {
        let mapping = row.mapping.as_ref();
        (
            format!("{:#x}", row.range.start),
            format!("{:#x}", row.range.end),
            mapping.map(|m| &*m.name),
            mapping.map_or(0, |m| m.others),
        )
    });
    let cells = &target.cells.cells;
    Target {
        label: target.target.label(),
        segments: target.segments.iter().map(band).collect(),
        rows: rows.collect(),
        rates: base64(cells.iter().map(rate)),
        ages: base64(cells.iter().map(age)),
    }
}

fn rate(cell: &Cell) -> u16 {
    if cell.monitored <= 0.0 {
        return UNMAPPED;
    }
    let encode = |rate: f32| (rate * f32::from(FULL)).ceil() as u16;
    cell.access_rate.map_or(UNKNOWN, encode)
}

/// 1000 log2(1 + 100 s): a centisecond at the low end, 0.07 % further up, 20 bits of seconds at most.
fn age(cell: &Cell) -> u16 {
    ((1.0 + f64::from(cell.age) * 100.0).log2() * 1000.0).min(65_535.0) as u16
}

/// Little-endian numbers in base64 (RFC 4648).
fn base64(numbers: impl Iterator<Item = u16>) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = numbers.flat_map(u16::to_le_bytes).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) as usize & 63;
            let padding = digit > chunk.len();
            text.push(if padding {
                '='
            } else {
                char::from(DIGITS[index])
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_rfc() {
        let encode = |text: &[u8]| base64(text.chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]])));
        assert_eq!(encode(b"foobar"), "Zm9vYmFy");
        assert_eq!(encode(b"foob"), "Zm9vYg==");
        assert_eq!(encode(b"fo"), "Zm8=");
    }

    #[test]
    fn unknown_and_unmapped_are_no_rates() {
        let cell = |monitored, access_rate| Cell {
            monitored,
            access_rate,
            age: 0.0,
        };
        let codes = [
            cell(0.0, None),
            cell(1.0, None),
            cell(1.0, Some(0.0)),
            cell(1.0, Some(1.0)),
        ];
        assert_eq!(codes.each_ref().map(rate), [UNMAPPED, UNKNOWN, 0, FULL]);
    }
}
