//! Arrow's PyCapsule interface: data goes out as the C structures that arrow-rs makes, whose buffers are ours. The
//! consumer takes them over, so nothing is copied, and no library of Python's is needed here.
//!
//! `pyo3-arrow` was considered: its 0.20 is for Arrow 59, and brings a second Arrow and numpy's bindings for two calls.
//! PyO3's capsules own their contents, so no unsafe code is needed either.

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, Schema};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

type Capsule<'py> = Bound<'py, PyCapsule>;

fn failed(error: &ArrowError) -> PyErr {
    PyRuntimeError::new_err(format!("cannot hand the table over to Arrow: {error}"))
}

/// `__arrow_c_stream__`.
pub(crate) fn stream(
    py: Python<'_>,
    batches: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Capsule<'_>> {
    let stream = FFI_ArrowArrayStream::new(batches);
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// `__arrow_c_stream__` of one batch.
pub(crate) fn stream_of(py: Python<'_>, batch: RecordBatch) -> PyResult<Capsule<'_>> {
    let schema = batch.schema();
    stream(py, Box::new(RecordBatchIterator::new([Ok(batch)], schema)))
}

/// `__arrow_c_schema__`.
pub(crate) fn schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Capsule<'py>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|error| failed(&error))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// `__arrow_c_array__` of a batch: a struct array.
#[cfg(feature = "live")]
pub(crate) fn array<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
    use arrow_array::ffi::FFI_ArrowArray;
    use arrow_array::{Array as _, StructArray};

    let rows = StructArray::from(batch.clone());
    let rows = FFI_ArrowArray::new(&rows.to_data());
    let rows = PyCapsule::new_with_value(py, rows, c"arrow_array")?;
    pyo3::types::PyTuple::new(py, [schema(py, &batch.schema())?, rows])
}
