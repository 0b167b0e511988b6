//! Published experiments beside their published results: the simulated number, the published number, and whether it was
//! calibrated on or predicted.

pub mod compaction;
pub mod reclaim;
pub mod second_machine;
pub mod tiering;

mod summary;

use serde::Serialize;

pub use summary::{Summary, summaries};

isotherm_engine::named! {
    /// Origin of a number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum Role {
        /// The simulation predicts it.
        Predicted = "predicted",
        /// It follows from inputs by adding sizes up, whatever is simulated.
        Arithmetic = "arithmetic",
        /// Costs or sizes were chosen to match it.
        Calibrated = "calibrated",
        /// It was put in, as a constant or as a size: a match proves nothing.
        Input = "input",
        /// The simulation says nothing about it.
        NotModelled = "not modelled",
    }

    /// Its name in tables.
    fn name;
}

/// A number and its published counterpart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Comparison")
)]
pub struct PublishedComparison {
    /// The experiment.
    pub experiment: &'static str,
    /// Its configuration.
    pub configuration: &'static str,
    /// The run of that configuration: a program, a size; empty where there is one.
    pub case: String,
    /// The measured quantity.
    pub metric: String,
    /// Unit of both numbers.
    pub unit: &'static str,
    /// The simulated number; `None` where it is not modelled.
    pub simulated: Option<f64>,
    /// The published number; `None` where only a picture was published.
    pub published: Option<f64>,
    /// Origin of the simulated number.
    pub role: Role,
}

/// Difference between two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// Percent of the published number.
    Percent(f64),
    /// Percentage points, for numbers that are percentages themselves: a ratio of changes about zero says nothing.
    Points(f64),
}

impl PublishedComparison {
    /// Returns the simulated number less the published one; `None` without either, or for a ratio to zero.
    pub fn difference(&self) -> Option<Difference> {
        let (simulated, published) = (self.simulated?, self.published?);
        if self.unit.starts_with('%') {
            return Some(Difference::Points(simulated - published));
        }
        let is_something = published.abs() > 0.0;
        is_something.then(|| Difference::Percent(100.0 * (simulated / published - 1.0)))
    }
}

/// Returns a cell of a table whose first columns name its rows.
fn published(csv: &str, row: &[&str], column: &str) -> Option<f64> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let at = lines.next()?.iter().position(|name| *name == column)?;
    let fields = lines.find(|fields| fields.starts_with(row))?;
    fields.get(at)?.parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A number that is predicted if it is simulated.
    pub(crate) fn comparison(
        case: &str,
        simulated: Option<f64>,
        published: Option<f64>,
    ) -> PublishedComparison {
        PublishedComparison {
            experiment: "driver",
            configuration: "proactive",
            case: case.into(),
            metric: "mean".into(),
            unit: "us",
            simulated,
            published,
            role: simulated.map_or(Role::NotModelled, |_| Role::Predicted),
        }
    }

    #[test]
    fn changes_in_percent_differ_by_points() {
        let check = |unit, simulated, published, expected| {
            let comparison = PublishedComparison {
                unit,
                ..comparison("", Some(simulated), Some(published))
            };
            assert_eq!(comparison.difference(), expected);
        };
        check("us", 3.0, 4.0, Some(Difference::Percent(-25.0)));
        check("us", 3.0, 0.0, None);
        check("% change", 0.0, 0.0, Some(Difference::Points(0.0)));
        check("% change", -0.5, 0.25, Some(Difference::Points(-0.75)));
    }
}
