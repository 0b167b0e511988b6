//! One Parquet table, written row by row.

use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float64Builder, StringDictionaryBuilder,
    TimestampMicrosecondBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use isotherm_engine::Nanos;
use isotherm_record::convert::ConvertError;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// Rows that are held before they are encoded.
const ROWS_HELD: usize = 16_384;
/// Rows in a row group.
const ROWS_IN_GROUP: usize = 256 << 10;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name, which ends in its unit.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ColumnType,
    /// Whether a value may be absent.
    pub is_nullable: bool,
    /// What it says.
    pub about: &'static str,
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
    /// Text of which there are few; a dictionary in Arrow.
    Name,
}

impl ColumnType {
    /// The type in words.
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

    /// The Arrow type.
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
pub(super) enum Value {
    Null,
    Bool(bool),
    /// Also of a column of 32 bits.
    U64(u64),
    F64(f64),
    Time(Nanos),
    Name(Arc<str>),
}

impl Value {
    pub(super) fn word(word: &str) -> Self {
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

    /// A value of another type is our own mistake.
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

/// A Parquet file that is being written.
pub(super) struct FlatFile<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
    columns: Vec<Builder>,
    held: usize,
    rows: u64,
}

impl<W: Write + Send> FlatFile<W> {
    pub(super) fn create(columns: &[Column], output: W) -> Result<Self, ConvertError> {
        let fields: Vec<Field> = columns
            .iter()
            .map(|column| Field::new(column.name, column.kind.data_type(), column.is_nullable))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS_IN_GROUP))
            .build();
        let writer = ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties))
            .map_err(ConvertError::Parquet)?;
        Ok(Self {
            writer,
            schema,
            columns: columns
                .iter()
                .map(|column| Builder::new(column.kind))
                .collect(),
            held: 0,
            rows: 0,
        })
    }

    pub(super) fn push<const N: usize>(&mut self, row: [Value; N]) -> Result<(), ConvertError> {
        assert_eq!(N, self.columns.len(), "a value for each column");
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value);
        }
        self.held += 1;
        self.rows += 1;
        if self.held == ROWS_HELD {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ConvertError> {
        self.held = 0;
        let columns = self.columns.iter_mut().map(Builder::finish).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .expect("every column has the table's type and a value for each row");
        self.writer.write(&batch).map_err(ConvertError::Parquet)
    }

    /// How many rows it has.
    pub(super) fn finish(mut self) -> Result<u64, ConvertError> {
        if self.held > 0 {
            self.write()?;
        }
        self.writer.close().map_err(ConvertError::Parquet)?;
        Ok(self.rows)
    }
}
