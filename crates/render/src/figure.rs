//! Dots and lines over two axes, as SVG.

use std::fmt::Write;

use crate::plot::{LINES as SERIES_STYLES, WIDTH, open_titled};
use crate::svg::{dot, grid_line, text};

const HEIGHT: f64 = 340.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 40.0;
/// Maximum number of ticks on an axis, about.
const TICKS: f64 = 8.0;

/// Unit of an axis, and its kind.
pub struct Axis {
    unit: &'static str,
    is_logarithmic: bool,
}

/// Points with a name.
pub struct PlotSeries {
    /// Name in the legend.
    pub name: String,
    /// Points, by their values on both axes.
    pub points: Vec<(f64, f64)>,
    /// Whether a line joins the points.
    pub is_line: bool,
}

/// A picture of series.
pub struct Plot {
    /// Title of the picture.
    pub title: String,
    /// Note below the title.
    pub note: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
}

struct Scale {
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Axis {
    /// Creates an axis that includes zero.
    pub const fn linear(unit: &'static str) -> Self {
        Self {
            unit,
            is_logarithmic: false,
        }
    }

    /// Creates an axis of values above zero.
    pub const fn logarithmic(unit: &'static str) -> Self {
        Self {
            unit,
            is_logarithmic: true,
        }
    }

    fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(l, m), v| (l.min(v), m.max(v)));
        let below = least.min(0.0);
        let (from, to) = if self.is_logarithmic {
            let least = if least.is_finite() { least } else { 1.0 };
            let from = least.max(f64::MIN_POSITIVE).log10().floor();
            (from, most.max(1.0).log10().ceil().max(from + 1.0))
        } else {
            let step = step((most - below).max(1e-9));
            let from = (below / step).floor() * step;
            (from, ((most / step).ceil() * step).max(from + step))
        };
        Scale {
            from,
            to,
            is_logarithmic: self.is_logarithmic,
        }
    }
}

impl Scale {
    /// Returns the place of a value between the ends, 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic {
            value.log10()
        } else {
            value
        };
        (value - self.from) / (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = self.from as i32..=self.to as i32;
            return decades.map(|decade| 10_f64.powi(decade)).collect();
        }
        let step = step(self.to - self.from);
        let first = (self.from / step).round() as i32;
        let last = (self.to / step).round() as i32;
        (first..=last).map(|tick| f64::from(tick) * step).collect()
    }
}

/// Returns a round distance between ticks, for values up to `most`.
pub fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|n| n * power);
    let fits = |step: &f64| most / step <= TICKS;
    steps.into_iter().find(fits).unwrap_or(10.0 * power)
}

/// Maps values to places in a picture.
pub struct PlotPlaces {
    x: Scale,
    y: Scale,
}

impl PlotPlaces {
    /// Returns the place of a point, from the upper left corner.
    pub fn of(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        (
            LEFT + (right - LEFT) * self.x.at(x),
            bottom - (bottom - TOP) * self.y.at(y),
        )
    }
}

impl Plot {
    /// Draws the picture.
    pub fn draw(&self, series: &[PlotSeries]) -> String {
        let points = series.iter().flat_map(|s| s.points.iter().copied());
        let (mut svg, places) = self.open(&points.collect::<Vec<_>>());
        for (index, series) in series.iter().enumerate() {
            draw_series(&mut svg, index, series, |point| places.of(point));
        }
        svg + "</svg>\n"
    }

    /// Opens the picture: its title and note, and axes that hold `points`.
    pub fn open(&self, points: &[(f64, f64)]) -> (String, PlotPlaces) {
        let x = self.x.scale(points.iter().map(|p| p.0));
        let y = self.y.scale(points.iter().map(|p| p.1));
        let mut svg = open_titled(HEIGHT, &self.title, &self.note);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let up = bottom - (bottom - TOP) * y.at(tick);
            grid_line(&mut svg, (LEFT, right), up, tick);
        }
        for tick in x.ticks() {
            let across = LEFT + (right - LEFT) * x.at(tick);
            let value = (tick * 1e6).round() / 1e6;
            text(&mut svg, "c d", (across, bottom + 18.0), value);
        }
        text(&mut svg, "d", (LEFT, TOP - 10.0), self.y.unit);
        text(&mut svg, "e d", (right, HEIGHT - 8.0), self.x.unit);
        (svg, PlotPlaces { x, y })
    }
}

fn draw_series(
    svg: &mut String,
    index: usize,
    series: &PlotSeries,
    place: impl Fn((f64, f64)) -> (f64, f64),
) {
    let (colour, dashes) = SERIES_STYLES[index % SERIES_STYLES.len()];
    let mut path = String::new();
    for (number, point) in series.points.iter().enumerate() {
        let (x, y) = place(*point);
        let _ = match (series.is_line, number) {
            (true, 0) => write!(path, "M{x:.1} {y:.1}"),
            (true, _) => write!(path, "L{x:.1} {y:.1}"),
            (false, _) => write!(path, "M{x:.1} {y:.1}h.01"),
        };
    }
    let style = if series.is_line {
        format!("stroke-width=\"1.6\" stroke-dasharray=\"{dashes}\"")
    } else {
        "stroke-width=\"3\" stroke-linecap=\"round\" stroke-opacity=\".6\"".to_owned()
    };
    let _ = writeln!(
        svg,
        "<path fill=\"none\" stroke=\"{colour}\" {style} d=\"{path}\"/>"
    );
    let at = LEFT + 130.0 * index as f64;
    dot(svg, (at + 4.0, 60.0), 4.0, colour);
    text(svg, "", (at + 14.0, 64.0), &series.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_everything() {
        let linear = Axis::linear("s").scale([3.0, 17.0].into_iter());
        assert_eq!(linear.ticks(), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert!(linear.at(17.0) <= 1.0 && linear.at(0.0) >= 0.0);
        let changes = Axis::linear("%").scale([-72.0, 11.0].into_iter());
        assert_eq!(changes.ticks(), [-80.0, -60.0, -40.0, -20.0, 0.0, 20.0]);
        assert!(changes.at(-80.0) >= 0.0 && changes.at(20.0) <= 1.0);
        let decades = Axis::logarithmic("us").scale([3.5, 40_000.0].into_iter());
        assert_eq!(decades.ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
    }

    #[test]
    fn an_empty_picture_is_one() {
        let plot = Plot {
            title: "nothing & all".into(),
            note: String::new(),
            x: Axis::linear("s"),
            y: Axis::logarithmic("us"),
        };
        let svg = plot.draw(&[]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
        assert!(svg.contains("nothing &amp; all"));
    }
}
