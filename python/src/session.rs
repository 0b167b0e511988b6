//! Live sessions, as iterators of snapshots.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{process, sync::Arc};

use arrow_array::RecordBatch;
use isotherm_engine::Snapshot as Inner;
use isotherm_record::{TargetStart, table};
use isotherm_session::{Background, Next};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyCapsule, PyDict, PyTuple};

use crate::arrow;
use crate::errors::{Doing, raise, warn};
use crate::quantity::Time;
use crate::report::parsed;
use crate::spec::SessionSpec;

/// The longest delay of a signal while there is no snapshot.
const PERIOD: Duration = Duration::from_millis(50);

/// The regions of one target in one interval. It is a table with the columns of `Record.regions()`.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Snapshot {
    batch: RecordBatch,
    /// Number of the target in the session, from 0.
    #[pyo3(get)]
    target: u32,
    /// The target's process id; 0 for physical memory, None where that is not known.
    #[pyo3(get)]
    pid: Option<u32>,
    /// The target's command name.
    #[pyo3(get)]
    name: Option<String>,
    /// Start of the interval, in nanoseconds since the Unix epoch.
    #[pyo3(get)]
    start_ns: u64,
    /// End of the interval, in nanoseconds since the Unix epoch.
    #[pyo3(get)]
    end_ns: u64,
    /// Number of checks of each region in the interval: the maximum of `nr_accesses`.
    #[pyo3(get)]
    nr_samples: u32,
    /// Bytes in memory; None where the source knows of addresses only.
    #[pyo3(get)]
    resident_bytes: Option<u64>,
    /// Bytes that were accessed in the interval (addresses, where `resident_bytes` is None).
    #[pyo3(get)]
    touched_bytes: u64,
    /// Bytes whose accesses in the interval are unknown.
    #[pyo3(get)]
    unknown_bytes: u64,
    /// Bytes swapped out; None where the source knows of addresses only.
    #[pyo3(get)]
    swapped_bytes: Option<u64>,
}

impl Snapshot {
    fn new(number: u32, snapshot: &Inner, who: Option<TargetStart>) -> Self {
        let totals = snapshot.totals();
        let (pid, name) = who.map(|who| (who.pid, who.name)).unzip();
        Self {
            batch: table::regions(number, snapshot),
            target: snapshot.target.0,
            pid,
            name,
            start_ns: snapshot.start.0,
            end_ns: snapshot.end.0,
            nr_samples: snapshot.nr_samples,
            resident_bytes: totals.known_resident(),
            touched_bytes: totals.touched,
            unknown_bytes: totals.unknown,
            swapped_bytes: totals.known_swapped(),
        }
    }
}

#[pymethods]
impl Snapshot {
    /// The number of regions.
    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// Arrow's PyCapsule interface: a stream of one batch.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        arrow::stream_of(py, self.batch.clone())
    }

    /// Arrow's PyCapsule interface: the regions as one struct array.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        arrow::array(py, &self.batch)
    }

    /// Arrow's PyCapsule interface: the types of the columns.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema(py, &self.batch.schema())
    }

    fn __repr__(&self) -> String {
        let bytes = isotherm_engine::units::format_bytes;
        let of = |resident| format!(" of {}", bytes(resident));
        let of = self.resident_bytes.map_or_else(String::new, of);
        format!(
            "<isotherm.Snapshot of target {}: {} regions, {} touched{of}>",
            self.target,
            self.batch.num_rows(),
            bytes(self.touched_bytes)
        )
    }
}

/// A live session. It watches, and acts if its spec says so, until it is closed, its `duration` is over or its targets
/// have ended. Iterating yields a Snapshot for each target and interval; `with` closes the session.
///
/// The session has a thread of its own and needs the privileges that the command needs (`isotherm doctor`). The thread
/// drops privileges that it no longer needs, and the program keeps its own. At most 1024 unread snapshots are kept;
/// then the oldest are dropped and counted in `lost`. Start programs with `subprocess`, and watch them with `pids`.
///
/// Raises PrivilegeError or SessionError if the session cannot start. Warns (IsothermWarning) of everything that the
/// session cannot watch or do.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Session {
    inner: Arc<Held>,
    header: String,
    /// Number of the next snapshot.
    number: AtomicU32,
}

