//! Measures that workloads report besides their throughput, and means over some of them.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::Regex;
use serde::{Deserialize, Serialize};

use crate::journal::RunMeasurements;

/// A measure that a workload reports, such as the throughput of one of several programs, or a latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Measure")
)]
#[serde(
    deny_unknown_fields,
    expecting = "a measure with `name`, `unit` and `output`"
)]
pub struct WorkloadMeasure {
    /// Name in tables.
    pub name: String,
    /// Unit of its values.
    pub unit: String,
    /// A regular expression for the standard output of `run`: the value is the first group (or all) of its last match.
    pub output: String,
    /// Published values of the measure.
    #[serde(default, skip_serializing)]
    pub published: Vec<PublishedValues>,
}

/// The geometric mean of several measures. Programs that compete for a machine gain what others lose. The mean of all
/// shows more than each alone, and a geometric mean weighs them alike, whatever their units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a mean with `name` and `of`")]
pub struct Mean {
    /// Name in tables.
    pub name: String,
    /// Names of the measures.
    pub of: Vec<String>,
}

/// Published values of a measure, by configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "published values with `by`")]
pub struct PublishedValues {
    /// Short description of the document.
    pub by: String,
    /// Values by configuration.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// Overheads over the first configuration, in percent.
    #[serde(default)]
    pub overheads: BTreeMap<String, f64>,
}

impl WorkloadMeasure {
    /// Returns its value in `output`, the output of `run`. It may be zero.
    pub fn value_in(&self, output: &str) -> Option<f64> {
        let text = last_match(&self.output, output)?;
        let value: f64 = text.trim().replace(',', "").parse().ok()?;
        value.is_finite().then_some(value)
    }
}

/// A measure that a workload reports, or a mean of such measures.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadMetric {
    /// Name in tables.
    pub name: String,
    /// Unit of its values.
    pub unit: String,
    /// Published values of the measure.
    pub published: Vec<PublishedValues>,
    /// Measures in the geometric mean: one, unless it is a mean.
    of: Vec<String>,
}

impl WorkloadMetric {
    pub(crate) fn all(measures: &[WorkloadMeasure], means: &[Mean]) -> Vec<Self> {
        let measures = measures.iter().map(|measure| Self {
            name: measure.name.clone(),
            unit: measure.unit.clone(),
            published: measure.published.clone(),
            of: vec![measure.name.clone()],
        });
        let means = means.iter().map(|mean| Self {
            name: mean.name.clone(),
            unit: format!("geometric mean of {}", mean.of.join(", ")),
            published: Vec::new(),
            of: mean.of.clone(),
        });
        measures.chain(means).collect()
    }

    /// Returns its value in one run; `None` if the run did not report all of its measures.
    pub(crate) fn value(&self, run: &RunMeasurements) -> Option<f64> {
        if let [one] = self.of.as_slice() {
            return run.measures.get(one).copied();
        }
        let logarithms = self.of.iter().map(|name| {
            let value = run.measures.get(name)?;
            (*value > 0.0).then(|| value.ln())
        });
        let sum: f64 = logarithms.sum::<Option<f64>>()?;
        Some((sum / self.of.len() as f64).exp())
    }
}

/// Returns the first group of the last match, or all of the match.
pub(crate) fn last_match<'a>(regex: &str, output: &'a str) -> Option<&'a str> {
    let found = Regex::new(regex).ok()?.captures_iter(output).last()?;
    Some(found.get(1).or_else(|| found.get(0))?.as_str())
}

/// Whether a text can be part of a file's name.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(fits)
}

pub(crate) fn fault(measures: &[WorkloadMeasure], means: &[Mean]) -> Option<String> {
    let mut names = BTreeSet::new();
    for measure in measures {
        let of = &measure.name;
        if !names.insert(of) || !is_name(of) {
            return Some(format!("measure '{of}': {NAME}"));
        }
        if let Err(error) = Regex::new(&measure.output) {
            return Some(format!("measure '{of}': `output`: {error}"));
        }
    }
    let known: Vec<&str> = measures.iter().map(|m| m.name.as_str()).collect();
    for mean in means {
        let of = &mean.name;
        if !names.insert(of) || !is_name(of) {
            return Some(format!("mean '{of}': {NAME}"));
        }
        if mean.of.is_empty() {
            return Some(format!("mean '{of}': `of` names no measure"));
        }
        if let Some(unknown) = mean.of.iter().find(|name| !known.contains(&name.as_str())) {
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            return Some(format!(
                "mean '{of}': no measure is called '{unknown}'; there is {known}"
            ));
        }
    }
    None
}

const NAME: &str = "a name of its own, of letters, digits, `-`, `_` and `.`";

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(name: &str) -> WorkloadMeasure {
        WorkloadMeasure {
            name: name.to_owned(),
            unit: "reads".to_owned(),
            output: "x".to_owned(),
            published: Vec::new(),
        }
    }

    fn mean(name: &str, of: &[&str]) -> Mean {
        Mean {
            name: name.to_owned(),
            of: of.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn a_mean_weighs_all_alike_and_is_none_where_one_is_missing() {
        let metrics = WorkloadMetric::all(&[measure("a"), measure("b")], &[mean("m", &["a", "b"])]);
        let mut run = RunMeasurements {
            measures: [("a".to_owned(), 2.0), ("b".to_owned(), 8000.0)].into(),
            ..RunMeasurements::default()
        };
        let value = metrics[2].value(&run).expect("both are reported");
        assert!((value - 16_000_f64.sqrt()).abs() < 1e-6, "{value}");
        assert_eq!(metrics[0].value(&run), Some(2.0));
        run.measures.insert("b".to_owned(), 0.0);
        assert_eq!(metrics[2].value(&run), None, "nothing was done");
        run.measures.remove("b");
        assert_eq!(metrics[2].value(&run), None);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let check = |means: &[Mean], expected: &str| {
            let text = fault(&[measure("a")], means).expect("it is wrong");
            assert!(text.contains(expected), "{text}");
        };
        assert_eq!(fault(&[measure("a")], &[mean("m", &["a"])]), None);
        check(&[mean("a", &["a"])], "mean 'a': a name of its own");
        check(&[mean("m", &[])], "names no measure");
        check(&[mean("m", &["b"])], "no measure is called 'b'; there is a");
    }
}
