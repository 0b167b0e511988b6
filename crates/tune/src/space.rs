//! The points that a search may try: every combination of its parameters' values.

use std::fmt;

use isotherm_config::ContextConfig;
use serde::Serialize;

use super::param::{Knob, ParamError, Parameter, TraceTimes, Value};

/// Parameters that are tuned, and their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// At least one parameter; each knob once.
    parameters: Vec<Parameter>,
}

/// A point of a [`Space`]: the index of the value of each parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SearchPoint(pub(crate) Vec<usize>);

/// Values of knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Settings(Vec<Setting>);

/// Value of one knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Setting {
    /// Knob that is set.
    pub parameter: Knob,
    /// Value as text.
    pub text: String,
    /// Value in its unit.
    #[serde(flatten)]
    pub value: Value,
}

/// Reason why there is nothing to search.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SpaceError {
    #[error(transparent)]
    Param(#[from] ParamError),
    #[error("--param {0} is given twice; name all of its values at once, e.g. age=5s,10s")]
    Twice(&'static str),
    #[error(
        "these schemes have nothing that can be tuned: their actions are neither about cold memory (pageout, cold, \
         migrate_cold, nohugepage, lru_deprio) nor about hot memory (hugepage, collapse, migrate_hot)"
    )]
    Nothing,
}

impl Space {
    /// Creates the space of the schemes of `contexts`, with the parameters of `params` (the texts of `--param`), or the
    /// default ones. The schemes' own values are steps of the ladders, if they are between the ends.
    pub fn new(
        params: &[String],
        contexts: &[ContextConfig],
        trace: TraceTimes,
    ) -> Result<Self, SpaceError> {
        let knobs = Knob::of(contexts);
        if knobs.is_empty() {
            return Err(SpaceError::Nothing);
        }
        let mut parameters = Vec::new();
        for text in params {
            let parameter = Parameter::parse(text, &knobs, trace)?;
            let is_there = |other: &Parameter| other.knob == parameter.knob;
            if parameters.iter().any(is_there) {
                return Err(SpaceError::Twice(parameter.knob.name()));
            }
            parameters.push(parameter);
        }
        if parameters.is_empty() {
            let usual = Knob::usual_of(contexts).into_iter();
            parameters.extend(usual.map(|knob| Parameter::default_of(knob, trace)));
            for parameter in &mut parameters {
                parameter.include(contexts);
            }
        }
        parameters.sort_by_key(|parameter| parameter.knob);
        Ok(Self { parameters })
    }

    /// Returns the parameters that are tuned.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the number of dimensions.
    pub fn nr_dimensions(&self) -> usize {
        self.parameters.len()
    }

    /// Returns the number of values of a parameter.
    pub fn nr_steps(&self, dimension: usize) -> usize {
        self.parameters[dimension].ladder.len()
    }

    /// Returns the number of points.
    pub fn len(&self) -> usize {
        let steps = self.parameters.iter().map(|p| p.ladder.len());
        steps.fold(1, usize::saturating_mul)
    }

    /// A space has at least one point.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the point with this number, from 0 up to [`Space::len`].
    pub fn point(&self, mut number: usize) -> SearchPoint {
        let mut point = vec![0; self.parameters.len()];
        for (at, parameter) in point.iter_mut().zip(&self.parameters).rev() {
            *at = number % parameter.ladder.len();
            number /= parameter.ladder.len();
        }
        SearchPoint(point)
    }

    /// Returns the values of the knobs at a point.
    pub fn settings(&self, point: &SearchPoint) -> Settings {
        let values = self.parameters.iter().zip(&point.0);
        let setting = |(parameter, at): (&Parameter, &usize)| {
            let value = parameter.ladder[*at];
            Setting {
                parameter: parameter.knob,
                text: value.to_string(),
                value,
            }
        };
        Settings(values.map(setting).collect())
    }

    /// Returns the point of the schemes of `contexts`; `None` if it is not in the space.
    pub fn point_of(&self, contexts: &[ContextConfig]) -> Option<SearchPoint> {
        let places = self.parameters.iter().map(|parameter| {
            let value = parameter.knob.value_in(contexts)?;
            parameter.ladder.binary_search(&value).ok()
        });
        places.collect::<Option<Vec<_>>>().map(SearchPoint)
    }
}

impl Parameter {
    /// Adds the value of the schemes of `contexts` to the ladder, if it is between the ends.
    fn include(&mut self, contexts: &[ContextConfig]) {
        let Some(value) = self.knob.value_in(contexts) else {
            return;
        };
        if let Err(at) = self.ladder.binary_search(&value)
            && at > 0
            && at < self.ladder.len()
        {
            self.ladder.insert(at, value);
        }
    }
}

impl Settings {
    /// Returns the contexts with these settings.
    pub fn apply(&self, contexts: &[ContextConfig]) -> Vec<ContextConfig> {
        let mut contexts = contexts.to_vec();
        for setting in &self.0 {
            setting.parameter.apply(setting.value, &mut contexts);
        }
        contexts
    }

    /// Returns a text that identifies these settings exactly; text for people is rounded.
    pub fn key(&self) -> String {
        let knobs = self.0.iter().map(|setting| {
            let number = match setting.value {
                Value::Time(time) => time.0,
                Value::Bytes(bytes) => bytes,
                Value::Share(share) => u64::from(share),
            };
            format!("{}={number}", setting.parameter.name())
        });
        knobs.collect::<Vec<_>>().join(" ")
    }

    /// Returns each knob with its value.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, setting) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", setting.parameter.name(), setting.text)?;
        }
        Ok(())
    }
}
