//! Prediction of one setting of a scheme.

use isotherm_engine::Nanos;
use serde::{Deserialize, Serialize};

/// A number and the bounds between which it is taken to lie; without bounds where its uncertainty was not determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Estimate {
    /// Predicted value.
    pub value: f64,
    /// Lower bound; `null`: not known.
    pub low: Option<f64>,
    /// Upper bound; `null`: not known.
    pub high: Option<f64>,
}

impl Estimate {
    /// Creates a number without bounds.
    pub fn new(value: f64) -> Self {
        Self {
            value: rounded(value),
            low: None,
            high: None,
        }
    }

    /// Sets the bounds, widened to include the value.
    #[must_use]
    pub fn within(self, low: f64, high: f64) -> Self {
        Self {
            low: Some(rounded(low.min(self.value))),
            high: Some(rounded(high.max(self.value))),
            ..self
        }
    }

    /// Returns the upper bound, or the value if that is not known.
    pub fn most(&self) -> f64 {
        self.high.unwrap_or(self.value)
    }

    /// Returns the lower bound, or the value if that is not known.
    pub fn least(&self) -> f64 {
        self.low.unwrap_or(self.value)
    }

    /// Whether both bounds are known.
    pub fn has_bounds(&self) -> bool {
        self.low.is_some() && self.high.is_some()
    }
}

/// Prediction of a program under schemes, from a replay. Means are over the program's running time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Prediction {
    /// Seconds from the program's start to its end, without its own first faults.
    pub seconds: f64,
    /// Mean resident memory on the first node, bytes; a machine with one node has all memory there.
    pub resident_mean_bytes: f64,
    /// Mean memory saved, bytes: resident without schemes, less `resident_mean_bytes`; negative if more is resident.
    pub saved_mean_bytes: f64,
    /// `saved_mean_bytes` as a share of the memory resident without schemes.
    pub saved_share: Estimate,
    /// `saved_share` without the beginning, in which no memory could be idle for the schemes' minimum age; `null` if
    /// that is more than half of the time, or not known.
    #[serde(default)]
    pub steady_share: Option<f64>,
    /// Record length that `steady_share` needs, if the replayed record is too short.
    #[serde(default)]
    pub needed_ns: Option<Nanos>,
    /// Additional running time against the program without Isotherm, as a share of that time.
    pub slowdown: Estimate,
    /// CPU time of acting, seconds.
    pub acting_cpu_seconds: Estimate,
    /// CPU time of watching, seconds.
    pub monitor_cpu_seconds: f64,
    /// Number of pages that were accessed while they were paged out.
    pub refaults: u64,
    /// Mean memory that is paged out, bytes, before compression.
    pub swapped_mean_bytes: f64,
    /// Mean memory that compressed swap takes, bytes.
    pub pool_mean_bytes: f64,
    /// Mean memory on nodes beyond the first, bytes.
    pub far_mean_bytes: f64,
    /// Mean memory in huge pages, bytes.
    pub huge_mean_bytes: f64,
    /// Number of times that the guard stopped the schemes.
    pub guard_stops: u64,
    /// `true` if the program was killed because memory ran out.
    pub was_killed: bool,
    /// Resident memory over time, bytes: means of equal parts of the program's time.
    pub resident_bytes: Vec<u64>,
}

/// Significant digits that are kept of predictions. A replay is no more exact, and decimals this short are read from
/// JSON as they were written. A journal's values thus lead a search the same way.
const DIGITS: usize = 9;

pub(crate) fn rounded(value: f64) -> f64 {
    let text = format!("{value:.*e}", DIGITS - 1);
    text.parse().unwrap_or(value)
}

/// Returns the means of at most `parts` equal parts of `values`, in order.
pub(crate) fn thinned(values: &[u64], parts: usize) -> Vec<u64> {
    let parts = parts.min(values.len());
    let bound = |part: usize| part * values.len() / parts.max(1);
    (0..parts)
        .map(|part| {
            let of = &values[bound(part)..bound(part + 1)];
            let sum: u128 = of.iter().map(|value| u128::from(*value)).sum();
            (sum / of.len() as u128) as u64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_as_it_was_written() {
        for value in [0.1 + 0.2, 1.0 / 3.0, 1e-12 / 7.0, 9.87e14 / 7.0, 0.0, -0.25] {
            let value = rounded(value);
            let text = serde_json::to_string(&value).expect("a number");
            let read: f64 = serde_json::from_str(&text).expect("a number");
            assert_eq!(read.to_bits(), value.to_bits(), "{text}");
        }
    }

    #[test]
    fn bounds_hold_the_value() {
        let sure = Estimate::new(0.5).within(0.4, 0.45);
        assert_eq!((sure.least(), sure.most()), (0.4, 0.5));
        let unsure = Estimate::new(0.5);
        assert_eq!((unsure.least(), unsure.most()), (0.5, 0.5));
        assert!(sure.has_bounds() && !unsure.has_bounds());
    }

    #[test]
    fn series_are_thinned_to_means() {
        assert_eq!(thinned(&[1, 3, 5, 7], 2), [2, 6]);
        assert_eq!(thinned(&[1, 2], 10), [1, 2]);
        assert_eq!(thinned(&[], 10), [0; 0]);
        assert_eq!(thinned(&[u64::MAX; 3], 1), [u64::MAX]);
    }
}
