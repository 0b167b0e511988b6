//! Bars and lines as SVG, which follow the viewer's light or dark scheme.

use std::borrow::Cow;
use std::fmt::Write;

use isotherm_engine::{Nanos, units};
use serde::Serialize;

use crate::colour::{self, Rgb};
use crate::page::escape;
use crate::svg::{grid_line, heading, line_name, text, tick};

/// One step of a series over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// Start of the step, since the beginning of the record.
    pub time_ns: Nanos,
    /// Lowest value in the step.
    pub min: u64,
    /// Mean over time.
    pub mean: u64,
    /// Highest value in the step.
    pub max: u64,
}

/// Formats a score of 0 to 100 points: `87.5`, `90`.
pub fn score(points: f64) -> String {
    let text = format!("{points:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Colours that people with any kind of colour vision can distinguish (after Okabe and Ito), with dashes for those
/// without colour vision.
pub const LINES: [(&str, &str); 8] = [
    ("#0b7fc4", ""),
    ("#d55e00", "7 3"),
    ("#0a9e73", "2 3"),
    ("#c765a0", "9 3 2 3"),
    ("#c98a00", "4 2"),
    ("#4aa7de", "12 4"),
    ("#8a6fd1", "1 2"),
    ("#808690", "6 6"),
];

/// Width of a picture in its own units.
pub const WIDTH: f64 = 960.0;
const FONT: f64 = 12.0;
/// Approximate width of a character; SVG cannot measure text.
pub const CHARACTER: f64 = 6.9;

/// A bar with a label before it and a value after it.
pub struct Bar {
    pub label: String,
    pub value: String,
    /// Length, 0 to 1.
    pub share: f64,
    /// Colour of the bar; the usual one if `None`.
    pub colour: Option<Rgb>,
}

/// A line with its name.
pub struct NamedLine<'a> {
    name: String,
    points: Cow<'a, [Point]>,
}

impl<'a> NamedLine<'a> {
    /// Names these points.
    pub fn new(name: impl Into<String>, points: impl Into<Cow<'a, [Point]>>) -> Self {
        Self {
            name: name.into(),
            points: points.into(),
        }
    }
}

/// The unit of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Thousandths of points from 0 to 100.
    Score,
}

impl Unit {
    fn show(self, value: u64) -> String {
        match self {
            Self::Bytes => units::format_bytes(value),
            Self::Score => score(value as f64 / 1e3),
        }
    }

    /// Returns the top of the scale for values up to `highest`, and the step between its ticks.
    fn scale(self, highest: u64) -> (u64, u64) {
        match self {
            Self::Bytes => {
                let step = (highest / 6).max(1).next_power_of_two();
                (highest.div_ceil(step).saturating_mul(step), step)
            }
            Self::Score => (100_000, 10_000),
        }
    }
}

/// Opens an SVG picture that carries its own colours.
pub fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"iso\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\" aria-label=\"{title}\">\n<style>\
         svg.iso{{--fg:#1d2127;--dim:#5d6570;--grid:#dfe3e8;--bg:#ffffff;--gap:#eef0f3;\
         font:{FONT}px system-ui,sans-serif;background:var(--bg)}}\
         @media(prefers-color-scheme:dark){{svg.iso{{--fg:#e6e9ee;--dim:#9aa3af;--grid:#2b313a;--bg:#14171c;--gap:#1e232a}}}}\
         .iso text{{fill:var(--fg)}}.iso .d{{fill:var(--dim)}}.iso .m{{font-family:ui-monospace,monospace;font-size:11px}}\
         .iso .t{{font-size:15px;font-weight:600}}.iso .e{{text-anchor:end}}.iso .c{{text-anchor:middle}}\
         .iso .g{{stroke:var(--grid);fill:none}}</style>\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"var(--bg)\"/>\n",
        title = escape(title)
    )
}

/// Opens a picture of the usual width with a heading.
pub fn open_titled(height: f64, title: &str, note: &str) -> String {
    let mut svg = open(WIDTH, height, title);
    heading(&mut svg, 0.0, title, note);
    svg
}

/// Formats a line through points as a path's description.
pub fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (x, y) in points {
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{x:.1} {y:.1}");
    }
    path
}

