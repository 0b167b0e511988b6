//! The space of a tuning search as a value: schemes, and the points that can be tried for their numbers.

use std::fmt::Write as _;

use isotherm_config::{to_json, to_yaml};
use isotherm_engine::{Nanos, units};
use isotherm_policy::guard::MAX_SLOWDOWN;
use isotherm_session::simulated::{FarMemory, Replay};
use isotherm_tune::{self as tune, Fingerprint, Settings, TraceTimes, TuneRequest, TuningPlan};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::{Deserialize, Serialize};

use crate::errors::{Doing, raise};
use crate::quantity::Share;
use crate::spec::{Given, SessionSpec, add_schemes, load};

/// The schemes whose numbers are tuned, with their monitor and guard, as the caller gave them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) config: Option<String>,
    pub(crate) presets: Vec<String>,
    pub(crate) schemes: Vec<String>,
    pub(crate) params: Vec<String>,
    pub(crate) max_slowdown: Option<f64>,
    pub(crate) guard: bool,
    pub(crate) faithful: bool,
    pub(crate) seed: u64,
    /// The second node of the machine that traces are replayed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) far: Option<FarMemory>,
}

/// Reads far memory as the keywords give it: its size and latency, and the share of time that memory bounds.
pub(crate) fn far_memory(
    far: Option<&str>,
    memory_bound: Option<Share>,
) -> PyResult<Option<FarMemory>> {
    match (far, memory_bound) {
        (None, None) => Ok(None),
        (Some(far), Some(Share(bound))) => {
            let far = FarMemory::parse(far, bound);
            far.map(Some).map_err(PyValueError::new_err)
        }
        _ => Err(PyValueError::new_err(
            "far (e.g. '64G,250ns') and memory_bound (the share of its time in which the program waits for memory) \
             belong together",
        )),
    }
}

impl Asked {
    /// Adds schemes and far memory. Schemes that are objects become part of the configuration.
    pub(crate) fn with(
        mut self,
        given: Option<Vec<Given>>,
        far: Option<&str>,
        memory_bound: Option<Share>,
    ) -> PyResult<Self> {
        let mut schemes = Vec::new();
        for given in given.unwrap_or_default() {
            match given {
                Given::Line(line) => self.schemes.push(line),
                Given::Scheme(scheme) => schemes.push(scheme.inner),
            }
        }
        if !schemes.is_empty() {
            let mut whole = load(self.config.as_deref())?;
            if !add_schemes(&mut whole.contexts, schemes) {
                return Err(PyValueError::new_err(
                    "the configuration holds several contexts, and schemes do not say for which they are",
                ));
            }
            self.config = Some(to_yaml(&whole));
        }
        self.far = far_memory(far, memory_bound)?;
        Ok(self)
    }

    /// Returns the request for the search, without objective, memory limit and prices.
    pub(crate) fn request(&self) -> PyResult<TuneRequest> {
        Ok(TuneRequest {
            contexts: load(self.config.as_deref())?.contexts,
            presets: self.presets.clone(),
            scheme_lines: self.schemes.clone(),
            params: self.params.clone(),
            is_faithful: self.faithful,
            no_guard: !self.guard,
            max_slowdown: self.max_slowdown,
            seed: self.seed,
            ..TuneRequest::default()
        })
    }

    /// Adds the second node, if any, to a replay's machine.
    pub(crate) fn add_far(&self, replay: &mut Replay) {
        if let Some(far) = &self.far {
            replay.add_far(far);
        }
    }

    /// Returns the session of a tuned configuration. `targets`: the keywords by which `SessionSpec` names its targets.
    pub(crate) fn spec<'py>(
        &self,
        py: Python<'py>,
        configuration: &str,
        is_guarded: bool,
        targets: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keywords = targets.map_or_else(|| Ok(PyDict::new(py)), PyDictMethods::copy)?;
        keywords.set_item("config", configuration)?;
        keywords.set_item("guard", is_guarded)?;
        keywords.set_item("faithful", self.faithful)?;
        keywords.set_item("seed", self.seed)?;
        py.get_type::<SessionSpec>().call((), Some(&keywords))
    }
}

