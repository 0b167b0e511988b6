//! Points over time as text.

use isotherm_render::plot::Point;
use isotherm_render::table::Table;

use super::Style;

pub(super) fn series(points: &[Point], style: &Style) -> Table {
    let rows = points.iter().map(|point| {
        let [min, mean, max] = [point.min, point.mean, point.max].map(|n| style.bytes(n));
        [style.duration(point.time_ns), min, mean, max]
    });
    Table::of("TIME>|MIN>|MEAN>|MAX>", rows)
}

/// Draws a series in one line of at most `width` characters of eight heights: the mean of each step.
pub(super) fn spark(series: &[Point], width: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (Some(first), Some(last)) = (series.first(), series.last()) else {
        return String::new();
    };
    let width = width.clamp(1, 120).min(series.len());
    let span = (last.time_ns.0 - first.time_ns.0) as f64;
    let mut sums = vec![(0.0, 0_u32); width];
    for point in series {
        let part = (point.time_ns.0 - first.time_ns.0) as f64 / span.max(1.0);
        let at = ((part * width as f64) as usize).min(width - 1);
        sums[at].0 += point.mean as f64;
        sums[at].1 += 1;
    }
    let mean = |&(sum, n): &(f64, u32)| (n > 0).then(|| (sum / f64::from(n)) as u64);
    let means: Vec<Option<u64>> = sums.iter().map(mean).collect();
    let max = means.iter().flatten().max().copied().unwrap_or(0).max(1);
    let height = |mean: u64| (mean as f64 / max as f64 * 7.0).round() as usize;
    let characters = means.into_iter();
    characters
        .map(|mean| mean.map_or(' ', |mean| HEIGHTS[height(mean).min(7)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_engine::Nanos;

    #[test]
    fn a_sparkline_shows_gaps_as_blanks() {
        let at = |second: u64, mean| Point {
            time_ns: Nanos::from_millis(second * 1000),
            min: mean,
            mean,
            max: mean,
        };
        let rising = [at(0, 0), at(1, 7), at(2, 14), at(3, 3)];
        assert_eq!(spark(&rising, 80), "▁▅█▃");
        assert_eq!(spark(&[at(0, 8), at(1, 8), at(7, 8), at(8, 8)], 4), "█  █");
    }
}
