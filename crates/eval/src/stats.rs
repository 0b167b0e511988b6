//! Comparison of runs.

/// Returns the overhead of `value` over `base`, in percent; `None` if `base` is zero.
pub fn overhead_percent(base: f64, value: f64) -> Option<f64> {
    (base.abs() > 0.0).then(|| 100.0 * (value / base - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overhead_is_relative() {
        assert_eq!(overhead_percent(50.0, 51.0).map(f64::round), Some(2.0));
        assert_eq!(overhead_percent(0.0, 1.0), None);
    }
}