/// A session, and the id of the process that owns its thread.
struct Held {
    background: Mutex<Background>,
    process: u32,
}

/// The sessions that must be closed when the interpreter ends.
static OPEN: Mutex<Vec<Weak<Held>>> = Mutex::new(Vec::new());

impl Held {
    fn lock(&self) -> MutexGuard<'_, Background> {
        self.background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut background = self.lock();
        if self.process == process::id() {
            background.stop();
        } else {
            background.forget_thread();
        }
    }
}

/// Closes every session that is still open, and so restores the settings of the machine.
#[pyfunction]
pub(crate) fn _close_sessions(py: Python<'_>) {
    py.detach(|| {
        let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
        open.iter()
            .filter_map(Weak::upgrade)
            .for_each(|held| held.close());
    });
}

impl Drop for Session {
    fn drop(&mut self) {
        // The thread may be in the middle of a sample: other Python threads run meanwhile.
        Python::attach(|py| py.detach(|| self.inner.close()));
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (spec, *, duration=None))]
    fn new(
        py: Python<'_>,
        spec: &Bound<'_, SessionSpec>,
        duration: Option<Time>,
    ) -> PyResult<Self> {
        let spec = spec.get().inner.clone();
        let command = vec!["isotherm.Session".to_owned()];
        let duration = duration.map(|Time(time)| time);
        let started = py.detach(|| Background::start(spec, command, duration));
        let background = started.map_err(|error| raise(error, Doing::Watching))?;
        let header = loop {
            let begun = py.detach(|| background.begun(PERIOD));
            if let Some(header) = begun.map_err(|error| raise(error, Doing::Watching))? {
                break header;
            }
            if let Err(signal) = py.check_signals() {
                py.detach(move || drop(background));
                return Err(signal);
            }
        };
        let header = serde_json::to_string(&header);
        let inner = Arc::new(Held {
            background: Mutex::new(background),
            process: process::id(),
        });
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|held| held.strong_count() > 0);
        open.push(Arc::downgrade(&inner));
        drop(open);
        let session = Self {
            inner,
            header: header.map_err(|error| raise(error, Doing::Watching))?,
            number: AtomicU32::new(0),
        };
        session.warn(py)?;
        Ok(session)
    }

    /// The header that a record of the session would have: machine, kernel, intervals (in nanoseconds) and settings.
    #[getter]
    fn header(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        parsed(py, &self.header)
    }

    /// Number of snapshots that were dropped because the program did not read them.
    #[getter]
    fn lost(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.inner.lock().nr_lost())
    }

    /// Whether the session has ended. Earlier snapshots can still be read.
    #[getter]
    fn ended(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.lock().has_ended())
    }

    /// Ends the session and waits for its end: the schemes stop, and the settings of the machine are restored.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Snapshot> {
        loop {
            let next: anyhow::Result<_> = py.detach(|| {
                let background = self.inner.lock();
                let next = background.next(PERIOD)?;
                Ok(match next {
                    Next::Snapshot(snapshot) => {
                        let who = background.target(snapshot.target);
                        drop(background);
                        let number = self.number.fetch_add(1, Ordering::Relaxed);
                        Some(Some(Snapshot::new(number, &snapshot, who)))
                    }
                    Next::Nothing => Some(None),
                    Next::Ended => None,
                })
            });
            self.warn(py)?;
            py.check_signals()?;
            match next.map_err(|error| raise(error, Doing::Watching))? {
                Some(Some(snapshot)) => return Ok(snapshot),
                Some(None) => {}
                None => return Err(PyStopIteration::new_err(())),
            }
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.ended(py) { "ended" } else { "watching" };
        format!("<isotherm.Session, {state}>")
    }
}

impl Session {
    fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let notes = py.detach(|| self.inner.lock().take_notes());
        warn(py, &notes)
    }
}
