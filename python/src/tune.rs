//! The search for the numbers of schemes that suit a recorded program best.

use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use isotherm_report::{ReportFormat, Style};
use isotherm_session::Versioned;
use isotherm_session::simulated::Replay;
use isotherm_tune::{
    self as library, Effort, Journal, METHODS, MemoryLimit, OBJECTIVES, Prices, PublishedMethod,
    SearchEvent, Seeks, TuneRequest, Tuning, TuningPlan,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::errors::{Doing, SimulationError, raise, warn};
use crate::interrupt::stoppable;
use crate::quantity::Share;
use crate::replays::{Trace, stopped};
use crate::report::{Report, Shown};
use crate::space::{Asked, written};
use crate::spec::Given;

/// The result of a search, and the plan that its settings belong to.
struct Result {
    tuned: library::Tuned,
    plan: TuningPlan,
}

/// The result of a search as a report.
struct TuneReport(Arc<Result>);

impl Shown for TuneReport {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Versioned::new(&self.0.tuned))
    }

    fn write(&self, format: ReportFormat, _style: Style) -> Option<io::Result<Vec<u8>>> {
        let Result { tuned, plan } = &*self.0;
        match format {
            ReportFormat::Text => Some(Ok(tuned.text().into_bytes())),
            ReportFormat::Html => Some(Ok(isotherm_tune::page(tuned, plan).into_bytes())),
            _ => None,
        }
    }
}

/// The result of `tune`: a Report of the command's JSON (`results.Tune`), and the recommended setting as a
/// configuration and as a session.
#[pyclass(frozen, extends = Report, module = "isotherm")]
pub(crate) struct Tuned {
    found: Arc<Result>,
    asked: Asked,
}

#[pymethods]
impl Tuned {
    /// The recommended configuration, as `run -c`, damo and HMSDK read it: `yaml`, or damo's `json`. Raises
    /// SimulationError if no setting is within the limit.
    #[pyo3(signature = (*, format="yaml"))]
    fn configuration(&self, format: &str) -> PyResult<String> {
        let Result { tuned, plan } = &*self.found;
        let Some(best) = &tuned.found.recommended else {
            return Err(SimulationError::new_err(tuned.found.why.clone()));
        };
        written(plan, &best.settings, format)
    }

    /// The recommended session. `targets`: the targets, as SessionSpec takes them (`pids=[...]`, `cgroup=...`);
    /// `simulate` needs none. Raises as `configuration` does.
    #[pyo3(signature = (**targets))]
    fn spec<'py>(
        &self,
        py: Python<'py>,
        targets: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let text = self.configuration("yaml")?;
        let is_guarded = self.found.plan.is_guarded();
        self.asked.spec(py, &text, is_guarded, targets)
    }
}

/// A limit of memory: bytes, or text such as "600M" or "60%".
pub(crate) struct Limit(MemoryLimit);

impl FromPyObject<'_, '_> for Limit {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = found.cast::<PyString>() {
            let limit = MemoryLimit::parse(text.to_str()?);
            return limit
                .map(Self)
                .map_err(|error| PyValueError::new_err(error.to_string()));
        }
        let bytes = found.extract::<NonZero<u64>>().ok();
        bytes
            .filter(|_| !found.is_instance_of::<PyBool>())
            .map(|bytes| Self(MemoryLimit::Bytes(bytes.get())))
            .ok_or_else(|| {
                PyTypeError::new_err(
                    "max_memory is a number of bytes, or text: a size ('600M') or a share of the memory without \
                     schemes ('60%')",
                )
            })
    }
}

/// Monthly prices: a dict, or the command's text.
pub(crate) struct Priced(Prices);

impl FromPyObject<'_, '_> for Priced {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text = if let Ok(text) = found.cast::<PyString>() {
            text.to_str()?.to_owned()
        } else {
            let prices = found.cast::<PyDict>().map_err(|_| {
                PyTypeError::new_err("prices are a dict, e.g. {'dram': 3.5, 'cpu': 20}")
            })?;
            let each = prices.iter().map(|(name, price)| {
                let (name, price): (String, f64) = (name.extract()?, price.extract()?);
                Ok(format!("{name}={price}"))
            });
            each.collect::<PyResult<Vec<_>>>()?.join(",")
        };
        Prices::parse(&text)
            .map(Self)
            .map_err(PyValueError::new_err)
    }
}

fn seeks(name: &str) -> PyResult<Seeks> {
    named(OBJECTIVES, name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "'{name}' is no objective; there are memory, slowdown, damoos, cost and huge"
        ))
    })
}

fn method(name: &str) -> PyResult<Option<PublishedMethod>> {
    named(METHODS, name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "'{name}' is no method; there are search, damoos-grid, damoos-polyfit and swarm"
        ))
    })
}

fn named<T: Copy>(all: &[(&str, &str, T)], name: &str) -> Option<T> {
    let found = all.iter().find(|(known, ..)| *known == name);
    found.map(|(.., value)| *value)
}

