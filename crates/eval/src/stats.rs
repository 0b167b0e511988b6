//! What a few repeats say. With three to ten repeats of what may have outliers a median with its least and
//! greatest ([`Summary`]) says more than a mean with a deviation.

use isotherm_engine::statistics::Summary;

/// A mean of a few differences, and where the true one lies with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// How many.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Half the width of Student's 95 % interval about it; `None` of a single value.
    pub half_width: Option<f64>,
}

impl Interval {
    /// `None` of no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        let mean = Summary::of(values.iter().copied())?.mean;
        let half_width = (n > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let variance = squares / (n - 1) as f64;
            student_t(n - 1) * (variance / n as f64).sqrt()
        });
        Some(Self {
            n,
            mean,
            half_width,
        })
    }

    /// Least and greatest; `None` of a single value, which says nothing of noise.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        let half = self.half_width?;
        Some((self.mean - half, self.mean + half))
    }

    /// Whether `value` may be the true one; it may be, of a single value.
    pub fn may_be(&self, value: f64) -> bool {
        self.bounds()
            .is_none_or(|(low, high)| low <= value && value <= high)
    }
}

/// The 0.975 quantile of Student's distribution. Beyond ten degrees of freedom that of ten, which is
/// at most 14 % too wide.
fn student_t(degrees: usize) -> f64 {
    const QUANTILES: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    QUANTILES[degrees.clamp(1, QUANTILES.len()) - 1]
}

/// How much more `value` is than `base`, in percent; `None` where `base` is zero.
pub fn overhead_percent(base: f64, value: f64) -> Option<f64> {
    (base.abs() > 0.0).then(|| 100.0 * (value / base - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_wide_as_students() {
        let check = |values: &[f64], mean: f64, bounds: Option<(f64, f64)>, noise: bool| {
            let interval = Interval::of(values.iter().copied()).expect("there are values");
            let rounded = interval
                .bounds()
                .map(|(low, high)| ((low * 1e3).round() / 1e3, (high * 1e3).round() / 1e3));
            assert_eq!((interval.mean, rounded), (mean, bounds), "{values:?}");
            assert_eq!(interval.may_be(0.0), noise, "{values:?}");
        };
        check(&[5.0], 5.0, None, true);
        check(&[1.0, 2.0, 3.0], 2.0, Some((-0.484, 4.484)), true);
        check(&[9.0, 10.0, 11.0], 10.0, Some((7.516, 12.484)), false);
        assert_eq!(Interval::of([]), None);
    }

    #[test]
    fn an_overhead_is_relative() {
        assert_eq!(overhead_percent(50.0, 51.0).map(f64::round), Some(2.0));
        assert_eq!(overhead_percent(0.0, 1.0), None);
    }
}