/// Returns a configuration as `yaml` or as damo's `json`.
pub(crate) fn written(plan: &TuningPlan, settings: &Settings, format: &str) -> PyResult<String> {
    let configuration = plan.configuration(settings);
    match format {
        "yaml" => Ok(to_yaml(&configuration)),
        "json" => Ok(to_json(&configuration)),
        _ => Err(PyValueError::new_err(format!(
            "a configuration is written as yaml or json, not as '{format}'"
        ))),
    }
}

/// The trace that completes ranges without an end: four minutes, with a second between its scans. A space itself
/// belongs to no trace.
const USUAL_TRACE: TraceTimes = TraceTimes {
    duration: Nanos(4 * units::MINUTE.0),
    interval: units::SECOND,
};

/// The points that can be tried for the numbers of schemes: every combination of the values of some parameters. The
/// points are numbered.
///
/// `presets`, `schemes` (Scheme or line), `config` (text): the schemes. `params`: the tuned parameters and their
/// values, as `isotherm tune --param` (docs/how-to/tune.md), e.g. `["age=1s..2min:8", "size=4K,2M"]`; by default the
/// usual ones. A space belongs to no trace: ranges without an end are those of a trace of four minutes, scanned every
/// second.
///
/// `max_slowdown`: the slowdown that the guard allows, 1% by default; `guard=False`: no guard. `faithful`: monitoring
/// by DAMON's rules. `far` ("64G,250ns") and `memory_bound` (the share of its time in which the program waits for
/// memory): replays have a second node. `seed`: the seed of every random choice. Two spaces are equal if they were made
/// from equal arguments.
#[pyclass(frozen, eq, module = "isotherm")]
#[derive(Clone)]
pub(crate) struct Space {
    pub(crate) asked: Asked,
    pub(crate) plan: TuningPlan,
    pub(crate) points: tune::Space,
}

impl PartialEq for Space {
    fn eq(&self, other: &Self) -> bool {
        self.asked == other.asked
    }
}

impl Space {
    fn of(asked: Asked) -> PyResult<Self> {
        let specifying = |error: anyhow::Error| raise(error, Doing::Specifying);
        let plan = asked.request()?.plan(Some(MAX_SLOWDOWN));
        let plan = plan.map_err(specifying)?;
        let points = tune::Space::new(&asked.params, plan.contexts(), USUAL_TRACE);
        let points = points.map_err(|error| specifying(error.into()))?;
        Ok(Self {
            asked,
            plan,
            points,
        })
    }

    pub(crate) fn at(&self, point: usize) -> PyResult<Settings> {
        let length = self.points.len();
        if point >= length {
            let text = format!("there is no point {point}: the space has {length}, from 0");
            return Err(PyIndexError::new_err(text));
        }
        Ok(self.points.settings(&self.points.point(point)))
    }
}

