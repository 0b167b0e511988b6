//! Published experiments beside their published results: what came out here, what was published, and
//! whether that number was calibrated on or predicted.

pub mod compaction;
pub mod reclaim;
pub mod tiering;

use serde::Serialize;

/// How a number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Costs were chosen so that it comes out.
    Calibrated,
    /// It follows.
    Predicted,
}

impl Role {
    /// As tables show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Predicted => "predicted",
        }
    }
}

/// A number and its published counterpart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Which experiment.
    pub experiment: &'static str,
    /// Its configuration.
    pub configuration: String,
    /// What was measured.
    pub metric: String,
    /// Of both numbers.
    pub unit: &'static str,
    /// What came out here.
    pub simulated: f64,
    /// What was published; `None` where only a picture was.
    pub published: Option<f64>,
    /// How the simulated number came about.
    pub role: Role,
}

impl Comparison {
    /// How much more came out than was published, in percent.
    pub fn difference_percent(&self) -> Option<f64> {
        let published = self.published.filter(|p| p.abs() > 0.0)?;
        Some(100.0 * (self.simulated / published - 1.0))
    }
}