/// A message from a running search.
enum News {
    /// Number of tried points, and its maximum.
    Tried(usize, usize),
    /// A warning.
    Note(String),
}

/// Finds the numbers of schemes that suit a recorded program best, by replays of its trace. The result is that of
/// `isotherm tune RECORD` (docs/how-to/tune.md). No privilege is needed; the same seed gives the same bytes for any
/// `jobs`.
///
/// `trace`: a Record of page scans, or its path. `presets`, `schemes` (Scheme or line), `config` (text): the schemes to
/// tune. `params`: the numbers to tune and their ranges, e.g. `["age=1s..2min:8", "quota"]`. `objective`: "memory",
/// "slowdown", "damoos", "cost" or "huge". `max_slowdown` (a share) and `max_memory` (bytes, "600M", or a share as
/// "60%") limit it. `prices`: the monthly prices of a GiB of "dram" and "cxl", and of a "cpu". `far` ("64G,250ns") and
/// `memory_bound` (the share of its time in which the program waits for memory): replays have a second node. `budget`:
/// most settings to try. `resume`: a file that keeps every result, from which a later search continues. `progress`: a
/// function that is called with the number of tried settings and its maximum.
///
/// Ctrl-C ends the search; without `resume` its results are lost then.
#[pyfunction]
#[pyo3(signature = (trace, *, presets=None, schemes=None, config=None, params=None, objective=None, max_slowdown=None,
    max_memory=None, prices=None, budget=None, seed=1, jobs=None, guard=true, faithful=false, far=None,
    memory_bound=None, method="search", resume=None, progress=None))]
pub(crate) fn tune(
    py: Python<'_>,
    trace: Trace,
    presets: Option<Vec<String>>,
    schemes: Option<Vec<Given>>,
    config: Option<&str>,
    params: Option<Vec<String>>,
    objective: Option<&str>,
    max_slowdown: Option<Share>,
    max_memory: Option<Limit>,
    prices: Option<Priced>,
    budget: Option<NonZero<u32>>,
    seed: u64,
    jobs: Option<NonZero<usize>>,
    guard: bool,
    faithful: bool,
    far: Option<&str>,
    memory_bound: Option<Share>,
    method: &str,
    resume: Option<PathBuf>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<Tuned>> {
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
    let asked = asked.with(schemes, far, memory_bound)?;
    let request = TuneRequest {
        seeks: objective.map(seeks).transpose()?,
        max_memory: max_memory.map(|Limit(limit)| limit),
        prices: prices.map(|Priced(prices)| prices),
        ..asked.request()?
    };
    let effort = Effort {
        budget: budget.map(|budget| budget.get() as usize),
        jobs: jobs.map(NonZero::get),
        method: self::method(method)?,
    };
    let mut replay = py
        .detach(|| trace.read())
        .map_err(|error| raise(error, Doing::Simulating))?;
    warn(py, &std::mem::take(&mut replay.notes))?;
    asked.add_far(&mut replay);
    let found = search(py, &request, replay, &effort, resume, progress)?;
    let found = Arc::new(found.ok_or_else(stopped)?);
    let report = Report::new("tune", TuneReport(Arc::clone(&found)));
    let tuned = PyClassInitializer::from(report).add_subclass(Tuned { found, asked });
    Py::new(py, tuned)
}

fn search(
    py: Python<'_>,
    request: &TuneRequest,
    replay: Replay,
    effort: &Effort,
    resume: Option<PathBuf>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Result>> {
    let tuning = request.of_trace(replay);
    let tuning: Tuning = tuning.map_err(|error| raise(error, Doing::Specifying))?;
    let journal = resume.map(|path| Journal::open(&path, tuning.fingerprint()));
    let mut journal = journal
        .transpose()
        .map_err(|error| raise(error, Doing::Simulating))?;
    let progress = progress.map(|progress| progress.clone().unbind());
    let tell = |py: Python<'_>, news: News| match (news, &progress) {
        (News::Tried(nr, most), Some(progress)) => progress.call1(py, (nr, most)).map(drop),
        (News::Tried(..), None) => Ok(()),
        (News::Note(note), _) => warn(py, &[note]),
    };
    let stop: Arc<AtomicBool> = Arc::default();
    let found = stoppable(py, &stop, tell, |send| {
        let mut nr_most = 0;
        let mut on_event = |event: SearchEvent<'_>| {
            let news = match event {
                SearchEvent::Begins(stage) => {
                    nr_most = stage.nr_most;
                    return;
                }
                SearchEvent::Evaluated(nr) => News::Tried(nr, nr_most),
                SearchEvent::JournalFailed(error) => News::Note(error.to_string()),
                SearchEvent::Leads(_) | SearchEvent::Settles => return,
            };
            // The receiver outlives the search.
            let _ = send.send(news);
        };
        tuning.run(effort, journal.as_mut(), &stop, &mut on_event, None)
    })?;
    let found = found.map_err(|error| raise(error, Doing::Simulating))?;
    Ok(found.map(|(tuned, plan)| Result { tuned, plan }))
}
