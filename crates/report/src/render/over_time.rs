//! Points over time as text.

use isotherm_render::plot::Point;
use isotherm_render::table::Table;

use super::Style;

/// Builds a table of points over time.
pub(super) fn series(points: &[Point], style: &Style) -> Table {
    let rows = points.iter().map(|point| {
        let [min, mean, max] = [point.min, point.mean, point.max].map(|n| style.bytes(n));
        [style.duration(point.time_ns), min, mean, max]
    });
    Table::of("TIME>|MIN>|MEAN>|MAX>", rows)
}

/// Draws one line of eight heights for values over time, with a character for each value.
pub(super) fn sparkline(values: &[Option<u64>]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().flatten().max().copied().unwrap_or(0).max(1);
    let height = |value: u64| (value as f64 / max as f64 * 7.0).round() as usize;
    let values = values.iter();
    values
        .map(|value| value.map_or(' ', |value| HEIGHTS[height(value).min(7)]))
        .collect()
}
