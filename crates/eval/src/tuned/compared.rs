//! Predictions of tuned settings, compared with the measurements of the runs.

use crate::journal::Entry;
use crate::metric::{ACTING_CPU, RSS, RUNTIME};
use crate::plan::PlannedRun;
use crate::suite::Suite;
use isotherm_engine::statistics::Interval;
use isotherm_tune::Estimate;

use super::TunedEntry;

/// Result of tuning for a workload under a configuration of a [`Suite`].
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Index among the suite's workloads.
    pub workload: usize,
    /// Index among the suite's configurations.
    pub configuration: usize,
    /// Result of tuning.
    pub entry: TunedEntry,
}

/// A predicted number, and its measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    /// Prediction of tuning.
    pub predicted: Estimate,
    /// Mean of the repeats; `None`: no run reported the number.
    pub measured: Option<Interval>,
}

/// All predicted numbers of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComparedSetting {
    /// Resident memory saved, percent of the first configuration's.
    pub saved: Number,
    /// Additional time of the workload, percent of the first configuration's time.
    pub slowdown: Number,
    /// CPU time of acting, seconds of a run.
    pub acting: Number,
}

/// Errors of predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Mean absolute difference of predictions and measurements.
    pub mean: f64,
    /// Number of predictions with a measurement.
    pub nr: usize,
    /// Number of these predictions that have bounds.
    pub nr_bounded: usize,
    /// Number of measured means within the bounds.
    pub nr_within: usize,
    /// Number of measurements that may be within the bounds, by their interval.
    pub nr_maybe: usize,
}

/// Returns the journal's tuning results for the planned runs: the last of each.
pub(crate) fn gather(
    entries: &[Entry],
    planned: &[PlannedRun<'_>],
    workloads: &[String],
    configurations: &[String],
) -> Vec<Predicted> {
    let mut all: Vec<Predicted> = Vec::new();
    for entry in entries {
        let Entry::Tuned(entry) = entry else { continue };
        let place = |names: &[String], name: &str| names.iter().position(|n| n == name);
        let workload = place(workloads, &entry.workload);
        let places = workload.zip(place(configurations, &entry.configuration));
        if let Some((workload, configuration)) = places
            && planned.iter().any(|run| entry.is_for(run))
        {
            all.retain(|old| (old.workload, old.configuration) != (workload, configuration));
            all.push(Predicted {
                workload,
                configuration,
                entry: (**entry).clone(),
            });
        }
    }
    all.sort_by_key(|predicted| (predicted.configuration, predicted.workload));
    all
}

impl Predicted {
    /// Returns the predictions beside the measurements; `None` if no setting was found.
    pub fn compared(&self, suite: &Suite) -> Option<ComparedSetting> {
        let setting = self.entry.setting.as_ref()?;
        let measured = |metric| suite.interval(self.workload, self.configuration, metric);
        let acting = suite.cell(self.workload, self.configuration, ACTING_CPU);
        Some(ComparedSetting {
            saved: Number {
                predicted: percent(setting.saved_share),
                measured: self.saved(suite),
            },
            slowdown: Number {
                predicted: percent(setting.slowdown),
                measured: measured(RUNTIME),
            },
            acting: Number {
                predicted: setting.acting_cpu_seconds,
                measured: Interval::of(acting.values.into_values()),
            },
        })
    }

    /// Returns the resident memory that its runs saved, percent of the first configuration's.
    pub fn saved(&self, suite: &Suite) -> Option<Interval> {
        let more = suite.interval(self.workload, self.configuration, RSS)?;
        Some(Interval {
            mean: 0.0 - more.mean,
            ..more
        })
    }
}

fn percent(share: Estimate) -> Estimate {
    Estimate {
        value: 100.0 * share.value,
        low: share.low.map(|low| 100.0 * low),
        high: share.high.map(|high| 100.0 * high),
    }
}

impl Number {
    /// Returns whether the measured mean is within the bounds, and whether its interval touches them; `None` if either
    /// is not known. The interval of a single repeat is its value.
    pub fn is_within(&self) -> Option<(bool, bool)> {
        let (low, high) = self.predicted.low.zip(self.predicted.high)?;
        let measured = self.measured?;
        let (from, to) = measured.bounds().unwrap_or((measured.mean, measured.mean));
        let is_within = (low..=high).contains(&measured.mean);
        Some((is_within, from <= high && low <= to))
    }
}

/// Returns the errors of these predictions; `None`: none was measured.
pub fn errors(numbers: impl IntoIterator<Item = Number>) -> Option<Errors> {
    let mut sum = 0.0;
    let mut errors = Errors::default();
    for number in numbers {
        let Some(measured) = number.measured else {
            continue;
        };
        sum += (number.predicted.value - measured.mean).abs();
        errors.nr += 1;
        if let Some((is_within, may_be)) = number.is_within() {
            errors.nr_bounded += 1;
            errors.nr_within += usize::from(is_within);
            errors.nr_maybe += usize::from(may_be);
        }
    }
    errors.mean = sum / errors.nr as f64;
    (errors.nr > 0).then_some(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_of_what_was_measured() {
        let number = |value: f64, bounds: Option<(f64, f64)>, measured: Option<f64>| Number {
            predicted: Estimate {
                value,
                low: bounds.map(|b| b.0),
                high: bounds.map(|b| b.1),
            },
            measured: measured.map(|mean| Interval {
                n: 2,
                mean,
                half_width: Some(3.0),
            }),
        };
        assert_eq!(errors([number(1.0, None, None)]), None);
        let all = [
            number(30.0, Some((25.0, 35.0)), Some(28.0)),
            number(30.0, Some((25.0, 35.0)), Some(23.0)),
            number(30.0, Some((25.0, 35.0)), Some(20.0)),
            number(3.0, None, Some(6.0)),
            number(3.0, Some((0.0, 9.0)), None),
        ];
        let expected = Errors {
            mean: 5.5,
            nr: 4,
            nr_bounded: 3,
            nr_within: 1,
            nr_maybe: 2,
        };
        assert_eq!(errors(all), Some(expected));
    }
}