/// Draws horizontal bars.
pub fn bars(title: &str, note: &str, bars: impl IntoIterator<Item = Bar>) -> String {
    const ROW: f64 = 22.0;
    const TOP: f64 = 58.0;
    let bars: Vec<Bar> = bars.into_iter().collect();
    let longest = |text: fn(&Bar) -> &str| {
        let lengths = bars.iter().map(|bar| text(bar).chars().count());
        lengths.max().unwrap_or(0) as f64 * CHARACTER
    };
    let left = longest(|bar| &bar.label) + 28.0;
    let right = longest(|bar| &bar.value).min(420.0) + 24.0;
    let room = (WIDTH - left - right).max(120.0);
    let mut svg = open_titled(TOP + ROW * bars.len() as f64 + 12.0, title, note);
    for (index, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let length = match bar.share {
            share if share > 0.0 => (share.min(1.0) * room).max(1.0),
            _ => 0.0,
        };
        let fill = bar.colour.map_or_else(|| LINES[0].0.into(), colour::hex);
        text(&mut svg, "e m", (left - 8.0, y + 12.0), &bar.label);
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"15\" rx=\"2\" fill=\"{fill}\" stroke=\"var(--dim)\" stroke-opacity=\".35\"/>"
        );
        text(&mut svg, "d", (left + length + 8.0, y + 12.0), &bar.value);
    }
    svg + "</svg>\n"
}

/// Draws bytes over time, from zero up, each line in the band of its minima and maxima.
pub fn lines<'a>(
    title: &str,
    note: &str,
    lines: impl IntoIterator<Item = NamedLine<'a>>,
) -> String {
    lines_of(Unit::Bytes, title, note, lines)
}

/// Draws values of any unit over time.
pub fn lines_of<'a>(
    unit: Unit,
    title: &str,
    note: &str,
    lines: impl IntoIterator<Item = NamedLine<'a>>,
) -> String {
    let lines = lines.into_iter();
    let mut shown: Vec<NamedLine> = lines.filter(|line| !line.points.is_empty()).collect();
    let mean = |line: &NamedLine| {
        let sum: u128 = line.points.iter().map(|p| u128::from(p.mean)).sum();
        sum / line.points.len() as u128
    };
    shown.sort_by_key(|line| std::cmp::Reverse(mean(line)));
    let left_out = shown.len().saturating_sub(LINES.len());
    shown.truncate(LINES.len());
    let mut note = note.to_owned();
    if left_out > 0 {
        let _ = write!(note, " {left_out} smaller ones are left out.");
    }
    let (legend, top) = legend(&shown, 62.0);
    let frame = Frame::of(unit, &shown, top + 12.0);
    let mut svg = open_titled(frame.top + frame.height + 34.0, title, note.trim());
    svg += &legend;
    frame.grid(&mut svg);
    for (index, line) in shown.iter().enumerate() {
        frame.line(&mut svg, index, line);
    }
    frame.tips(&mut svg, &shown);
    svg + "</svg>\n"
}

/// Returns the times to label: about `most` at most, at round numbers.
pub fn time_ticks(from: Nanos, to: Nanos, most: usize) -> Vec<Nanos> {
    const STEPS: [u64; 22] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000,
        120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000,
    ];
    let span = to.since(from).0 / 1_000_000;
    let fits = |step: &&u64| span / **step <= most as u64;
    let mut step = STEPS.iter().find(fits).copied().unwrap_or(4 * 3_600_000);
    while span / step > most as u64 {
        step *= 2;
    }
    let step = step * 1_000_000;
    let ticks = from.0.div_ceil(step)..=to.0 / step;
    ticks.map(|n| Nanos(n * step)).collect()
}

/// Draws the names of the lines, in the rows that they need from `y` on, and returns the end of the last row.
fn legend(lines: &[NamedLine], mut y: f64) -> (String, f64) {
    let mut svg = String::new();
    let mut x = 16.0;
    for (index, line) in lines.iter().enumerate() {
        let width = line.name.chars().count() as f64 * CHARACTER + 56.0;
        if x + width > WIDTH && x > 16.0 {
            x = 16.0;
            y += 18.0;
        }
        line_name(&mut svg, (x, y), LINES[index], &line.name);
        x += width;
    }
    (svg, y)
}

struct Frame {
    unit: Unit,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    from: Nanos,
    to: Nanos,
    max: u64,
    step: u64,
}

impl Frame {
    fn of(unit: Unit, lines: &[NamedLine], top: f64) -> Self {
        let points = || lines.iter().flat_map(|line| line.points.iter());
        let highest = points().map(|p| p.max).max().unwrap_or(0).max(1);
        let (max, step) = unit.scale(highest);
        let from = points().map(|p| p.time_ns).min().unwrap_or_default();
        let last = points().map(|p| p.time_ns).max().unwrap_or_default();
        Self {
            unit,
            left: 84.0,
            top,
            width: WIDTH - 84.0 - 20.0,
            height: 280.0,
            from,
            to: last.max(from + Nanos(1)),
            max,
            step,
        }
    }

