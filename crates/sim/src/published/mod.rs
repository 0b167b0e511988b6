//! Published experiments beside their published results: what came out here, what was published, and
//! whether that number was calibrated on or predicted.

pub mod compaction;
pub mod reclaim;
pub mod second_machine;
pub mod tiering;

mod summary;

use serde::Serialize;

pub use summary::{Summary, summaries};

/// How a number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It follows.
    Predicted,
    /// It follows from inputs by adding sizes up, whatever is simulated.
    Arithmetic,
    /// Costs or sizes were chosen so that it comes out.
    Calibrated,
    /// It was put in, as a constant or as a size: that it comes out proves nothing.
    Input,
    /// The simulation says nothing about it.
    NotModelled,
}

impl Role {
    /// As tables show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Arithmetic => "arithmetic",
            Self::Calibrated => "calibrated",
            Self::Input => "input",
            Self::NotModelled => "not modelled",
        }
    }
}

/// A number and its published counterpart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// Which experiment.
    pub experiment: &'static str,
    /// Its configuration.
    pub configuration: &'static str,
    /// Which run of it: a program, a size; empty where there is one.
    pub case: String,
    /// What was measured.
    pub metric: String,
    /// Of both numbers.
    pub unit: &'static str,
    /// What came out here; `None` where it is not modelled.
    pub simulated: Option<f64>,
    /// What was published; `None` where only a picture was.
    pub published: Option<f64>,
    /// How the simulated number came about.
    pub role: Role,
}

/// How far two numbers are apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Relative to the published one.
    Percent(f64),
    /// Of numbers that are percentages themselves: in points, as a ratio of changes about zero says
    /// nothing.
    Points(f64),
}

impl Comparison {
    /// How much more came out than was published.
    pub fn difference(&self) -> Option<Difference> {
        let (simulated, published) = (self.simulated?, self.published?);
        if self.unit.starts_with('%') {
            return Some(Difference::Points(simulated - published));
        }
        let is_something = published.abs() > 0.0;
        is_something.then(|| Difference::Percent(100.0 * (simulated / published - 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_in_percent_differ_by_points() {
        let check = |unit, simulated, published, expected| {
            let comparison = Comparison {
                experiment: "x",
                configuration: "",
                case: String::new(),
                metric: String::new(),
                unit,
                simulated: Some(simulated),
                published: Some(published),
                role: Role::Predicted,
            };
            assert_eq!(comparison.difference(), expected);
        };
        check("us", 3.0, 4.0, Some(Difference::Percent(-25.0)));
        check("us", 3.0, 0.0, None);
        check("% change", 0.0, 0.0, Some(Difference::Points(0.0)));
        check("% change", -0.5, 0.25, Some(Difference::Points(-0.75)));
    }
}
