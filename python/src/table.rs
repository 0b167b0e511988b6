//! Tables of a record, for readers of Arrow.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use isotherm_record::Reader;
use isotherm_record::input::{FromStart, RecordFile};
use isotherm_record::table::{self, Batches};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow;
use crate::errors::{Doing, raise};

/// A table of a record. Readers of Arrow take it, e.g. `polars.DataFrame(table)`, `pyarrow.table(table)`,
/// `pandas.DataFrame.from_arrow(table)`; DuckDB queries it once pyarrow has made a table or reader of it.
///
/// The record is read along with the table: a batch of some 16,000 rows is in memory at a time. Each consumer reads the
/// table from its beginning.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Table {
    file: RecordFile,
    which: table::RecordTable,
    salvages: bool,
    /// The reason why the last stream that was read to its end stopped early.
    incomplete: Arc<Mutex<Option<String>>>,
}

impl Table {
    pub(crate) fn new(
        file: RecordFile,
        which: table::RecordTable,
        salvages: bool,
    ) -> PyResult<Self> {
        let table = Self {
            file,
            which,
            salvages,
            incomplete: Arc::default(),
        };
        // Fails here, not when the table is read, if there is no such table.
        table.batches()?;
        Ok(table)
    }

    fn batches(&self) -> PyResult<Batches<FromStart>> {
        let reader = reader(&self.file, self.salvages)?;
        Batches::new(reader, self.which).map_err(|error| raise(error, Doing::Reading))
    }
}

/// Returns a reader from the beginning of a record. With `salvages`, damage ends the record without an error.
pub(crate) fn reader(file: &RecordFile, salvages: bool) -> PyResult<Reader<FromStart>> {
    let reader = file.reader().map_err(|error| {
        let error = anyhow::Error::from(error);
        raise(
            error.context(format!("cannot read {}", file.name())),
            Doing::Reading,
        )
    })?;
    Ok(if salvages { reader.salvage() } else { reader })
}

#[pymethods]
impl Table {
    /// Names of the columns, in order.
    #[getter]
    fn columns(&self) -> PyResult<Vec<String>> {
        let schema = self.batches()?.schema();
        Ok(schema
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect())
    }

    /// The reason why the last stream that was read to its end stopped before the record's end: the record is
    /// unfinished, or it is damaged and salvaged. `None` means that the stream was complete, or that none was read to
    /// its end yet.
    #[getter]
    fn incomplete(&self) -> Option<String> {
        let incomplete = self.incomplete.lock();
        incomplete.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Arrow's PyCapsule interface: a stream of record batches.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A consumer that wants other types casts them itself, as the interface allows.
        let _ = requested_schema;
        let batches = CheckedBatches {
            batches: self.batches()?,
            incomplete: Arc::clone(&self.incomplete),
        };
        arrow::stream(py, Box::new(batches))
    }

    /// Arrow's PyCapsule interface: the types of the columns.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema(py, &self.batches()?.schema())
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!(
            "<isotherm.Table of {}: {}>",
            self.file.name(),
            self.columns()?.join(", ")
        ))
    }
}

/// Batches that store in `incomplete` why they ended early.
struct CheckedBatches {
    batches: Batches<FromStart>,
    incomplete: Arc<Mutex<Option<String>>>,
}

impl Iterator for CheckedBatches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next();
        if batch.is_none() {
            let reader = self.batches.reader();
            let damage = reader.damage().map(ToString::to_string);
            let end = damage.or_else(|| reader.truncated().map(|cut| cut.to_string()));
            *self
                .incomplete
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = end;
        }
        batch
    }
}

impl RecordBatchReader for CheckedBatches {
    fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }
}