#[pymethods]
impl Space {
    #[new]
    #[pyo3(signature = (*, presets=None, schemes=None, config=None, params=None, max_slowdown=None, guard=true,
        faithful=false, far=None, memory_bound=None, seed=1))]
    fn new(
        presets: Option<Vec<String>>,
        schemes: Option<Vec<Given>>,
        config: Option<&str>,
        params: Option<Vec<String>>,
        max_slowdown: Option<Share>,
        guard: bool,
        faithful: bool,
        far: Option<&str>,
        memory_bound: Option<Share>,
        seed: u64,
    ) -> PyResult<Self> {
        let asked = Asked {
            config: config.map(str::to_owned),
            presets: presets.unwrap_or_default(),
            params: params.unwrap_or_default(),
            max_slowdown: max_slowdown.map(|Share(share)| share),
            guard,
            faithful,
            seed,
            ..Asked::default()
        };
        Self::of(asked.with(schemes, far, memory_bound)?)
    }

    /// Creates the space that `to_json` returned.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        let asked = serde_json::from_str(text);
        let asked = asked.map_err(|error| {
            let error = anyhow::anyhow!("this is no space: {error}");
            raise(error, Doing::Specifying)
        })?;
        Self::of(asked)
    }

    /// The arguments of the space as JSON, for `from_json`.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.asked).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Fingerprint of all that predictions depend on besides the trace, in 16 hexadecimal digits: schemes, values,
    /// monitor, guard, far memory and seed.
    #[getter]
    fn fingerprint(&self) -> String {
        let mut all = format!("{} {:?}", self.plan.fingerprint(), self.points);
        if let Some(far) = &self.asked.far {
            let _ = write!(all, " {far:?}");
        }
        Fingerprint::new(0, &all).options
    }

    /// The values of each parameter as text, from the least to the most.
    #[getter]
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parameters = PyDict::new(py);
        for parameter in self.points.parameters() {
            let values = parameter.ladder.iter().map(ToString::to_string);
            parameters.set_item(parameter.knob.name(), PyList::new(py, values)?)?;
        }
        Ok(parameters)
    }

    /// The number of points.
    fn __len__(&self) -> usize {
        self.points.len()
    }

    /// The number of the point at these places (from 0) on the parameters' values, in their order.
    fn point(&self, places: Vec<usize>) -> PyResult<usize> {
        let dimensions = 0..self.points.nr_dimensions();
        let steps: Vec<usize> = dimensions.map(|d| self.points.nr_steps(d)).collect();
        let is_there = places.len() == steps.len();
        let mut along = places.into_iter().zip(&steps);
        let add = |number: usize, (place, steps): (usize, &usize)| {
            (place < *steps).then_some(number * steps + place)
        };
        let number = is_there.then(|| along.try_fold(0, add)).flatten();
        number.ok_or_else(|| {
            PyIndexError::new_err(format!(
                "a point is a place for each parameter, below {steps:?}"
            ))
        })
    }

    /// The value of each parameter at a point, as text.
    fn settings<'py>(&self, py: Python<'py>, point: usize) -> PyResult<Bound<'py, PyDict>> {
        let settings = PyDict::new(py);
        for setting in self.at(point)?.iter() {
            settings.set_item(setting.parameter.name(), setting.text.as_str())?;
        }
        Ok(settings)
    }

    /// The settings of a point in one line: `age 5 s, size 4 KiB`.
    fn label(&self, point: usize) -> PyResult<String> {
        Ok(self.at(point)?.to_string())
    }

    /// The configuration of a point, as `run -c`, damo and HMSDK read it: `yaml`, or damo's `json`.
    #[pyo3(signature = (point, *, format="yaml"))]
    fn configuration(&self, point: usize, format: &str) -> PyResult<String> {
        written(&self.plan, &self.at(point)?, format)
    }

    /// The session of a point. `targets`: the targets, as SessionSpec takes them (`pids=[...]`, `cgroup=...`);
    /// `simulate` needs none.
    #[pyo3(signature = (point, **targets))]
    fn spec<'py>(
        &self,
        py: Python<'py>,
        point: usize,
        targets: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let text = self.configuration(point, "yaml")?;
        self.asked.spec(py, &text, self.plan.is_guarded(), targets)
    }

    fn __repr__(&self) -> String {
        let parameters = self.points.parameters().iter().map(|parameter| {
            let ladder = &parameter.ladder;
            let (name, steps) = (parameter.knob.name(), ladder.len());
            match (ladder.first(), ladder.last()) {
                (Some(low), Some(high)) if steps > 1 => format!("{name} {low}..{high} ({steps})"),
                (Some(only), _) => format!("{name} {only}"),
                (None, _) => name.to_owned(),
            }
        });
        let parameters: Vec<String> = parameters.collect();
        let length = self.points.len();
        format!(
            "<isotherm.Space of {length} points: {}>",
            parameters.join(", ")
        )
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let from_json = py.get_type::<Self>().getattr("from_json")?;
        Ok((from_json, (self.to_json()?,)))
    }
}
