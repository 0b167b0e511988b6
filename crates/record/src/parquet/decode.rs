//! Conversion of columns from other programs to the types of a record.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeBinaryArray, Float32Array, PrimitiveArray, RecordBatch,
    TimestampNanosecondArray,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use parquet::errors::ParquetError;

use crate::columns::Kind;
use crate::convert::ConvertError;

pub(super) fn lacks(name: &str) -> ConvertError {
    ConvertError::NotARecord(format!("it has no column {name}"))
}

/// Returns the parquet crate's result; converts its panics to errors.
pub(super) fn decoded<T>(
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, ConvertError> {
    thread_local! {
        static IS_DECODING: Cell<bool> = const { Cell::new(false) };
    }
    static QUIET: Once = Once::new();
    // Other panics, and those of other threads, are reported as usual.
    QUIET.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_DECODING.get() {
                usual(info);
            }
        }));
    });
    IS_DECODING.set(true);
    // The remains of a reader that has panicked are dropped.
    let result = panic::catch_unwind(AssertUnwindSafe(decode));
    IS_DECODING.set(false);
    let damaged = || ParquetError::General("the file is damaged: it does not decode".to_owned());
    result
        .unwrap_or_else(|_| Err(damaged()))
        .map_err(ConvertError::Parquet)
}

/// Returns the columns of a record of `kind`, by their names, in its types.
pub(super) fn columns_of(kind: Kind, batch: &RecordBatch) -> Result<RecordBatch, ConvertError> {
    let fields = kind.fields();
    let columns = fields.iter().map(|field| {
        let column = batch
            .column_by_name(field.name())
            .ok_or_else(|| lacks(field.name()))?;
        converted(column, field.data_type()).map_err(|why| {
            ConvertError::NotARecord(format!(
                "its column {} {why}, and a record's is {}",
                field.name(),
                field.data_type()
            ))
        })
    });
    let columns: Vec<ArrayRef> = columns.collect::<Result<_, _>>()?;
    // The check for nulls is left to the rows.
    let fields: Vec<Field> = fields.into_iter().map(|f| f.with_nullable(true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|error| ConvertError::NotARecord(error.to_string()))
}

/// Converts `column` to `wanted`, if all its values fit that type.
fn converted(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, String> {
    let found = column.data_type();
    if found == wanted {
        return Ok(Arc::clone(column));
    }
    let array: Option<ArrayRef> = match wanted {
        DataType::UInt32 => Some(Arc::new(numbers::<UInt32Type>(column)?)),
        DataType::UInt64 => Some(Arc::new(numbers::<UInt64Type>(column)?)),
        DataType::Float32 if *found == DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>().iter();
            // pandas has no other null for floats.
            let values = values.map(|value| value.filter(|v| !v.is_nan()).map(|v| v as f32));
            Some(Arc::new(values.collect::<Float32Array>()))
        }
        DataType::Timestamp(..) => times(column)?.map(|times| Arc::new(times) as ArrayRef),
        DataType::FixedSizeBinary(64) if *found == DataType::Binary => {
            Some(Arc::new(bitmaps(column)?))
        }
        _ => None,
    };
    array.ok_or_else(|| format!("is {found}"))
}

/// Converts whole numbers of any width, or floats, in which pandas stores whole numbers with nulls.
fn numbers<T>(column: &ArrayRef) -> Result<PrimitiveArray<T>, String>
where
    T: ArrowPrimitiveType,
    T::Native: TryFrom<i128>,
{
    match column.data_type() {
        DataType::UInt8 => whole::<UInt8Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::UInt16 => whole::<UInt16Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::UInt32 => whole::<UInt32Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::UInt64 => whole::<UInt64Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::Int8 => whole::<Int8Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::Int16 => whole::<Int16Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::Int32 => whole::<Int32Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::Int64 => whole::<Int64Type, T>(column, |n| Some(Some(i128::from(n)))),
        DataType::Float64 => whole::<Float64Type, T>(column, |n| {
            // Whole numbers above this limit have been rounded.
            let is_whole = n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_992.0;
            (is_whole || n.is_nan()).then(|| is_whole.then_some(n as i128))
        }),
        DataType::Float32 => whole::<Float32Type, T>(column, |n| {
            let is_whole = n.fract() == 0.0 && n.abs() <= 16_777_216.0;
            (is_whole || n.is_nan()).then(|| is_whole.then_some(n as i128))
        }),
        other => Err(format!("is {other}")),
    }
}

/// Converts each value by `number`: `None` means that it is no whole number, `Some(None)` that it stands for a null.
fn whole<F, T>(
    column: &ArrayRef,
    number: impl Fn(F::Native) -> Option<Option<i128>>,
) -> Result<PrimitiveArray<T>, String>
where
    F: ArrowPrimitiveType,
    T: ArrowPrimitiveType,
    T::Native: TryFrom<i128>,
{
    let values = column.as_primitive::<F>().iter().map(|value| {
        let Some(value) = value else {
            return Ok(None);
        };
        let cannot = || format!("holds {value:?}");
        let fits = |n| T::Native::try_from(n).map_err(|_| cannot());
        number(value).ok_or_else(cannot)?.map(fits).transpose()
    });
    values.collect()
}

/// Converts points in time to nanoseconds; `None` if the column has no times.
fn times(column: &ArrayRef) -> Result<Option<TimestampNanosecondArray>, String> {
    let DataType::Timestamp(unit, _) = column.data_type() else {
        return Ok(None);
    };
    let (values, nanos) = match unit {
        TimeUnit::Second => (ticks::<TimestampSecondType>(column), 1_000_000_000),
        TimeUnit::Millisecond => (ticks::<TimestampMillisecondType>(column), 1_000_000),
        TimeUnit::Microsecond => (ticks::<TimestampMicrosecondType>(column), 1000),
        TimeUnit::Nanosecond => (ticks::<TimestampNanosecondType>(column), 1),
    };
    let values = values.into_iter().map(|value: Option<i64>| {
        let time = |value: i64| {
            let time = value.checked_mul(nanos);
            time.ok_or_else(|| format!("holds {value}"))
        };
        value.map(time).transpose()
    });
    let times: TimestampNanosecondArray = values.collect::<Result<_, String>>()?;
    Ok(Some(times.with_timezone("UTC")))
}

fn ticks<T: ArrowPrimitiveType<Native = i64>>(column: &ArrayRef) -> Vec<Option<i64>> {
    column.as_primitive::<T>().iter().collect()
}

/// Converts bitmaps of a block's pages from programs without a binary type of fixed size.
fn bitmaps(column: &ArrayRef) -> Result<FixedSizeBinaryArray, String> {
    let values = column.as_binary::<i32>().iter();
    FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, 64)
        .map_err(|_| "holds values of other than 64 bytes".to_string())
}
