//! The trend of a series, with an interval.
//!
//! The slope is the median of the slopes between all pairs of points (Theil 1950, Sen 1968): a burst, or a collector's
//! sawtooth, moves it little. The 95 % interval is Sen's, by the normal approximation of Kendall's statistic (Gilbert,
//! *Statistical Methods for Environmental Pollution Monitoring*, 1987, section 16.5).
//!
//! Limits: the interval takes the points as independent. Points of one wave are not, so it can be too narrow.

use isotherm_engine::Nanos;
use serde::Serialize;

/// Points that the series is reduced to: the median of each part.
const POINTS: usize = 100;
/// Fewer points tell no trend.
const POINTS_MIN: usize = 10;

/// Growth of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Growth {
    /// Median growth in bytes an hour; negative if memory shrinks.
    pub bytes_per_hour: f64,
    /// Lower end of the 95 % interval.
    pub low_bytes_per_hour: f64,
    /// Upper end of the 95 % interval.
    pub high_bytes_per_hour: f64,
}

impl Growth {
    /// Returns the trend of a series of times and bytes; `None` if it is too short.
    pub(crate) fn of(series: &[(Nanos, u64)]) -> Option<Self> {
        let points = reduced(series);
        if points.len() < POINTS_MIN {
            return None;
        }
        let pairs = points.iter().enumerate().flat_map(|(at, a)| {
            points[at + 1..]
                .iter()
                .map(move |b| (b.1 - a.1) / (b.0 - a.0))
        });
        let mut slopes: Vec<f64> = pairs.filter(|slope| slope.is_finite()).collect();
        slopes.sort_unstable_by(f64::total_cmp);
        let (n, pairs) = (points.len() as f64, slopes.len() as f64);
        let spread = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
        let at = |rank: f64| slopes[(rank.max(0.0) as usize).min(slopes.len() - 1)];
        (!slopes.is_empty()).then(|| Self {
            bytes_per_hour: 3600.0 * at(pairs / 2.0),
            low_bytes_per_hour: 3600.0 * at((pairs - spread) / 2.0),
            high_bytes_per_hour: 3600.0 * at(f64::midpoint(pairs, spread)),
        })
    }

    /// Returns whether the interval lies above zero.
    pub fn is_certain(&self) -> bool {
        self.low_bytes_per_hour > 0.0
    }
}

/// Returns at most [`POINTS`] points of seconds and bytes: the middle of each part, by its bytes.
fn reduced(series: &[(Nanos, u64)]) -> Vec<(f64, f64)> {
    let parts = series.chunks(series.len().div_ceil(POINTS).max(1));
    let middle = |part: &[(Nanos, u64)]| {
        let mut part = part.to_vec();
        part.sort_unstable_by_key(|(_, bytes)| *bytes);
        let (time, bytes) = part[part.len() / 2];
        (time.as_secs_f64(), bytes as f64)
    };
    parts.map(middle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_second(bytes: impl Fn(u64) -> u64) -> Vec<(Nanos, u64)> {
        let at = |second: u64| (Nanos::from_millis(1000 * second), bytes(second));
        (0..600).map(at).collect()
    }

    #[test]
    fn a_steady_growth_is_told_exactly() {
        let growth = Growth::of(&every_second(|second| (1 << 30) + second * 1000)).expect("enough");
        assert!(
            (growth.bytes_per_hour - 3_600_000.0).abs() < 1.0,
            "{growth:?}"
        );
        assert!(growth.is_certain());
    }

    #[test]
    fn a_sawtooth_is_no_growth() {
        let growth = Growth::of(&every_second(|second| (second % 37) << 20)).expect("enough");
        assert!(!growth.is_certain(), "{growth:?}");
        assert!(growth.high_bytes_per_hour >= 0.0, "{growth:?}");
    }

    #[test]
    fn a_short_series_or_one_of_a_moment_tells_nothing() {
        assert_eq!(Growth::of(&every_second(|_| 1)[..9]), None);
        assert_eq!(Growth::of(&[(Nanos(0), 1); 50]), None);
        assert_eq!(Growth::of(&[]), None);
    }
}
