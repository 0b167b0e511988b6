//! Replays of a trace under the points of a space.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use isotherm_record::input::RecordFile;
use isotherm_session::simulated::{self, read_trace};
use isotherm_tune::{self as tune, Prediction, trace_facts};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

use crate::errors::{Doing, raise, warn};
use crate::interrupt::stoppable;
use crate::record::Record;
use crate::report::parsed;
use crate::space::Space;

/// A record of page scans: open, or by its path.
pub(crate) enum Trace {
    Record(RecordFile),
    File(PathBuf),
}

impl FromPyObject<'_, '_> for Trace {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(record) = found.cast::<Record>() {
            return Ok(Self::Record(record.get().file.clone()));
        }
        found.extract().map(Self::File).map_err(|_| {
            PyTypeError::new_err("a trace is a Record of page scans, or the path of one")
        })
    }
}

impl Trace {
    pub(crate) fn read(self) -> anyhow::Result<simulated::Replay> {
        match self {
            Self::Record(file) => {
                let name = file.name();
                let cannot = || format!("cannot read {name}");
                simulated::Replay::read(file.reader().with_context(cannot)?, name)
            }
            Self::File(path) => read_trace(&path),
        }
    }
}

/// Returns the error of a replay that was asked to stop; it does not name the caller that asked.
pub(crate) fn stopped() -> PyErr {
    raise(anyhow::anyhow!("it was asked to stop"), Doing::Simulating)
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| raise(error, Doing::Simulating))
}

/// A flag that stops replays whose results are no longer needed.
#[pyclass(frozen, name = "_Stop", module = "isotherm")]
#[derive(Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Stops the replays within a simulated second.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Predictions for the program of a trace at the points of a space, by replays. The trace is read once, and replayed
/// once without schemes. The same seed gives the same numbers, in any order of calls.
///
/// `trace`: a Record of page scans (`isotherm record --pages`), or its path. The attribute `space` is the Space.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Replays {
    inner: tune::Replays,
    space: Py<Space>,
    stop: Arc<AtomicBool>,
    /// The program's name.
    #[pyo3(get)]
    program: String,
    digest: u64,
}

#[pymethods]
impl Replays {
    #[new]
    fn new(py: Python<'_>, trace: Trace, space: Py<Space>) -> PyResult<Self> {
        let stopping: Arc<AtomicBool> = Arc::default();
        let Space { plan, asked, .. } = space.get();
        let stop = &stopping;
        let (opened, notes) = stoppable(py, stop, nothing, move |_| {
            let mut replay = trace.read()?;
            let notes = std::mem::take(&mut replay.notes);
            asked.add_far(&mut replay);
            anyhow::Ok((Opened::new(replay, plan, stop)?, notes))
        })?
        .map_err(|error| raise(error, Doing::Simulating))?;
        warn(py, &notes)?;
        let opened = opened.ok_or_else(stopped)?;
        Ok(Self {
            inner: opened.replays,
            space,
            stop: stopping,
            program: opened.program,
            digest: opened.digest,
        })
    }

    /// The space that the points belong to.
    #[getter]
    fn space(&self, py: Python<'_>) -> Py<Space> {
        self.space.clone_ref(py)
    }

    /// A digest of the trace, in 16 hexadecimal digits. Equal accesses of equal memory have equal digests.
    #[getter]
    fn digest(&self) -> String {
        format!("{:016x}", self.digest)
    }

    /// The result of the program without schemes, watched as with schemes. Its values are bytes, seconds and shares of
    /// 0 to 1.
    #[getter]
    fn base(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        parsed(py, &json(&self.inner.base())?)
    }

    /// Predicts the result of the schemes at a point (0 to `len(space) - 1`). Its values are bytes, seconds and shares
    /// of 0 to 1.
    ///
    /// `bounds`: four more replays give the bounds of savings, slowdown and CPU time; without it the bounds are None.
    /// The first prediction with bounds also makes four replays without schemes.
    #[pyo3(signature = (point, *, bounds=false))]
    fn predict(&self, py: Python<'_>, point: usize, bounds: bool) -> PyResult<Py<PyDict>> {
        let space = self.space.get();
        space.at(point)?;
        let prediction = stoppable(py, &self.stop, nothing, |_| {
            predict(&self.inner, space, point, bounds)
        })?;
        let prediction = prediction.map_err(|error| raise(error, Doing::Simulating))?;
        parsed(py, &json(&prediction.ok_or_else(stopped)?)?)
    }

    fn __repr__(&self) -> String {
        let length = self.space.get().points.len();
        format!("<isotherm.Replays of {}, {length} points>", self.program)
    }
}

/// Replays of a trace that was read.
struct Opened {
    replays: tune::Replays,
    program: String,
    digest: u64,
}

impl Opened {
    /// Returns `None` if it was asked to stop meanwhile.
    fn new(
        replay: simulated::Replay,
        plan: &tune::TuningPlan,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<Option<Self>> {
        let program = replay.program();
        let (_, digest) = trace_facts(&replay)?;
        let replays = tune::Replays::new(&plan.watching()?, replay, Arc::clone(stop))?;
        Ok(replays.map(|replays| Self {
            replays,
            program,
            digest,
        }))
    }
}

fn predict(
    replays: &tune::Replays,
    space: &Space,
    point: usize,
    bounds: bool,
) -> anyhow::Result<Option<Prediction>> {
    let settings = space.points.settings(&space.points.point(point));
    let spec = space.plan.session(&settings)?;
    if bounds {
        replays.bounded(&spec)
    } else {
        replays.predicted(&spec)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "who tells something may fail")]
fn nothing(_: Python<'_>, (): ()) -> PyResult<()> {
    Ok(())
}

/// The result of one task of a sweep.
#[derive(Serialize)]
struct Done {
    program: String,
    digest: String,
    base: Prediction,
    /// Outcomes in the order of the points.
    points: Vec<Outcome>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Prediction(Box<Prediction>),
    Error(String),
}

/// Predicts `count` points from `first` on, and returns them as JSON; None if `stop` was set.
#[pyfunction]
pub(crate) fn _sweep_task(
    py: Python<'_>,
    path: PathBuf,
    space: &Bound<'_, Space>,
    points: (usize, usize),
    bounds: bool,
    stop: &Bound<'_, Stop>,
) -> PyResult<Option<String>> {
    let (space, stop) = (space.get(), &stop.get().0);
    let (first, count) = points;
    let done = py.detach(move || {
        let Some(opened) = Opened::new(read_trace(&path)?, &space.plan, stop)? else {
            return anyhow::Ok(None);
        };
        let mut outcomes = Vec::new();
        for point in first..(first + count).min(space.points.len()) {
            outcomes.push(match predict(&opened.replays, space, point, bounds) {
                Ok(Some(prediction)) => Outcome::Prediction(Box::new(prediction)),
                Ok(None) => return Ok(None),
                Err(error) => Outcome::Error(format!("{error:#}")),
            });
        }
        Ok(Some(Done {
            base: opened.replays.base(),
            program: opened.program,
            digest: format!("{:016x}", opened.digest),
            points: outcomes,
        }))
    });
    let done = done.map_err(|error| raise(error, Doing::Simulating))?;
    done.as_ref().map(json).transpose()
}
