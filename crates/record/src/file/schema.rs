//! The columns of a record, and the metadata of its schema.
//!
//! The schema's metadata has the header twice. It is whole, as JSON under [`HEADER_KEY`], for us. Its main parts are
//! also under plain names, for someone who opens the file with pyarrow or polars.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};

use crate::error::RecordError;
use crate::item::Header;
use crate::pages::{GRANULARITY, GRANULARITY_PAGE};
use crate::stacks::STACKS_SETTING;

/// Metadata key of the header's JSON.
pub(crate) const HEADER_KEY: &str = "isotherm.header";
/// Metadata key of the format's version.
pub(crate) const VERSION_KEY: &str = "isotherm.version";
/// The highest version that is read. Version 1 has no columns about memory ([`MEMORY_COLUMNS`]), version 2 no
/// page-by-page blocks ([`crate::blocks`]), version 3 no stacks ([`crate::stacks`]).
pub(crate) const VERSION: u32 = 4;
/// The version that is written where there are no stacks.
const VERSION_WITHOUT_STACKS: u32 = 3;
/// Columns of the memory at a region's addresses, in bytes; all null where the source cannot tell.
pub(crate) const MEMORY_COLUMNS: [&str; 4] = ["resident", "touched", "unknown", "swapped"];
/// Metadata key, on a message without rows, of an item as JSON.
pub(crate) const ITEM_KEY: &str = "isotherm.item";
/// Metadata key, on a message, of the CRC-32 of all of it but this value.
pub(crate) const CHECKSUM_KEY: &str = "isotherm.crc32";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regions,
    /// Regions of version 1: addresses alone. They are only read.
    BareRegions,
    Pages,
}

impl Kind {
    pub(crate) fn of(header: &Header) -> Self {
        if header.settings.get(GRANULARITY).map(String::as_str) == Some(GRANULARITY_PAGE) {
            Self::Pages
        } else {
            Self::Regions
        }
    }

    /// Returns the bytes of one decoded row.
    pub(crate) fn row_bytes(self) -> usize {
        match self {
            Self::BareRegions => 57,
            // The memory columns have 8 bytes and a validity bit each.
            Self::Regions => 57 + 4 * 9,
            Self::Pages => 229,
        }
    }

    pub(crate) fn fields(self) -> Vec<Field> {
        let time = || DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        let column = |name: &str, data_type| Field::new(name, data_type, false);
        let mut fields = vec![
            column("snapshot", DataType::UInt32),
            column("start_time", time()),
            column("end_time", time()),
            column("target", DataType::UInt32),
        ];
        fields.extend(match self {
            Self::Regions | Self::BareRegions => vec![
                column("start", DataType::UInt64),
                column("end", DataType::UInt64),
                Field::new("nr_accesses", DataType::Float32, true),
                column("nr_samples", DataType::UInt32),
                column("age", DataType::UInt32),
                column("age_ns", DataType::UInt64),
            ],
            Self::Pages => vec![
                column("block", DataType::UInt64),
                column("huge", DataType::Boolean),
                column("present", DataType::FixedSizeBinary(64)),
                column("accessed", DataType::FixedSizeBinary(64)),
                column("unknown", DataType::FixedSizeBinary(64)),
            ],
        });
        if self == Self::Regions {
            fields.extend(MEMORY_COLUMNS.map(|name| Field::new(name, DataType::UInt64, true)));
        }
        fields
    }
}

pub(crate) fn schema_of(header: &Header) -> Result<Schema, RecordError> {
    let json = serde_json::to_string(header)
        .map_err(|error| RecordError::Unwritable(format!("the header: {error}")))?;
    let mut metadata: HashMap<String, String> = header
        .settings
        .iter()
        .map(|(name, value)| (format!("setting.{name}"), value.clone()))
        .collect();
    let nanos = |name: &str, value: isotherm_engine::Nanos| (name.to_string(), value.0.to_string());
    metadata.extend([
        (HEADER_KEY.to_string(), json),
        (VERSION_KEY.to_string(), version_of(header).to_string()),
        ("writer".to_string(), header.writer.clone()),
        ("host".to_string(), header.host.clone()),
        ("kernel".to_string(), header.kernel.clone()),
        ("command".to_string(), header.command.join(" ")),
        ("operations".to_string(), header.operations.clone()),
        nanos("started_ns", header.started),
        nanos("sample_interval_ns", header.sample_interval),
        nanos("aggregation_interval_ns", header.aggregation_interval),
        nanos("update_interval_ns", header.update_interval),
    ]);
    Ok(Schema::new_with_metadata(
        Kind::of(header).fields(),
        metadata,
    ))
}

/// Returns the lowest version that supports all content of a record with this header.
fn version_of(header: &Header) -> u32 {
    if header.settings.contains_key(STACKS_SETTING) {
        VERSION
    } else {
        VERSION_WITHOUT_STACKS
    }
}

/// Returns the header in a schema and the kind of the rows, after a check that the schema is a record's.
///
/// Columns must be ours in name, type and order. Their nullability is left to the rows, since other programs that
/// rewrite a record mark every column as nullable.
pub(crate) fn header_of(schema: &Schema) -> Result<(Header, Kind), RecordError> {
    let metadata = schema.metadata();
    let Some(json) = metadata.get(HEADER_KEY) else {
        return Err(RecordError::NotARecord(format!(
            "an Arrow stream without `{HEADER_KEY}` in its metadata"
        )));
    };
    let version = metadata.get(VERSION_KEY).map_or("1", String::as_str);
    if version.parse::<u32>().is_ok_and(|v| v > VERSION) {
        return Err(RecordError::Version {
            found: version.to_string(),
            known: VERSION,
        });
    }
    let header: Header = serde_json::from_str(json)
        .map_err(|error| RecordError::NotARecord(format!("its header does not parse: {error}")))?;
    let kind = Kind::of(&header);
    if has_columns_of(schema, kind) {
        Ok((header, kind))
    } else if kind == Kind::Regions && has_columns_of(schema, Kind::BareRegions) {
        Ok((header, Kind::BareRegions))
    } else {
        let names = |fields: Vec<String>| fields.join(", ");
        Err(RecordError::NotARecord(format!(
            "its columns are {}; a record's are {}",
            names(schema.fields().iter().map(|f| describe(f)).collect()),
            names(kind.fields().iter().map(describe).collect()),
        )))
    }
}

fn has_columns_of(schema: &Schema, kind: Kind) -> bool {
    let expected = kind.fields();
    let is_same = |(found, wanted): (&Arc<Field>, &Field)| {
        found.name() == wanted.name() && found.data_type() == wanted.data_type()
    };
    schema.fields().len() == expected.len() && schema.fields().iter().zip(&expected).all(is_same)
}

fn describe(field: &Field) -> String {
    format!("{} {}", field.name(), field.data_type())
}

/// Returns the schema to decode rows with: only its columns count.
pub(crate) fn decoding_schema(kind: Kind) -> Arc<Schema> {
    let fields: Vec<Field> = kind
        .fields()
        .into_iter()
        .map(|field| field.with_nullable(true))
        .collect();
    Arc::new(Schema::new(fields))
}
