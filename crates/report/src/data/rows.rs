//! Columns and values of tables, and rows that are appended one by one to Arrow arrays.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float64Builder, StringDictionaryBuilder,
    TimestampMicrosecondBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use isotherm_engine::{Nanos, TargetId};

use crate::mapping::MappingLabel;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name of the column, which ends in its unit.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ColumnType,
    /// Whether a value may be absent.
    pub is_nullable: bool,
    /// The field of an absent value in CSV.
    pub absent: &'static str,
    /// Description of the values.
    pub about: &'static str,
}

/// Builds a column whose values are never absent.
pub const fn column(name: &'static str, kind: ColumnType, about: &'static str) -> Column {
    Column {
        name,
        kind,
        is_nullable: false,
        absent: "",
        about,
    }
}

/// Builds a column whose values may be absent.
pub const fn nullable(name: &'static str, kind: ColumnType, about: &'static str) -> Column {
    Column {
        is_nullable: true,
        ..column(name, kind, about)
    }
}

/// Declares the columns of a table, each with its value in a row. The function passes a row's values to `push`.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident, $row:ident($($of:ident: $type:ty),*): $($column:expr => $value:expr,)*) => {
        $(#[$doc])*
        pub(crate) const $name: &[Column] = &[$($column),*];

        fn $row<R>(push: impl FnOnce(&[ColumnValue<'_>]) -> R, $($of: $type),*) -> R {
            push(&[$(ColumnValue::from($value)),*])
        }
    };
}

pub(crate) use columns;

impl Column {
    pub(crate) fn field(&self, value: ColumnValue<'_>) -> String {
        match value {
            ColumnValue::Null => self.absent.to_owned(),
            ColumnValue::Bool(value) => value.to_string(),
            ColumnValue::U64(value) if self.kind == ColumnType::Address => format!("{value:#x}"),
            ColumnValue::U64(value) | ColumnValue::Time(Nanos(value)) => value.to_string(),
            ColumnValue::F64(value) => value.to_string(),
            ColumnValue::F32(value) => value.to_string(),
            ColumnValue::Name(value) => value.to_owned(),
            ColumnValue::Mapping(value) => value.to_string(),
        }
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
    /// An address, in CSV as a hexadecimal number.
    Address,
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
            Self::U64 | Self::Address => "uint64",
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
            Self::U64 | Self::Address => DataType::UInt64,
            Self::F64 => DataType::Float64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Name => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        }
    }
}

/// A value of a row.
#[derive(Clone, Copy, Debug)]
pub enum ColumnValue<'a> {
    /// An absent value.
    Null,
    /// True or false.
    Bool(bool),
    /// A number of 64 or 32 bits.
    U64(u64),
    /// A number.
    F64(f64),
    /// A number of single precision, which has fewer digits in CSV.
    F32(f32),
    /// A point in time since the Unix epoch.
    Time(Nanos),
    /// A name as text.
    Name(&'a str),
    /// The name of a mapping; CSV has the number of other names behind it.
    Mapping(&'a MappingLabel),
}

macro_rules! converted {
    ($($from:ty, $value:ident => $made:expr;)*) => {$(
        impl<'a> From<$from> for ColumnValue<'a> {
            fn from($value: $from) -> Self {
                $made
            }
        }
    )*};
}

converted! {
    u64, value => ColumnValue::U64(value);
    u32, value => ColumnValue::U64(u64::from(value));
    f64, value => ColumnValue::F64(value);
    f32, value => ColumnValue::F32(value);
    Nanos, value => ColumnValue::U64(value.0);
    TargetId, value => ColumnValue::U64(u64::from(value.0));
    &'a str, value => ColumnValue::Name(value);
    &'a MappingLabel, value => ColumnValue::Mapping(value);
}

impl<'a, T: Into<ColumnValue<'a>>> From<Option<T>> for ColumnValue<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, T::into)
    }
}

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
            ColumnType::U64 | ColumnType::Address => Self::U64(UInt64Builder::new()),
            ColumnType::F64 => Self::F64(Float64Builder::new()),
            ColumnType::Time => Self::Time(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            ColumnType::Name => Self::Name(StringDictionaryBuilder::new()),
        }
    }

    /// Appends a value. A value of another type is a bug of this crate.
    fn push(&mut self, value: ColumnValue<'_>) {
        match (self, value) {
            (Self::Bool(column), ColumnValue::Bool(value)) => column.append_value(value),
            (Self::Bool(column), ColumnValue::Null) => column.append_null(),
            (Self::U32(column), ColumnValue::U64(value)) => {
                column.append_value(u32::try_from(value).expect("a number of 32 bits"));
            }
            (Self::U32(column), ColumnValue::Null) => column.append_null(),
            (Self::U64(column), ColumnValue::U64(value)) => column.append_value(value),
            (Self::U64(column), ColumnValue::Null) => column.append_null(),
            (Self::F64(column), ColumnValue::F64(value)) => column.append_value(value),
            (Self::F64(column), ColumnValue::F32(value)) => column.append_value(value.into()),
            (Self::F64(column), ColumnValue::U64(value)) => column.append_value(value as f64),
            (Self::F64(column), ColumnValue::Null) => column.append_null(),
            (Self::Time(column), ColumnValue::Time(value)) => {
                column.append_value((value.0 / 1000).cast_signed());
            }
            (Self::Time(column), ColumnValue::Null) => column.append_null(),
            (Self::Name(column), ColumnValue::Name(value)) => column.append_value(value),
            (Self::Name(column), ColumnValue::Mapping(value)) => column.append_value(&value.name),
            (Self::Name(column), ColumnValue::Null) => column.append_null(),
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
        let field = |of: &Column| Field::new(of.name, of.kind.data_type(), of.is_nullable);
        let fields: Vec<Field> = columns.iter().map(field).collect();
        let builders = columns.iter().map(|column| Builder::new(column.kind));
        Self {
            schema: Arc::new(Schema::new(fields)),
            columns: builders.collect(),
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

    pub(crate) fn push(&mut self, row: &[ColumnValue<'_>]) {
        assert_eq!(row.len(), self.columns.len(), "a value for each column");
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(*value);
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