    fn x(&self, time: Nanos) -> f64 {
        let part = time.since(self.from).0 as f64 / self.to.since(self.from).0 as f64;
        self.left + part * self.width
    }

    fn y(&self, value: u64) -> f64 {
        self.top + self.height * (1.0 - value as f64 / self.max as f64)
    }

    fn grid(&self, svg: &mut String) {
        let ends = (self.left, self.left + self.width);
        for step in 0..=self.max / self.step {
            let value = step * self.step;
            grid_line(svg, ends, self.y(value), self.unit.show(value));
        }
        let bottom = self.top + self.height;
        for time in time_ticks(self.from, self.to, 8) {
            tick(svg, (self.x(time), bottom), units::format_time(time));
        }
    }

    fn line(&self, svg: &mut String, index: usize, line: &NamedLine) {
        let (colour, dash) = LINES[index];
        for run in unbroken(&line.points) {
            let at = |p: &Point, value: u64| (self.x(p.time_ns), self.y(value));
            let there = run.iter().map(|p| at(p, p.max));
            let back = run.iter().rev().map(|p| at(p, p.min));
            let band = path(there.chain(back));
            let mut path = path(run.iter().map(|p| at(p, p.mean)));
            if run.len() == 1 {
                path += "h2";
            }
            let _ = writeln!(
                svg,
                "<path d=\"{band}z\" fill=\"{colour}\" opacity=\".16\"/>\
                 <path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\" stroke-linejoin=\"round\"/>"
            );
        }
    }

    /// Draws strips that show the values when the pointer is on them.
    fn tips(&self, svg: &mut String, lines: &[NamedLine]) {
        const STRIPS: u64 = 120;
        let strip = self.width / STRIPS as f64;
        svg.push_str("<g fill=\"transparent\">\n");
        for index in 0..STRIPS {
            let span = u128::from(self.to.since(self.from).0) * u128::from(2 * index + 1);
            let time = self.from + Nanos((span / u128::from(2 * STRIPS)) as u64);
            let mut tip = units::format_time(time);
            for line in lines {
                let after = line.points.partition_point(|p| p.time_ns <= time);
                if let Some(point) = line.points.get(after.saturating_sub(1)) {
                    let _ = write!(tip, "\n{}: {}", line.name, self.unit.show(point.mean));
                }
            }
            let (x, tip) = (self.left + strip * index as f64, escape(&tip));
            let Self { top, height, .. } = self;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{strip:.1}\" height=\"{height}\"><title>{tip}</title></rect>"
            );
        }
        svg.push_str("</g>\n");
    }
}

/// Splits points into runs without gaps, because a line across a gap in the record would claim knowledge.
fn unbroken(points: &[Point]) -> impl Iterator<Item = &[Point]> {
    let mut steps: Vec<u64> = points
        .windows(2)
        .map(|w| w[1].time_ns.since(w[0].time_ns).0)
        .collect();
    steps.sort_unstable();
    let usual = steps.get(steps.len() / 2).copied().unwrap_or(0);
    points.chunk_by(move |a, b| b.time_ns.since(a.time_ns).0 <= usual.saturating_mul(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let seconds = |from, to, most| -> Vec<u64> {
            let ticks = time_ticks(Nanos::from_millis(from), Nanos::from_millis(to), most);
            ticks.iter().map(|t| t.0 / 1_000_000).collect()
        };
        let every_second: Vec<u64> = (0..=8).map(|second| second * 1000).collect();
        assert_eq!(seconds(0, 8_000, 8), every_second);
        assert_eq!(seconds(100, 350, 3), [100, 200, 300]);
        assert!(seconds(0, 1_000_000_000_000, 8).len() <= 9);
        assert_eq!(seconds(5, 5, 8), [5]);
    }

    #[test]
    fn a_hole_in_the_record_breaks_the_line() {
        let at = |second: u64| Point {
            time_ns: Nanos::from_millis(second * 1000),
            min: 0,
            mean: 0,
            max: 0,
        };
        let points = [at(0), at(1), at(2), at(9), at(10)];
        let runs: Vec<usize> = unbroken(&points).map(<[Point]>::len).collect();
        assert_eq!(runs, [3, 2]);
    }
}
