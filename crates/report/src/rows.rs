//! Rows that are appended one by one to columns of Arrow arrays.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float64Builder, StringDictionaryBuilder,
    TimestampMicrosecondBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use isotherm_engine::Nanos;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name of the column, which ends in its unit.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ColumnType,
    /// Whether a value may be absent.
    pub is_nullable: bool,
    /// Description of the values.
    pub about: &'static str,
}

/// Builds a column whose values are never absent.
pub(crate) const fn column(name: &'static str, kind: ColumnType, about: &'static str) -> Column {
    Column {
        name,
        kind,
        is_nullable: false,
        about,
    }
}

/// Builds a column whose values may be absent.
pub(crate) const fn nullable(name: &'static str, kind: ColumnType, about: &'static str) -> Column {
    Column {
        is_nullable: true,
        ..column(name, kind, about)
    }
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// True or false.
    Bool,
    /// A whole number of 32 bits.
    U32,
    /// A whole number of 64 bits.
    U64,
    /// A number.
    F64,
    /// A point in time: microseconds since the Unix epoch, in UTC. DuckDB has few functions for nanoseconds.
    Time,
    /// Text with few different values; a dictionary in Arrow.
    Name,
}

impl ColumnType {
    /// Returns the type in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::F64 => "float64",
            Self::Time => "timestamp, microseconds, UTC",
            Self::Name => "text",
        }
    }

    /// Returns the Arrow type.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
            Self::F64 => DataType::Float64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Name => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        }
    }
}

/// A value of a row.
#[cfg_attr(
    not(feature = "parquet"),
    expect(dead_code, reason = "only flat tables have times and flags")
)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// A number of 64 or 32 bits.
    U64(u64),
    F64(f64),
    Time(Nanos),
    Name(Arc<str>),
}

impl Value {
    /// Converts a whole number that may be unknown.
    pub(crate) fn number(number: Option<impl Into<u64>>) -> Self {
        number.map_or(Self::Null, |number| Self::U64(number.into()))
    }

    pub(crate) fn word(word: &str) -> Self {
        Self::Name(word.into())
    }
}

/// A column being built.
enum Builder {
    Bool(BooleanBuilder),
    U32(UInt32Builder),
    U64(UInt64Builder),
    F64(Float64Builder),
    Time(TimestampMicrosecondBuilder),
    Name(StringDictionaryBuilder<Int32Type>),
}

impl Builder {
    fn new(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Bool => Self::Bool(BooleanBuilder::new()),
            ColumnType::U32 => Self::U32(UInt32Builder::new()),
            ColumnType::U64 => Self::U64(UInt64Builder::new()),
            ColumnType::F64 => Self::F64(Float64Builder::new()),
            ColumnType::Time => Self::Time(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            ColumnType::Name => Self::Name(StringDictionaryBuilder::new()),
        }
    }

    /// Appends a value. A value of another type is a bug of this crate.
    fn push(&mut self, value: Value) {
        match (self, value) {
            (Self::Bool(column), Value::Bool(value)) => column.append_value(value),
            (Self::Bool(column), Value::Null) => column.append_null(),
            (Self::U32(column), Value::U64(value)) => {
                column.append_value(u32::try_from(value).expect("a number of 32 bits"));
            }
            (Self::U32(column), Value::Null) => column.append_null(),
            (Self::U64(column), Value::U64(value)) => column.append_value(value),
            (Self::U64(column), Value::Null) => column.append_null(),
            (Self::F64(column), Value::F64(value)) => column.append_value(value),
            (Self::F64(column), Value::Null) => column.append_null(),
            (Self::Time(column), Value::Time(value)) => {
                column.append_value((value.0 / 1000).cast_signed());
            }
            (Self::Time(column), Value::Null) => column.append_null(),
            (Self::Name(column), Value::Name(value)) => column.append_value(value),
            (Self::Name(column), Value::Null) => column.append_null(),
            _ => unreachable!("a row has the types of its table's columns"),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bool(column) => ArrayBuilder::finish(column),
            Self::U32(column) => ArrayBuilder::finish(column),
            Self::U64(column) => ArrayBuilder::finish(column),
            Self::F64(column) => ArrayBuilder::finish(column),
            Self::Time(column) => ArrayBuilder::finish(column),
            Self::Name(column) => ArrayBuilder::finish(column),
        }
    }
}

/// A table in memory that grows row by row.
pub(crate) struct Rows {
    schema: SchemaRef,
    columns: Vec<Builder>,
    held: usize,
}

impl Rows {
    pub(crate) fn new(columns: &[Column]) -> Self {
        let fields: Vec<Field> = columns
            .iter()
            .map(|column| Field::new(column.name, column.kind.data_type(), column.is_nullable))
            .collect();
        Self {
            schema: Arc::new(Schema::new(fields)),
            columns: columns
                .iter()
                .map(|column| Builder::new(column.kind))
                .collect(),
            held: 0,
        }
    }

    #[cfg(feature = "parquet")]
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns the number of rows since they were last taken.
    #[cfg(feature = "parquet")]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn push<const N: usize>(&mut self, row: [Value; N]) {
        assert_eq!(N, self.columns.len(), "a value for each column");
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value);
        }
        self.held += 1;
    }

    /// Returns the pushed rows and clears the buffer.
    pub(crate) fn take(&mut self) -> RecordBatch {
        self.held = 0;
        let columns = self.columns.iter_mut().map(Builder::finish).collect();
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .expect("every column has the table's type and a value for each row")
    }
}
