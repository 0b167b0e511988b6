//! Finished reports, as a mapping, as a table and as formatted output.

use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use isotherm_render::page;
use isotherm_report::render;
use isotherm_report::{AccessReport, Render, ReportFormat, Style, Tabulate};
use isotherm_session::simulated::SimulationReport;
use isotherm_session::{CheckReport, Versioned};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyString};

use crate::arrow;

/// A report's output formats.
pub(crate) trait Shown: Send + Sync {
    fn json(&self) -> serde_json::Result<String>;

    /// Writes the report in `format`; returns `None` if the report does not support that format.
    fn write(&self, format: ReportFormat, style: Style) -> Option<io::Result<Vec<u8>>>;

    /// Returns the report as an Arrow table; `None` if it is no table.
    fn table(&self) -> Option<RecordBatch> {
        None
    }
}

/// A report that has every form.
pub(crate) struct Whole<R>(pub(crate) R);

impl<R: Render + Send + Sync> Shown for Whole<R> {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.0)
    }

    fn write(&self, format: ReportFormat, style: Style) -> Option<io::Result<Vec<u8>>> {
        let mut out = Vec::new();
        Some(render::write(&self.0, format, &style, &mut out).map(|()| out))
    }

    fn table(&self) -> Option<RecordBatch> {
        Some(self.0.table())
    }
}

impl Shown for AccessReport {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    fn write(&self, format: ReportFormat, style: Style) -> Option<io::Result<Vec<u8>>> {
        let is_several = self.snapshots.len() != 1;
        if format == ReportFormat::Svg && is_several {
            return None;
        }
        let mut out = Vec::new();
        Some(AccessReport::write(self, format, style, &mut out).map(|()| out))
    }

    fn table(&self) -> Option<RecordBatch> {
        Some(Tabulate::table(self))
    }
}

impl Shown for SimulationReport {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Versioned::new(self))
    }

    fn write(&self, format: ReportFormat, _style: Style) -> Option<io::Result<Vec<u8>>> {
        (format == ReportFormat::Text).then(|| Ok(self.text().into_bytes()))
    }
}

impl Shown for CheckReport {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Versioned::new(self))
    }

    fn write(&self, format: ReportFormat, _style: Style) -> Option<io::Result<Vec<u8>>> {
        (format == ReportFormat::Text).then(|| Ok(self.text().into_bytes()))
    }
}

/// A report: a mapping of its documented JSON (docs/reference/json.md), which can also be written as text and in other
/// formats.
///
/// Sizes are in bytes and durations in nanoseconds, unless a key ends in another unit; points in time are nanoseconds
/// since the beginning of the record. An unknown value is `None`, never 0.
#[pyclass(frozen, mapping, generic, subclass, module = "isotherm")]
pub(crate) struct Report {
    /// The kind of the report: `wss`, `idle`, `access`, `heatmap`, `reclaim_curve`, `summary`, `footprint`, `simulate`,
    /// `tune` or `check`.
    #[pyo3(get)]
    kind: &'static str,
    shown: Arc<dyn Shown>,
    value: PyOnceLock<Py<PyDict>>,
}

impl Report {
    pub(crate) fn new(kind: &'static str, shown: impl Shown + 'static) -> Self {
        Self {
            kind,
            shown: Arc::new(shown),
            value: PyOnceLock::new(),
        }
    }

    fn value<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyDict>> {
        let value = self.value.get_or_try_init(py, || parsed(py, &self.json()?));
        Ok(value?.bind(py))
    }

    fn written(
        &self,
        py: Python<'_>,
        format: ReportFormat,
        style: Style,
    ) -> PyResult<Option<String>> {
        let shown = Arc::clone(&self.shown);
        let bytes = py.detach(move || shown.write(format, style));
        let bytes = bytes.transpose().map_err(failed)?;
        bytes
            .map(|bytes| String::from_utf8(bytes).map_err(failed))
            .transpose()
    }

    fn written_or_refused(
        &self,
        py: Python<'_>,
        format: ReportFormat,
        name: &str,
    ) -> PyResult<String> {
        self.written(py, format, Style::default())?.ok_or_else(|| {
            let kind = self.kind;
            PyTypeError::new_err(format!(
                "this report ({kind}) has no {name} form; text() and to_dict() have all of it"
            ))
        })
    }
}

pub(crate) fn parsed(py: Python<'_>, json: &str) -> PyResult<Py<PyDict>> {
    let value = py.import("json")?.call_method1("loads", (json,))?;
    Ok(value.cast_into::<PyDict>()?.unbind())
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(format!("cannot write the report: {error}"))
}

#[pymethods]
impl Report {
    /// The whole report as a new dict.
    fn to_dict(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        parsed(py, &self.json()?)
    }

    /// The whole report as JSON.
    #[pyo3(name = "to_json")]
    fn json(&self) -> PyResult<String> {
        self.shown.json().map_err(failed)
    }

    /// The report as text, as the command prints it, with lines of about `width` characters; `over_time` adds series.
    #[pyo3(signature = (*, width=100, over_time=false))]
    fn text(&self, py: Python<'_>, width: usize, over_time: bool) -> PyResult<String> {
        let style = Style {
            width: width.clamp(40, 1000),
            over_time,
            ..Style::default()
        };
        let text = self.written(py, ReportFormat::Text, style)?;
        text.map_or_else(|| self.json(), Ok)
    }

    /// The report as CSV, with a header row.
    fn to_csv(&self, py: Python<'_>) -> PyResult<String> {
        self.written_or_refused(py, ReportFormat::CSV, "CSV")
    }

    /// The report as an SVG picture.
    fn to_svg(&self, py: Python<'_>) -> PyResult<String> {
        self.written_or_refused(py, ReportFormat::Svg, "SVG")
    }

    /// The report as a self-contained HTML page.
    fn to_html(&self, py: Python<'_>) -> PyResult<String> {
        self.written_or_refused(py, ReportFormat::Html, "HTML")
    }

    /// Arrow's PyCapsule interface: the report's table, of one batch; its columns are those of its CSV.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let shown = Arc::clone(&self.shown);
        let Some(batch) = py.detach(move || shown.table()) else {
            let kind = self.kind;
            let text = format!("this report ({kind}) is no table; to_dict() has all of it");
            return Err(PyTypeError::new_err(text));
        };
        arrow::stream_of(py, batch)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
        self.value(py)?.as_any().get_item(key).map(Bound::unbind)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.value(py)?.as_any().len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.value(py)?.as_any().try_iter()?.into_any())
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.value(py)?.as_any().contains(key)
    }

    /// The keys, as those of a dict.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.value(py)?.as_any().call_method0("keys")
    }

    /// The values, as those of a dict.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.value(py)?.as_any().call_method0("values")
    }

    /// The items, as those of a dict.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.value(py)?.as_any().call_method0("items")
    }

    /// The value of a key, or `default`, as `dict.get` returns it.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.value(py)?.as_any();
        value.call_method1("get", (key, default))
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, Style::default().width, false)
    }

    fn __repr__(&self) -> String {
        format!("<isotherm.Report: {}>", self.kind)
    }

    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let html = match self.written(py, ReportFormat::Html, Style::default())? {
            // The page gets a frame of its own, which isolates its style and script.
            Some(page) => format!(
                "<iframe sandbox=\"allow-scripts\" style=\"width:100%;height:540px;border:0\" srcdoc=\"{}\"></iframe>",
                page::escape(&page)
            ),
            None => format!("<pre>{}</pre>", page::escape(&self.__str__(py)?)),
        };
        Ok(PyString::new(py, &html))
    }
}
