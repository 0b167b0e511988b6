//! Simulations of scenarios and traces.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use isotherm_record::Writer;
use isotherm_session::record_file;
use isotherm_session::simulated::{
    FarMemory, Scenario, SimulatedSession, SimulationReport, parse_scenario, read_scenario_or_trace,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Doing, raise, warn};
use crate::interrupt::Interrupt;
use crate::quantity::{Share, Time};
use crate::record::Record;
use crate::replays::Trace;
use crate::report::Report;
use crate::space::far_memory;
use crate::spec::{SessionSpec, json, or_watching};

/// The input of a simulation.
pub(crate) enum Source {
    /// A record of page scans, or the path of one or of a scenario.
    Trace(Trace),
    /// A scenario as JSON.
    Scenario(String),
}

impl FromPyObject<'_, '_> for Source {
    type Error = PyErr;

    fn extract(found: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if found.is_instance_of::<PyDict>() {
            return Ok(Self::Scenario(json(&found)?));
        }
        let trace = found.extract().map(Self::Trace);
        trace.map_err(|_| {
            PyTypeError::new_err(
                "what is simulated is a Record of page scans, a scenario as a dict, or the path of either",
            )
        })
    }
}

/// Returns the scenario of `source`. Far memory becomes the second node of a trace's machine; it is an error
/// for a scenario, which defines its own nodes.
fn scenario(source: Source, far: Option<&FarMemory>) -> anyhow::Result<Scenario> {
    match source {
        Source::Trace(Trace::File(path)) if far.is_none() => read_scenario_or_trace(&path),
        Source::Trace(trace) => {
            let mut replay = trace.read()?;
            if let Some(far) = far {
                replay.add_far(far);
            }
            Ok(Scenario::of(replay))
        }
        Source::Scenario(_) if far.is_some() => {
            bail!("far memory is for a trace; a scenario says itself which nodes its machine has")
        }
        Source::Scenario(text) => {
            parse_scenario(&text, Path::new(".")).context("the scenario cannot be simulated")
        }
    }
}

/// Predicts the savings and costs of a session's schemes on a simulated machine. No privilege is needed, and the same
/// seed gives the same numbers.
///
/// `source`: a Record of page scans (`isotherm record --pages`), whose program is replayed; a scenario as a dict
/// (docs/concepts/simulator.md); or the path of either. `spec`: the session; without it the simulation only watches.
/// `duration`: the simulated time, by default the scenario's. `output`: a file for the record of the simulation, as
/// `isotherm simulate -o` writes it. `against`: a Record of a live run to compare the prediction with. `far`
/// ("64G,250ns") and `memory_bound` (the share of its time in which the program waits for memory): the machine of a
/// trace has a second node.
#[pyfunction]
#[pyo3(signature = (source, spec=None, *, duration=None, output=None, against=None, far=None, memory_bound=None))]
pub(crate) fn simulate(
    py: Python<'_>,
    source: Source,
    spec: Option<&Bound<'_, SessionSpec>>,
    duration: Option<Time>,
    output: Option<PathBuf>,
    against: Option<&Bound<'_, Record>>,
    far: Option<&str>,
    memory_bound: Option<Share>,
) -> PyResult<Report> {
    let far = far_memory(far, memory_bound)?;
    let spec = or_watching(spec)?;
    let duration = duration.map(|Time(time)| time);
    let against = against.map(|record| record.get().file.clone());
    let done = py.detach(move || {
        let mut scenario = scenario(source, far.as_ref())?;
        let notes = std::mem::take(&mut scenario.notes);
        scenario.machine.seed = spec.seed;
        let end = scenario.end(duration)?;
        let session = SimulatedSession::start(&spec, scenario, end)?;
        let mut report = run(session, output.as_deref())?;
        if let Some(live) = against {
            let cannot = || format!("cannot compare with {}", live.name());
            let reader = live.reader().with_context(cannot)?;
            report.compare(reader).with_context(cannot)?;
        }
        anyhow::Ok((report, notes))
    });
    let (report, notes) = done.map_err(|error| raise(error, Doing::Simulating))?;
    warn(py, &notes)?;
    Ok(Report::new("simulate", report))
}

fn run(mut session: SimulatedSession, output: Option<&Path>) -> anyhow::Result<SimulationReport> {
    let mut interrupt = Interrupt::new();
    let mut writer = output.map(|path| create(path, &session)).transpose()?;
    let mut items = Vec::new();
    loop {
        let goes_on = session.step(&mut items);
        if let (Some(writer), Some(path)) = (&mut writer, output) {
            for item in &items {
                let written = writer.write(item);
                written.with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        items.clear();
        interrupt.check()?;
        if !goes_on {
            break;
        }
    }
    if let (Some(writer), Some(path)) = (writer, output) {
        let finished = writer.finish().map_err(anyhow::Error::from);
        let flushed = finished.and_then(|mut file| Ok(file.flush()?));
        flushed.with_context(|| format!("cannot finish {}", path.display()))?;
    }
    Ok(session.report())
}

fn create(path: &Path, session: &SimulatedSession) -> anyhow::Result<Writer<BufWriter<File>>> {
    let file = record_file::create(path)?;
    let header = session.header(vec!["isotherm.simulate".to_owned()]);
    Writer::create(BufWriter::new(file), &header)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Calls `Record.reclaim_curve` on a record, or on the record at a path.
#[pyfunction]
#[pyo3(signature = (record, **options))]
pub(crate) fn reclaim_curve<'py>(
    py: Python<'py>,
    record: Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let record = if record.is_instance_of::<Record>() {
        record
    } else {
        py.get_type::<Record>().call_method1("open", (record,))?
    };
    record.call_method("reclaim_curve", (), options)
}
